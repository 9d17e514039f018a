"""What to practise next, and why: from where the learner stands and what the map says."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from harness.content.catalog import Curriculum
from harness.content.kata import Kata
from harness.learner.mastery import Level, Standing
from harness.learner.progress import Note
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


def upcoming(known: Mapping[str, Standing], now: datetime) -> list[Standing]:
    """What will be due, the soonest first."""
    found = [one for one in known.values() if one.due is not None and not one.is_due(now)]
    return sorted(found, key=lambda one: (one.due or now, one.kata))


def advise(
    curriculum: Curriculum,
    known: Mapping[str, Standing],
    now: datetime,
    *,
    placed: Collection[str] = (),
    edited: Collection[str] = (),
) -> list[Advice]:
    """
    What to take up, best first.

    What was taken up today, then what is due, then what was begun on another day, then what is
    new and within reach, nothing much harder than what is owned before the rest.

    Args:
        curriculum: The katas, and the weeks whose order is the order of learning.
        known: Where the learner stands, by kata.
        now: The moment that `known` is about.
        placed: Katas that the learner has tested out of.
        edited: Katas whose file was written to today.
    """
    begun = sorted((one for one in known.values() if one.open), key=_last, reverse=True)
    today = [one for one in begun if _last(one).date() == now.date() or one.kata in edited]
    waiting = [one for one in due(known, now) if one not in today]
    later = [one for one in begun if one not in today and one not in waiting]
    return [
        *(_gone_on_with(one, now) for one in today),
        *(
            Advice(kata=one.kata, reason=_faded(one, now), begun=one.open is not None)
            for one in waiting
        ),
        *(_gone_on_with(one, now) for one in later),
        *(
            Advice(kata=kata.name, reason=_within_reach(kata, known))
            for kata in sorted(curriculum.katas.values(), key=_order(curriculum.katas, known))
            if known[kata.name].level == Level.UNTRIED
            and not known[kata.name].open
            and kata.name not in placed
            and not missing(kata, known, placed)
        ),
    ]


def _last(one: Standing) -> datetime:
    """When something last happened in the round under way."""
    assert one.open is not None
    return max(one.open.began_at, one.open.ended_at)


def _gone_on_with(one: Standing, now: datetime) -> Advice:
    reason = _faded(one, now) if one.is_due(now) else _begun(one)
    return Advice(kata=one.kata, reason=reason, begun=True)


def placed_out(notes: Iterable[Note]) -> set[str]:
    """Katas of weeks that the learner has tested out of."""
    return {note.kata for note in notes if note.kind == "placed"}


def missing(kata: Kata, known: Mapping[str, Standing], placed: Collection[str] = ()) -> list[str]:
    """What `kata` builds on that exists and is not owned yet."""
    return [
        name
        for name in kata.requires
        if name in known and not known[name].level.owned and name not in placed
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


def _order(
    katas: Mapping[str, Kata], known: Mapping[str, Standing]
) -> Callable[[Kata], tuple[int, ...]]:
    """
    Week by week, and within one the easy and short before the others.

    What is more than a step harder than anything owned waits; to begin with only difficulty
    counts.
    """
    hardest = max((katas[name].difficulty for name in katas if known[name].level.owned), default=0)
    if not hardest:
        return lambda kata: (kata.difficulty, kata.minutes, kata.week)
    reach = max(2, hardest + 1)
    return lambda kata: (
        max(0, kata.difficulty - reach), kata.week, kata.difficulty, kata.minutes
    )  # fmt: skip


def runs_in(one: Round) -> str:
    """How often it was tried, in words."""
    return {0: "no run yet", 1: "1 run"}.get(one.runs, f"{one.runs} runs")


def _begun(one: Standing) -> str:
    assert one.open is not None
    if one.level.owned:
        return f"in progress again, not solved yet, {runs_in(one.open)}"
    return f"in progress, not solved yet, {runs_in(one.open)}"


def _faded(one: Standing, now: datetime) -> str:
    late = (now - one.due).days if one.due else 0
    when = "due today" if late < 1 else f"due for {late} day{'s' if late > 1 else ''}"
    return f"{when}; the chance that you can still write it cold is about {one.recall or 0:.0%}"


def _within_reach(kata: Kata, known: Mapping[str, Standing]) -> str:
    needs = [name for name in kata.requires if name in known]
    if not needs:
        return f"new, week {kata.week}; needs no other kata"
    return f"new, week {kata.week}; builds on what you have solved: {', '.join(needs)}"
