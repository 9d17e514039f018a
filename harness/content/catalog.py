"""The curriculum as plain data: parts, topics, weeks, and where the katas are."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from harness.base.errors import MetadataError, UsageProblem, nearest
from harness.base.schema import Problems, Table, read_toml
from harness.base.shelf import Shelf
from harness.content.course import shipped
from harness.content.kata import Kata, Read, load_kata, week_number

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One entry of a reading list; `hours` is 0 where the curriculum prints none."""

    title: str
    hours: float
    link: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Something the curriculum says that is not so."""

    says: str
    truth: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Week:
    """One week: what to understand, do, prove and read. Keys are ids such as ``09.1``."""

    number: int
    title: str
    goal: str
    concepts: Mapping[str, str]
    hands_on: Mapping[str, str]
    milestone: Mapping[str, str]
    deliverables: Mapping[str, str]
    reading: tuple[Reading, ...]
    corrections: tuple[Correction, ...]

    def items(self) -> dict[str, str]:
        """Everything a kata may say it covers, id to name."""
        return {**self.concepts, **self.hands_on, **self.milestone, **self.deliverables}


def load_week(path: Path, read: Read = read_toml) -> Week:
    """Read a ``week.toml``, parsed by `read`; all its problems at once."""
    data = read(path)
    with Problems(path) as problems:
        table = Table(data, problems)
        week = Week(
            number=week_number(path, problems),
            title=table.take("title", str),
            goal=table.take("goal", str),
            concepts=table.take("concepts", dict, {}),
            hands_on=table.take("hands_on", dict, {}),
            milestone=table.take("milestone", dict, {}),
            deliverables=table.take("deliverables", dict, {}),
            reading=tuple(_reading(row) for row in table.tables("reading")),
            corrections=tuple(_correction(row) for row in table.tables("corrections")),
        )
        table.done()
        for item in week.items():
            if not item.startswith(f"{week.number:02d}."):
                problems.add(item, f"an id of this week, {week.number:02d}.…", item)
    return week


def _reading(row: Table) -> Reading:
    reading = Reading(
        title=row.take("title", str),
        hours=row.take("hours", float, 0.0),
        link=row.take("link", str),
    )
    if not reading.link.startswith("https://"):
        row.problems.add(f"{row.where}link", "an https:// address", repr(reading.link))
    row.done()
    return reading


def _correction(row: Table) -> Correction:
    correction = Correction(
        says=row.take("says", str), truth=row.take("truth", str), source=row.take("source", str)
    )
    row.done()
    return correction


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A run of weeks with one goal."""

    id: int
    name: str
    goal: str
    weeks: range


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A node of the dependency map; `needs` are topic ids."""

    id: str
    name: str
    part: int
    weeks: tuple[int, ...]
    needs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Curriculum:
    """
    Everything under ``katas/``; read lazily, so that one kata costs one of them.

    Attributes:
        shelf: What `weeks` and `katas` were parsed into before; a kata to be judged is read afresh.
    """

    root: Path
    parts: tuple[Part, ...] = field(default=())
    topics: tuple[Topic, ...] = field(default=())
    corrections: tuple[Correction, ...] = field(default=())
    shelf: Shelf | None = None

    @cached_property
    def weeks(self) -> dict[int, Week]:
        """Every week by number."""
        paths = sorted((self.root / "katas").glob("week*/week.toml"))
        weeks = self._shelved(load_week, paths)
        return {week.number: week for week in weeks}

    @cached_property
    def items(self) -> dict[str, str]:
        """Everything that a kata may cover, id to name, in the order of the weeks."""
        return {id_: name for week in self.weeks.values() for id_, name in week.items().items()}

    @cached_property
    def katas(self) -> dict[str, Kata]:
        """Every kata by name, in the order of the weeks."""
        katas = self._shelved(self._load_kata, self.folders())
        return {kata.name: kata for kata in katas}

    def all_katas(self) -> list[Kata]:
        """Every kata, read afresh."""
        return _all_or_every_problem(self._load_kata, self.folders())

    def week(self, number: int) -> Week:
        """
        One week.

        Raises:
            UsageProblem: the curriculum has no such week.
        """
        if number not in self.weeks:
            known = f"week{min(self.weeks):02d} to week{max(self.weeks):02d}"
            raise UsageProblem(f"week: expected {known}, found week{number:02d}.")
        return self.weeks[number]

    def folders(self) -> list[Path]:
        """The folder of every kata, without reading any of them."""
        return sorted(path.parent for path in (self.root / "katas").glob("week*/*/kata.toml"))

    def kata(self, name: str) -> Kata:
        """
        One kata by its name or by ``week09/name``.

        Raises:
            UsageProblem: no such kata, with the nearest names.
        """
        for folder in self.folders():
            if name in (folder.name, f"{folder.parent.name}/{folder.name}"):
                return self._load_kata(folder)
        names = [folder.name for folder in self.folders()]
        close = nearest(name, names) or " `kata list` shows them all."
        raise UsageProblem(f"kata: expected the name of a kata, found {name!r}.{close}")

    def week_katas(self, *weeks: int) -> list[Kata]:
        """
        The katas of these weeks.

        Raises:
            UsageProblem: the weeks have no katas yet.
        """
        names = {f"week{number:02d}" for number in weeks}
        folders = [path for path in self.folders() if path.parent.name in names]
        if not folders:
            which = " to ".join(map(str, dict.fromkeys([min(weeks), max(weeks)])))
            raise UsageProblem(
                f"--week: expected a week with katas, found none yet in {which}. "
                "See `kata coverage`."
            )
        return _all_or_every_problem(self._load_kata, folders)

    def _shelved(self, load: Callable[[Path, Read], T], paths: list[Path]) -> list[T]:
        """Load every path, and keep what was parsed."""
        shelf = self.shelf
        if shelf is None:
            return _all_or_every_problem(lambda path: load(path, read_toml), paths)
        loaded = _all_or_every_problem(lambda path: load(path, shelf.read), paths)
        shelf.save()
        return loaded

    def _load_kata(self, folder: Path, read: Read = read_toml) -> Kata:
        """Read a kata whose `covers` this curriculum knows."""
        kata = load_kata(folder, read)
        with Problems(folder / "kata.toml") as problems:
            for item in kata.covers:
                if item not in self.items:
                    found = repr(item) + nearest(item, self.items)
                    problems.add("covers", "ids of some week.toml", found)
        return kata


def _all_or_every_problem(load: Callable[[Path], T], paths: list[Path]) -> list[T]:
    """Load every path; when some fail, raise one MetadataError with all their messages."""
    loaded, failures = [], []
    for path in paths:
        try:
            loaded.append(load(path))
        except MetadataError as error:
            failures.append(error.message)
    if failures:
        # a broken week is in the way of each kata
        raise MetadataError("\n".join(dict.fromkeys("\n".join(failures).splitlines())))
    return loaded


def load_curriculum(root: Path, shelf: Shelf | None = None) -> Curriculum:
    """Read ``katas/curriculum.toml``; weeks and katas are read when asked for, from `shelf`."""
    path = root / "katas" / "curriculum.toml"
    data = read_toml(path) if shelf is None else shelf.read(path)
    with Problems(path) as problems:
        table = Table(data, problems)
        table.take("title", str)
        table.take("hours_per_week", int)
        curriculum = Curriculum(
            root=root,
            shelf=shelf,
            parts=tuple(_part(row) for row in table.tables("parts")),
            topics=tuple(_topic(row) for row in table.tables("topics")),
            corrections=tuple(_correction(row) for row in table.tables("corrections")),
        )
        table.done()
        known = {topic.id for topic in curriculum.topics}
        for topic in curriculum.topics:
            for need in set(topic.needs) - known:
                problems.add(
                    f"topics.{topic.id}.needs", "known topics", need + nearest(need, known)
                )
    return curriculum


def _part(row: Table) -> Part:
    first, last = (*row.take("weeks", list), 0, 0)[:2]
    part = Part(
        id=row.take("id", int),
        name=row.take("name", str),
        goal=row.take("goal", str),
        weeks=range(first, last + 1),
    )
    row.done()
    return part


def _topic(row: Table) -> Topic:
    topic = Topic(
        id=row.take("id", str),
        name=row.take("name", str),
        part=row.take("part", int),
        weeks=tuple(row.take("weeks", list)),
        needs=row.texts("needs", default=()),
    )
    row.done()
    return topic


def find_root(start: Path) -> Path:
    """
    The project's root: the nearest folder at or above `start` that holds a curriculum.

    Falls back to what this installation ships: a clone, in which ``kata`` then works from
    anywhere, or the package, which is for reading only.
    """
    for folder in (start, *start.parents):
        if (folder / "katas" / "curriculum.toml").is_file():
            return folder
    return shipped()
