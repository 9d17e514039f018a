"""An attempt: a run that is kept, however it ends."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from harness.base.errors import DeviceError, DiskFull, HarnessError
from harness.base.files import read_file
from harness.base.processes import Interrupts
from harness.content.kata import Kata
from harness.content.submission import Submission
from harness.hardware.environment import device_present, home_folder
from harness.hardware.packages import missing_for
from harness.hardware.profiles import find_profile, load_profiles
from harness.learner.progress import Progress
from harness.learner.workspace import Workspace
from harness.running.runner import Outcome, run_kata

EDITED = "{file} was changed while it was being judged, so there is no verdict: run it again"


def attempt(
    submission: Submission,
    progress: Progress | None,
    workspace: Workspace,
    *,
    device: str,
    seed: int | None = None,
    profile: str | None = None,
    extra: Sequence[str] = (),
    meanwhile: Callable[[], None] | None = None,
) -> Outcome:
    """
    Run a submission and keep the attempt, an interrupted one as aborted.

    The untouched stub is run like any other file, and is no attempt: nothing of it is kept.

    Args:
        submission: What is judged; a file of the learner's own that passes is kept as well.
        progress: Where the attempt is kept; None where there is no room for that.
        workspace: Where the file is kept.
        device: "cpu" or "cuda".
        seed: Of an earlier run, to see it again.
        profile: The hardware profile to judge against.
        extra: Further options of pytest.
        meanwhile: Called often while the run goes on; what it raises ends the run.

    Returns:
        The verdict, which is given all the same where a full disk keeps nothing: `unkept` says so.

    Raises:
        HarnessError: there is no file, or a package that the kata needs is missing.
        MetadataError: a hardware profile is wrong: the house's fault, and no attempt.
        DeviceError: there is no GPU to run it on, or after a crash it does not answer any more.
    """
    kata = submission.kata
    if missing := missing_for(kata):
        raise HarnessError(missing)
    if device == "cuda" and not device_present():
        raise DeviceError("--device cuda: expected a GPU, found none. Use --device cpu.")
    if not submission.code_hash:
        read_file(submission.path)  # says what is wrong with it
    assert_profiles(kata, device)
    if submission.is_blank:
        progress = None
    begun = None
    keeping = _Keeping()
    with Interrupts() as interrupts:
        if progress:
            with keeping.what_fits():
                progress.abort_orphans()
                begun = progress.start(
                    kata.name,
                    submission.owner,
                    submission.code_hash,
                    seed=seed or 0,
                    device=device,
                    profile=profile or "",
                )
        try:
            with interrupts.allowed():
                outcome = run_kata(
                    submission,
                    device=device,
                    seed=seed,
                    profile=profile,
                    extra=extra,
                    meanwhile=meanwhile,
                )
        except BaseException as error:
            if progress and begun:
                with keeping.what_fits():
                    progress.finish(begun, "aborted", str(error) or "interrupted", checks=(),
                                    measurements=(), versions={}, duration_s=0.0)  # fmt: skip
            raise
        if not submission.is_unchanged():
            reason = EDITED.format(file=submission.path.name)
            outcome = replace(outcome, status="error", reason=reason)
        if progress and begun:
            with keeping.what_fits():
                progress.finish(
                    begun,
                    outcome.status,
                    outcome.reason,
                    checks=outcome.checks,
                    measurements=outcome.measurements,
                    versions=outcome.versions,
                    duration_s=outcome.duration_s,
                    seed=outcome.seed,
                    profile=outcome.profile,
                )
    if outcome.status == "passed" and submission.owner == "yours":
        with keeping.what_fits():
            workspace.keep(kata.name, submission.path, "passed")
    if outcome.device_problem:
        raise DeviceError(
            f"{kata.name}: {outcome.reason}. Since then the GPU fails a tiny launch: expected an "
            f"answer, found {outcome.device_problem}. Reset it (nvidia-smi --gpu-reset, or a "
            "restart) before the next kata."
            + (f" Not kept: {keeping.problem}" if keeping.problem else "")
        )
    return replace(outcome, unkept=keeping.problem)


class _Keeping:
    """What becomes of an attempt that has to be kept where there may be no room."""

    def __init__(self) -> None:
        self.problem = ""

    @contextmanager
    def what_fits(self) -> Iterator[None]:
        """Go on after the block where a full disk ends it, and note why nothing is kept."""
        try:
            yield
        except DiskFull as error:
            self.problem = error.message


def assert_profiles(kata: Kata, device: str) -> None:
    """
    Read the profiles that a run may need, before it begins.

    Raises:
        MetadataError: One is wrong.
    """
    folder, calibrated = kata.root / "hardware_profiles", home_folder(kata.root) / "calibrated"
    if device == "cuda":  # which of them is known in the run only
        load_profiles(folder, calibrated=calibrated)
    else:
        find_profile(folder, kata.profile or "cpu", calibrated=calibrated)
