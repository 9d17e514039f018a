"""The simulated year: what docs/mastery.md promises, on one seed."""

from datetime import timedelta

import pytest

from harness.learner.mastery import standings
from tests.schedule.catalogue import (
    ROOT,
    concepts,
    data,
    entries,
    left_out,
    standing_katas,
)
from tests.schedule.learner import BEFORE, START, Learner, kept_of


@pytest.fixture(scope="module")
def finished():
    """Ten hours a week until the last kata is solved."""
    learner = Learner(hours=10)
    learner.finish()
    return learner


def test_at_ten_hours_reviews_never_take_more_than_five(finished):
    """They begin within their 4 hours; the longest is reckoned at 2, and fails in 3."""
    assert max(kata.minutes for kata in entries().values()) <= 240
    for number, week in enumerate(finished.lived[:-1], start=1):
        assert week.reviews <= 5, f"week {number}"


def test_a_learner_of_ten_hours_finishes_and_remembers(finished):
    """458 hours of new work do not fit into a year of 52 weeks at 6 of 10 hours."""
    assert len(finished.owned) == len(entries())
    assert 52 < len(finished.lived) <= 78
    recall = finished.recall()
    assert recall.met == len(concepts())
    assert recall.mean >= 0.8


def test_after_a_holiday_he_goes_on_with_what_is_new(finished):
    away, after = finished.lived[20:22], finished.lived[22]
    assert [week.new + week.reviews for week in away] == [0, 0]
    assert after.new > 5


def test_by_the_rule_before_he_stood_still(finished):
    before = Learner(hours=10, rule=BEFORE).live(52)
    solved = [sum(week.solved for week in one.lived[:52]) for one in (before, finished)]
    assert solved[0] < solved[1] / 2
    remembered = before.recall().remembered
    assert remembered < finished.recall().remembered / 2


def test_the_harness_makes_the_same_of_a_history():
    """The memory that the simulation keeps is the one that standings are worked out from."""
    learner = Learner(hours=10, seed=3)
    attempts, notes = kept_of(learner, weeks=12)
    known = standings(entries(), attempts, notes, {}, START + timedelta(weeks=12))
    assert len(learner.memory.traces) > 50
    for name, trace in learner.memory.traces.items():
        assert known[name].trace == trace, name
        assert known[name].recall == learner.memory.recall(name, START + timedelta(weeks=12))


# ---- the entries ----------------------------------------------------------------------------


def test_where_a_kata_stands_it_is_its_own_truth():
    named = data()["entries"]
    for name, kata in standing_katas().items():
        assert entries()[name] == kata
        assert named.get(name, [kata.week])[0] == kata.week, f"{name} in catalogue.json"


def test_what_entries_require_exists_and_leads_to_no_circle():
    met, left = set(), dict(entries())
    assert {need for kata in left.values() for need in kata.requires} <= set(left)
    while ready := [name for name, kata in left.items() if met.issuperset(kata.requires)]:
        met.update(ready)
        for name in ready:
            del left[name]
    assert not left


def test_what_an_entry_requires_and_its_kata_does_not_is_listed():
    found = left_out()
    assert found["cuda_vector_add"] == ["do_bench"]  # an entry kata: nothing comes before it
    for name, missing in found.items():
        assert set(missing) <= set(data()["entries"][name][3]) - set(entries()[name].requires)


def test_whoever_covers_it_every_concept_has_a_kata():
    assert len(entries()) >= 377
    assert len(concepts()) == 281


def test_the_page_shows_the_year():
    page = (ROOT / "docs" / "mastery.md").read_text(encoding="utf-8")
    for name in ("year.svg", "year_dark.svg"):
        assert name in page
        assert (ROOT / "docs" / name).is_file()
