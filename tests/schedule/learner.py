"""
A learner who does not exist, week by week over the whole course: seeded, and forgetful.

What he does is decided by the real functions, from what the harness can know of him: the ratings.
What he remembers is kept apart from that, with difficulties of its own, and decides how it goes.
"""

import json
import random
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from fsrs import Rating

from harness.learner.mastery import mean_recall
from harness.learner.memory import RETENTION, Memory, credits
from harness.learner.progress import Note, Outline
from harness.learner.schedule import (
    NOTHING,
    REPEAT,
    SHORT_MIN,
    Form,
    Spent,
    due_reviews,
    mixed,
    new_task,
    within_reach,
)  # fmt: skip
from tests.schedule.catalogue import concepts, entries

START = datetime(2026, 1, 5, tzinfo=UTC)
# how long it takes, by how it goes: as a multiple of a kata's minutes, and of those of a repeat
NEW_TAKES = {Rating.Again: 1.5, Rating.Hard: 1.3, Rating.Good: 0.95, Rating.Easy: 0.5}
AGAIN_TAKES = {Rating.Again: 1.5, Rating.Hard: 1.2, Rating.Good: 0.9, Rating.Easy: 0.6}
WORKDAYS = 6  # of a week; on the last he does what is left of his hours
HOLIDAY = range(20 * 7, 22 * 7)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """
    How reviews are planned.

    Attributes:
        credit: Whether a solve counts for what the kata requires.
        short: Whether the first reviews take five minutes.
        due_first: Whether everything due comes before anything new.
        keeps_up: Whether everything due is done on its day, whatever the hours.
        repeat: What it takes to write a kata again, as a share of its minutes.
    """

    retention: float = RETENTION
    credit: bool = True
    short: bool = True
    due_first: bool = False
    keeps_up: bool = False
    repeat: float = REPEAT


NOW = Rule()
BEFORE = Rule(retention=0.9, credit=False, short=False, due_first=True, repeat=1.0)


@dataclass(kw_only=True)
class Week:
    """Hours of one week, and what is left undone of it."""

    new: float = 0.0
    reviews: float = 0.0
    waiting: int = 0
    short: int = 0
    whole: int = 0
    solved: int = 0
    failed: int = 0


@dataclass(kw_only=True)
class Recall:
    """Concepts of which a kata was solved, those with a recall of at least 0.8, and the mean."""

    met: int
    remembered: int
    mean: float


