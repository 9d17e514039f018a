"""From attempts to a standing: what counts, and what does not."""

import pytest

from harness.catalog import load_curriculum
from harness.mastery import best_status, status_of
from harness.progress import Attempt, Measurement
from harness.scorecard import as_json, build_scorecard


def attempt(status="passed", impl="yours", met=()):
    return Attempt(
        id="a" * 32,
        kata="doubled",
        impl=impl,
        code_hash="0" * 64,
        started_at="2026-01-01T00:00:00.000000+00:00",
        finished_at="2026-01-01T00:00:01.000000+00:00",
        status=status,
        reason="",
        seed=1,
        device="cpu",
        profile="cpu",
        versions={},
        duration_s=1.0,
        hints_seen=0,
        solution_seen=False,
        checks=(),
        measurements=tuple(
            Measurement(
                name=name, meter="roofline", value=0.9, limit=0.8, relation=">=", passed=True
            )
            for name in met
        ),
    )


@pytest.fixture
def curriculum(mini):
    return load_curriculum(mini)


@pytest.fixture
def timed(mini):
    path = mini / "katas" / "week01" / "doubled" / "kata.toml"
    path.write_text(
        path.read_text()
        + '[[speed]]\nkind = "roofline"\nfraction = 0.8\ncase = { n = 9, dtype = "float32" }\n'
    )
    return load_curriculum(mini).kata("doubled")


def test_no_attempt_is_untried(curriculum):
    assert status_of(curriculum.kata("doubled"), None) == "untried"


def test_a_failed_attempt_is_an_attempt(curriculum):
    assert status_of(curriculum.kata("doubled"), attempt("timed_out")) == "attempted"


def test_correct_becomes_fast_when_every_clock_is_met(timed):
    assert status_of(timed, attempt()) == "correct"
    assert status_of(timed, attempt(met=("roofline",))) == "fast"


def test_a_kata_without_a_clock_is_never_called_fast(curriculum):
    assert status_of(curriculum.kata("doubled"), attempt()) == "correct"


def test_a_later_failure_does_not_take_a_standing_away(timed):
    attempts = [attempt(), attempt(met=("roofline",)), attempt("failed")]
    assert best_status(timed, attempts) == "fast"


def test_the_solution_earns_nothing(curriculum):
    card = build_scorecard(curriculum, [attempt(impl="solution")])
    assert (card.katas[0].status, card.katas[0].attempts) == ("untried", 0)


def test_concepts_are_touched_by_what_is_correct(curriculum):
    card = as_json(build_scorecard(curriculum, [attempt(), attempt("failed")]))
    assert card["schema"] == 1
    first = card["weeks"][0]
    assert (first["correct"], first["concepts_touched"], first["concepts"]) == (1, 1, 2)
    assert list(card["katas"]) == [
        {"name": "doubled", "week": 1, "status": "correct", "attempts": 2}
    ]
