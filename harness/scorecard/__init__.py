"""The scorecard as plain data: where the learner stands with every kata and every concept."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from harness.catalog import Curriculum
from harness.mastery import CORRECT, FAST, best_status
from harness.progress import Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class KataLine:
    """One kata: its best status and how often it was tried."""

    name: str
    week: int
    status: str
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekLine:
    """One week: how many of its katas are correct, how many of its concepts those touch."""

    number: int
    title: str
    katas: int
    correct: int
    fast: int
    concepts: int
    concepts_touched: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorecard:
    """Everything that is drawn."""

    weeks: tuple[WeekLine, ...]
    katas: tuple[KataLine, ...]


def build_scorecard(curriculum: Curriculum, attempts: Iterable[Attempt]) -> Scorecard:
    """Derive the scorecard from the curriculum and the learner's own attempts among all kept."""
    by_kata: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        if attempt.impl == "yours":
            by_kata[attempt.kata].append(attempt)
    status = {name: best_status(kata, by_kata[name]) for name, kata in curriculum.katas.items()}
    lines = tuple(
        KataLine(name=name, week=kata.week, status=status[name], attempts=len(by_kata[name]))
        for name, kata in curriculum.katas.items()
    )
    weeks = []
    for number, week in curriculum.weeks.items():
        here = [kata for kata in curriculum.katas.values() if kata.week == number]
        owned = [kata for kata in here if status[kata.name] in (CORRECT, FAST)]
        touched = {item for kata in owned for item in kata.covers} & set(week.concepts)
        weeks.append(
            WeekLine(
                number=number,
                title=week.title,
                katas=len(here),
                correct=len(owned),
                fast=sum(status[kata.name] == FAST for kata in here),
                concepts=len(week.concepts),
                concepts_touched=len(touched),
            )
        )
    return Scorecard(weeks=tuple(weeks), katas=lines)


def as_json(card: Scorecard) -> dict[str, Any]:
    """Plain data with a schema version."""
    return {"schema": 1, **asdict(card)}
