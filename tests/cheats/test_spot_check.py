"""The calls between two readings of the clock: fresh contents, and one of them is looked at."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch

from harness.judge.spot_check import Nudge, SpotCheck


class Scripted:
    """Draws what it is told to."""

    def __init__(self, *draws):
        self.draws = list(draws)

    def randrange(self, below):
        draw = self.draws.pop(0)
        assert draw < below
        return draw


def run(check, calls):
    for _ in range(calls):
        check.before()
        check.call()
    return check.drawn()


def test_a_nudge_copies_a_neighbouring_row_and_takes_it_back():
    x = torch.arange(12.0).view(2, 2, 3)
    nudge = Nudge(x, Scripted(0, 3))
    nudge()
    assert x.flatten().tolist() == [3, 4, 5, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    nudge()
    assert x.flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 6, 7, 8]
    nudge.undo()
    assert x.flatten().tolist() == list(range(12))


@pytest.mark.parametrize("x", [torch.arange(5.0), torch.arange(10.0)[::2] / 2])
def test_a_nudge_of_a_vector_changes_one_element(x):
    nudge = Nudge(x, Scripted(4))
    nudge()
    assert x.tolist() == [0, 1, 2, 3, 3]


def test_no_two_calls_see_the_same_contents():
    seen = []
    x = torch.randn(64, 4)
    pointers = set()

    def entry(x):
        seen.append(x.clone())
        pointers.add(x.data_ptr())
        return x * 2

    run(SpotCheck(entry, {"x": x}), 20)
    assert len(pointers) == 1
    # two draws of one row out of 64 give the same contents now and then
    assert len({tuple(one.flatten().tolist()) for one in seen}) >= 12


def test_the_drawn_call_is_kept_as_it_was():
    x = torch.randn(16, 4)
    before = x.clone()
    call = run(SpotCheck(lambda x, n: (x * n, n), {"x": x, "n": 3}), 40)
    assert torch.equal(x, before), "the inputs get their contents back"
    assert call.inputs["n"] == 3
    assert not torch.equal(call.inputs["x"], before)
    assert torch.equal(call.result[0], call.inputs["x"] * 3)
    assert call.changed == ()


def test_any_of_the_later_calls_may_be_the_drawn_one():
    drawn = Counter()
    for _ in range(400):
        entry = partial(next, iter(range(1, 25)))
        drawn[run(SpotCheck(lambda entry: entry(), {"entry": entry}), 24).result] += 1
    # the sixteenth call is where the last draw began; 400 / 9 of each are expected
    assert set(drawn) == set(range(16, 25))
    assert min(drawn.values()) >= 15


def test_calls_of_a_baseline_in_between_are_not_drawn():
    check = SpotCheck(lambda x: x * 2, {"x": torch.randn(8, 3)})
    for _ in range(20):
        check.before()
        check.call()
        check.before()  # ahead of the baseline
    call = check.drawn()
    assert torch.equal(call.result, call.inputs["x"] * 2)


def test_integers_and_structured_inputs_keep_their_contents():
    rows, table = torch.arange(6), torch.arange(6.0)
    seen = set()

    def entry(rows, table):
        seen.add((tuple(rows.tolist()), tuple(table.tolist())))
        return rows + 1

    run(SpotCheck(entry, {"rows": rows, "table": table}, structured=("table",)), 10)
    assert len(seen) == 1


def test_an_input_that_was_written_to_is_named():
    def entry(x, y, out):
        x[0] = 0
        out.copy_(y)
        return out

    inputs = {"x": torch.ones(3, 2), "y": torch.ones(3, 2), "out": torch.zeros(3, 2)}
    assert run(SpotCheck(entry, inputs, writes=("out",)), 5).changed == ("x",)


def test_arrays_are_nudged_too_and_stay_arrays():
    a = np.arange(12.0).reshape(4, 3)
    call = run(SpotCheck(lambda a: a.T.copy(), {"a": a}), 9)
    assert isinstance(call.inputs["a"], np.ndarray)
    assert np.array_equal(call.result, call.inputs["a"].T)
    assert np.array_equal(a, np.arange(12.0).reshape(4, 3))
