"""What a failed test of a kata says: what was asked, expected and found, and on which input."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from harness.plugin.values import compared, shown

TESTS = """
import math
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st


def helper(found, want):
    assert found == want


def test_bare(kata):
    n = 3
    assert kata.doubled(torch.ones(n)).tolist() == [32.0] * n


def test_through_a_name(kata):
    x = torch.ones(2)
    found = kata.doubled(x)
    assert found.shape == (3,)


def test_through_a_helper(kata):
    size = 4
    helper(kata.doubled(torch.ones(size)).numel(), 5)


def test_close(kata):
    assert math.isclose(kata.doubled(torch.ones(1)).item(), 2.5, rel_tol=0.01)


def test_close_numpy(kata):
    assert math.isclose(np.float64(kata.doubled(torch.ones(1)).item()), 2.5, rel_tol=0.01)


def test_whole(kata):
    y = kata.doubled(torch.ones(2))
    assert torch.equal(y, torch.tensor([2.0, 3.0]))


def test_every(kata):
    y = kata.doubled(torch.ones(2))
    assert (y == 3).all()


def test_far_down(kata):
    y = kata.doubled(torch.ones(30))
    assert y.tolist() == [2.0] * 29 + [3.0]


def test_false(kata):
    assert not kata.doubled(torch.ones(2)).is_contiguous()


def test_too_small(kata):
    assert 3 <= len(kata.doubled(torch.ones(2))) <= 8


def test_too_large(kata):
    assert 3 <= len(kata.doubled(torch.ones(9))) <= 8


def test_bound_first(kata):
    assert 3 < len(kata.doubled(torch.ones(2)))


def test_message(kata):
    assert kata.doubled(torch.ones(2)).sum() == 5, "the sum is off"


def test_message_with_numbers(kata):
    assert kata.doubled(torch.ones(2)).sum() == 5, "expected 5 in all"


def test_pattern(kata):
    with pytest.raises(ValueError, match="^rows: "):
        kata.doubled(torch.ones(3, dtype=torch.int64))


def test_not_raised(kata):
    count = 3
    with pytest.raises(ValueError):
        kata.doubled(torch.ones(count))


def test_another_raised(kata):
    with pytest.raises(KeyError):
        kata.doubled(torch.ones(3, dtype=torch.int64))


def test_unforeseen(kata):
    width = 3
    kata.doubled(torch.ones(width, dtype=torch.int64))


@pytest.mark.parametrize("n", [6], ids=["six"])
def test_parameter(kata, n):
    assert len(kata.doubled(torch.ones(n))) == 7


@given(n=st.integers(0, 100))
def test_drawn(kata, n):
    assert kata.doubled(torch.ones(n)).numel() < 10


@given(n=st.integers(0, 100))
def test_two_failures(kata, n):
    if n > 50:
        kata.doubled(torch.ones(n, dtype=torch.int64))
    assert n < 10
