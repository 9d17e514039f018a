"""
How far each kata is owned, worked out from what was kept; nothing here is stored.

A kata goes from *untried* over *attempted*, *correct* (every check of the answer passed, a
threshold did not) and *fast* (every threshold met: of cost on any machine, of speed on a GPU) to
*mastered*: solved from the blank stub on `CLEAN_DAYS` separate days, without hints or the
solution, until the scheduler expects it to last `STABLE_DAYS`. What is mastered fades when it is
not seen again: then it is *fast*, and due.

The scheduler is FSRS (https://github.com/open-spaced-repetition/fsrs4anki/wiki/The-Algorithm). Its
ratings are not asked of the learner but read off what they did.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from enum import IntEnum
from functools import cache, cached_property
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

from harness.kata import Kata
from harness.progress import Best, Note, Outline

if TYPE_CHECKING:
    from fsrs import Card, Rating, Scheduler

T = TypeVar("T")

RETENTION = 0.9  # a kata is due when the chance to write it cold has fallen to this
FADED = 0.7  # and no longer mastered when it has fallen to this
CLEAN_DAYS = 3
STABLE_DAYS = 21.0  # days until a chance of 1 has fallen to `RETENTION`
PAUSE = timedelta(minutes=20)  # a longer silence is a break, not work
MANY_RUNS = 6
FOREVER = datetime.max.replace(tzinfo=UTC)
HELP = ("hint_shown", "solution_seen")  # kinds of notes
COUNTED = ("passed", "failed", "crashed", "timed_out")  # attempts that say something


class Level(IntEnum):
    """How far a kata or a concept is owned."""

    UNTRIED = 0
    ATTEMPTED = 1
    CORRECT = 2
    FAST = 3
    MASTERED = 4

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, kw_only=True)
class Round:
    """
    One practice of a kata, from a blank stub to its solution or to giving up.

    Attributes:
        minutes: Worked, without pauses; None when nothing says when it began.
        runs: Attempts up to the one that passed.
        hints: Different hints shown before that.
        solution_seen: Whether the solution was shown before that.
        budget: Minutes that the kata should take.
    """

    began_at: datetime
    ended_at: datetime
    solved: bool
    runs: int
    hints: int
    solution_seen: bool
    minutes: float | None
    budget: int

    @property
    def clean(self) -> bool:
        """Whether it was solved by the learner alone."""
        return self.solved and not self.hints and not self.solution_seen

    @property
    def rating(self) -> "Rating":
        """What a learner would answer when asked how it went."""
        from fsrs import Rating

        share = 1.0 if self.minutes is None else self.minutes / self.budget
        if not self.solved or self.solution_seen:
            return Rating.Again
        if self.hints or self.runs > MANY_RUNS or share > 2:
            return Rating.Hard
        if self.runs <= 2 and share <= 0.5:
            return Rating.Easy
        return Rating.Good


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
        open: Whether a practice is under way.
        stability_days: Until the chance to write it cold has fallen to `RETENTION`.
        recall: That chance now; with `due` and `stability_days` None before the first solve.
        runs, hints, peeks: Attempts ever, hints ever, rounds in which the solution was seen.
    """

    kata: str
    reached: Level
    counted: bool
    timed_on: tuple[str, ...]
    rounds: tuple[Round, ...]
    reviews: tuple[Review, ...]
    open: bool
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
        if self.reached >= Level.FAST and len(self.clean_days) >= CLEAN_DAYS and lasting:
            return Level.MASTERED if remembered else Level.FAST
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
    found, is_open = rounds_of(kata, attempts, notes)
    card, reviews = _reviewed(found)
    return Standing(
        kata=kata.name,
        reached=_reached(attempts),
        counted=("passed", "cpu") in {(attempt.status, attempt.device) for attempt in attempts},
        timed_on=tuple(timed_on),
        rounds=tuple(found),
        reviews=tuple(reviews),
        open=is_open,
        stability_days=card.stability if card else None,
        recall=_scheduler().get_card_retrievability(card, now) if card else None,
        due=card.due if card else None,
        runs=len(attempts),
        hints=sum(note.kind == "hint_shown" for note in notes),
        peeks=sum(one.solution_seen for one in found),
    )


