"""
How far each kata is owned, worked out from what was kept; nothing here is stored.

A kata goes from *untried* over *attempted*, *correct* (every check of the answer passed, a
threshold did not), *solved* (a run passed: whatever this machine can judge was met) and *fast*
(its thresholds of speed were met on a clock) to *mastered*: solved from the blank stub on
`CLEAN_DAYS` separate days, without hints or the solution, until the scheduler expects it to last
`STABLE_DAYS`. What is mastered fades when it is not seen again: then it is what it was before,
and due. What is remembered is worked out in `harness.learner.memory`.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING

from harness.content.kata import Kata
from harness.learner.levels import Level as Level
from harness.learner.memory import RETENTION, Memory, Trace, credits
from harness.learner.progress import Best, Note, Outline
from harness.learner.rounds import Event, Round, rounds_of, tries_of

if TYPE_CHECKING:
    from fsrs import Rating

FADED = 0.7  # a kata is no longer mastered when the chance to write it cold has fallen to this
CLEAN_DAYS = 3
STABLE_DAYS = 21.0  # days until a chance of 1 has fallen to 0.9
SHORT = "short_review"  # kind of a note; its detail says in JSON whether it was `passed`
COUNTED = ("passed", "failed", "crashed", "timed_out")  # attempts that say something


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """A kata written again, or asked about in five minutes: when it was due, and how it went."""

    due_at: datetime
    began_at: datetime
    done_at: datetime
    passed: bool
    short: bool = False


@dataclass(frozen=True, kw_only=True)
class Standing:
    """
    Where a learner stands with one kata at one moment.

    Attributes:
        reached: The furthest level that an attempt by itself reached, up to fast.
        timed_on: Profiles on which thresholds of speed were met.
        rounds: Practices that ended, oldest first.
        reviews: All of these after the first that was solved, and the short reviews that counted.
        open: The practice under way.
        stability_days: Until the chance to write it cold has fallen to 0.9.
        recall: That chance now; with `due` and `stability_days` None before the first solve.
        runs, hints: Ever.
        peeks: Rounds in which the solution was seen before it was found, the one under way and
            what came before the first start among them.
        trace: What `due`, `recall` and `stability_days` were read from.
    """

    kata: str
    reached: Level
    counted: bool
    timed_on: tuple[str, ...]
    rounds: tuple[Round, ...]
    reviews: tuple[Review, ...]
    open: Round | None
    stability_days: float | None
    recall: float | None
    due: datetime | None
    runs: int
    hints: int
    peeks: int
    trace: Trace | None = field(default=None, repr=False)

    @cached_property
    def clean_days(self) -> tuple[date, ...]:
        """Days on which it was solved cold and alone, since it was last given up."""
        days: list[date] = []
        for one in self.rounds:
            if one.clean:
                days.append(one.ended_at.date())
            elif not one.solved or one.solution_seen:
                days = []
        return tuple(sorted(set(days)))

    @property
    def level(self) -> Level:
        """How far it is owned."""
        lasting = self.stability_days is not None and self.stability_days >= STABLE_DAYS
        remembered = self.recall is not None and self.recall > FADED
        if self.reached.owned and len(self.clean_days) >= CLEAN_DAYS and lasting and remembered:
            return Level.MASTERED
        return self.reached

    @property
    def solved_at(self) -> datetime | None:
        """When it was last solved."""
        return max((one.ended_at for one in self.rounds if one.solved), default=None)

    @property
    def short(self) -> bool:
        """Whether its next review is one of five minutes."""
        return self.trace is not None and self.trace.short

    def is_due(self, now: datetime) -> bool:
        """Whether it should be written again by `now`."""
        return self.due is not None and self.due <= now


def timed_on(best: Iterable[Best]) -> dict[str, list[str]]:
    """Kata to the profiles on which a threshold of speed was met."""
    found: dict[str, set[str]] = defaultdict(set)
    for one in best:
        found[one.kata].add(one.profile)
    return {kata: sorted(profiles) for kata, profiles in found.items()}


def standings(
    katas: Mapping[str, Kata],
    attempts: Iterable[Outline],
    notes: Iterable[Note],
    timed: Mapping[str, Sequence[str]],
    now: datetime,
    retention: float = RETENTION,
) -> dict[str, Standing]:
    """
    Where the learner stands with every kata.

    Args:
        katas: By name. What is solved counts for what it requires, so these are all that there are.
        attempts: At their own code, oldest first.
        notes: Oldest first.
        timed: Kata to the profiles on which a threshold of speed was met.
        now: With its zone.
        retention: The recall at which a kata is due.
    """
    by_kata: dict[str, list[Outline]] = defaultdict(list)
    for attempt in attempts:
        if attempt.status in COUNTED:
            by_kata[attempt.kata].append(attempt)
    noted: dict[str, list[Note]] = defaultdict(list)
    for note in notes:
        noted[note.kata].append(note)
    tries = {name: tries_of(by_kata[name]) for name in katas}
    rounds = {name: rounds_of(kata, tries[name], noted[name]) for name, kata in katas.items()}
    ended = {
        name: [one for one in found if one.solved or (one.tried and one is not found[-1])]
        for name, found in rounds.items()
    }
    memory = Memory(credits(katas), retention)
    reviews = _replay(memory, ended, {name: _answers(noted[name]) for name in katas})
    return {
        name: Standing(
            kata=name,
            reached=_reached(kata, by_kata[name], tries[name], timed.get(name, ())),
            counted=any(one.status == "passed" and one.device == "cpu" for one in by_kata[name]),
            timed_on=tuple(timed.get(name, ())),
            rounds=tuple(ended[name]),
            reviews=tuple(reviews[name]),
            open=_under_way(rounds[name][-1]),
            stability_days=trace.card.stability if (trace := memory.traces.get(name)) else None,
            recall=memory.recall(name, now),
            due=memory.due(name),
            runs=len(tries[name]),
            hints=sum(note.kind == "hint_shown" for note in noted[name]),
            peeks=sum(one.solution_seen for one in rounds[name]),
            trace=trace,
        )
        for name, kata in katas.items()
    }


def standing(
    kata: Kata,
    attempts: Sequence[Outline],
    notes: Sequence[Note],
    timed_on: Sequence[str],
    now: datetime,
) -> Standing:
    """Where the learner stands with one kata that nothing builds on; as `standings` otherwise."""
    return standings({kata.name: kata}, attempts, notes, {kata.name: timed_on}, now)[kata.name]


def memory_of(
    katas: Mapping[str, Kata], known: Mapping[str, Standing], retention: float = RETENTION
) -> Memory:
    """What is remembered by whoever stands there: to look ahead with."""
    memory = Memory(credits(katas), retention)
    memory.traces = {name: one.trace for name, one in known.items() if one.trace is not None}
    return memory.copy()


def _under_way(last: Round) -> Round | None:
    return last if not last.solved and (last.tried or last.started) else None


def _answers(notes: Iterable[Note]) -> "Iterator[tuple[datetime, Rating]]":
    """
    When a short review ended, and how it is rated; a note that does not say so is none.

    What could not be answered could not be written either: failed, it is Again.
    """
    for note in notes:
        if note.kind == SHORT:
            from fsrs import Rating

            with suppress(ValueError, KeyError, TypeError):
                passed = json.loads(note.detail)["passed"]
                yield datetime.fromisoformat(note.at), Rating.Good if passed else Rating.Again


def _replay(
    memory: Memory,
    rounds: Mapping[str, Iterable[Round]],
    answers: "Mapping[str, Iterable[tuple[datetime, Rating]]]",
) -> dict[str, list[Review]]:
    """Let `memory` live through what was done, in the order of time; the reviews of each kata."""
    from fsrs import Rating

    lived: list[tuple[datetime, str, Round | Rating]] = [
        (one.ended_at, name, one) for name, found in rounds.items() for one in found
    ]
    lived += [(at, name, rating) for name, found in answers.items() for at, rating in found]
    reviews: dict[str, list[Review]] = {name: [] for name in rounds}
    for at, name, what in sorted(lived, key=lambda one: one[:2]):
        due = memory.due(name)
        if isinstance(what, Round):
            memory.written(name, what.rating, at, solved=what.solved)
            counts, began, passed = True, what.began_at, what.solved
        else:
            counts = memory.answered(name, what, at)
            began, passed = at, what != Rating.Again
        if due is not None and counts:
            short = not isinstance(what, Round)
            reviews[name].append(
                Review(due_at=due, began_at=began, done_at=at, passed=passed, short=short)
            )
    return reviews


def _reached(
    kata: Kata, attempts: Sequence[Outline], tries: Sequence[Event], timed_on: Sequence[str]
) -> Level:
    if any(one.what == "passed" for one in tries):
        return Level.FAST if _timed(kata, attempts, timed_on) else Level.SOLVED
    if any(one.status == "passed" or one.only_thresholds for one in attempts):
        return Level.CORRECT
    return Level.ATTEMPTED if attempts else Level.UNTRIED


def _timed(kata: Kata, attempts: Sequence[Outline], timed_on: Sequence[str]) -> bool:
    """Whether the clock that its thresholds of speed ask for has judged a run that passed."""
    if not timed_on:
        return False
    passed_on = {one.device for one in attempts if one.status == "passed"}
    return "cuda" in passed_on or all(one.on == "any" for one in kata.speed)


# ---- concepts ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ItemStanding:
    """
    Where the learner stands with a concept, a hands-on or a milestone.

    Attributes:
        katas: Those that cover it; none yet, and it is untried.
        owned: How many of them are solved or better.
        recall: The chance that one of those that were solved, whichever, can be written cold now;
            None before the first.
    """

    item: str
    katas: tuple[str, ...] = field(default=())
    level: Level = Level.UNTRIED
    owned: int = 0
    recall: float | None = None


def item_standings(
    items: Iterable[str], katas: Mapping[str, Kata], known: Mapping[str, Standing]
) -> dict[str, ItemStanding]:
    """
    Where the learner stands with each id of the curriculum.

    An item is as far as the least of its katas; while some of them are untried and others are
    not, it is attempted.
    """
    covering: dict[str, list[str]] = defaultdict(list)
    for name, kata in katas.items():
        for item in kata.covers:
            covering[item].append(name)
    return {
        item: ItemStanding(
            item=item,
            katas=tuple(covering[item]),
            level=least([known[name].level for name in covering[item]]),
            owned=sum(known[name].level.owned for name in covering[item]),
            recall=mean_recall(known[name].recall for name in covering[item]),
        )
        for item in items
    }


def mean_recall(recalls: Iterable[float | None]) -> float | None:
    """The mean over katas of those that were solved; None where none was."""
    found = [one for one in recalls if one is not None]
    return fmean(found) if found else None


def least(levels: Sequence[Level]) -> Level:
    """How far a group of katas is owned; some of them untried and others not, it is attempted."""
    if not any(levels):
        return Level.UNTRIED
    return max(min(levels), Level.ATTEMPTED)
