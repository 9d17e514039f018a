"""Points by what was shown: the answer is right, what is counted is met, what is timed is met."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.base.errors import HarnessError, UsageProblem
from harness.content.kata import Kata
from harness.content.submission import resolve
from harness.content.syllabus import Assignment, Points
from harness.learner.progress import Measurement
from harness.running.runner import Outcome, run_kata
from harness.running.unmeasured import excused
from harness.running.verdict import is_stub

MOST_WORDS = 5  # failed checks that are quoted
TROUBLE = "the judge could not go on; tell your teacher"
PARTS = ("correct", "counted", "timed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """
    What runs of one kata have shown, on the CPU and, where there is one, on a GPU.

    Attributes:
        correct: No check of the answer failed; thresholds may have.
        counted: All that is counted was met; None where nothing is.
        timed: All that is timed was met; None where no clock has judged it, or nothing is timed.
        words: What is to be said: failed checks, a stub, trouble of the judge.
        judged: False where the judge itself could not go on: nobody's answer is to blame.
    """

    correct: bool
    counted: bool | None
    timed: bool | None
    words: str
    judged: bool = True

    def part(self, name: str) -> bool | None:
        """One of `PARTS`; what is counted or timed is worth nothing while the answer is wrong."""
        found: bool | None = getattr(self, name)
        return found if found is None else found and self.correct


def nothing(kata: Kata, devices: Sequence[str]) -> Shown:
    """What is shown of `kata` by who hands nothing in."""
    return Shown(
        correct=False,
        counted=False if kata.cost else None,
        timed=False if kata.speed and "cuda" in devices else None,
        words="nothing was handed in",
    )


def shown_by(kata: Kata, outcomes: Sequence[Outcome]) -> Shown:
    """What `outcomes`, one for each device, have shown of `kata`."""
    complete = all(one.status in ("passed", "failed") for one in outcomes)
    found = [measured for one in outcomes for measured in one.measurements]
    missed = [_said(one) for one in found if _outcome(one) == "failed"]
    wrong = [
        check
        for one in outcomes
        for check in one.checks
        if check.outcome == "failed" and not any(message in check.message for message in missed)
    ]
    reached: dict[str, set[str]] = defaultdict(set)
    for one in found:
        reached[one.name].add(_outcome(one))
    beside_the_point = {
        name for one in outcomes for name in excused(kata.tests, one.checks) if not reached[name]
    }
    costs = [reached[one.name] for one in kata.cost if one.name not in beside_the_point]
    times = [reached[one.name] for one in kata.speed]
    correct = complete and not wrong
    clocked = bool(times) and all(one and one <= {"passed", "failed"} for one in times)
    # a wrong answer is not timed, where it might have been
    refused = bool(times) and not correct and any(one.device == "cuda" for one in outcomes)
    return Shown(
        correct=correct,
        counted=all(one == {"passed"} for one in costs) if costs else None,
        timed=all(one == {"passed"} for one in times) if clocked else False if refused else None,
        words=_words(outcomes),
        judged=not any(one.status == "error" or _in_trouble(one) for one in outcomes),
    )


def _in_trouble(found: Outcome) -> bool:
    """Whether a check met something wrong with what is installed, and not with the answer."""
    red = [check.message for check in found.checks if check.outcome == "failed"]
    return any(message.startswith(f"{HarnessError.__name__}: ") for message in red)


def _outcome(found: Measurement) -> str:
    return str(found.detail.get("outcome", "passed" if found.passed else "failed"))


def _said(found: Measurement) -> str:
    return str(found.detail.get("message", found.name))


def _words(outcomes: Iterable[Outcome]) -> str:
    said: list[str] = []
    for one in outcomes:
        red = [check for check in one.checks if check.outcome == "failed"]
        if any(map(is_stub, red)):
            return "not written yet"
        said += [f"{check.name}: {check.message}" for check in red]
        if not red and one.status != "passed":
            said.append(f"{one.status.replace('_', ' ')}: {one.reason}")
    more = [f"and {len(said) - MOST_WORDS} more"] if len(said) > MOST_WORDS else []
    return "\n".join([*said[:MOST_WORDS], *more])


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """
    What a learner gets for one part of a kata.

    Attributes:
        part: One of `PARTS`.
        score, most: Points, and how many there are; both 0 where it was not judged.
        met: Whether it was shown; None where it was not judged.
        share: Of the points, for what is late.
    """

    kata: str
    part: str
    score: float
    most: float
    met: bool | None
    words: str


def marks_of(kata: str, shown: Shown, points: Points, *, share: float = 1.0) -> list[Mark]:
    """The marks of a kata; a part that is worth nothing has none. `share` is for what is late."""
    found = []
    for part in PARTS:
        most, met = float(getattr(points, part)), shown.part(part)
        if most:
            late = f"late: {share:.0%} of the points" if met and share < 1 else ""
            words = "not judged on this machine" if met is None else late if met else shown.words
            words = words if shown.judged else f"{TROUBLE}: {shown.words}"
            found.append(
                Mark(
                    kata=kata,
                    part=part,
                    score=most * share if met else 0.0,
                    most=most if met is not None else 0.0,
                    met=met,
                    words=words or ("" if met else "a limit was not met"),
                )
            )
    return found


# ---- one learner's files -------------------------------------------------------------------


def find_file(folder: Path, kata: Kata) -> Path | None:
    """
    The file of `kata` in what a learner handed in: at its place in the course, or anywhere else.

    Raises:
        UsageProblem: there are several, none of them at its place.
    """
    place = folder / kata.file.relative_to(kata.root)
    if place.is_file():
        return place
    found = [
        file
        for file in sorted(folder.rglob(kata.file.name))
        if file.is_file()
        and not any(
            part.startswith(".") or part in ("solutions", "tests")
            for part in file.relative_to(folder).parts
        )
    ]
    if len(found) > 1:
        names = ", ".join(str(file.relative_to(folder)) for file in found)
        raise UsageProblem(f"{folder}: expected one {kata.file.name}, found {names}. Hand in one.")
    return found[0] if found else None


def judge(kata: Kata, file: Path, devices: Sequence[str], cache: Path) -> Shown:
    """Run `file` on each of `devices` and tell what it has shown."""
    outcomes = [run_kata(resolve(kata, str(file), cache), device=device) for device in devices]
    return shown_by(kata, outcomes)


def assess(
    folder: Path,
    assignments: Iterable[Assignment],
    katas: Mapping[str, Kata],
    *,
    at: datetime,
    late: float,
    devices: Sequence[str],
    cache: Path,
) -> Iterator[tuple[Assignment, Mark]]:
    """The marks of a learner who handed in `folder` at `at`, kata after kata."""
    for assignment in assignments:
        share = late if assignment.is_late(at) else 1.0
        for name in assignment.katas:
            kata = katas[name]
            file = find_file(folder, kata)
            shown = judge(kata, file, devices, cache) if file else nothing(kata, devices)
            for mark in marks_of(name, shown, assignment.points, share=share):
                yield assignment, mark


# ---- for other programs --------------------------------------------------------------------


def as_gradescope(marks: Sequence[tuple[Assignment, Mark]], *, spent_s: float) -> str:
    """``results.json`` of a Gradescope autograder; what was not judged is shown without points."""
    tests: list[dict[str, Any]] = []
    numbers: dict[tuple[str, str], int] = {}
    for assignment, mark in marks:
        key = assignment.name, mark.kata
        first = numbers.setdefault(key, len(numbers) + 1)
        tests.append(
            {
                "name": f"{mark.kata}: {mark.part}",
                "number": f"{first}.{PARTS.index(mark.part) + 1}",
                "score": mark.score,
                "max_score": mark.most,
                "output": mark.words,
                "visibility": "visible",
                **({} if mark.met is None else {"status": "passed" if mark.met else "failed"}),
            }
        )
    results = {"execution_time": round(spent_s), "stdout_visibility": "hidden", "tests": tests}
    return json.dumps(results, indent=1) + "\n"


def as_table(marks: Sequence[tuple[Assignment, Mark]]) -> str:
    """The same as a table in Markdown, for a summary of GitHub Actions."""
    lines = ["| assignment | kata | part | points | |", "|---|---|---|---:|---|"]
    for assignment, mark in marks:
        points = f"{mark.score:g} of {mark.most:g}" if mark.met is not None else "not judged"
        words = " ".join(mark.words.split()).replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"| {assignment.name} | {mark.kata} | {mark.part} | {points} | {words} |")
    score, most = total(mark for _, mark in marks)
    return "\n".join([*lines, f"| **total** | | | **{score:g} of {most:g}** | |"]) + "\n"


def total(marks: Iterable[Mark]) -> tuple[float, float]:
    """Points, and how many there are."""
    found = list(marks)
    return sum(mark.score for mark in found), sum(mark.most for mark in found)
