"""What is remembered: FSRS's dates, and credit worked out by hand."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from fsrs import Card, Rating, State

from harness.learner.memory import (
    LEAST,
    SHARE,
    Memory,
    credits,
    interval_days,
    knocked_out,
    scheduler,
)
from tests.schedule.catalogue import entries

DAY_0 = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)


def day(number):
    return DAY_0 + timedelta(days=number)


def chain(*names, **needs):
    """Katas of which each requires the one before it, unless `needs` says otherwise."""
    kata = next(iter(entries().values()))
    before = {name: names[max(0, at - 1) : at] for at, name in enumerate(names)}
    return {name: replace(kata, name=name, requires=needs.get(name, before[name]))
            for name in names}  # fmt: skip


def memory(*names, retention=0.8, **needs):
    return Memory(credits(chain(*names, **needs)), retention)


def state(found, name):
    card = found.traces[name].card
    return card.stability, card.difficulty, card.last_review, card.due


# ---- who is credited ------------------------------------------------------------------------


def test_credit_is_a_quarter_with_every_step_and_ends():
    found = credits(chain("a", "b", "c", "d", "e"))
    assert found["e"] == (("d", 1 / 4), ("c", 1 / 16))
    assert found["a"] == ()
    assert SHARE**3 < LEAST <= SHARE**2


def test_the_shortest_way_counts_and_each_kata_once():
    found = credits(chain("a", "b", "c", "d", d=("c", "a", "unwritten")))
    assert found["d"] == (("c", 1 / 4), ("a", 1 / 4), ("b", 1 / 16))


def test_a_circle_ends():
    found = credits(chain("a", "b", a=("b",)))
    assert found == {"a": (("b", 1 / 4),), "b": (("a", 1 / 4),)}


def test_credit_in_the_course_reaches_two_steps_down():
    found = credits(entries())
    shares = {share for one in found.values() for _, share in one}
    assert shares == {1 / 4, 1 / 16}
    assert "online_softmax" in dict(found["fused_softmax"])


# ---- what credit does -----------------------------------------------------------------------


def test_a_quarter_of_a_review_by_hand():
    """
    Good on day 0: stability 2.3065, difficulty 2.1180, due after 7.65 days, so on day 8.

    A solve on top of it on day 8: recall is (1 + 0.9804 * 8 / 2.3065)^-0.1542 = 0.7957, and a Good
    review would make the stability 2.3065 * (1 + e^1.8722 * (11 - 2.1180) * 2.3065^-0.1666 *
    (e^(0.796 * 0.2043) - 1)) = 22.77. With a quarter of that growth it is 7.42, and a quarter of
    the days since is 2: due 3.3158 * 7.42 = 24.6 days after day 2.
    """
    found = memory("a", "b")
    found.written("a", Rating.Good, day(0))
    assert found.due("a") == datetime(2026, 1, 13, tzinfo=UTC)
    found.written("b", Rating.Good, day(8))
    stability, difficulty, last_review, due = state(found, "a")
    assert stability == pytest.approx(7.42, abs=0.01)
    assert difficulty == pytest.approx(2.1180, abs=1e-3)
    assert last_review == datetime(2026, 1, 5 + 2, tzinfo=UTC)
    assert due == last_review + timedelta(days=25)


def test_a_whole_share_would_be_a_good_review():
    found = memory("a")
    found.written("a", Rating.Good, day(0))
    card = found.traces["a"].card
    midnight = datetime(2026, 1, 15, tzinfo=UTC)
    whole = found.credited(card, 1.0, midnight)
    good, _ = scheduler(0.8).review_card(card, Rating.Good, midnight)
    assert whole.stability == pytest.approx(good.stability)
    assert (whole.last_review, whole.due) == (good.last_review, good.due)


@pytest.mark.parametrize("share", [1 / 16, 1 / 4, 1 / 2])
@pytest.mark.parametrize("after", [1, 2, 5, 8, 30, 400])
def test_credit_never_brings_a_kata_back_sooner(share, after):
    found = memory("a")
    found.written("a", Rating.Good, day(0))
    card = found.traces["a"].card
    credited = found.credited(card, share, datetime(2026, 1, 5, tzinfo=UTC) + timedelta(days=after))
    assert credited.due >= card.due
    assert credited.stability >= card.stability
    assert found.traces["a"].card == card


def test_twice_on_a_day_is_credited_by_what_is_left():
    """A quarter of ten days, rounded down, is two, and of the eight that are left two more."""
    found = memory("a", "b", "c", c=("a",))
    found.written("a", Rating.Good, day(0))
    found.written("b", Rating.Good, day(10))
    found.written("c", Rating.Good, day(10))
    assert state(found, "a")[2] == datetime(2026, 1, 5 + 4, tzinfo=UTC)


def test_on_the_day_of_a_practice_nothing_is_credited():
    found = memory("a", "b")
    found.written("a", Rating.Good, day(0))
    before = state(found, "a")
    found.written("b", Rating.Good, day(0))
    assert state(found, "a") == before


@pytest.mark.parametrize(("rating", "solved"), [(Rating.Again, True), (Rating.Again, False)])
def test_a_failure_moves_nothing_below(rating, solved):
    found = memory("a", "b")
    for name in ("a", "b"):
        found.written(name, Rating.Good, day(0))
    before = state(found, "a")
    found.written("b", rating, day(9), solved=solved)
    assert state(found, "a") == before


def test_a_short_review_moves_nothing_below():
    found = memory("a", "b")
    for name in ("a", "b"):
        found.written(name, Rating.Good, day(0))
    before = state(found, "a")
    assert found.answered("b", Rating.Good, day(9))
    assert state(found, "a") == before


def test_what_was_never_solved_is_not_credited():
    found = memory("a", "b")
    found.written("b", Rating.Easy, day(0))
    assert list(found.traces) == ["b"]
    found.written("a", Rating.Again, day(1), solved=False)
    assert list(found.traces) == ["b"]


def test_credit_is_no_review_and_changes_no_form():
    found = memory("a", "b")
    found.written("a", Rating.Good, day(0))
    for at in range(8, 100, 10):
        found.written("b", Rating.Good, day(at))
    assert (found.traces["a"].reviews, found.traces["a"].short) == (0, True)


# ---- dates ----------------------------------------------------------------------------------


@pytest.mark.parametrize("retention", [0.75, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("stability", [0.2, 1.3, 2.3065, 8.3, 51.7, 400.0])
def test_intervals_are_those_of_fsrs(stability, retention):
    card = Card(card_id=0, state=State.Review, stability=stability, difficulty=5.0,
                last_review=day(0))  # fmt: skip
    after, _ = scheduler(retention).review_card(card, Rating.Good, day(30))
    assert (after.due - day(30)).days == interval_days(after.stability, retention)


def test_looking_ahead_changes_nothing():
    found = memory("a", "b")
    found.written("a", Rating.Good, day(0))
    before = state(found, "a")
    ahead = found.copy()
    ahead.written("a", Rating.Good, day(8))
    ahead.written("b", Rating.Good, day(9))
    assert state(found, "a") == before
    assert (found.traces["a"].reviews, list(found.traces)) == (0, ["a"])


def test_writing_a_kata_settles_what_is_due_below_it():
    found = memory("a", "b", "c")
    for name in "abc":
        found.written(name, Rating.Good, day(0))
    assert knocked_out(found, "c", ["a", "b"], day(8)) == ["a", "b"]
    assert knocked_out(found, "b", ["a"], day(8)) == ["a"]
    assert knocked_out(found, "a", ["b"], day(8)) == []
