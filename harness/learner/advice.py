"""What to practise next, and why: from where the learner stands and what the map says."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from harness.content.catalog import Curriculum
from harness.content.kata import Kata
from harness.learner.mastery import Level, Standing
from harness.learner.rounds import Round


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A kata to take up, and the reason in words; `begun` when a practice of it is under way."""

    kata: str
    reason: str
    begun: bool = False


def due(known: Mapping[str, Standing], now: datetime) -> list[Standing]:
    """What should be written again, the most forgotten first."""
    found = [one for one in known.values() if one.is_due(now)]
    return sorted(found, key=lambda one: (one.recall or 0.0, one.kata))


def advise(
    curriculum: Curriculum,
    known: Mapping[str, Standing],
    now: datetime,
    *,
    placed: Collection[str] = (),
) -> list[Advice]:
    """
    What to take up, best first: what is begun, what is due, then what is new and within reach.

    Args:
        curriculum: The katas, and the weeks whose order is the order of learning.
        known: Where the learner stands, by kata.
        now: The moment that `known` is about.
        placed: Katas that the learner has tested out of.
    """
    begun = [one for one in known.values() if one.open and not one.is_due(now)]
    return [
        *(Advice(kata=one.kata, reason=_begun(one), begun=True) for one in begun),
        *(
            Advice(kata=one.kata, reason=_faded(one, now), begun=one.open is not None)
            for one in due(known, now)
        ),
        *(
            Advice(kata=kata.name, reason=_within_reach(kata, known))
            for kata in sorted(curriculum.katas.values(), key=_order)
            if known[kata.name].level == Level.UNTRIED
            and not known[kata.name].open
            and kata.name not in placed
            and not missing(kata, known, placed)
        ),
    ]


def missing(kata: Kata, known: Mapping[str, Standing], placed: Collection[str] = ()) -> list[str]:
    """What `kata` builds on that exists and is not owned yet."""
    return [
        name
        for name in kata.requires
        if name in known and known[name].level < Level.FAST and name not in placed
    ]


def placement_of(katas: Mapping[str, Kata], week: int, most: int = 3) -> list[Kata]:
    """
    Few katas of a week that stand for the rest: each adds the most ids that none has covered.

    Of those that add as many, the harder comes first.
    """
    left = [kata for kata in katas.values() if kata.week == week]
    chosen: list[Kata] = []
    covered: set[str] = set()
    while left and len(chosen) < most:
        best = max(left, key=lambda kata: (len(set(kata.covers) - covered), kata.difficulty))
        if not set(best.covers) - covered:
            break
        chosen.append(best)
        covered |= set(best.covers)
        left.remove(best)
    return chosen


def _order(kata: Kata) -> tuple[int, int, int]:
    """Week by week, and within one the easy and short before the others."""
    return kata.week, kata.difficulty, kata.minutes


def runs_in(one: Round) -> str:
    """How often it was tried, in words."""
    return {0: "no run yet", 1: "1 run"}.get(one.runs, f"{one.runs} runs")


def _begun(one: Standing) -> str:
    assert one.open is not None
    if one.level >= Level.FAST:
        return f"under way: begun again and not solved yet ({runs_in(one.open)})"
    return f"begun and not solved yet ({runs_in(one.open)})"


def _faded(one: Standing, now: datetime) -> str:
    late = (now - one.due).days if one.due else 0
    when = "due today" if late < 1 else f"due for {late} day{'s' if late > 1 else ''}"
    return f"{when}; the chance that you still write it cold is about {one.recall or 0:.0%}"


def _within_reach(kata: Kata, known: Mapping[str, Standing]) -> str:
    needs = [name for name in kata.requires if name in known]
    if not needs:
        return f"new, week {kata.week}; it needs nothing before it"
    return f"new, week {kata.week}; you own what it builds on: {', '.join(needs)}"