"""

SAID = {
    "test_bare": "kata.doubled(torch.ones(n)).tolist(): expected [32.0, 32.0, 32.0], found "
    "[2.0, 2.0, 2.0] | input: n = 3",
    "test_through_a_name": "found.shape: expected (3,), found torch.Size([2])",
    "test_through_a_helper": "found: expected 5, found 4 | input: size = 4",
    "test_close": "kata.doubled(torch.ones(1)).item(): expected 2.5 (rel_tol 0.01), found 2.0",
    "test_close_numpy": "np.float64(kata.doubled(torch.ones(1)).item()): expected 2.5 "
    "(rel_tol 0.01), found 2.0",
    "test_whole": "kata.doubled(torch.ones(2)): expected torch.tensor([2.0, 3.0]), found "
    "[2.0, 2.0] (float32)",
    "test_every": "kata.doubled(torch.ones(2)): expected 3, found [2.0, 2.0] (float32)",
    "test_far_down": "y.tolist(): first difference at [29]: expected 3.0, found 2.0",
    "test_false": "expected kata.doubled(torch.ones(2)).is_contiguous() to be false or empty, "
    "found it is not",
    "test_too_small": "len(kata.doubled(torch.ones(2))): expected at least 3, found 2",
    "test_too_large": "len(kata.doubled(torch.ones(9))): expected at most 8, found 9",
    "test_bound_first": "len(kata.doubled(torch.ones(2))): expected more than 3, found 2",
    "test_message": "the sum is off: expected 5, found 4.0",
    "test_message_with_numbers": "expected 5 in all",
    "test_pattern": "kata.doubled(torch.ones(3, dtype=torch.int64)): expected a message that "
    "matches '^rows: ', found 'x: expected floating point, found torch.int64'",
    "test_not_raised": "kata.doubled(torch.ones(count)): expected ValueError, found no error | "
    "input: count = 3",
    "test_parameter[six]": "len(kata.doubled(torch.ones(n))): expected 7, found 6 | input: n = 6",
    "test_drawn": "kata.doubled(torch.ones(n)).numel(): expected less than 10, found 10 | "
    "input: n = 10",
}


@pytest.fixture
def messages(judged, mini):
    """What the failing tests say of the reference, test to message."""
    (mini / "katas/week01/doubled/test_doubled.py").write_text(TESTS)
    found = judged("--impl=solution")
    return {one["name"]: one["message"] for one in found if one["outcome"] == "failed"}


def test_a_failed_check_says_input_yours_and_expected(messages):
    assert {name: messages.get(name) for name in SAID} == SAID
    another = messages["test_another_raised"]
    assert another.startswith("ValueError: x: expected floating point, found torch.int64 (line ")
    assert another.endswith(
        ", in doubled) | expected KeyError from kata.doubled(torch.ones(3, dtype=torch.int64))"
    )
    assert messages["test_unforeseen"].endswith(", in doubled) | input: width = 3")
    two = messages["test_two_failures"]
    assert two.startswith("2 different failures: (1) ")
    assert "n: expected less than 10, found 10" in two
    assert "ValueError: x: expected floating point, found torch.int64 | input: n = 51" in two


@dataclass
class Point:
    """Two numbers."""

    x: float
    y: object


@pytest.mark.parametrize(
    ("left", "right", "words"),
    [
        ([1], [32], "expected [32], found [1]"),
        (
            list(range(40)),
            [*range(30), -1, *range(31, 40)],
            "first difference at [30]: expected -1, found 30",
        ),
        ([1] * 40, [1] * 41, "first difference at [40]: expected 1, found nothing"),
        ({"a": 1}, {"a": 1, "b": 2}, "expected {'a': 1, 'b': 2}, found {'a': 1}"),
        (
            {str(n): n for n in range(30)},
            {str(n): n for n in range(31)},
            "first difference at ['30']: expected 30, found nothing",
        ),
        (
            np.float32(2) / 3,
            np.float64(np.float32(2) / 3) + 1e-9,
            "expected 0.6666666875348816, found 0.6666666865348816",
        ),
        (np.dtype("int32"), torch.int32, "expected torch.int32, found dtype('int32')"),
        ("1", 1, "expected 1, found '1'"),
        (Point(1.0, "a" * 300), Point(1.0, "a" * 300 + "b"), "first difference at .y: "),
        (
            np.arange(50, dtype=np.int64),
            np.arange(50, dtype=np.int32),
            "expected an array of shape (50,), int32, found an array of shape (50,), int64",
        ),
    ],
)
def test_two_sides_are_told_apart(left, right, words):
    assert words in compared("==", left, right)


def test_a_list_of_arrays_has_its_difference():
    rows = [torch.zeros(3), torch.zeros(3)]
    words = compared("==", rows, [torch.zeros(3), torch.ones(3)])
    assert "[1.0, 1.0, 1.0] (float32)" in words
    long = compared("==", [*rows, torch.zeros(30)], [*rows, torch.ones(30)])
    assert "first difference at [2][0]: expected 1.0, found 0.0" in long


def test_values_that_refuse_to_be_looked_at_leave_the_verdict(judged, mini):
    """Whatever a learner's type does when it is shown, the check has failed and says so."""
    (mini / "katas/week01/doubled/test_doubled.py").write_text(
        "class Shy:\n"
        "    def __eq__(self, other):\n"
        "        return False\n\n"
        "    def __getattribute__(self, name):\n"
        "        raise RuntimeError('no')\n\n\n"
        "def test_shy(kata):\n"
        "    assert Shy() == [Shy()]\n"
    )
    (failed,) = [one for one in judged("--impl=solution") if one["name"] == "test_shy"]
    assert failed["outcome"] == "failed"


def test_what_prints_alike_is_told_apart_by_its_type():
    class Same:
        def __init__(self, hidden):
            self.hidden = hidden

        def __eq__(self, other):
            return type(self) is type(other)

        __hash__ = None

        def __repr__(self):
            return "the same words"

    class Other(Same):
        pass

    assert compared("==", Same(1), Other(1)).count("Other)") == 1
    long = torch.zeros(20)
    assert "first difference at [7]: expected 1.0, found 0.0" in compared(
        "==", long, long + torch.nn.functional.one_hot(torch.tensor(7), 20)
    )


@pytest.mark.parametrize(
    ("op", "words"),
    [
        ("<=", "expected at most 1, found 2"),
        ("<", "expected less than 1, found 2"),
        ("in", "expected 2 to be in 1"),
        ("is", "expected 1, found 2"),
        ("!=", "expected anything but 1, found it"),
    ],
)
def test_each_comparison_has_its_words(op, words):
    assert compared(op, 2, 1) == words


def test_a_value_is_one_short_line():
    assert shown(np.float64(0.5)) == "0.5"
    assert shown(torch.tensor([1, 2])) == "[1, 2] (int64)"
    assert shown(np.zeros((3, 9), np.float16)) == "an array of shape (3, 9), float16"
    assert len(shown("x" * 10_000)) < 250
    assert "\n" not in shown("a\nb")
