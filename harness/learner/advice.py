"""What to practise next, and why: from where the learner stands and what the map says."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from harness.content.catalog import Curriculum
from harness.content.kata import Kata
from harness.learner.mastery import Level, Standing, memory_of
from harness.learner.progress import Note
from harness.learner.rounds import Round
from harness.learner.schedule import (
    SHORT_MIN,
    Budget,
    Form,
    Spent,
    Task,
    due_reviews,
    mixed,
    new_task,
    review_minutes,
    within_reach,
)

BUDGET = "budget"  # kind of a note; its detail has hours and retention, in JSON
MOST_HOURS = 80.0  # a week
RETENTIONS = (0.75, 0.95)  # what a learner may ask for, at least and at most
DEFAULT = Budget()


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """
    A kata to take up, and the reason in words.

    Attributes:
        command: What to type.
        begun: Whether a practice of it is under way.
        minutes: About how long it takes.
    """

    kata: str
    reason: str
    command: str
    begun: bool = False
    form: Form = Form.NEW
    minutes: float = 0.0


def command_for(kata: Kata, *, begun: bool, short: bool) -> str:
    """What to type to go on with `kata`, to be asked about it, or to write it from blank."""
    return kata.run_command if begun else f"kata {'quiz' if short else 'start'} {kata.name}"


def budget_of(notes: Iterable[Note]) -> Budget:
    """What the learner said last of hours and retention; what cannot be is not heard."""
    found = Budget()
    for note in notes:
        if note.kind != BUDGET:
            continue
        with suppress(ValueError, TypeError, AttributeError):
            said = json.loads(note.detail)
            hours = float(said.get("hours", found.hours))
            retention = float(said.get("retention", found.retention))
            if 0 < hours <= MOST_HOURS and RETENTIONS[0] <= retention <= RETENTIONS[1]:
                found = replace(found, hours=hours, retention=retention)
    return found


def spent_of(katas: Mapping[str, Kata], known: Mapping[str, Standing], now: datetime) -> Spent:
    """
    What was practised in the last seven days; of rounds whose minutes nobody saw, the kata's.

    Until a kata is solved it is new work, and after that review.
    """
    since = now - timedelta(days=7)
    new = back = 0.0
    for name, one in known.items():
        solved = False
        for found in (*one.rounds, *([one.open] if one.open else [])):
            if found.ended_at > since and (found.runs or found.started):
                took = katas[name].minutes if found.minutes is None else found.minutes
                new, back = (new, back + took) if solved else (new + took, back)
            solved = solved or found.solved
        back += SHORT_MIN * sum(it.short and it.done_at > since for it in one.reviews)
    return Spent(new=new, reviews=back)


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
    budget: Budget = DEFAULT,
) -> list[Advice]:
    """
    What to take up, best first.

    What was taken up today; then new work and reviews as they share the hours of a week: new is
    what was begun on another day, then what is within reach, nothing much harder than what is
    owned before the rest; of the reviews that which is worth most a minute comes first, and what
    another one settles is left out.

    Args:
        curriculum: The katas, and the weeks whose order is the order of learning.
        known: Where the learner stands, by kata.
        now: The moment that `known` is about.
        placed: Katas that the learner has tested out of.
        edited: Katas whose file was written to today.
        budget: Hours of a week, and the retention that `known` was worked out with.
    """
    katas = curriculum.katas
    begun = sorted((one for one in known.values() if one.open), key=_last, reverse=True)
    today = {
        one.kata: one for one in begun if _last(one).date() == now.date() or one.kata in edited
    }
    reviews = [
        task
        for task in due_reviews(memory_of(katas, known, budget.retention), katas, now)
        if task.kata not in today
    ]
    later = [one.kata for one in begun if one.kata not in today and not one.is_due(now)]
    fresh = _untried(katas, known, placed)
    spent = spent_of(katas, known, now)
    tasks = mixed(
        [new_task(katas[name]) for name in (*later, *fresh)], reviews, spent, budget.hours
    )
    return [
        *(_gone_on_with(katas[name], one, now) for name, one in today.items()),
        *(_advice(katas[task.kata], task, known, now) for task in tasks),
    ]


def _untried(
    katas: Mapping[str, Kata], known: Mapping[str, Standing], placed: Collection[str]
) -> Iterator[str]:
    owned = [name for name in katas if known[name].level.owned]
    for kata in within_reach(katas, owned, placed):
        if known[kata.name].level == Level.UNTRIED and not known[kata.name].open:
            yield kata.name


def _advice(kata: Kata, task: Task, known: Mapping[str, Standing], now: datetime) -> Advice:
    one = known[kata.name]
    if task.new:
        reason = _begun(one) if one.open else _within_reach(kata, known)
    else:
        reason = _due_words(one, now, task.settles)
    return Advice(
        kata=kata.name,
        reason=reason,
        command=command_for(kata, begun=one.open is not None, short=task.form == Form.SHORT),
        begun=one.open is not None,
        form=task.form,
        minutes=task.minutes,
    )


def _last(one: Standing) -> datetime:
    """When something last happened in the round under way."""
    assert one.open is not None
    return max(one.open.began_at, one.open.ended_at)


def _gone_on_with(kata: Kata, one: Standing, now: datetime) -> Advice:
    again = one.due is not None
    return Advice(
        kata=one.kata,
        reason=_due_words(one, now) if one.is_due(now) else _begun(one),
        command=kata.run_command,
        begun=True,
        form=Form.WHOLE if again else Form.NEW,
        minutes=review_minutes(kata, short=False) if again else float(kata.minutes),
    )


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


def runs_in(one: Round) -> str:
    """How often it was tried, in words."""
    return {0: "no run yet", 1: "1 run"}.get(one.runs, f"{one.runs} runs")


def _begun(one: Standing) -> str:
    assert one.open is not None
    if one.level.owned:
        return f"in progress again, not solved yet, {runs_in(one.open)}"
    return f"in progress, not solved yet, {runs_in(one.open)}"


def _due_words(one: Standing, now: datetime, settles: Collection[str] = ()) -> str:
    late = (now - one.due).days if one.due else 0
    when = "due today" if late < 1 else f"due for {late} day{'s' if late > 1 else ''}"
    said = [f"{when}: the chance that you can still write it cold is about {one.recall or 0:.0%}"]
    if one.short and not one.open:
        ways = f"kata quiz {one.kata}, kata hunt {one.kata} or kata hint {one.kata} --lines"
        said.append(f"Five minutes are enough: {ways}")
    if settles:
        said.append(f"It also counts for what is due of {', '.join(settles)}")
    return ". ".join(said)


def _within_reach(kata: Kata, known: Mapping[str, Standing]) -> str:
    needs = [name for name in kata.requires if name in known]
    if not needs:
        return f"new, week {kata.week}; needs no other kata"
    return f"new, week {kata.week}; builds on what you have solved: {', '.join(needs)}"
