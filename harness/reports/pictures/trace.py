"""A recorded call of a kata's kernels, had from a process of its own."""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from harness.base.errors import SubmissionError, UsageProblem
from harness.base.processes import run_group
from harness.content.kata import Kata
from harness.content.submission import Submission
from harness.reports.pictures.record import REFUSED, STUB
from harness.reports.pictures.recording import Recording
from harness.reports.pictures.timeline import Timeline

LIMIT_S = 300.0
RECORDED = ("triton", "numba")
TIMED = ("gluon",)  # of whose programs a timeline is had
SIMULATED = {"TRITON_INTERPRET": "1", "NUMBA_ENABLE_CUDASIM": "1"}


def check_case(kata: Kata, case: int) -> None:
    """
    Refuse what cannot be recorded.

    Raises:
        UsageProblem: no simulator runs the kata, or it has no such case for the CPU.
    """
    if kata.backend not in (*RECORDED, *TIMED):
        kernels = " or ".join((*RECORDED, *TIMED))
        raise UsageProblem(
            f"trace: expected a kata with kernels ({kernels}), found {kata.name}, "
            f"whose backend is {kata.backend}. `kata list` shows the others."
        )
    if not 1 <= case <= len(kata.cases) or kata.cases[case - 1].get("only") == "cuda":
        known = "; ".join(
            f"{number}: {case_words(kata, number)}"
            for number, one in enumerate(kata.cases, 1)
            if one.get("only") != "cuda"
        )
        raise UsageProblem(
            f"trace: expected a case of {kata.name} that runs on the CPU, found --case {case}. "
            f"There are {known or 'none'}."
        )


def case_words(kata: Kata, case: int) -> str:
    """A case as a learner reads it in kata.toml."""
    return ", ".join(f"{name} = {value}" for name, value in kata.cases[case - 1].items())


def recorded(submission: Submission, case: int) -> Recording:
    """
    Run a submission on a case of its kata, counted from 1, on the simulators.

    Raises:
        UsageProblem: as `check_case`.
        SubmissionError: it is still a stub, launches no kernel, or does not return.
    """
    found = Recording.from_json(_written(submission, case))
    if not found.units:
        raise _no_launch(submission, case)
    return found


def timeline(submission: Submission, case: int) -> Timeline:
    """The same of a kata in Gluon: what its largest program did when."""
    text = _written(submission, case)
    if not text:
        raise _no_launch(submission, case)
    return Timeline.from_json(text)


def _no_launch(submission: Submission, case: int) -> SubmissionError:
    return SubmissionError(
        f"trace: expected {submission.kata.functions[0]} to launch a kernel on case {case}, found "
        "none. Another --case may have more to do."
    )


def _written(submission: Submission, case: int) -> str:
    """What the recording process wrote."""
    check_case(submission.kata, case)
    return written_by(
        "harness.reports.pictures.record", "trace", submission, case, environment=SIMULATED
    )


def written_by(
    module: str,
    command: str,
    submission: Submission,
    case: int,
    *options: str,
    environment: Mapping[str, str],
) -> str:
    """
    What a process of its own wrote that called a submission on a case of its kata.

    Args:
        module: What the process runs.
        command: The command of `kata` that wants it, for messages.
        options: More arguments of the process.

    Raises:
        SubmissionError: it is still a stub, or does not return; or what the process refused.
    """
    kata = submission.kata
    with tempfile.TemporaryDirectory(prefix=f"kata-{command}-") as folder:
        out = Path(folder) / "written"
        arguments = (str(kata.folder), str(submission.path), str(case), *options, str(out))
        exit_code, output = run_group(
            [sys.executable, "-m", module, *arguments], LIMIT_S, dict(environment), cwd=kata.root
        )
        written = out.read_text(encoding="utf-8") if out.is_file() else ""
    if exit_code == STUB:
        raise SubmissionError(submission.stub_message())
    if exit_code == REFUSED:
        raise SubmissionError(written)
    if exit_code != 0:
        how = "no end" if exit_code is None else f"exit {exit_code}"
        raise SubmissionError(
            f"{command}: expected {kata.functions[0]} to return on case {case}, found {how}:\n"
            f"{output.strip()}"
        )
    return written
