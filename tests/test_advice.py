"""What is advised, in which order, and in which words."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harness.content.catalog import Curriculum, load_curriculum
from harness.learner.advice import advise, due, missing, placement_of
from harness.learner.mastery import Level, Standing
from harness.learner.rounds import Round

ROOT = Path(__file__).parents[1]
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
NEVER = Standing(
    kata="", reached=Level.UNTRIED, counted=False, timed_on=(), rounds=(), reviews=(), open=None,
    stability_days=None, recall=None, due=None, runs=0, hints=0, peeks=0,
)  # fmt: skip


def under_way(runs, days_ago=0):
    at = NOW - timedelta(days=days_ago)
    return Round(
        began_at=at, ended_at=at, solved=False, runs=runs, hints=0, looks=0,
        solution_seen=False, minutes=1.0, paused=False, budget=10,
    )  # fmt: skip


@pytest.fixture
def curriculum(mini):
    """a, then b which needs a, then c which needs b and a kata that is not written yet."""
    kata = load_curriculum(mini).kata("doubled")
    needs = {"a": (), "b": ("a",), "c": ("b", "unwritten")}
    found = Curriculum(root=mini)
    found.__dict__["katas"] = {
        name: replace(kata, name=name, week=week, requires=needs[name])
        for week, name in enumerate(needs, start=1)
    }
    return found


def known(**changes):
    found = {name: replace(NEVER, kata=name) for name in "abc"}
    return {**found, **{name: replace(found[name], **these) for name, these in changes.items()}}


def fast(days=30, recall=0.97, **more):
    """Solved once, and due in so many days."""
    return {"reached": Level.SOLVED, "runs": 1, "due": NOW + timedelta(days=days), "recall": recall,
            **more}  # fmt: skip


def advised(curriculum, standings, **options):
    return {one.kata: one.reason for one in advise(curriculum, standings, NOW, **options)}


def test_only_what_needs_nothing_is_within_reach_at_first(curriculum):
    assert advised(curriculum, known()) == {"a": "new, week 1; needs no other kata"}


def test_what_builds_on_what_is_owned_comes_next(curriculum):
    assert advised(curriculum, known(a=fast())) == {
        "b": "new, week 2; builds on what you have solved: a"
    }


def test_a_kata_that_is_not_written_yet_stands_in_nobodys_way(curriculum):
    assert list(advised(curriculum, known(a=fast(), b=fast()))) == ["c"]
    assert missing(curriculum.katas["c"], known()) == ["b"]


@pytest.mark.parametrize(
    ("days_ago", "edited", "order"),
    [(0, (), "bad"), (1, (), "abd"), (1, ("b",), "bad"), (1, ("d",), "abd")],
)
def test_due_comes_before_begun_unless_that_was_taken_up_today(curriculum, days_ago, edited, order):
    found = known(a=fast(days=-3, recall=0.84),
                  b={"reached": Level.ATTEMPTED, "open": under_way(2, days_ago)})  # fmt: skip
    del curriculum.katas["c"]
    curriculum.katas["d"] = replace(curriculum.katas["a"], name="d", week=9)
    found = {**found, "d": replace(NEVER, kata="d")}
    assert "".join(advised(curriculum, found, edited=edited)) == order


def test_a_review_left_half_done_is_due_like_any_other(curriculum):
    found = known(a=fast(-3, 0.9), b=fast(-3, 0.8, open=under_way(1, days_ago=1)))
    assert list(advised(curriculum, found))[:2] == ["b", "a"]


def test_what_is_easy_comes_first_and_what_is_a_step_harder_next(curriculum):
    kata = curriculum.katas["a"]
    steps = {"hard": (4, 1), "fair": (3, 2), "easy": (1, 9), "gentle": (2, 5)}
    katas = {
        name: replace(kata, name=name, difficulty=difficulty, week=week, requires=())
        for name, (difficulty, week) in steps.items()
    }
    curriculum.__dict__["katas"] = katas
    found = {name: replace(NEVER, kata=name) for name in katas}
    assert list(advised(curriculum, found)) == ["easy", "gentle", "fair", "hard"]
    found["gentle"] = replace(found["gentle"], **fast())
    assert list(advised(curriculum, found)) == ["fair", "easy", "hard"]


def test_begun_today_comes_before_due_before_new(curriculum):
    found = known(a=fast(days=-3, recall=0.84),
                  b={"reached": Level.ATTEMPTED, "open": under_way(2), "runs": 7})  # fmt: skip
    del curriculum.katas["c"]
    curriculum.katas["d"] = replace(curriculum.katas["a"], name="d", week=9)
    assert advised(curriculum, {**found, "d": replace(NEVER, kata="d")}) == {
        "b": "in progress, not solved yet, 2 runs",
        "a": "due for 3 days; the chance that you can still write it cold is about 84%",
        "d": "new, week 9; needs no other kata",
    }


def test_started_without_a_run_is_begun_and_not_new(curriculum):
    assert advised(curriculum, known(a={"open": under_way(0)})) == {
        "a": "in progress, not solved yet, no run yet"
    }


def test_a_review_under_way_is_gone_on_with_not_started_anew(curriculum):
    again = advise(curriculum, known(a=fast(days=-1, open=under_way(0))), NOW)[0]
    assert (again.kata, again.begun) == ("a", True)
    fresh = advise(curriculum, known(a=fast(days=-1)), NOW)[0]
    assert (fresh.kata, fresh.begun) == ("a", False)


def test_an_owned_kata_that_was_begun_again_is_under_way(curriculum):
    (first, *_) = advise(curriculum, known(a=fast(open=under_way(1), runs=9)), NOW)
    assert (first.kata, first.begun) == ("a", True)
    assert first.reason == "in progress again, not solved yet, 1 run"


@pytest.mark.parametrize(
    ("late", "words"),
    [({"hours": 0}, "due today"), ({"hours": 25}, "due for 1 day;"), ({"days": 9}, "for 9 days")],
)
def test_how_late_is_said_in_days(curriculum, late, words):
    found = known(a=fast() | {"due": NOW - timedelta(**late)})
    assert words in advised(curriculum, found)["a"]


def test_the_most_forgotten_is_due_first():
    found = known(a=fast(-1, 0.9), b=fast(-1, 0.6), c=fast(1, 0.1))
    assert [one.kata for one in due(found, NOW)] == ["b", "a"]


def test_who_was_placed_gets_past_without_solving(curriculum):
    assert list(advised(curriculum, known(), placed={"a"})) == ["b"]


def test_placement_asks_for_what_covers_most_the_harder_first(curriculum):
    kata = curriculum.katas["a"]
    made = [
        ("wide", ("01.1", "01.2", "01.3"), 1),
        ("easy", ("01.4",), 1),
        ("hard", ("01.4",), 3),
        ("repeats", ("01.1", "01.2"), 5),
    ]
    katas = {
        name: replace(kata, name=name, covers=covers, difficulty=difficulty)
        for name, covers, difficulty in made
    }
    assert [one.name for one in placement_of(katas, 1)] == ["wide", "hard"]
    assert [one.name for one in placement_of(katas, 1, most=1)] == ["wide"]
    assert placement_of(katas, 2) == []


def test_who_is_new_is_offered_what_is_easy_and_every_backend_has_a_way_in():
    curriculum = load_curriculum(ROOT)
    found = {name: replace(NEVER, kata=name) for name in curriculum.katas}
    first, *others = advise(curriculum, found, NOW)[:3]
    assert first.kata == "vector_add"
    assert max(curriculum.katas[one.kata].difficulty for one in (first, *others)) <= 2
    katas = curriculum.katas.values()
    # what the first weeks use can be begun with; what comes later may build on other backends
    at_once = {kata.backend for kata in katas if not kata.requires}
    assert at_once >= {kata.backend for kata in katas if kata.week <= 4}
    ways_in = {
        kata.backend
        for kata in katas
        if all(one.backend != kata.backend for one in katas if one.name in kata.requires)
    }
    assert ways_in == {kata.backend for kata in katas}
