"""A class: many learners' exports in one table, many submissions graded by one engine."""

import logging
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from harness.base.errors import HarnessError, UsageProblem
from harness.content.catalog import Curriculum
from harness.content.kata import Kata, load_kata
from harness.content.submission import resolve
from harness.hardware.environment import cache_folder
from harness.learner.mastery import Level
from harness.learner.progress import Progress
from harness.reports.scorecard import Scorecard, read_scorecard
from harness.running.runner import run_kata


@dataclass(frozen=True, slots=True, kw_only=True)
class Pupil:
    """One learner, named after their file, and their scorecard."""

    name: str
    card: Scorecard

    @property
    def solved(self) -> int:
        """Katas that are fast or mastered."""
        return sum(kata.level.owned for kata in self.card.katas)

    @property
    def mastered(self) -> int:
        """Katas that are mastered."""
        return sum(kata.level == Level.MASTERED for kata in self.card.katas)

    @property
    def runs(self) -> int:
        """Runs ever."""
        return sum(day.runs for day in self.card.days)

    @property
    def hints(self) -> int:
        """Hints ever shown."""
        return sum(kata.hints for kata in self.card.katas)

    @property
    def peeks(self) -> int:
        """Rounds in which the solution was seen."""
        return sum(kata.peeks for kata in self.card.katas)

    @property
    def last(self) -> str:
        """The last day with a run; empty without one."""
        return str(self.card.days[-1].on) if self.card.days else ""


def read_class(folder: Path, curriculum: Curriculum, now: datetime) -> list[Pupil]:
    """
    The learners whose exports (``kata export``, one ``NAME.jsonl`` each) lie in `folder`.

    Raises:
        UsageProblem: there are none.
        HarnessError: one of them is no export; it is named.
    """
    files = sorted(file for file in folder.glob("*.jsonl") if file.is_file())
    if not files:
        raise UsageProblem(
            f"{folder}: expected exports as NAME.jsonl, found none. Each learner makes one: "
            "kata export -o NAME.jsonl"
        )
    return [Pupil(name=file.stem, card=_card(file, curriculum, now)) for file in files]


def _card(file: Path, curriculum: Curriculum, now: datetime) -> Scorecard:
    with (
        tempfile.TemporaryDirectory(prefix="kata-class-") as home,
        file.open(encoding="utf-8") as stream,
    ):
        progress = Progress(Path(home))
        progress.import_(stream)
        return read_scorecard(curriculum, progress, now)


# ---- grading -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """One submission judged: `status` and `reason` as of a run."""

    learner: str
    kata: str
    status: str
    reason: str
    checks: int
    passed: int
    duration_s: float


def submissions_in(folder: Path, curriculum: Curriculum) -> list[tuple[str, Kata, Path]]:
    """
    What was handed in as ``LEARNER/KATA.py``.

    Raises:
        UsageProblem: there is nothing, or a file is named after no kata.
    """
    katas = {path.name: path for path in curriculum.folders()}
    files = sorted(file for file in folder.glob("*/*.py") if file.is_file())
    unknown = [str(file.relative_to(folder)) for file in files if file.stem not in katas]
    if unknown or not files:
        raise UsageProblem(
            f"{folder}: expected LEARNER/KATA.py, found {', '.join(unknown) or 'nothing so named'}."
        )
    return [(file.parent.name, load_kata(katas[file.stem]), file.resolve()) for file in files]


def grade(
    submissions: Sequence[tuple[str, Kata, Path]], *, device: str, jobs: int
) -> Iterator[Grade]:
    """
    Judge many submissions with Ray on this machine, each in a process of its own; as they end.

    Args:
        submissions: What `submissions_in` found.
        device: "cpu" or "cuda"; on a GPU one after another, since they are timed.
        jobs: At a time.

    Raises:
        HarnessError: Ray is not installed.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise HarnessError(
            "class grade: expected Ray, found none. Install it: pip install 'gpu-katas[class]'"
        ) from None
    ray.init(
        num_cpus=jobs, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
    )
    try:
        judge = ray.remote(num_cpus=jobs if device == "cuda" else 1, max_retries=0)(_grade)
        left = [
            judge.remote(learner, kata.folder, file, device) for learner, kata, file in submissions
        ]
        while left:
            (done, *_), left = ray.wait(left, num_returns=1)
            yield ray.get(done)
    finally:
        ray.shutdown()


def _grade(learner: str, folder: Path, file: Path, device: str) -> Grade:
    kata = load_kata(folder)
    outcome = run_kata(resolve(kata, str(file), cache_folder()), device=device)
    return Grade(
        learner=learner,
        kata=kata.name,
        status=outcome.status,
        reason=outcome.reason,
        checks=sum(check.outcome != "skipped" for check in outcome.checks),
        passed=sum(check.outcome == "passed" for check in outcome.checks),
        duration_s=outcome.duration_s,
    )
