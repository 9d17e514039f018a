"""Which stage a test belongs to, and what a look at the stages says."""

import pytest

from harness.cli.watching import stage_lines
from harness.learner.progress import Check
from harness.running.runner import Outcome
from harness.running.stages import ORDER, Stage, properties_in, stage_of


@pytest.mark.parametrize(
    ("test", "stage"),
    [
        ("test_matches_reference[7-float32]", Stage.TINY),
        ("test_matches_reference[10-100-True-float16]", Stage.TINY),
        ("test_matches_reference[7-1000-float16]", Stage.CASES),
        ("test_matches_reference[0-4096-float32]", Stage.TINY),
        ("test_integers_are_refused", Stage.EDGES),
        ("test_cost_of_nothing_is_nothing", Stage.EDGES),  # a kata's own, whatever it is called
        ("test_leaves_inputs_alone", Stage.MEMORY),
        ("test_second_call_sees_new_values", Stage.MEMORY),
        ("test_cost[bytes_moved]", Stage.COST),
        ("test_speed[roofline]", Stage.SPEED),
    ],
)
def test_a_name_tells_its_stage(test, stage):
    assert stage_of(test) == stage


def test_shapes_come_first_and_thresholds_last():
    assert [stage.value for stage in ORDER] == [
        "shapes", "tiny case", "cases", "edges", "properties", "memory", "cost", "speed",
    ]  # fmt: skip


PROPERTIES = """
import hypothesis
from hypothesis import given, strategies as st

@given(st.integers())
def test_of_any_number(n): ...

@hypothesis.given(st.integers())
def test_of_another(n): ...

@pytest.mark.parametrize("given", [1])
def test_of_one_number(given): ...
"""


def test_what_hypothesis_feeds_is_a_property():
    found = properties_in(PROPERTIES)
    assert found == {"test_of_any_number", "test_of_another"}
    assert stage_of("test_of_any_number", properties=found) == Stage.PROPERTIES
    assert stage_of("test_of_one_number[1]", properties=found) == Stage.EDGES


def seen(status, *checks, reason="3 checks passed"):
    made = tuple(
        Check(name=name, outcome=outcome, message=words) for name, outcome, words in checks
    )
    return Outcome(
        status=status, reason=reason, checks=made, measurements=(), device="cpu", profile="cpu",
        seed=1, duration_s=1.0, versions={}, output="",
    )  # fmt: skip


def test_green_stages_are_counted_and_empty_ones_left_out():
    found = seen(
        "passed",
        ("test_matches_reference[7]", "passed", ""),
        ("test_matches_reference[0]", "passed", ""),
        ("test_sums_to_one", "passed", ""),
        ("test_writes_every_element", "passed", ""),
    )
    assert list(stage_lines(found, {"test_sums_to_one"})) == [
        "✓ import",
        "✓ shapes",
        "✓ tiny case (2)",
        "✓ properties (1)",
        "✓ memory (1)",
    ]


@pytest.mark.parametrize(
    "words",
    [
        "AssertionError: result: expected shape (7,), found ()",
        "AssertionError: result[1]: expected dtype torch.float32, found torch.float64",
        "AssertionError: result: expected a tuple, found Tensor",
        "AssertionError: result: expected 2 values, found 3",
        "jaxtyping.TypeCheckError: Type-check error whilst checking the return value of f.",
    ],
)
def test_a_wrong_shape_is_told_before_any_value(words):
    found = seen("failed", ("test_matches_reference[7]", "failed", words))
    assert list(stage_lines(found)) == [
        "✓ import",
        f"✗ shapes: test_matches_reference[7]: {words}",
    ]


def test_code_that_broke_before_it_answered_says_nothing_of_shapes():
    found = seen("failed", ("test_matches_reference[7]", "failed", "TypeError: no"))
    assert list(stage_lines(found)) == [
        "✓ import",
        "✗ tiny case: test_matches_reference[7]: TypeError: no",
    ]


def test_the_first_red_ends_the_list_and_is_told():
    found = seen(
        "failed",
        ("test_matches_reference[7]", "passed", ""),
        ("test_rows_sum_to_one", "failed", "expected 1, found 2"),
        ("test_cost[bytes_moved]", "passed", ""),
    )
    assert list(stage_lines(found)) == [
        "✓ import",
        "✓ shapes",
        "✓ tiny case (1)",
        "✗ edges: test_rows_sum_to_one: expected 1, found 2",
    ]


def test_a_run_that_broke_off_says_how_far_it_came():
    found = seen(
        "crashed", ("test_matches_reference[7]", "passed", ""), reason="ended by signal 11"
    )
    assert list(stage_lines(found)) == [
        "✓ import",
        "✓ shapes",
        "✓ tiny case (1)",
        "✗ ended by signal 11",
    ]


def test_a_run_that_came_to_no_check_says_why():
    said = "stopped after 60 s in test_matches_reference[7]"
    assert list(stage_lines(seen("timed_out", reason=said))) == [f"✗ {said}"]


def test_a_file_that_does_not_import_stops_at_once():
    said = "doubled.py does not import: SyntaxError: '(' was never closed (line 1)"
    found = seen("failed", ("test_matches_reference[7]", "failed", said))
    assert list(stage_lines(found)) == [f"✗ import: {said}"]
