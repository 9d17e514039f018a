"""
A teacher's ``course.toml``: which katas, when they are due, what they are worth.

    title = "ML systems, spring 2027"
    late  = 0.5             # of the points, for what is handed in after the due date; default 0
    hints = 1               # of the three of a kata that `kata release` leaves in; default 3

    [points]                # of a kata, by what was shown; default 6, 4, 0
    correct = 6
    counted = 4
    timed   = 0

    [[assignments]]
    name  = "First kernels"
    due   = 2027-02-14                  # to the end of that day, UTC; or a time with its zone
    katas = ["vector_add", "fused_silu"]     # or `week = 9` for all of a week
    points = { correct = 10, counted = 5, timed = 5 }   # optional
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

from harness.base.errors import UsageProblem, nearest
from harness.base.schema import Problems, Table, read_toml
from harness.content.catalog import Curriculum

MOST_HINTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """
    What a kata is worth.

    Attributes:
        correct: For an answer that is right in every check.
        counted: For meeting all that is counted, on any machine.
        timed: For meeting all that is timed; given only where there was a clock to judge it.
    """

    correct: float = 6.0
    counted: float = 4.0
    timed: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """
    Katas that are due together.

    Attributes:
        due: With its zone; None without a date.
        katas: Names.
        points: For each of the katas.
    """

    name: str
    due: datetime | None
    katas: tuple[str, ...]
    points: Points

    def is_late(self, at: datetime) -> bool:
        """Whether what is handed in at `at` comes after the due date."""
        return self.due is not None and at > self.due


@dataclass(frozen=True, slots=True, kw_only=True)
class Syllabus:
    """
    A course.

    Attributes:
        late: The share of the points, 0 to 1, for what comes after the due date.
        hints: How many of the three hints of a kata are released.
    """

    title: str
    late: float
    hints: int
    assignments: tuple[Assignment, ...]

    @property
    def katas(self) -> tuple[str, ...]:
        """Every kata of it once, in the order of the assignments."""
        return tuple(dict.fromkeys(name for one in self.assignments for name in one.katas))

    def assignment(self, name: str) -> Assignment:
        """
        One assignment.

        Raises:
            UsageProblem: there is none of that name.
        """
        names = [one.name for one in self.assignments]
        if name not in names:
            close = nearest(name, names) or f" There are: {', '.join(names)}."
            raise UsageProblem(f"--assignment: expected one of course.toml, found {name!r}.{close}")
        return self.assignments[names.index(name)]


def load_syllabus(path: Path, curriculum: Curriculum) -> Syllabus:
    """
    Read a ``course.toml``.

    Raises:
        MetadataError: with all problems of the file at once.
    """
    data = read_toml(path)
    by_week: dict[int, list[str]] = {}
    for folder in curriculum.folders():
        by_week.setdefault(int(folder.parent.name.removeprefix("week")), []).append(folder.name)
    with Problems(path) as problems:
        table = Table(data, problems)
        usual = _points(Table(table.take("points", dict, {}), problems, "points."), Points())
        found = Syllabus(
            title=table.take("title", str),
            late=table.take("late", float, 0.0),
            hints=table.take("hints", int, MOST_HINTS),
            assignments=tuple(
                _assignment(row, usual, by_week) for row in table.tables("assignments")
            ),
        )
        table.done()
        if not 0 <= found.late <= 1:
            problems.add("late", "a share from 0 to 1", found.late)
        if not 0 <= found.hints <= MOST_HINTS:
            problems.add("hints", f"0 to {MOST_HINTS}", found.hints)
        if not found.assignments:
            problems.add("assignments", "at least one", "none")
        names = [one.name for one in found.assignments]
        for name in {name for name in names if names.count(name) > 1}:
            problems.add("assignments", "a name for each", f"{name!r} twice")
    return found


def _assignment(row: Table, usual: Points, by_week: Mapping[int, list[str]]) -> Assignment:
    name = row.take("name", str)
    week, named = row.optional("week", int), row.texts("katas", default=())
    known = {kata for katas in by_week.values() for kata in katas}
    if (week is None) == (not named):
        row.problems.add(
            f"{row.where}katas", "either names or a `week`", "both" if named else "none"
        )
    elif week is not None and week not in by_week:
        row.problems.add(f"{row.where}week", "a week with katas", week)
    for kata in (one for one in named if one not in known):
        row.problems.add(f"{row.where}katas", "names of katas", repr(kata) + nearest(kata, known))
    due = _due(row)
    points = _points(
        Table(row.take("points", dict, {}), row.problems, f"{row.where}points."), usual
    )
    row.done()
    katas = named if week is None else tuple(by_week.get(week, ()))
    return Assignment(name=name, due=due, katas=katas, points=points)


def _points(row: Table, usual: Points) -> Points:
    points = Points(
        correct=row.take("correct", float, usual.correct),
        counted=row.take("counted", float, usual.counted),
        timed=row.take("timed", float, usual.timed),
    )
    row.done()
    if min(points.correct, points.counted, points.timed) < 0:
        row.problems.add(row.where.rstrip("."), "no points below 0", points)
    return points


def _due(row: Table) -> datetime | None:
    value = row.optional("due", date)  # a datetime is a date, too
    if value is None:
        return None
    if not isinstance(value, datetime):
        return datetime.combine(value, time(), UTC) + timedelta(days=1, microseconds=-1)
    if value.tzinfo is None:
        expected = "a day, or a time with its zone as in 2027-02-14T18:00:00+01:00"
        row.problems.add(f"{row.where}due", expected, value.isoformat())
    return value
