"""What is advised, in which order, and in which words."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fsrs import Card, State

from harness.content.catalog import Curriculum, load_curriculum
from harness.content.course import PLACED
from harness.learner.advice import (
    advise,
    budget_of,
    command_for,
    due,
    missing,
    placement_of,
    spent_of,
)
from harness.learner.mastery import Level, Review, Standing
from harness.learner.memory import Trace
from harness.learner.progress import Note
from harness.learner.rounds import Round
from harness.learner.schedule import Budget, Form, Spent

ROOT = Path(__file__).parents[1]
DECAY = 0.1542  # of FSRS's curve
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
        name: replace(kata, name=name, week=week, requires=needs[name], minutes=20)
        for week, name in enumerate(needs, start=1)
    }
    return found


def known(**changes):
    found = {name: replace(NEVER, kata=name) for name in "abc"}
    return {**found, **{name: replace(found[name], **these) for name, these in changes.items()}}


def fast(days=30, recall=0.97, reviewed=2, **more):
    """Solved, reviewed so often since, and due in so many days."""
    due = NOW + timedelta(days=days)
    # of FSRS's curve, for what was seen thirty days ago
    lost = recall ** (-1 / DECAY) - 1
    card = Card(card_id=0, state=State.Review, difficulty=5.0, due=due,
                stability=30 * (0.9 ** (-1 / DECAY) - 1) / lost,
                last_review=NOW - timedelta(days=30))  # fmt: skip
    trace = Trace(card=card, on=card.last_review.date(), reviews=reviewed)
    solved = {"reached": Level.SOLVED, "runs": 1}
    return {**solved, "due": due, "recall": recall, "trace": trace, **more}


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
    found = known(a=fast(-3, 0.9), b=fast(-3, 0.7, 0, open=under_way(1, days_ago=1)))
    assert list(advised(curriculum, found)) == ["b", "c", "a"]


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
        "a": "due for 3 days: the chance that you can still write it cold is about 84%",
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
    ("days_late", "words"),
    [(0, "due today"), (25 / 24, "due for 1 day:"), (9, "for 9 days")],
)
def test_how_late_is_said_in_days(curriculum, days_late, words):
    assert words in advised(curriculum, known(a=fast(-days_late, 0.7)))["a"]


def test_a_review_says_which_form_it_takes_and_what_to_type(curriculum):
    def first(**changes):
        return advise(curriculum, known(a=fast(-1, 0.78, **changes)), NOW)[0]

    short, whole = first(reviewed=1), first(reviewed=2)
    assert (short.form, short.minutes, short.command) == (Form.SHORT, 5.0, "kata quiz a")
    assert short.reason == (
        "due for 1 day: the chance that you can still write it cold is about 78%. "
        "Five minutes are enough: kata quiz a, kata hunt a or kata hint a --lines"
    )
    assert (whole.form, whole.minutes, whole.command) == (Form.WHOLE, 10.0, "kata start a")
    begun = first(reviewed=1, open=under_way(1))
    assert begun.command == "make kata name=a"
    (new, *_) = advise(curriculum, known(), NOW)
    assert (new.form, new.minutes, new.command) == (Form.NEW, 20.0, "kata start a")


def test_what_another_review_settles_is_not_advised(curriculum):
    found = known(a=fast(-1, 0.78), b=fast(-1, 0.78))
    (first, *rest) = advise(curriculum, found, NOW)
    assert (first.kata, "a" in {one.kata for one in rest}) == ("b", False)
    assert first.reason.endswith("%. It also counts for what is due of a")
    found = known(a=fast(-1, 0.78), b=fast(-1, 0.78, reviewed=0))  # five minutes count for b alone
    assert {"a", "b"} <= set(advised(curriculum, found))


def test_reviews_and_new_work_share_the_week(curriculum):
    """At two hours a week reviews have 48 minutes: five of ten would be more."""
    kata = curriculum.katas["a"]
    names = [f"due_{n}" for n in range(6)] + [f"new_{n}" for n in range(6)]
    curriculum.__dict__["katas"] = {name: replace(kata, name=name) for name in names}
    found = {name: replace(NEVER, kata=name) for name in names}
    found |= {name: replace(found[name], **fast(-5, 0.7)) for name in names[:6]}
    advised = [one.form for one in advise(curriculum, found, NOW, budget=Budget(hours=2.0))]
    assert advised[:7].count(Form.WHOLE) == 4
    assert (advised.count(Form.WHOLE), advised.count(Form.NEW)) == (6, 6)
    assert advised[-2:] == [Form.WHOLE] * 2  # they wait for what is new, and no longer


def done(days_ago, minutes, solved=True):
    return replace(under_way(1, days_ago), solved=solved, minutes=minutes)


def test_what_was_spent_is_that_of_the_last_seven_days(curriculum):
    asked = Review(due_at=NOW, began_at=NOW, done_at=NOW, passed=True, short=True)
    found = known(
        a=fast(rounds=(done(20, 25), done(8, 30), done(6, 8), done(1, 9)), reviews=(asked,)),
        b={"reached": Level.SOLVED, "rounds": (done(3, 40, solved=False), done(2, None))},
        c={"open": under_way(2)},
    )
    spent = spent_of(curriculum.katas, found, NOW)
    assert spent == Spent(new=40 + 20 + 1, reviews=8 + 9 + 5)


@pytest.mark.parametrize(
    ("said", "budget"),
    [
        ([], Budget()),
        (['{"hours": 6}'], Budget(hours=6.0)),
        (['{"hours": 6}', '{"retention": 0.9}', '{"hours": 7}'], Budget(hours=7.0, retention=0.9)),
        (['{"hours": 6}', "nothing", '{"hours": -1}', '{"retention": 0.2}'], Budget(hours=6.0)),
    ],
)
def test_what_was_said_last_of_hours_and_retention_holds(said, budget):
    at = NOW.isoformat(timespec="microseconds")
    notes = [Note(id=str(n), at=at, kind="budget", kata="", detail=one)
             for n, one in enumerate(said)]  # fmt: skip
    assert budget_of(notes) == budget


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


def test_outside_a_clone_the_next_step_needs_no_makefile(curriculum, tmp_path):
    kata = replace(curriculum.katas["a"], root=tmp_path / "mine")
    assert kata.run_command == "make kata name=a"
    placed = kata.root / PLACED
    placed.parent.mkdir(parents=True)
    placed.touch()
    assert command_for(kata, begun=True, short=False) == kata.run_command == "kata run a"
    assert command_for(kata, begun=False, short=False) == "kata start a"
