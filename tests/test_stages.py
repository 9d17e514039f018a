"""Which stage a test belongs to, and what a look at the stages says."""

import pytest

from harness.cli.watching import stage_lines
from harness.progress import Check
from harness.runner import Outcome
from harness.stages import Stage, stage_of


@pytest.mark.parametrize(
    ("test", "stage"),
    [
        ("test_matches_reference[7-float32]", Stage.CASES),
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
        ("test_writes_every_element", "passed", ""),
    )
    assert list(stage_lines(found)) == ["✓ import", "✓ cases (2)", "✓ memory (1)"]


def test_the_first_red_ends_the_list_and_is_told():
    found = seen(
        "failed",
        ("test_matches_reference[7]", "passed", ""),
        ("test_rows_sum_to_one", "failed", "expected 1, found 2"),
        ("test_cost[bytes_moved]", "passed", ""),
    )
    assert list(stage_lines(found)) == [
        "✓ import",
        "✓ cases (1)",
        "✗ edges and properties: test_rows_sum_to_one: expected 1, found 2",
    ]


def test_a_run_that_broke_off_says_how_far_it_came():
    found = seen(
        "crashed", ("test_matches_reference[7]", "passed", ""), reason="ended by signal 11"
    )
    assert list(stage_lines(found)) == ["✓ import", "✓ cases (1)", "✗ ended by signal 11"]


def test_a_run_that_came_to_no_check_says_why():
    assert list(stage_lines(seen("timed_out", reason="stopped after 60 s"))) == [
        "✗ import: stopped after 60 s"
    ]


def test_a_file_that_does_not_import_stops_at_once():
    said = "doubled.py does not import: SyntaxError: '(' was never closed (line 1)"
    found = seen("failed", ("test_matches_reference[7]", "failed", said))
    assert list(stage_lines(found)) == [f"✗ import: {said}"]
