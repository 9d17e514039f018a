"""Which task comes next, and what the weeks to come hold."""

from dataclasses import replace
from datetime import timedelta

import pytest
from fsrs import Rating

from harness.learner.memory import Memory, credits
from harness.learner.schedule import (
    NOTHING,
    SHORT_MIN,
    Form,
    Spent,
    Task,
    due_reviews,
    mixed,
    new_task,
    plan,
    within_reach,
)
from tests.schedule.catalogue import entries
from tests.schedule.test_memory import DAY_0, chain, day, memory


def new(name, minutes=60.0):
    return Task(kata=name, form=Form.NEW, minutes=minutes)


def back(name, minutes=20.0):
    return Task(kata=name, form=Form.WHOLE, minutes=minutes)


def names(tasks):
    return "".join(task.kata for task in tasks)


# ---- reviews --------------------------------------------------------------------------------


def lived(*katas, until=60, **needs):
    """Each solved and reviewed twice, then left alone: its next review is the whole kata."""
    found = memory(*katas, **needs)
    for name in katas:
        found.written(name, Rating.Hard, day(0))
    for at in (5, 20):
        for name in katas:
            assert found.answered(name, Rating.Good, day(at))
    assert not any(trace.short for trace in found.traces.values())
    return found


def test_one_review_settles_several():
    found, katas = lived("a", "b", "c"), chain("a", "b", "c")
    now = max(trace.card.due for trace in found.traces.values())
    (task,) = due_reviews(found, katas, now)
    assert (task.kata, task.settles, task.form) == ("c", ("a", "b"), Form.WHOLE)


def test_where_nothing_is_shared_each_has_its_own():
    alone = {"b": (), "c": ()}
    found, katas = lived("a", "b", "c", **alone), chain("a", "b", "c", **alone)
    now = max(trace.card.due for trace in found.traces.values())
    assert [task.settles for task in due_reviews(found, katas, now)] == [(), (), ()]


def test_what_takes_five_minutes_comes_before_what_takes_half_an_hour():
    found, katas = lived("a"), chain("a", "b", b=())
    now = found.due("a")
    found.written("b", Rating.Hard, now - timedelta(days=8))
    (short, whole) = due_reviews(found, katas, now)
    assert (short.kata, short.form, short.minutes) == ("b", Form.SHORT, 5.0)
    assert (whole.kata, whole.form, whole.minutes) == ("a", Form.WHOLE, katas["a"].minutes / 2)


def test_nothing_is_due_before_its_day():
    found = memory("a")
    found.written("a", Rating.Good, day(0))
    due = found.due("a")
    assert due_reviews(found, chain("a"), due - timedelta(seconds=1)) == []
    assert names(due_reviews(found, chain("a"), due)) == "a"


# ---- new work and reviews -------------------------------------------------------------------


def test_time_is_shared_sixty_to_forty():
    tasks = list(mixed([new("n", 10.0)] * 60, [back("r", 10.0)] * 60, hours=1000.0))
    for at in range(10, 90, 10):
        assert names(tasks[:at]).count("n") == pytest.approx(0.6 * at, abs=1)


def test_what_one_does_not_need_the_other_has():
    assert names(mixed([new("a"), new("b")], [])) == "ab"
    assert names(mixed([], [back("a", 300.0), back("b", 300.0)], hours=1.0)) == "ab"


def test_reviews_beyond_their_share_wait_for_new_work_and_no_longer():
    reviews = [back("r", 60.0)] * 6
    assert names(mixed([new("n", 200.0)] * 3, reviews, hours=10.0)) == "rrnrrnnrr"


def test_what_was_done_before_counts():
    assert names(mixed([new("n")], [back("r")], Spent(new=0.0, reviews=120.0))) == "nr"
    assert names(mixed([new("n")], [back("r")], Spent(new=120.0, reviews=0.0))) == "rn"


def test_even_a_learner_of_an_hour_a_week_gets_to_a_long_review():
    assert (
        names(mixed([new("n")] * 2, [back("r", 45.0)], Spent(new=60.0, reviews=0.0), 1.0)) == "rnn"
    )


