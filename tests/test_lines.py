"""Lines of Python, counted by hand."""

import sys

import pytest

from harness.meters.lines import line_meter


def triangle(n):
    total = 0
    for row in range(n):
        total += row
    return total


def test_lines_are_counted_as_they_run():
    with line_meter() as counted:
        triangle(3)
    # total once, for four times, the sum three times, return once
    assert counted.lines == 1 + 4 + 3 + 1


def test_a_call_into_c_is_one_line():
    def total():
        return sum(range(1000))

    with line_meter() as counted:
        total()
    assert counted.lines == 1


def test_a_loop_is_stopped_at_the_limit():
    with pytest.raises(AssertionError, match="at most 20 lines"), line_meter(limit=20):
        triangle(10**9)


def test_the_limit_itself_may_be_run():
    with line_meter(limit=9):
        triangle(3)
    with pytest.raises(AssertionError, match="at most 8 lines"), line_meter(limit=8):
        triangle(3)


def test_the_tracer_of_before_is_back():
    before = sys.gettrace()
    with line_meter():
        pass
    assert sys.gettrace() is before


def test_lines_that_are_not_counted_to_the_end_are_refused():
    before = sys.gettrace()
    with pytest.raises(AssertionError, match="lines to be counted to the end"), line_meter():
        sys.settrace(None)
    assert sys.gettrace() is before