class Learner:
    """
    Args:
        hours: A week.
        transfer: What writing a kata is really worth to those it requires, as a multiple of what
            the schedule assumes.
    """

    def __init__(self, *, hours, seed=1, rule=NOW, transfer=1.0):
        self.random = random.Random(seed)
        self.hours, self.rule = hours, rule
        self.katas = entries()
        credit = credits(self.katas)
        self.memory = Memory(credit if rule.credit else {}, rule.retention)
        self.truth = Memory(
            {
                name: tuple((to, share * transfer) for to, share in one)
                for name, one in credit.items()
            }
        )
        # how much harder each kata is for him than FSRS reads off the ratings, which range 1 to 10
        self.harder = {name: self.random.gauss(0, 1.5) for name in self.katas}
        self.owned = set()
        self.lived = []  # weeks
        self.last = []  # (day, task) of the last seven days
        self.begun = None  # (name, how it will go, minutes left) of a new kata

    def live(self, weeks):
        """The weeks from here on, one after another."""
        for _ in range(weeks):
            self.lived.append(self.week(len(self.lived)))
        return self

    def finish(self, most=200):
        """Live until the last kata is solved; how many weeks that took."""
        while len(self.owned) < len(self.katas):
            assert len(self.lived) < most, f"{len(self.owned)} katas in {most} weeks"
            self.live(1)
        return len(self.lived)

    def recall(self):
        """What he really remembers at the end of the last week."""
        end = START + timedelta(days=7 * len(self.lived))
        found = [mean_recall(self.truth.recall(name, end) for name in names)
                 for names in concepts().values()]  # fmt: skip
        found = [one for one in found if one is not None]
        return Recall(met=len(found), remembered=sum(one >= 0.8 for one in found),
                      mean=sum(found) / max(1, len(found)))  # fmt: skip

    def week(self, number):
        found, left = Week(), self.hours * 60
        for day in range(7 * number, 7 * number + WORKDAYS):
            if day in HOLIDAY:
                continue
            # the days differ; on the last one he takes the time that is left
            usual = self.hours * 60 / WORKDAYS * self.random.uniform(0.4, 1.6)
            share = left if day % 7 == WORKDAYS - 1 else min(left, usual)
            left -= self.session(START + timedelta(days=day), share, found)
        end = START + timedelta(days=7 * number + WORKDAYS)
        found.waiting = sum(trace.card.due <= end for trace in self.memory.traces.values())
        return found

    def session(self, now, minutes, found):
        """Practise for so many minutes: what is new goes on another day, a review is ended."""
        done = 0.0
        if self.rule.keeps_up:
            for task in due_reviews(self.memory, self.katas, now):
                self.review(task, now, found)
        while done < minutes and (task := self.next_task(now)):
            if task.new:
                took = self.go_on_with(task.kata, now, minutes - done, found)
            else:
                took = self.review(task, now, found)
            self.last.append((now, task.new, took))
            done += took
        return done

    def next_task(self, now):
        reviews = due_reviews(self.memory, self.katas, now)
        if self.rule.due_first and reviews:
            return min(reviews, key=lambda task: self.memory.recall(task.kata, now))
        reach = [self.katas[self.begun[0]]] if self.begun else within_reach(self.katas, self.owned)
        self.last = [one for one in self.last if one[0] > now - timedelta(days=7)]
        spent = NOTHING
        for _, new, took in self.last:
            spent = Spent(new=spent.new + took * new, reviews=spent.reviews + took * (not new))
        return next(mixed(map(new_task, reach[:1]), reviews, spent, self.hours), None)

    def go_on_with(self, name, now, minutes, found):
        if not self.begun:
            rating = self.random.choices(list(Rating), (5, 25, 55, 15))[0]
            self.begun = (name, rating, self.katas[name].minutes * NEW_TAKES[rating])
        name, rating, left = self.begun
        took = min(left, minutes)
        found.new += took / 60
        if took < left:
            self.begun = (name, rating, left - took)
        else:
            self.begun = None
            self.owned.add(name)
            found.solved += 1
            for memory in (self.memory, self.truth):
                memory.written(name, rating, now)
            self.forget_at_his_own_rate(name)
        return took

    def review(self, task, now, found):
        name = task.kata
        short = task.form == Form.SHORT and self.rule.short
        knows = self.random.random() < self.truth.recall(name, now)
        found.failed += not knows
        if short:
            took = SHORT_MIN
            for memory in (self.memory, self.truth):
                memory.answered(name, Rating.Good if knows else Rating.Again, now)
        else:
            good = self.random.choices(list(Rating)[1:], (25, 60, 15))[0]
            rating = good if knows else Rating.Again
            took = self.rule.repeat * self.katas[name].minutes * AGAIN_TAKES[rating]
            for memory in (self.memory, self.truth):
                memory.written(name, rating, now)
        found.short += short
        found.whole += not short
        found.reviews += took / 60
        self.forget_at_his_own_rate(name)
        return took

    def forget_at_his_own_rate(self, name):
        guess = self.memory.traces[name].card.difficulty
        self.truth.traces[name].card.difficulty = min(10, max(1, guess + self.harder[name]))


def kept_of(learner, weeks):
    """Let him live, and what a history would keep of these weeks: attempts and notes."""
    attempts, notes, clock = [], [], Counter()
    written, answered = learner.memory.written, learner.memory.answered

    def note(kind, at, kata, detail=""):
        notes.append(Note(id=str(len(notes)), at=text(at), kind=kind, kata=kata, detail=detail))

    def and_keep_written(name, rating, at, **how):
        clock[at] += 1  # in the order of the day
        begin = at + timedelta(minutes=4 * clock[at])
        note("started", begin, name)
        # what makes a quick round anything but Easy
        help_of = {Rating.Again: "solution_seen", Rating.Hard: "hint_shown", Rating.Good: "looked"}
        if rating in help_of:
            note(help_of[rating], begin, name, "1")
        end = text(begin + timedelta(seconds=90))
        attempts.append(Outline("id", name, end, end, "passed", "cpu", 0, False, False))
        written(name, rating, at, **how)

    def and_keep_answered(name, rating, at):
        clock[at] += 1
        detail = json.dumps({"form": "quiz", "passed": rating == Rating.Good})
        note("short_review", at + timedelta(minutes=4 * clock[at]), name, detail)
        return answered(name, rating, at)

    learner.memory.written, learner.memory.answered = and_keep_written, and_keep_answered
    learner.live(weeks)
    return attempts, notes


def text(at):
    return at.isoformat(timespec="microseconds")
