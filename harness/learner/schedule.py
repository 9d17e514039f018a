"""
What to practise, within the hours of a week: new katas and reviews, and the weeks to come.

New work and reviews share the hours, `NEW_SHARE` and the rest; what one of them does not need, the
other has. So what is overdue is spread, and never keeps a learner from going on. Reviews are chosen
so that one settles several: a kata written again counts for what it requires.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType

from harness.content.kata import Kata
from harness.learner.memory import RETENTION, Memory, knocked_out

HOURS = 10.0  # a week, of a learner who has not said how many
NEW_SHARE = 0.6  # of them, for what is new
SHORT_MIN = 5.0  # minutes of a short review
REPEAT = 0.5  # of a kata's minutes: what it takes to write it again
WEEKS = 8  # of a plan, by default
WEEK = timedelta(days=7)
A_MOMENT = 1e-6  # minutes: less is nothing
NONE_BEGUN: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a learner has said: hours of a week, and the recall at which a kata is due."""

    hours: float = HOURS
    retention: float = RETENTION


class Form(StrEnum):
    """What is done with a kata."""

    NEW = "new"
    SHORT = "short"  # a review of five minutes
    WHOLE = "whole"  # a review from the blank stub


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """
    A kata to take up, in which form, and about how long that takes.

    Attributes:
        settles: Other katas that are due and will not be, once this one is solved.
    """

    kata: str
    form: Form
    minutes: float
    settles: tuple[str, ...] = ()

    @property
    def new(self) -> bool:
        """Whether its time is that of new work."""
        return self.form == Form.NEW


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Minutes of the last seven days."""

    new: float = 0.0
    reviews: float = 0.0

    @property
    def minutes(self) -> float:
        """Of both."""
        return self.new + self.reviews

    def after(self, task: Task) -> float:
        """Minutes of a week in which its kind, after a task, would have had its share."""
        done = self.plus(task)
        return done.new / NEW_SHARE if task.new else done.reviews / (1 - NEW_SHARE)

    def plus(self, task: Task) -> "Spent":
        """The same after a task."""
        if task.new:
            return Spent(new=self.new + task.minutes, reviews=self.reviews)
        return Spent(new=self.new, reviews=self.reviews + task.minutes)


NOTHING = Spent()


def due_reviews(memory: Memory, katas: Mapping[str, Kata], now: datetime) -> list[Task]:
    """
    Reviews that leave nothing due, the one worth most a minute first.

    A review is worth the chance that its kata is forgotten, and that of each kata it settles;
    what an earlier one settles is left out.
    """
    traces = memory.traces
    left = {
        name: 1.0 - (memory.recall(name, now) or 0.0)
        for name in katas
        if name in traces and traces[name].card.due <= now
    }
    names = list(left)
    settled = {
        name: () if traces[name].short else tuple(knocked_out(memory, name, names, now))
        for name in names
    }
    tasks: list[Task] = []

    minutes = {name: review_minutes(katas[name], short=traces[name].short) for name in names}

    def worth_a_minute(name: str) -> float:
        return (left[name] + sum(left.get(one, 0.0) for one in settled[name])) / minutes[name]

    while left:
        best = max(sorted(left), key=worth_a_minute)
        form = Form.SHORT if traces[best].short else Form.WHOLE
        also = tuple(one for one in settled[best] if one in left)
        tasks.append(Task(kata=best, form=form, minutes=minutes[best], settles=also))
        for name in (best, *also):
            del left[name]
    return tasks


def review_minutes(kata: Kata, *, short: bool) -> float:
    """About how long it takes to review `kata`."""
    return SHORT_MIN if short else max(SHORT_MIN, REPEAT * kata.minutes)


def new_task(kata: Kata, minutes: float | None = None) -> Task:
    """A kata that was never solved, or `minutes` of one."""
    minutes = float(kata.minutes) if minutes is None else minutes
    return Task(kata=kata.name, form=Form.NEW, minutes=minutes)


def within_reach(
    katas: Mapping[str, Kata], owned: Collection[str], passed_over: Collection[str] = ()
) -> list[Kata]:
    """
    New katas whose requirements are met, best first: nothing much harder than what is owned.

    Args:
        katas: All of them.
        owned: Those that were solved.
        passed_over: Those that the learner has tested out of: not suggested, in nobody's way.
    """
    met = {*owned, *passed_over}
    found = [
        kata
        for kata in katas.values()
        if kata.name not in met and all(need in met or need not in katas for need in kata.requires)
    ]
    return sorted(found, key=_order(katas, owned))


def _order(katas: Mapping[str, Kata], owned: Collection[str]) -> Callable[[Kata], tuple[int, ...]]:
    """
    Week by week, and within one the easy and short before the others.

    What is more than a step harder than anything owned waits; to begin with only difficulty
    counts.
    """
    hardest = max((katas[name].difficulty for name in owned if name in katas), default=0)
    if not hardest:
        return lambda kata: (kata.difficulty, kata.minutes, kata.week)
    reach = max(2, hardest + 1)
    return lambda kata: (
        max(0, kata.difficulty - reach), kata.week, kata.difficulty, kata.minutes
    )  # fmt: skip


def mixed(
    new: Iterable[Task], reviews: Iterable[Task], spent: Spent = NOTHING, hours: float = HOURS
) -> Iterator[Task]:
    """
    Both in one order: next comes whichever would then have had less of its share.

    While there is new work, reviews beyond their share of the week wait, but for the week's first.

    Args:
        new, reviews: Each in an order of its own, which is kept.
        spent: What was done in the last seven days.
        hours: A week.
    """
    queues = iter(new), iter(reviews)
    fresh, back = (next(queue, None) for queue in queues)
    share = (1 - NEW_SHARE) * hours * 60
    while fresh or back:
        full = back and spent.reviews and spent.reviews + back.minutes > share
        if back is None or (fresh and (full or spent.after(fresh) < spent.after(back))):
            task, fresh = fresh, next(queues[0], None)
        else:
            task, back = back, next(queues[1], None)
        assert task is not None
        yield task
        spent = spent.plus(task)


# ---- the weeks to come ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWeek:
    """
    What a week holds if all goes well.

    Attributes:
        begins: The start of its first day.
        new, back: What is new, and what comes back.
        waiting: Reviews that are due by its end, and have no room in it.
        done: What counts as done already, and is off its hours.
    """

    begins: datetime
    new: tuple[Task, ...]
    back: tuple[Task, ...]
    waiting: int
    done: Spent = NOTHING

    @property
    def hours_new(self) -> float:
        """Hours of what is new."""
        return sum(task.minutes for task in self.new) / 60

    @property
    def hours_back(self) -> float:
        """Hours of reviews."""
        return sum(task.minutes for task in self.back) / 60


def plan(
    katas: Mapping[str, Kata],
    memory: Memory,
    now: datetime,
    *,
    hours: float = HOURS,
    weeks: int = WEEKS,
    owned: Collection[str] = (),
    passed_over: Collection[str] = (),
    under_way: Mapping[str, float] = NONE_BEGUN,
    spent: Spent = NOTHING,
) -> list[PlannedWeek]:
    """
    The weeks from `now` on, none of them longer than `hours`, were every review passed.

    The first is shorter by what was done in the last seven days. What is new may go on from one
    day to another, and is named in each week that it takes.

    Args:
        katas: All of them.
        memory: What is remembered now; it is left as it is.
        now: With its zone.
        hours: A week.
        weeks: How many.
        owned: Katas that were solved.
        passed_over: Katas that the learner has tested out of.
        under_way: Minutes that were spent on those that were begun: they come before the rest, and
            take what is left of their minutes, if only `SHORT_MIN`.
        spent: What was done in the last seven days.
    """
    ahead = _Ahead(katas, memory.copy(), hours, set(owned), passed_over, under_way)
    return [
        ahead.week(now + number * WEEK, NOTHING if number else spent) for number in range(weeks)
    ]


@dataclass(slots=True)
class _Ahead:
    """A learner who does as advised, and does it well."""

    katas: Mapping[str, Kata]
    memory: Memory
    hours: float
    owned: set[str]
    over: Collection[str]
    under_way: Mapping[str, float]
    begun: Kata | None = None
    left_min: float = 0.0  # of what was begun

    def week(self, begins: datetime, done: Spent) -> PlannedWeek:
        new: dict[str, float] = {}
        back: list[Task] = []
        spent, left = done, max(0.0, self.hours * 60 - done.minutes)
        for day in range(7):
            at = begins + timedelta(days=day)
            today = left / (7 - day)
            while today > A_MOMENT and (task := self._next(at, spent, today, left)):
                if task.new:
                    new[task.kata] = new.get(task.kata, 0.0) + task.minutes
                else:
                    back.append(task)
                self._do(task, at)
                spent = spent.plus(task)
                today -= task.minutes
                left -= task.minutes
        return PlannedWeek(
            begins=begins,
            new=tuple(Task(kata=name, form=Form.NEW, minutes=took) for name, took in new.items()),
            back=tuple(back),
            waiting=len(due_reviews(self.memory, self.katas, begins + WEEK - timedelta(days=1))),
            done=done,
        )

    def _next(self, at: datetime, spent: Spent, today: float, left: float) -> Task | None:
        reviews = due_reviews(self.memory, self.katas, at)
        if self.begun is None:
            reach = within_reach(self.katas, self.owned, self.over)
            self.begun = min(reach, key=lambda one: one.name not in self.under_way, default=None)
            self.left_min = self._left_of(self.begun) if self.begun else 0.0
        new = [new_task(self.begun, min(today, self.left_min))] if self.begun else []
        return next(
            mixed(new, (one for one in reviews if one.minutes <= left), spent, self.hours), None
        )

    def _left_of(self, kata: Kata) -> float:
        """Minutes that a new kata still takes."""
        if kata.name not in self.under_way:
            return float(kata.minutes)
        return max(SHORT_MIN, kata.minutes - self.under_way[kata.name])

    def _do(self, task: Task, at: datetime) -> None:
        from fsrs import Rating

        if task.form == Form.SHORT:
            self.memory.answered(task.kata, Rating.Good, at)
            return
        if task.new:
            self.left_min -= task.minutes
            if self.left_min > A_MOMENT:
                return
            self.begun = None
            self.owned.add(task.kata)
        self.memory.written(task.kata, Rating.Good, at)
