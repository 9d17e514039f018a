"""From what was kept to how far a kata is owned, on a fixed clock."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from harness.content.catalog import load_curriculum
from harness.content.kata import SpeedThreshold
from harness.learner.mastery import Level, item_standings, standing, standings
from harness.learner.progress import Check, Measurement, Note, Outline, Progress

DAY_0 = datetime(2026, 1, 1, 9, 0, tzinfo=UTC)


def text(moment):
    return moment.isoformat(timespec="microseconds")


class Learner:
    """Does things at times, given in days since the first."""

    def __init__(self, kata):
        self.kata = kata
        self.attempts = []
        self.notes = []

    def start(self, day, minute=0, detail=""):
        self._note("started", day, minute, detail)

    def answer(self, day, *, passed=True, minute=0):
        """A short review."""
        self._note("short_review", day, minute, json.dumps({"form": "quiz", "passed": passed}))

    def hint(self, day, minute=0):
        self._note("hint_shown", day, minute)

    def peek(self, day, minute=0):
        self._note("solution_seen", day, minute)

    def look(self, day, minute=0):
        """A red one of `kata watch`."""
        self._note("looked", day, minute)

    def run(self, day, status="passed", *, minute=10, second=0, right=False, device="cpu"):
        at = text(DAY_0 + timedelta(days=day, minutes=minute, seconds=second))
        self.attempts.append(Outline("id", self.kata.name, at, at, status, device, 0, False, right))

    def solve(self, *days, after=(), **how):
        """From blank to solved; `after` names what was noted halfway."""
        for day in days:
            self.start(day)
            for kind in after:
                self._note(kind, day, 1)
            self.run(day, **how)

    def _note(self, kind, day, minute, detail=""):
        at = text(DAY_0 + timedelta(days=day, minutes=minute))
        self.notes.append(
            Note(id=f"{kind}{at}", at=at, kind=kind, kata=self.kata.name, detail=detail)
        )

    def at(self, day, timed_on=()):
        now = DAY_0 + timedelta(days=day)
        return standing(self.kata, self.attempts, self.notes, timed_on, now)


@pytest.fixture
def curriculum(mini):
    return load_curriculum(mini)


@pytest.fixture
def learner(curriculum):
    return Learner(ten_minutes(curriculum))


def ten_minutes(curriculum):
    return replace(curriculum.kata("doubled"), minutes=10)


def ratings(found):
    return [one.rating.name for one in found.rounds]


def test_nothing_done_is_untried(learner):
    found = learner.at(0)
    assert (found.level, found.due, found.recall, found.open) == (Level.UNTRIED, None, None, None)


def test_a_failed_run_is_an_attempt_and_a_round_under_way(learner):
    learner.run(0, "timed_out")
    assert learner.at(0).level == Level.ATTEMPTED
    assert learner.at(0).open
    assert learner.at(0).rounds == ()


def test_right_but_over_a_threshold_is_correct(learner):
    learner.run(0, "failed", right=True)
    assert learner.at(0).level == Level.CORRECT


MISSED = "allocated_bytes: 8,000, limit <= 4,000"


@pytest.mark.parametrize(
    ("failed", "level"),
    [
        ({"test_cost[allocated_bytes]": f"AssertionError: {MISSED}"}, Level.CORRECT),
        ({"test_allocates_nothing": f"AssertionError: {MISSED}"}, Level.CORRECT),
        ({"test_cost_of_nothing_is_zero": "assert 1 == 0"}, Level.ATTEMPTED),
        ({"test_cost[allocated_bytes]": MISSED, "test_edge": "assert 1 == 0"}, Level.ATTEMPTED),
        ({}, Level.ATTEMPTED),
    ],
)
def test_a_threshold_is_known_by_its_measurement_whatever_test_holds_it(
    curriculum, tmp_path, failed, level
):
    progress = Progress(tmp_path)
    attempt = progress.start("doubled", "yours", "ab" * 32, seed=1, device="cpu", profile="cpu")
    checks = [Check(name="test_right", outcome="passed")]
    checks += [Check(name=name, outcome="failed", message=said) for name, said in failed.items()]
    missed = Measurement(name="allocated_bytes", meter="allocated_bytes", value=8000.0,
                         limit=4000.0, passed=False, detail={"message": MISSED})  # fmt: skip
    progress.finish(attempt, "failed", "", checks=checks, measurements=[missed], versions={},
                    duration_s=1.0)  # fmt: skip
    known = standings(curriculum.katas, progress.outlines(), [], {}, DAY_0)
    assert known["doubled"].level == level


def test_a_run_that_was_cut_short_says_nothing(curriculum, learner):
    learner.run(0, "aborted")
    learner.run(0, "error")
    known = standings(curriculum.katas, learner.attempts, [], {}, DAY_0)
    assert known["doubled"].level == Level.UNTRIED


def test_passing_is_solved_and_says_on_what(learner):
    learner.run(0)
    assert learner.at(0).level == Level.SOLVED
    assert learner.at(0).counted
    assert learner.at(0).timed_on == ()
    assert learner.at(0, ["h200_sxm"]).timed_on == ("h200_sxm",)


@pytest.mark.parametrize(
    ("on", "device", "timed_on", "level"),
    [
        ("cuda", "cpu", (), Level.SOLVED),  # no clock was read
        ("cuda", "cpu", ("cpu",), Level.SOLVED),  # another clock than the threshold asks for
        ("cuda", "cuda", (), Level.SOLVED),  # a GPU that was not fit to be timed
        ("cuda", "cuda", ("h200_sxm",), Level.FAST),
        ("any", "cpu", ("cpu",), Level.FAST),
    ],
)
def test_fast_is_what_the_clock_asked_for_has_judged(learner, on, device, timed_on, level):
    speed = SpeedThreshold(name="baseline", kind="baseline", fraction=0.0, ratio=2.0,
                           against="slow", on=on, dtype=None, case={}, profiles={})  # fmt: skip
    learner.kata = replace(learner.kata, speed=(speed,))
    learner.run(0, device=device)
    assert learner.at(0, timed_on).level == level


@pytest.mark.parametrize(("days_before", "hints"), [(0, 1), (2, 1), (6, 1), (8, 0)])
def test_hints_read_in_the_days_before_a_start_belong_to_the_round(learner, days_before, hints):
    learner.hint(10 - days_before, -5)
    learner.solve(10)
    found = learner.at(10)
    assert [one.hints for one in found.rounds] == [hints]
    assert len(found.clean_days) == 1 - hints


def test_hints_read_on_the_day_of_a_solve_are_study(learner):
    learner.solve(0)
    learner.hint(0, 60)
    learner.solve(2)
    assert [one.hints for one in learner.at(2).rounds] == [0, 0]
    learner.hint(3)
    learner.solve(4)
    assert [one.hints for one in learner.at(4).rounds] == [0, 0, 1]


def test_running_the_same_file_again_is_not_practice(learner):
    for day in (0, 5, 20, 60):
        learner.run(day)
    found = learner.at(60)
    assert len(found.rounds) == 1
    assert found.level == Level.SOLVED


def test_three_cold_solves_when_due_are_mastery(learner):
    learner.solve(0)
    for _ in range(2):
        due = learner.at(0).due
        learner.solve((due - DAY_0).days + 1)
    found = learner.at(20)
    assert len(found.clean_days) == 3
    assert found.stability_days >= 21
    assert found.level == Level.MASTERED


def test_three_solves_on_one_day_are_not(learner):
    for minute in (0, 20, 40):
        learner.start(0, minute)
        learner.run(0, minute=minute + 10)
    found = learner.at(0)
    assert len(found.rounds) == 3
    assert len(found.clean_days) == 1
    assert found.level == Level.SOLVED


def test_what_is_not_seen_again_fades_and_comes_back(learner):
    learner.solve(0, 3, 14)
    mastered = learner.at(15)
    assert mastered.level == Level.MASTERED
    later = learner.at(2000)
    assert later.recall < 0.7
    assert later.level == Level.SOLVED
    assert later.is_due(DAY_0 + timedelta(days=2000))
    learner.solve(2000)
    assert learner.at(2000).level == Level.MASTERED


@pytest.mark.parametrize("how", [{"after": ["solution_seen"]}, {"status": "failed"}])
def test_giving_up_starts_the_count_again(learner, how):
    learner.solve(0, 3, 14)
    learner.solve(60, **how)
    learner.start(61)
    assert learner.at(61).clean_days == ()
    assert learner.at(61).level == Level.SOLVED


def test_a_hint_keeps_the_count_but_is_not_counted(learner):
    learner.solve(0, 3)
    learner.solve(14, after=["hint_shown"])
    assert len(learner.at(14).clean_days) == 2


@pytest.mark.parametrize(
    ("minute", "runs", "how", "rating"),
    [
        (4, 1, {}, "Easy"),  # under half of the ten minutes, at once
        (10, 1, {}, "Good"),
        (4, 3, {}, "Good"),  # quick, but not at once
        (10, 7, {}, "Hard"),  # more than six runs
        (4, 1, {"after": ["hint_shown"]}, "Hard"),
        (4, 1, {"after": ["solution_seen"]}, "Again"),
        (4, 1, {"after": ["looked"]}, "Good"),  # a red look is no success at once
    ],
)
def test_behaviour_is_the_rating(learner, minute, runs, how, rating):
    for _ in range(runs - 1):
        learner.run(0, "failed", minute=minute)
    learner.solve(0, minute=minute, **how)
    assert ratings(learner.at(0)) == [rating]


def test_a_break_is_not_work(learner):
    learner.start(0)
    learner.run(0, "failed", minute=8)
    learner.run(3, minute=2)  # three days later: the break counts as twenty minutes
    (one,) = learner.at(3).rounds
    assert one.minutes == 28
    assert one.rating.name == "Hard"


@pytest.mark.parametrize(
    ("budget", "minutes", "rating"),
    [(10, 20, "Good"), (40, 40, "Good"), (60, 60, "Good")],  # at most 20 minutes, or the kata's
)
def test_one_long_gap_is_never_easy(curriculum, budget, minutes, rating):
    learner = Learner(replace(ten_minutes(curriculum), minutes=budget))
    learner.solve(0, minute=240)
    (one,) = learner.at(1).rounds
    assert (one.minutes, one.paused, one.rating.name) == (minutes, True, rating)


def test_half_an_hour_of_an_hour_is_easy_and_no_pause(curriculum):
    learner = Learner(replace(ten_minutes(curriculum), minutes=60))
    learner.solve(0, minute=30)
    (one,) = learner.at(0).rounds
    assert (one.minutes, one.paused, one.rating.name) == (30, False, "Easy")


def test_red_looks_are_work_and_not_runs(curriculum):
    learner = Learner(replace(ten_minutes(curriculum), minutes=60))
    learner.start(0)
    for minute in (10, 20, 30):
        learner.look(0, minute)
    learner.run(0, minute=240)
    (one,) = learner.at(1).rounds
    assert (one.runs, one.looks, one.minutes, one.rating.name) == (1, 3, 90, "Good")
    for _ in range(10):
        learner.look(0, 31)
    assert ratings(learner.at(1)) == ["Good"]  # not Hard, however many


def test_a_round_left_for_a_new_one_was_given_up(learner):
    learner.start(0)
    learner.run(0, "failed")
    learner.start(1)
    learner.run(1)
    assert ratings(learner.at(1)) == ["Again", "Good"]


def test_a_start_without_a_run_is_no_round(learner):
    learner.start(0)
    learner.start(1)
    assert learner.at(1).rounds == ()
    assert learner.at(1).open


def test_seeing_the_solution_and_starting_again_gives_the_round_up(learner):
    learner.solve(0, 3)
    learner.start(14)
    learner.peek(14, 5)
    assert learner.at(14).open.solution_seen
    learner.solve(15)
    found = learner.at(15)
    assert ratings(found) == ["Good", "Good", "Again", "Good"]
    assert found.rounds[2].ended_at == DAY_0 + timedelta(days=14, minutes=5)
    assert (len(found.clean_days), found.peeks) == (1, 1)


def test_every_look_before_the_solve_is_counted_and_none_after_it(learner):
    learner.peek(0)  # before the first start
    assert (learner.at(0).peeks, learner.at(0).open) == (1, None)
    learner.solve(1)
    learner.peek(2)  # study
    found = learner.at(2)
    assert (found.peeks, ratings(found)) == (1, ["Good"])
    learner.start(3)
    learner.peek(3, 1)
    learner.peek(3, 2)
    assert learner.at(3).peeks == 2  # the round under way counts, and once


def test_help_is_that_of_the_round_and_not_of_the_one_before(learner):
    learner.solve(0, after=["hint_shown"])
    learner.solve(3)
    assert [one.hints for one in learner.at(3).rounds] == [1, 0]


def test_without_a_start_all_help_so_far_is_that_of_the_first_round(learner):
    learner.hint(-1)
    learner.peek(-1, 1)
    learner.run(0)
    (one,) = learner.at(0).rounds
    assert (one.hints, one.solution_seen, one.minutes) == (1, True, None)


def test_what_an_attempt_knew_of_help_elsewhere_is_not_asked(learner):
    learner.solve(0)
    learner.attempts[0] = learner.attempts[0]._replace(hints_seen=3, solution_seen=True)
    assert learner.at(0).rounds[0].clean


def test_on_two_devices_both_legs_must_pass(learner):
    learner.start(0)
    learner.run(0, minute=3)
    learner.run(0, "failed", minute=3, second=9, device="cuda")
    half = learner.at(0)
    assert (half.level, half.runs, half.open.runs) == (Level.CORRECT, 1, 1)
    assert half.rounds == ()
    learner.run(0, minute=5)
    learner.run(0, minute=5, second=9, device="cuda")
    found = learner.at(0)
    assert (found.level, found.runs, ratings(found)) == (Level.SOLVED, 2, ["Good"])
    assert found.rounds[0].ended_at == DAY_0 + timedelta(minutes=5, seconds=9)


def test_on_another_device_later_is_another_run(learner):
    learner.start(0)
    learner.run(0, minute=4)
    learner.run(0, "failed", minute=5, device="cuda")
    assert (learner.at(0).level, learner.at(0).runs) == (Level.SOLVED, 2)
    learner.run(0, "failed", minute=5, second=5, device="cuda")  # the same device: a run again
    assert learner.at(0).runs == 3


@pytest.mark.parametrize("earlier", [0, 10, -10])
def test_a_day_is_a_day_some_minutes_earlier_or_later(learner, earlier):
    for day in range(3):
        learner.start(day, -earlier * day)
        learner.run(day, minute=4 - earlier * day)
    found = learner.at(3)
    assert ratings(found) == ["Easy"] * 3
    assert found.stability_days == pytest.approx(27, abs=0.5)
    assert found.level == Level.MASTERED


def test_what_is_due_is_due_all_day(learner):
    learner.solve(0)  # good: due after eight days
    due = datetime(2026, 1, 9, tzinfo=UTC)
    assert learner.at(0).due == due
    assert learner.at(8).is_due(due)
    assert not learner.at(8).is_due(due - timedelta(seconds=1))
    assert learner.at(8).recall == pytest.approx(0.8, abs=0.02)


def test_reviews_know_when_they_were_due(learner):
    learner.solve(0)
    due = learner.at(0).due
    learner.solve(9)
    (review,) = learner.at(9).reviews
    assert (review.due_at, review.passed, review.short) == (due, True, False)
    assert review.began_at == DAY_0 + timedelta(days=9)
    assert review.done_at == DAY_0 + timedelta(days=9, minutes=10)


@pytest.mark.parametrize(("minute", "rating"), [(10, "Hard"), (4, "Hard")])
def test_from_half_a_stub_is_hard_at_best_and_no_cold_day(learner, minute, rating):
    learner.start(0, detail="half")
    learner.run(0, minute=minute)
    found = learner.at(0)
    assert (ratings(found), found.clean_days, found.level) == ([rating], (), Level.SOLVED)
    learner.solve(1)
    assert len(learner.at(1).clean_days) == 1


def test_half_a_stub_seen_in_the_days_before_keeps_a_blank_one_from_being_cold(learner):
    learner.start(0, detail="half")
    learner.solve(1)
    found = learner.at(1)
    assert (ratings(found), found.clean_days) == (["Hard"], ())
    learner.solve(2)
    assert len(learner.at(2).clean_days) == 1
    other = Learner(learner.kata)
    other.start(0, detail="half")
    other.solve(8)
    assert len(other.at(8).clean_days) == 1


def test_a_short_review_that_is_passed_is_good(learner):
    learner.solve(0)
    learner.answer(8)
    asked = learner.at(8)
    (review,) = asked.reviews
    assert (review.passed, review.short) == (True, True)
    assert len(asked.rounds) == len(asked.clean_days) == 1
    other = Learner(learner.kata)
    other.solve(0, 8)
    assert asked.stability_days == pytest.approx(other.at(8).stability_days)


def test_a_short_review_that_is_failed_brings_the_kata_back_soon(learner):
    learner.solve(0)
    before = learner.at(8).stability_days
    learner.answer(8, passed=False)
    found = learner.at(8)
    assert found.stability_days < before
    assert found.due < DAY_0 + timedelta(days=8 + 7)
    assert found.level == Level.SOLVED


def test_two_short_reviews_then_the_whole_kata(learner):
    learner.solve(0)
    assert learner.at(8).short
    learner.answer(8)
    assert learner.at(8).short
    learner.answer(40)
    third = learner.at(40)
    assert not third.short
    learner.answer(60)  # says nothing any more
    assert (learner.at(60).due, len(learner.at(60).reviews)) == (third.due, 2)


def test_a_kata_that_was_given_up_is_asked_about_again(learner):
    learner.solve(0, 8, 60)
    assert not learner.at(60).short
    learner.solve(100, after=["solution_seen"])
    assert learner.at(100).short


def test_a_short_review_says_nothing_before_the_first_solve_nor_on_the_day_of_a_practice(learner):
    learner.answer(0)
    learner.solve(1)
    learner.answer(1, minute=30)
    found = learner.at(2)
    assert (found.reviews, found.stability_days) == ((), pytest.approx(2.3065))


@pytest.mark.parametrize("detail", ["", "[]", "{}", "no JSON", "null"])
def test_a_note_of_a_short_review_that_says_nothing_counts_for_nothing(learner, detail):
    learner.solve(0)
    learner._note("short_review", 8, 0, detail)
    assert learner.at(8).reviews == ()


def test_short_reviews_alone_never_make_a_kata_mastered(learner):
    learner.solve(0)
    for day in range(8, 300, 20):
        learner.answer(day)
    assert learner.at(60).stability_days > 21
    assert learner.at(60).level == Level.SOLVED


def test_what_builds_on_a_kata_counts_for_it(curriculum):
    kata = ten_minutes(curriculum)
    above = replace(kata, name="above", requires=(kata.name,))
    katas = {kata.name: kata, "above": above}
    below, over = Learner(kata), Learner(above)
    below.solve(0)
    over.solve(8)

    def at(day, *learners):
        now = DAY_0 + timedelta(days=day)
        attempts = [run for one in learners for run in one.attempts]
        notes = [note for one in learners for note in one.notes]
        return standings(katas, attempts, notes, {}, now)[kata.name]

    alone, helped = at(8, below), at(8, below, over)
    assert helped.recall > alone.recall
    assert helped.due > alone.due
    assert (helped.clean_days, helped.reviews, helped.short) == (alone.clean_days, (), True)
    for day in range(9, 60, 3):
        over.solve(day)
    assert at(60, below, over).level == Level.SOLVED  # never mastered by what builds on it


def test_the_harder_it_was_the_sooner_it_is_due(curriculum):
    kata, found = ten_minutes(curriculum), []
    for minute, after in ((4, []), (10, []), (10, ["hint_shown"]), (10, ["solution_seen"])):
        learner = Learner(kata)
        learner.solve(0, minute=minute, after=after)
        found.append(learner.at(1).stability_days)
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 4


def test_a_concept_is_as_far_as_the_least_of_its_katas(curriculum, learner):
    kata = curriculum.kata("doubled")
    learner.run(0)
    katas = {"doubled": kata, "other": kata}
    one, none = learner.at(0), Learner(kata).at(0)
    item = kata.covers[0]
    both = item_standings([item], katas, {"doubled": one, "other": one})[item]
    assert (both.level, both.owned, both.katas) == (Level.SOLVED, 2, ("doubled", "other"))
    half = item_standings([item], katas, {"doubled": one, "other": none})[item]
    assert (half.level, half.owned) == (Level.ATTEMPTED, 1)
    assert (both.recall, half.recall) == (1.0, 1.0)  # of those that were solved
    later = item_standings([item], katas, {"doubled": one, "other": learner.at(8)})[item]
    assert later.recall == pytest.approx((1 + learner.at(8).recall) / 2)
    empty = item_standings(["99.9"], katas, {"doubled": one, "other": one})["99.9"]
    assert (empty.katas, empty.recall) == ((), None)
