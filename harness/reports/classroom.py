"""A class: many learners' exports in one table, many submissions graded by one engine."""

import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from harness.base.errors import HarnessError, UsageProblem
from harness.content.catalog import Curriculum
from harness.content.kata import Kata, load_kata
from harness.content.submission import resolve
from harness.content.syllabus import Assignment, Syllabus
from harness.hardware.environment import cache_folder
from harness.learner.mastery import Level
from harness.learner.progress import Progress
from harness.learner.progress.exchange import learner_of
from harness.reports.grading import Shown, marks_of, nothing, shown_by, total
from harness.reports.scorecard import Scorecard, read_scorecard
from harness.running.runner import run_kata


@dataclass(frozen=True, slots=True, kw_only=True)
class Pupil:
    """
    One learner and their scorecard.

    Attributes:
        name: As the export says, else that of its file.
        solved_at: When each kata was first solved, by name.
    """

    name: str
    card: Scorecard
    solved_at: Mapping[str, datetime] = field(default_factory=dict)

    @property
    def solved(self) -> int:
        """Katas that are solved or better."""
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

    def solved_of(self, assignment: Assignment) -> tuple[int, int]:
        """How many of its katas were solved in time, and how many late."""
        days = [self.solved_at[name] for name in assignment.katas if name in self.solved_at]
        late = sum(assignment.is_late(day) for day in days)
        return len(days) - late, late

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
    return [_pupil(file, curriculum, now) for file in files]


def _pupil(file: Path, curriculum: Curriculum, now: datetime) -> Pupil:
    with (
        tempfile.TemporaryDirectory(prefix="kata-class-") as home,
        file.open(encoding="utf-8") as stream,
    ):
        progress = Progress(Path(home))
        progress.import_(stream)
        stream.seek(0)
        solved: dict[str, datetime] = {}
        for one in progress.outlines():
            if one.status == "passed":
                solved.setdefault(one.kata, datetime.fromisoformat(one.started_at))
        return Pupil(
            name=learner_of(stream) or file.stem,
            card=read_scorecard(curriculum, progress, now),
            solved_at=solved,
        )


# ---- grading -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """
    One submission judged: `status` and `reason` as of a run.

    Where there is a GPU it is judged twice, with the checks of both runs: the one that did not pass
    gives status and reason.
    """

    learner: str
    kata: str
    status: str
    reason: str
    checks: int
    passed: int
    duration_s: float
    shown: Shown


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
    submissions: Sequence[tuple[str, Kata, Path]], *, devices: Sequence[str], jobs: int
) -> Iterator[Grade]:
    """
    Judge many submissions with Ray on this machine, each in a process of its own; as they end.

    Args:
        submissions: What `submissions_in` found.
        devices: "cpu", or that and "cuda"; with a GPU one after another, since they are timed.
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
        judge = ray.remote(num_cpus=jobs if "cuda" in devices else 1, max_retries=0)(_grade)
        left = [
            judge.remote(learner, kata.folder, file, devices) for learner, kata, file in submissions
        ]
        while left:
            (done, *_), left = ray.wait(left, num_returns=1)
            yield ray.get(done)
    finally:
        ray.shutdown()


def _grade(learner: str, folder: Path, file: Path, devices: Sequence[str]) -> Grade:
    kata = load_kata(folder)
    submission = resolve(kata, str(file), cache_folder())
    outcomes = [run_kata(submission, device=device) for device in devices]
    telling = next((one for one in outcomes if one.status != "passed"), outcomes[-1])
    checks = [check for one in outcomes for check in one.checks]
    return Grade(
        learner=learner,
        kata=kata.name,
        status=telling.status,
        reason=telling.reason,
        checks=sum(check.outcome != "skipped" for check in checks),
        passed=sum(check.outcome == "passed" for check in checks),
        duration_s=sum(one.duration_s for one in outcomes),
        shown=shown_by(kata, outcomes),
    )


# ---- points --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A learner's points: of each assignment by name, and how many there are of it."""

    learner: str
    points: Mapping[str, tuple[float, float]]

    @property
    def total(self) -> tuple[float, float]:
        """Of all assignments."""
        scores, most = zip(*self.points.values(), strict=True)
        return sum(scores), sum(most)


def gradebook(
    grades: Iterable[Grade],
    syllabus: Syllabus,
    katas: Mapping[str, Kata],
    devices: Sequence[str],
) -> list[Line]:
    """
    The points of each learner, by name; a kata that was not handed in has none.

    What is late is not known of files: `kata class autograde` is told when they were handed in.
    """
    found: dict[str, dict[str, Shown]] = {}
    for one in grades:
        found.setdefault(one.learner, {})[one.kata] = one.shown
    return [
        Line(
            learner=learner,
            points={
                one.name: total(
                    mark
                    for name in one.katas
                    for mark in marks_of(
                        name, shown.get(name) or nothing(katas[name], devices), one.points
                    )
                )
                for one in syllabus.assignments
            },
        )
        for learner, shown in sorted(found.items())
    ]
