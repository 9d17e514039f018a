"""
Rounds: a kata written from the blank stub until it is solved, and what was seen on the way.

Worked out from attempts and notes; docs/mastery.md says how a round is rated.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from harness.content.kata import Kata
from harness.learner.progress import Note, Outline

if TYPE_CHECKING:
    from fsrs import Rating

PAUSE_MIN = 20  # a silence longer than this, and than the kata's minutes, is a break, not work
MANY_RUNS = 6
TOGETHER = timedelta(seconds=10)  # from one leg of a run to the next: too short to write code in
EVER = datetime.min.replace(tzinfo=UTC)
LINGERS = timedelta(days=7)  # how long before a start a hint is still help with what follows
FOREVER = datetime.max.replace(tzinfo=UTC)
SEEN = ("hint_shown", "solution_seen", "looked")  # kinds of notes that belong to a round
HALF = "half"  # detail of a start that left half of the body in place

_moment = datetime.fromisoformat


class Event(NamedTuple):
    """Something in a round: a run or a note; `at` is when it ended."""

    at: datetime
    what: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Round:
    """
    One practice of a kata, from a blank stub to its solution, to giving up or to now.

    Attributes:
        ended_at: When it was solved, else of the last that happened in it.
        runs: Up to the one that passed.
        hints: Different hints shown before that, those of the days before it began among them.
        looks: Red looks of `kata watch` before that.
        solution_seen: Whether the solution was shown before that.
        minutes: Worked, without pauses; None when nothing says when it began.
        paused: Whether there was a pause, so that nobody knows how long it took.
        budget: Minutes that the kata should take.
        half: Whether it began with half of the body in place, or did in the days before.
    """

    began_at: datetime
    ended_at: datetime
    solved: bool
    runs: int
    hints: int
    looks: int
    solution_seen: bool
    minutes: float | None
    paused: bool
    budget: int
    half: bool = False

    @property
    def started(self) -> bool:
        """Whether it began with the blank stub."""
        return self.minutes is not None

    @property
    def tried(self) -> bool:
        """Whether to leave it unsolved is to give it up."""
        return self.runs > 0 or (self.started and self.solution_seen)

    @property
    def clean(self) -> bool:
        """Whether it was solved by the learner alone, from the blank stub."""
        return self.solved and not (self.hints or self.solution_seen or self.half)

    @property
    def rating(self) -> "Rating":
        """What a learner would answer when asked how it went."""
        from fsrs import Rating

        share = 1.0 if self.minutes is None else self.minutes / self.budget
        if not self.solved or self.solution_seen:
            return Rating.Again
        if self.hints or self.half or self.runs > MANY_RUNS or share > 2:
            return Rating.Hard
        if self.runs <= 2 and share <= 0.5 and not self.looks and not self.paused:
            return Rating.Easy
        return Rating.Good


def tries_of(attempts: Sequence[Outline]) -> list[Event]:
    """
    The runs, each with its status, in the order in which they ended.

    With a GPU one run has two legs, on the CPU and on the GPU: it passes when both do.
    """
    tries: list[Event] = []
    devices: set[str] = set()  # of the last run
    for attempt in attempts:
        ended, status = _moment(attempt.finished_at or attempt.started_at), attempt.status
        if attempt.device not in devices and tries and _at_once(attempt, tries[-1]):
            devices.add(attempt.device)
            before = tries.pop().what
            tries.append(Event(ended, status if before == "passed" else before))
        else:
            devices = {attempt.device}
            tries.append(Event(ended, status))
    return sorted(tries, key=attrgetter("at"))


def _at_once(attempt: Outline, run: Event) -> bool:
    """Whether `attempt` followed so soon that it is of the same code."""
    return timedelta() <= _moment(attempt.started_at) - run.at <= TOGETHER


def rounds_of(kata: Kata, tries: Sequence[Event], notes: Sequence[Note]) -> list[Round]:
    """
    Every practice, oldest first, of which the last may be under way.

    Each begins with the note that the stub was blanked, since a file that passes again has not
    been written again; only the first is whatever came before such a note, often nothing.
    """
    starts = {_moment(note.at): note.detail for note in notes if note.kind == "started"}
    seen = [Event(_moment(note.at), note.kind, note.detail) for note in notes if note.kind in SEEN]
    rounds: list[Round] = []
    for begin, end in pairwise([EVER, *sorted(starts), FOREVER]):
        help_before = _hints_before(begin, seen, rounds)
        these = [*help_before, *_between(seen, begin, end)]
        half = HALF in (starts.get(begin), *_starts_before(begin, starts, rounds))
        rounds.append(_round(kata, begin, _between(tries, begin, end), these, half=half))
    return rounds


def _hints_before(begin: datetime, seen: Sequence[Event], rounds: Sequence[Round]) -> list[Event]:
    """Hints shown in the days before `begin`; those of the day of the last solve were study."""
    if begin == EVER:
        return []
    solved_on = max((one.ended_at.date() for one in rounds if one.solved), default=EVER.date())
    return [
        one
        for one in _between(seen, begin - LINGERS, begin)
        if one.what == "hint_shown" and one.at.date() > solved_on
    ]


def _starts_before(
    begin: datetime, starts: Mapping[datetime, str], rounds: Sequence[Round]
) -> list[str]:
    """The details of starts in the days before `begin` that led to no solve."""
    if begin == EVER:
        return []
    solved_at = max((one.ended_at for one in rounds if one.solved), default=EVER)
    return [how for at, how in starts.items() if max(solved_at, begin - LINGERS) < at < begin]


def _round(
    kata: Kata, begin: datetime, tries: Sequence[Event], seen: Sequence[Event], *, half: bool
) -> Round:
    """What was tried and seen from `begin` on, up to the run that passed."""
    passed = next((number for number, one in enumerate(tries) if one.what == "passed"), None)
    if passed is not None:
        tries = tries[: passed + 1]
        seen = _between(seen, EVER, tries[-1].at)  # what is read afterwards is study
    looks = [one for one in seen if one.what == "looked"]
    timed = sorted([begin, *(one.at for one in [*tries, *looks])])
    gaps = [] if begin == EVER else [later - earlier for earlier, later in pairwise(timed)]
    longest = timedelta(minutes=max(PAUSE_MIN, kata.minutes))
    worked = sum((min(gap, longest) for gap in gaps), timedelta())
    return Round(
        began_at=tries[0].at if begin == EVER and tries else begin,
        ended_at=max((one.at for one in [*tries, *seen] if one.at >= begin), default=begin),
        solved=passed is not None,
        runs=len(tries),
        hints=len({one.detail for one in seen if one.what == "hint_shown"}),
        looks=len(looks),
        solution_seen=any(one.what == "solution_seen" for one in seen),
        minutes=None if begin == EVER else worked.total_seconds() / 60,
        paused=any(gap > longest for gap in gaps),
        budget=kata.minutes,
        half=half,
    )


def _between(events: Sequence[Event], begin: datetime, end: datetime) -> Sequence[Event]:
    """Those of `events`, which are in order, from `begin` to before `end`."""
    first = bisect_left(events, begin, key=attrgetter("at"))
    return events[first : bisect_left(events, end, lo=first, key=attrgetter("at"))]