def test_only_what_is_within_reach_is_new():
    katas = chain("a", "b", "c", "d", c=("unwritten",), d=("c", "b"))
    assert {kata.name for kata in within_reach(katas, [])} == {"a", "c"}
    assert {kata.name for kata in within_reach(katas, ["a", "c"])} == {"b"}
    assert {kata.name for kata in within_reach(katas, ["c"], ["a", "b"])} == {"d"}


# ---- the weeks to come ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def half_way():
    """Half of the course, solved in a month long ago: far more is due than a week holds."""
    katas = entries()
    found, owned = Memory(credits(katas)), list(katas)[:190]
    for at, name in enumerate(owned):
        found.written(name, Rating.Hard, day(at // 6))
    return found, owned


@pytest.mark.parametrize("hours", [2.0, 6.0, 10.0])
def test_no_week_is_longer_than_the_hours_and_what_is_overdue_is_spread(half_way, hours):
    found, owned = half_way
    weeks = plan(entries(), found, day(120), hours=hours, owned=owned)
    assert len(due_reviews(found, entries(), day(120))) > 100
    for week in weeks:
        assert week.hours_new + week.hours_back == pytest.approx(hours, abs=0.01)
        assert week.hours_new >= 0.6 * hours - 0.01
        assert week.hours_back > 0
    assert weeks[-1].waiting < weeks[0].waiting


@pytest.mark.parametrize(
    ("spent", "left"),
    [
        (Spent(new=150, reviews=30), 7.0),
        (Spent(new=660), 0.0),
        (Spent(reviews=240), 6.0),
    ],
    ids=["both kinds", "more than the week", "reviews alone"],
)
def test_what_was_done_in_the_last_seven_days_is_off_the_first_week(half_way, spent, left):
    found, owned = half_way
    first, second = plan(entries(), found, day(120), owned=owned, weeks=2, spent=spent)
    assert first.hours_new + first.hours_back == pytest.approx(left, abs=0.01)
    assert first.hours_back * 60 + spent.reviews <= 240 + SHORT_MIN  # of ten hours four
    assert second.hours_new + second.hours_back == pytest.approx(10.0, abs=0.01)
    assert (first.done, second.done) == (spent, NOTHING)


def test_what_is_new_is_there_once_and_after_what_it_requires(half_way):
    found, owned = half_way
    before = found.copy()
    weeks = plan(entries(), found, day(120), owned=owned)
    order = list(dict.fromkeys(task.kata for week in weeks for task in week.new))
    met = set(owned)
    for name in order:
        assert met.issuperset(entries()[name].requires)
        met.add(name)
    took = {}
    for week in weeks:
        for task in week.new:
            took[task.kata] = took.get(task.kata, 0.0) + task.minutes
    assert all(took[name] == pytest.approx(entries()[name].minutes) for name in order[:-1])
    assert {name: trace.card.due for name, trace in before.traces.items()} == {
        name: trace.card.due for name, trace in found.traces.items()
    }


def test_the_plan_begins_with_what_next_would_say(half_way):
    found, owned = half_way
    (week,) = plan(entries(), found, day(120), owned=owned, weeks=1)
    reviews = due_reviews(found, entries(), day(120))
    fresh = [new_task(kata) for kata in within_reach(entries(), owned)]
    first = next(mixed(fresh, reviews, NOTHING, 10.0))
    assert first.kata == week.back[0].kata


def test_what_is_under_way_is_planned_before_the_rest():
    reach = [kata.name for kata in within_reach(entries(), [])]
    (week,) = plan(entries(), Memory({}), DAY_0, weeks=1, under_way={reach[7]: 0.0})
    assert week.new[0].kata == reach[7]
    assert week.new[1].kata != reach[7]


@pytest.mark.parametrize(("spent_min", "left_min"), [(0.0, 40.0), (25.0, 15.0), (90.0, 5.0)])
def test_what_was_spent_on_a_kata_under_way_is_off_its_minutes(spent_min, left_min):
    kata = replace(within_reach(entries(), [])[0], minutes=40)
    (week,) = plan({kata.name: kata}, Memory({}), DAY_0, weeks=1, under_way={kata.name: spent_min})
    assert [task.minutes for task in week.new] == [pytest.approx(left_min)]


def test_with_nothing_done_everything_is_new():
    (week,) = plan(entries(), Memory({}), DAY_0, weeks=1)
    assert (week.back, week.hours_new) == ((), pytest.approx(10.0))