def _reached(attempts: Sequence[Outline]) -> Level:
    found = {(attempt.status == "passed", attempt.only_thresholds) for attempt in attempts}
    if any(passed for passed, _ in found):
        return Level.FAST
    if any(right for _, right in found):
        return Level.CORRECT
    return Level.ATTEMPTED if found else Level.UNTRIED


# ---- rounds --------------------------------------------------------------------------------


def rounds_of(
    kata: Kata, attempts: Sequence[Outline], notes: Sequence[Note]
) -> tuple[list[Round], bool]:
    """
    The practices that ended, oldest first, and whether one is under way.

    The first begins with the first attempt, every later one with the note that the stub was
    blanked: a file that passes again has not been written again.
    """
    starts = {_moment(note.at) for note in notes if note.kind == "started"}
    tried = sorted(
        ((_moment(attempt.finished_at or attempt.started_at), attempt) for attempt in attempts),
        key=itemgetter(0),
    )
    helped = [(_moment(note.at), note) for note in notes if note.kind in HELP]
    first = min((*starts, *(at for at, _ in tried[:1])), default=None)
    edges = [] if first is None else sorted({first, *starts})
    found, is_open = [], False
    for begin, end in pairwise([*edges, FOREVER]):
        inside = _between(tried, begin, end)
        solving = next((n for n, (_, one) in enumerate(inside) if one.status == "passed"), None)
        is_open = end == FOREVER and solving is None
        if is_open or not inside:
            continue  # under way, or begun and left without a single run
        counted = inside if solving is None else inside[: solving + 1]
        help_ = [note for _, note in _between(helped, begin, counted[-1][0])]
        found.append(_round(kata, begin, counted, help_, timed=begin in starts))
    return found, is_open


def _round(
    kata: Kata,
    begin: datetime,
    counted: Sequence[tuple[datetime, Outline]],
    help_: Sequence[Note],
    *,
    timed: bool,
) -> Round:
    """A practice that ended with the last of its attempts; `help_` is what was shown meanwhile."""
    ended_at, last = counted[-1]
    # an attempt knows only what was shown on its own machine, notes are merged
    hints = len({note.detail for note in help_ if note.kind == "hint_shown"})
    peeked = any(note.kind == "solution_seen" for note in help_)
    return Round(
        began_at=begin,
        ended_at=ended_at,
        solved=last.status == "passed",
        runs=len(counted),
        hints=max(hints, last.hints_seen),
        solution_seen=peeked or last.solution_seen,
        minutes=_worked([begin, *(at for at, _ in counted)]) if timed else None,
        budget=kata.minutes,
    )


def _between(
    moments: Sequence[tuple[datetime, T]], begin: datetime, end: datetime
) -> Sequence[tuple[datetime, T]]:
    """Those of `moments`, which are in order, from `begin` to before `end`."""
    first = bisect_left(moments, begin, key=itemgetter(0))
    return moments[first : bisect_left(moments, end, lo=first, key=itemgetter(0))]


def _worked(moments: Sequence[datetime]) -> float:
    """Minutes between moments; a pause counts as no more than `PAUSE`."""
    gaps = (min(later - earlier, PAUSE) for earlier, later in pairwise(moments))
    return sum(gaps, timedelta()).total_seconds() / 60


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
    from fsrs import Card

    card, reviews = None, []
    for one in rounds:
        if card is None and not one.solved:
            continue
        if card is not None:
            reviews.append(Review(due_at=card.due, done_at=one.ended_at))
        card, _ = _scheduler().review_card(card or Card(card_id=0), one.rating, one.ended_at)
    return card, reviews


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


# ---- concepts ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ItemStanding:
    """
    Where the learner stands with a concept, a hands-on or a milestone.

    Attributes:
        katas: Those that cover it; none yet, and it is untried.
        owned: How many of them are fast or mastered.
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
            level=_least([known[name].level for name in covering[item]]),
            owned=sum(known[name].level >= Level.FAST for name in covering[item]),
        )
        for item in items
    }


def _least(levels: Sequence[Level]) -> Level:
    if not any(levels):
        return Level.UNTRIED
    return max(min(levels), Level.ATTEMPTED)
