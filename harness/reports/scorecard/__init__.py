"""
The scorecard as plain data; the modules beside this one draw it.

Everything in it is derived from the curriculum and the learner's history at one moment.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from harness.content.catalog import Curriculum
from harness.content.coverage import coverage_of
from harness.content.kata import Kata
from harness.learner.advice import DEFAULT, Advice, advise, budget_of, due, placed_out
from harness.learner.mastery import (
    Level,
    Review,
    Standing,
    item_standings,
    least,
    standings,
    timed_on,
)
from harness.learner.progress import Attempt, Best, Outline, Progress
from harness.learner.schedule import Budget

OPEN_SHARE = 0.5  # of a topic's katas that are fast before the topics that need it are open
ON_TIME = timedelta(days=2)  # a review counts as kept when it comes no later than this
EACH_CASE = "test_matches_reference["  # how the checks are called of which every case has one


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """
    The newest attempt that passed: enough to judge the same code on the same inputs again.

    Attributes:
        drawn: Cases that it met besides those of kata.toml, as somebody who solves it again does.
    """

    attempt: str
    code_hash: str
    finished_at: str
    seed: int
    drawn: int
    device: str
    profile: str
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KataLine:
    """
    One kata.

    Attributes:
        counted: Passed without a GPU: its thresholds of cost were met.
        timed_on: Profiles on which its thresholds of speed were met.
        recall: Chance, 0 to 1, to write it cold now.
        peeks: Rounds in which the solution was seen.
    """

    name: str
    title: str
    week: int
    level: Level
    counted: bool
    timed_on: tuple[str, ...]
    runs: int
    rounds: int
    hints: int
    peeks: int
    clean_days: int
    stability_days: float | None
    recall: float | None
    due: datetime | None
    solved_at: datetime | None
    evidence: Evidence | None

    @property
    def touched(self) -> bool:
        """Whether it was run, or help with it was asked for."""
        return bool(self.runs or self.hints or self.peeks)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemLine:
    """
    A concept, a hands-on or a milestone; without katas nobody can own it yet.

    Attributes:
        recall: The mean of that of its katas that were solved; None before the first.
    """

    id: str
    kind: str
    name: str
    week: int
    level: Level
    katas: tuple[str, ...]
    recall: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A week, a part or the whole (part 0): how many of its items are at each level."""

    number: int
    title: str
    part: int
    items: Mapping[Level, int]
    covered: int
    katas: Mapping[Level, int]

    @property
    def size(self) -> int:
        """How many items it has."""
        return sum(self.items.values())

    @property
    def owned(self) -> int:
        """How many of its items are solved or better."""
        return sum(count for level, count in self.items.items() if level.owned)

    @property
    def tried(self) -> bool:
        """Whether any of its katas was ever run."""
        return any(count for level, count in self.katas.items() if level)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLine:
    """
    A node of the dependency map; open once what it needs is owned.

    Attributes:
        share: How much of its katas is solved or better, 0 to 1.
        level: That of the least of its katas.
        katas: How many there are.
    """

    id: str
    name: str
    part: int
    weeks: tuple[int, ...]
    needs: tuple[str, ...]
    share: float
    level: Level
    katas: int
    open: bool

    @property
    def later(self) -> bool:
        """Whether something else is to come first, and nothing of it is done all the same."""
        return not (self.open or self.share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """What was done on one day."""

    on: date
    runs: int
    passed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorecard:
    """
    Everything that is drawn.

    Attributes:
        kept: Reviews in a row, up to the newest, that were solved in time.
        due: Names of katas to write again, the most forgotten first.
        next: What `kata next` names first; None when there is nothing to take up.
        best: Best share of the speed of light, or ratio, by kata, profile and threshold.
    """

    at: datetime
    whole: Group
    parts: tuple[Group, ...]
    weeks: tuple[Group, ...]
    items: tuple[ItemLine, ...]
    katas: tuple[KataLine, ...]
    topics: tuple[TopicLine, ...]
    days: tuple[Day, ...]
    due: tuple[str, ...]
    next: Advice | None
    kept: int
    best: tuple[Best, ...]


def read_scorecard(
    curriculum: Curriculum, progress: Progress, now: datetime, *, edited: Collection[str] = ()
) -> Scorecard:
    """The scorecard of a history at the moment `now`, which has a zone; `edited` as of `advise`."""
    outlines, best, notes = progress.outlines(), progress.best(), progress.notes()
    budget = budget_of(notes)
    timed = timed_on(best)
    known = standings(curriculum.katas, outlines, notes, timed, now, budget.retention)
    newest = {one.kata: one.id for one in outlines if one.status == "passed"}
    proofs = progress.by_id(newest.values())
    return build_scorecard(
        curriculum,
        known,
        {kata: proofs[key] for kata, key in newest.items()},
        days=_days(outlines),
        best=best,
        now=now,
        placed=placed_out(notes),
        edited=edited,
        budget=budget,
    )


def build_scorecard(
    curriculum: Curriculum,
    known: Mapping[str, Standing],
    proofs: Mapping[str, Attempt],
    *,
    days: Iterable[Day] = (),
    best: Iterable[Best] = (),
    now: datetime,
    placed: Collection[str] = (),
    edited: Collection[str] = (),
    budget: Budget = DEFAULT,
) -> Scorecard:
    """
    Put a scorecard together.

    Args:
        curriculum: What there is to own.
        known: Where the learner stands, by kata.
        proofs: The newest attempt that passed, by kata.
        days: What was done, oldest first.
        best: What was timed best.
        now: The moment that `known` is about.
        placed, edited, budget: As of `advise`.
    """
    katas = tuple(
        _kata_line(curriculum, name, one, proofs.get(name)) for name, one in known.items()
    )
    covered = coverage_of(curriculum).items
    levels = item_standings((item.id for item in covered), curriculum.katas, known)
    items = tuple(
        ItemLine(
            id=item.id,
            kind=item.kind,
            name=item.name,
            week=item.week,
            level=levels[item.id].level,
            katas=item.katas,
            recall=_rounded(levels[item.id].recall),
        )
        for item in covered
    )
    part_of = {week: part.id for part in curriculum.parts for week in part.weeks}
    weeks = tuple(
        _group(number, week.title, part_of.get(number, 0), {number}, items, katas)
        for number, week in curriculum.weeks.items()
    )
    parts = tuple(
        _group(part.id, part.name, part.id, set(part.weeks), items, katas)
        for part in curriculum.parts
    )
    advised = advise(curriculum, known, now, placed=placed, edited=edited, budget=budget)
    return Scorecard(
        at=now,
        whole=_group(0, "Curriculum", 0, set(curriculum.weeks), items, katas),
        parts=parts,
        weeks=weeks,
        items=items,
        katas=katas,
        topics=_topics(curriculum, katas),
        days=tuple(days),
        due=tuple(one.kata for one in due(known, now)),
        next=next(iter(advised), None),
        kept=_kept(known.values(), now),
        best=tuple(best),
    )


def _kata_line(curriculum: Curriculum, name: str, one: Standing, proof: Attempt | None) -> KataLine:
    kata = curriculum.katas[name]
    return KataLine(
        name=name,
        title=kata.title,
        week=kata.week,
        level=one.level,
        counted=one.counted,
        timed_on=one.timed_on,
        runs=one.runs,
        rounds=len(one.rounds),
        hints=one.hints,
        peeks=one.peeks,
        clean_days=len(one.clean_days),
        # no more digits than mean something, so that every machine writes the same
        stability_days=None if one.stability_days is None else round(one.stability_days, 2),
        recall=_rounded(one.recall),
        due=one.due,
        solved_at=one.solved_at,
        evidence=None if proof is None else _evidence(kata, proof),
    )


def _rounded(chance: float | None) -> float | None:
    return None if chance is None else round(chance, 3)


def _evidence(kata: Kata, proof: Attempt) -> Evidence:
    return Evidence(
        attempt=proof.id,
        code_hash=proof.code_hash,
        finished_at=proof.finished_at or proof.started_at,
        seed=proof.seed,
        drawn=_drawn(kata, proof),
        device=proof.device,
        profile=proof.profile,
        versions=proof.versions,
    )


def _drawn(kata: Kata, proof: Attempt) -> int:
    """How many cases an attempt met that are not listed: each case met is a check of its own."""
    met = sum(check.name.startswith(EACH_CASE) for check in proof.checks)
    listed = [case for case in kata.cases if case.get("only", proof.device) == proof.device]
    return max(0, met - len(listed))


def _group(
    number: int,
    title: str,
    part: int,
    weeks: set[int],
    items: Iterable[ItemLine],
    katas: Iterable[KataLine],
) -> Group:
    here = [item for item in items if item.week in weeks]
    found = Counter(item.level for item in here)
    levels = Counter(kata.level for kata in katas if kata.week in weeks)
    return Group(
        number=number,
        title=title,
        part=part,
        items={level: found[level] for level in Level},
        covered=sum(bool(item.katas) for item in here),
        katas={level: levels[level] for level in Level},
    )


def _topics(curriculum: Curriculum, katas: Iterable[KataLine]) -> tuple[TopicLine, ...]:
    levels: dict[int, list[Level]] = {}
    for kata in katas:
        levels.setdefault(kata.week, []).append(kata.level)
    mine = {
        topic.id: [level for week in topic.weeks for level in levels.get(week, [])]
        for topic in curriculum.topics
    }
    share = {
        key: sum(level.owned for level in found) / len(found) if found else 0.0
        for key, found in mine.items()
    }
    ready = {key for key, found in mine.items() if found and share[key] >= OPEN_SHARE}
    # a topic without katas stands in nobody's way, but what lies before it does
    empty = {topic.id: topic.needs for topic in curriculum.topics if not mine[topic.id]}
    while more := {key for key, needs in empty.items() if ready.issuperset(needs)} - ready:
        ready |= more
    return tuple(
        TopicLine(
            id=topic.id,
            name=topic.name,
            part=topic.part,
            weeks=topic.weeks,
            needs=topic.needs,
            share=share[topic.id],
            level=least(mine[topic.id]),
            katas=len(mine[topic.id]),
            open=ready.issuperset(topic.needs),
        )
        for topic in curriculum.topics
    )


def _days(outlines: Iterable[Outline]) -> tuple[Day, ...]:
    done = Counter((one.started_at[:10], one.status == "passed") for one in outlines)
    return tuple(
        Day(
            on=date.fromisoformat(day),
            runs=done[day, True] + done[day, False],
            passed=done[day, True],
        )
        for day in sorted({day for day, _ in done})
    )


def _kept(known: Collection[Standing], now: datetime) -> int:
    """Reviews in a row that were solved in time, back from now; one that is late breaks the row."""
    if any(one.is_due(now - ON_TIME) for one in known):
        return 0
    done = sorted(
        (found for one in known for found in _when_due(one)), key=lambda found: found.done_at
    )
    kept = 0
    for review in reversed(done):
        if review.done_at > review.due_at + ON_TIME:
            break
        kept += review.passed
    return kept


def _when_due(one: Standing) -> Iterator[Review]:
    """
    The reviews of a kata that were due when they began: before its day a round is practice.

    After each the kata is due another day, so that there is at most one a day.
    """
    return (found for found in one.reviews if found.began_at.date() >= found.due_at.date())
