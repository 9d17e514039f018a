"""
Runs a kata's function once, its kernels executed as PTX, and writes what each line did as JSON.

It runs in a process of its own (``python -m harness.reports.list_lines``): it pretends to have a
GPU, and Triton's interpreter is off.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.base.errors import HarnessError
from harness.content.functions import function_of, in_oracle
from harness.content.kata import load_kata
from harness.content.submission import resolve
from harness.hardware.environment import cache_folder
from harness.judge.loading import Loadable, load_module
from harness.judge.trial import case_arguments
from harness.reports.listing import Listing
from harness.reports.pictures.record import REFUSED, STUB
from harness.simulators.ptx import Unsupported
from harness.simulators.ptx.host import Launched


def run_case(submission: Loadable, case: int, target: str) -> list[Launched]:
    """The launches of a call on a case, counted from 1, on the inputs of seed 0."""
    kata = submission.kata
    arguments = case_arguments(kata.cases[case - 1], kata.backend)
    function = function_of(kata.cases[case - 1])
    entry = function or kata.functions[0]

    def inputs() -> dict[str, Any]:
        make_inputs = in_oracle(load_module(kata.oracle), "make_inputs", function)
        return make_inputs(**arguments, device="cpu", seed=0)  # type: ignore[no-any-return]

    if kata.backend == "cuda":
        from harness.meters.ptx import ptx_meter
        from harness.simulators.ptx.host import launching

        given = inputs()
        with launching(arch=target), ptx_meter(raising=False) as meter:
            submission.named(entry)(**given)
        return meter.launched
    from harness.meters.triton_ptx import run_compiled

    launched = run_compiled(target)
    given = inputs()
    submission.named(entry)(**given)
    return launched


def listing_of(launched: Sequence[Launched], target: str) -> Listing:
    """What all launches did, by the lines of the file that holds the first one's source."""
    if not launched:
        return Listing(file="", kernels={}, rows=())
    first = launched[0].source
    counts: dict[int, Counter[str]] = {}
    for one in launched:
        if (one.source.file, one.source.before) != (first.file, first.before):
            continue  # another file, or another string of this one
        for line, found in one.run.lines.items():
            counts.setdefault(first.before + line, Counter()).update(found)
    text = dict(enumerate(first.lines, first.before + 1))
    hazards = dict.fromkeys(str(hazard) for one in launched for hazard in one.hazards)
    return Listing.of(
        Path(first.file or f"{first.name}.cu").name,
        text,
        counts,
        kernels=dict(Counter(one.kernel for one in launched)),
        hazards=tuple(hazards),
        how=f"as PTX of {target}",
    )


def main(folder: str, path: str, case: str, target: str, out: str) -> int:
    """Write the listing of the file `path` to the file `out`; return the exit code."""
    kata = load_kata(Path(folder))
    submission = Loadable.of(resolve(kata, path, cache_folder()))
    try:
        found = listing_of(run_case(submission, int(case), target), target)
    except NotImplementedError:
        return STUB
    except HarnessError as error:
        Path(out).write_text(error.message, encoding="utf-8")
        return REFUSED
    except Unsupported as error:
        words = f"{kata.name}: expected code that the simulator models, found {error}."
        Path(out).write_text(words, encoding="utf-8")
        return REFUSED
    Path(out).write_text(found.as_json(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
