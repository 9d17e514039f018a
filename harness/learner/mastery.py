"""
How far each kata is owned, worked out from what was kept; nothing here is stored.

A kata goes from *untried* over *attempted*, *correct* (every check of the answer passed, a
threshold did not), *solved* (a run passed: whatever this machine can judge was met) and *fast*
(its thresholds of speed were met on a clock) to *mastered*: solved from the blank stub on
`CLEAN_DAYS` separate days, without hints or the solution, until the scheduler expects it to last
`STABLE_DAYS`. What is mastered fades when it is not seen again: then it is what it was before,
and due.

The scheduler is FSRS (https://github.com/open-spaced-repetition/fsrs4anki/wiki/The-Algorithm). Its
ratings are not asked of the learner but read off what they did.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from functools import cache, cached_property
from typing import TYPE_CHECKING

from harness.content.kata import Kata
from harness.learner.levels import Level as Level
from harness.learner.progress import Best, Note, Outline
from harness.learner.rounds import Event, Round, rounds_of, tries_of

if TYPE_CHECKING:
    from fsrs import Card, Scheduler

RETENTION = 0.9  # a kata is due on the day when the chance to write it cold is about this
FADED = 0.7  # and no longer mastered when it has fallen to this
CLEAN_DAYS = 3
STABLE_DAYS = 21.0  # days until a chance of 1 has fallen to `RETENTION`
COUNTED = ("passed", "failed", "crashed", "timed_out")  # attempts that say something


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """A kata written again: when it was due, and when it was done."""

    due_at: datetime
    done_at: datetime


@dataclass(frozen=True, kw_only=True)
class Standing:
    """
    Where a learner stands with one kata at one moment.

    Attributes:
        reached: The furthest level that an attempt by itself reached, up to fast.
        timed_on: Profiles on which thresholds of speed were met.
        rounds: Practices that ended, oldest first.
        reviews: All of these after the first that was solved.
        open: The practice under way.
        stability_days: Until the chance to write it cold has fallen to `RETENTION`.
        recall: That chance now; with `due` and `stability_days` None before the first solve.
        runs, hints: Ever.
        peeks: Rounds in which the solution was seen before it was found, the one under way and
            what came before the first start among them.
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
) -> dict[str, Standing]:
    """
    Where the learner stands with every kata.

    Args:
        katas: By name.
        attempts: At their own code, oldest first.
        notes: Oldest first.
        timed: Kata to the profiles on which a threshold of speed was met.
        now: With its zone.
    """
    by_kata: dict[str, list[Outline]] = defaultdict(list)
    for attempt in attempts:
        if attempt.status in COUNTED:
            by_kata[attempt.kata].append(attempt)
    noted: dict[str, list[Note]] = defaultdict(list)
    for note in notes:
        noted[note.kata].append(note)
    return {
        name: standing(kata, by_kata[name], noted[name], timed.get(name, ()), now)
        for name, kata in katas.items()
    }


def standing(
    kata: Kata,
    attempts: Sequence[Outline],
    notes: Sequence[Note],
    timed_on: Sequence[str],
    now: datetime,
) -> Standing:
    """Where the learner stands with one kata; arguments as of `standings`."""
    tries = tries_of(attempts)
    rounds = rounds_of(kata, tries, notes)
    last = rounds[-1]
    ended = [one for one in rounds if one.solved or (one.tried and one is not last)]
    card, reviews = _reviewed(ended)
    return Standing(
        kata=kata.name,
        reached=_reached(kata, attempts, tries, timed_on),
        counted=("passed", "cpu") in {(attempt.status, attempt.device) for attempt in attempts},
        timed_on=tuple(timed_on),
        rounds=tuple(ended),
        reviews=tuple(reviews),
        open=last if not last.solved and (last.tried or last.started) else None,
        stability_days=card.stability if card else None,
        recall=_scheduler().get_card_retrievability(card, now) if card else None,
        due=card.due if card else None,
        runs=len(tries),
        hints=sum(note.kind == "hint_shown" for note in notes),
        peeks=sum(one.solution_seen for one in rounds),
    )


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


@cache
def _scheduler() -> "Scheduler":
    from fsrs import Scheduler

    # rounds are days apart: no steps of minutes, and the same history gives the same dates
    return Scheduler(
        desired_retention=RETENTION, learning_steps=(), relearning_steps=(), enable_fuzzing=False
    )


def _reviewed(rounds: Iterable[Round]) -> "tuple[Card | None, list[Review]]":
    """
    What the scheduler makes of these rounds: its card and the reviews.

    What was never written cannot be forgotten: there is no card before the first solved round.
    """
    card = None
    reviews: list[Review] = []
    for one in rounds:
        if card is not None:
            reviews.append(Review(due_at=card.due, done_at=one.ended_at))
        elif one.solved:
            from fsrs import Card

            card = Card(card_id=0)
        else:
            continue
        # the scheduler counts whole days: from midnight, so that ten minutes earlier is a day, too
        day = datetime.combine(one.ended_at, time(), UTC)
        card, _ = _scheduler().review_card(card, one.rating, day)
    return card, reviews


# ---- concepts ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ItemStanding:
    """
    Where the learner stands with a concept, a hands-on or a milestone.

    Attributes:
        katas: Those that cover it; none yet, and it is untried.
        owned: How many of them are solved or better.
    """

    item: str
    katas: tuple[str, ...] = field(default=())
    level: Level = Level.UNTRIED
    owned: int = 0


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
        )
        for item in items
    }


def least(levels: Sequence[Level]) -> Level:
    """How far a group of katas is owned; some of them untried and others not, it is attempted."""
    if not any(levels):
        return Level.UNTRIED
    return max(min(levels), Level.ATTEMPTED)
