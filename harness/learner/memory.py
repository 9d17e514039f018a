"""
What is remembered of each kata: FSRS's card, and credit from whatever builds on it.

Whoever writes a kata from blank writes, on the way, part of what it requires. So each solve counts
as a fraction of a review of these, too: `SHARE` of one for what the kata names in `requires`,
`SHARE` of that one step further, and so on. The idea is Math Academy's fractional implicit
repetition (https://www.justinmath.com/individualized-spaced-repetition-in-hierarchical-knowledge-structures/);
the formula below is ours, and docs/mastery.md says what of it is proven.

The scheduler is FSRS (https://github.com/open-spaced-repetition/fsrs4anki/wiki/The-Algorithm),
without randomness. Time is counted in whole days of UTC.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from typing import TYPE_CHECKING

from harness.content.kata import Kata

if TYPE_CHECKING:
    from fsrs import Card, Rating, Scheduler

RETENTION = 0.8  # a kata is due on the day when the chance to write it cold is about this
SHARE = 0.25  # of a review: what a solve is worth to a kata it requires; squared one further
LEAST = 0.05  # of a review; where less would be left there is no credit
SHORT_REVIEWS = 2  # of a kata, before it is written again from the blank stub

Credit = tuple[tuple[str, float], ...]


@cache
def scheduler(retention: float) -> "Scheduler":
    """FSRS with its published parameters, due when the recall has fallen to `retention`."""
    from fsrs import Scheduler

    # rounds are days apart: no steps of minutes, and the same history gives the same dates
    return Scheduler(
        desired_retention=retention, learning_steps=(), relearning_steps=(), enable_fuzzing=False
    )


def interval_days(stability: float, retention: float) -> int:
    """
    Days until recall has fallen from 1 to `retention`, at least one; rounded as FSRS rounds.

    Args:
        stability: Days until it has fallen to 0.9.
    """
    decay = -scheduler(retention).parameters[20]
    factor = 0.9 ** (1 / decay) - 1
    days: float = stability / factor * (retention ** (1 / decay) - 1)
    return max(1, round(days))


def credits(katas: Mapping[str, Kata]) -> dict[str, Credit]:
    """
    Of each kata, what it requires, transitively, and the fraction of a review that it gives.

    The fraction falls with the least number of steps; what is not in `katas` leads nowhere.
    """
    return {name: _credit_of(name, katas) for name in katas}


def _credit_of(name: str, katas: Mapping[str, Kata]) -> Credit:
    found: dict[str, float] = {}
    reached, worth = [name], SHARE
    while reached and worth >= LEAST:
        needs = dict.fromkeys(need for one in reached for need in katas[one].requires)
        reached = [need for need in needs if need in katas and need not in {name, *found}]
        found |= dict.fromkeys(reached, worth)
        worth *= SHARE
    return tuple(found.items())


@dataclass(slots=True)
class Trace:
    """
    What is left of a kata that was solved.

    Attributes:
        card: FSRS's; never changed in place.
        on: The last day on which it was practised itself.
        reviews: Days on which that happened since it was solved first, or learnt again.
    """

    card: "Card"
    on: date
    reviews: int = 0

    @property
    def short(self) -> bool:
        """Whether its next review is one of five minutes."""
        return self.reviews < SHORT_REVIEWS


class Memory:
    """
    What a learner remembers, review after review, in the order of time.

    Attributes:
        traces: By kata; those that were solved.
        retention: The recall at which a kata is due.
    """

    def __init__(self, credit: Mapping[str, Credit], retention: float = RETENTION) -> None:
        self.traces: dict[str, Trace] = {}
        self.retention = retention
        self.credit = credit

    def copy(self) -> "Memory":
        """A memory of its own, to look ahead with."""
        other = Memory(self.credit, self.retention)
        other.traces = {name: copy(trace) for name, trace in self.traces.items()}
        return other

    def recall(self, kata: str, now: datetime) -> float | None:
        """The chance to write `kata` cold; None before it was solved."""
        trace = self.traces.get(kata)
        if trace is None:
            return None
        return scheduler(self.retention).get_card_retrievability(trace.card, now)

    def due(self, kata: str) -> datetime | None:
        """The start of the day on which `kata` is to be reviewed; None before it was solved."""
        trace = self.traces.get(kata)
        return trace.card.due if trace else None

    def written(self, kata: str, rating: "Rating", at: datetime, *, solved: bool = True) -> None:
        """
        A round that ended; what was never solved cannot be forgotten, and has no trace.

        Args:
            rating: How it went. Again gives no credit: what failed may be any part of it.
            at: When it ended.
            solved: Whether a run passed.
        """
        from fsrs import Card, Rating

        trace, day = self.traces.get(kata), _midnight(at)
        if trace is None and not solved:
            return
        card, _ = scheduler(self.retention).review_card(
            trace.card if trace else Card(card_id=0), rating, day
        )
        self._keep(kata, card, day)
        if rating == Rating.Again:  # it is learnt again, and asked about before it is written
            self.traces[kata].reviews = 0
        if solved and rating != Rating.Again:
            for name, share in self.credit.get(kata, ()):
                if (before := self.traces.get(name)) is not None:
                    before.card = self.credited(before.card, share, day)

    def answered(self, kata: str, rating: "Rating", at: datetime) -> bool:
        """
        A short review that ended; whether it counts.

        It does on a later day than the last practice, while fewer than `SHORT_REVIEWS` were done.
        It gives no credit, since it does not ask for what the kata requires.
        """
        trace, day = self.traces.get(kata), _midnight(at)
        if trace is None or not trace.short or trace.on >= day.date():
            return False
        card, _ = scheduler(self.retention).review_card(trace.card, rating, day)
        self._keep(kata, card, day)
        return True

    def credited(self, card: "Card", share: float, day: datetime) -> "Card":
        """
        `card` after `share` of a Good review on `day`, its date in UTC.

        A Good review would make the stability S into S' and the last review today. This one makes
        it S + share * (S' - S), and brings the last review forward by that share of the days
        since, rounded down. So the due day is never earlier than before; and since a review that
        comes early hardly raises S, so does its share. On the day of a review nothing happens.
        """
        from fsrs import Rating

        assert card.last_review is not None
        since = (day - card.last_review).days
        if since < 1:
            return card
        full, _ = scheduler(self.retention).review_card(card, Rating.Good, day)
        assert full.stability is not None
        assert card.stability is not None
        after = copy(card)  # its difficulty, too: nobody saw how hard it was
        after.stability = card.stability + share * (full.stability - card.stability)
        after.last_review = card.last_review + timedelta(days=int(share * since))
        days = interval_days(after.stability, self.retention)
        after.due = after.last_review + timedelta(days=days)
        return after

    def _keep(self, kata: str, card: "Card", day: datetime) -> None:
        trace = self.traces.get(kata)
        if trace is None:
            self.traces[kata] = Trace(card=card, on=day.date())
            return
        trace.card = card
        if day.date() > trace.on:
            trace.reviews += 1
            trace.on = day.date()


def _midnight(at: datetime) -> datetime:
    """The start of its day: ten minutes earlier than yesterday is still a day later."""
    return datetime.combine(at.astimezone(UTC), time(), UTC)


def knocked_out(memory: Memory, kata: str, due: Sequence[str], now: datetime) -> list[str]:
    """Which of `due` would not be due any more if `kata` were written from blank today."""
    day, known = _midnight(now), memory.traces
    share = dict(memory.credit.get(kata, ()))
    return [
        name
        for name in due
        if name in share and memory.credited(known[name].card, share[name], day).due > now
    ]
