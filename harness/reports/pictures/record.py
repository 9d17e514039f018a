"""
Records one call of a kata's function on the simulators, and prints it as JSON.

It runs in a process of its own (``python -m harness.reports.pictures.record``), whose environment
has switched the simulators on before they are imported.
"""

import sys
from functools import partial
from pathlib import Path

from harness.base.errors import HarnessError
from harness.content.functions import function_of, in_oracle
from harness.content.kata import load_kata
from harness.content.submission import resolve
from harness.hardware.environment import cache_folder
from harness.judge.loading import Loadable, load_module
from harness.judge.trial import case_arguments
from harness.reports.pictures.recording import Recording
from harness.reports.pictures.timeline import Timeline

STUB, REFUSED = 10, 11  # exit codes: nothing written yet; an error that says itself what to do


def record(submission: Loadable, case: int) -> Recording | Timeline | None:
    """Record the call on a case, counted from 1; on the inputs of seed 0."""
    kata = submission.kata
    chosen = kata.cases[case - 1]
    arguments, function = case_arguments(chosen, kata.backend), function_of(chosen)
    make_inputs = in_oracle(load_module(kata.oracle), "make_inputs", function)
    if kata.backend == "numba":
        from harness.simulators.simt import install

        install()  # before the file's own `@cuda.jit`
    entry = submission.named(function or kata.functions[0])
    inputs = make_inputs(**arguments, device="cpu", seed=0)
    call = partial(entry, **inputs)
    if kata.backend == "numba":
        from harness.reports.pictures.record_simt import record_simt

        return record_simt(call)
    if kata.backend == "gluon":
        from harness.reports.pictures.record_gluon import record_gluon

        return record_gluon(call)
    from harness.reports.pictures.record_triton import record_triton

    return record_triton(call, submission.path)


def main(folder: str, path: str, case: str, out: str) -> int:
    """Write the recording of the file `path` to the file `out`; return the exit code."""
    kata = load_kata(Path(folder))
    submission = Loadable.of(resolve(kata, path, cache_folder()))
    try:
        found = record(submission, int(case))
    except NotImplementedError:
        return STUB
    except HarnessError as error:
        Path(out).write_text(error.message, encoding="utf-8")
        return REFUSED
    Path(out).write_text(found.as_json() if found else "", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
