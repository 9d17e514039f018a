"""The calls between two readings of the clock: fresh contents, and one of them is looked at."""

import random
import sys
from collections import Counter
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch

from harness.judge.correctness.answer import copied
from harness.judge.timing import spot_check
from harness.judge.timing.spot_check import Nudge, Refill, SpotCheck
from harness.judge.trial import room_for


class Scripted:
    """Draws what it is told to."""

    def __init__(self, *draws):
        self.draws = list(draws)

    def randrange(self, below):
        draw = self.draws.pop(0)
        assert draw < below
        return draw


def other_contents(inputs):
    """Make contents of the same form: every tensor and array turned by one place a seed."""

    def turned(value, number):
        if isinstance(value, torch.Tensor):
            return value.roll(number)
        return np.roll(value, number) if isinstance(value, np.ndarray) else value

    first = {name: copied(value) for name, value in inputs.items()}
    return lambda number: {name: turned(value, number) for name, value in first.items()}


def check_of(entry, inputs, **options):
    return SpotCheck(entry, inputs, other_contents(inputs), **options)


def run(check, calls):
    for _ in range(calls):
        check.before()
        check.call()
    return check.drawn()


def test_what_is_called_without_contents_of_its_own_is_not_drawn():
    x = torch.zeros(4)

    def entry(x):
        return x.add_(1)

    check = check_of(entry, {"x": x}, writes=("x",))
    for _ in range(8):
        check.before()
        check.call()
        check.call()  # writes over what the first gave back
    for _ in range(8):
        check.before()
        check.pass_over()
        x.add_(100)  # a baseline that writes to the arguments
        check.call()
    with pytest.raises(AssertionError, match="expected at least one call"):
        check.drawn()
    drawn = run(check, 3)
    assert drawn.result.equal(drawn.inputs["x"] + 1)


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
    seen, pointers = [], set()
    x = torch.randn(64, 4)

    def entry(x):
        seen.append(tuple(x.flatten().tolist()))
        pointers.add(x.data_ptr())
        return x * 2

    run(check_of(entry, {"x": x}), 20)
    assert len(pointers) == 1
    # two nudges of one row out of 64 give the same contents now and then
    assert len(set(seen)) >= 12


def test_floats_are_of_another_seed_whenever_the_number_of_calls_has_doubled():
    x = torch.arange(256.0).view(64, 4)
    seen = []
    run(check_of(lambda x: seen.append(x.clone()), {"x": x}), 20)
    # one row is nudged and another gets its own values back
    pairs = enumerate(pairwise([x, *seen]), start=1)
    new = [at for at, (one, other) in pairs if (one != other).any(dim=1).sum() > 2]
    assert new == [1, 3, 7, 15]


def test_contents_without_a_float_are_new_in_each_call():
    a, active = np.arange(6), np.eye(3) > 0
    seen = set()

    def entry(a, active, size):
        seen.add((*a.tolist(), *active.flatten().tolist(), size))
        return a * size

    call = run(check_of(entry, {"a": a, "active": active, "size": 4}), 6)
    assert len(seen) == 6
    assert np.array_equal(call.result, call.inputs["a"] * 4)
    assert a.tolist() == [0, 1, 2, 3, 4, 5], "the inputs get their contents back"


def test_contents_of_another_form_are_not_written():
    for other in ({"n": torch.arange(4)}, {"n": torch.arange(3).int()}, {"n": 3}):
        n = torch.arange(3)
        refill = Refill({"n": n}, lambda _, other=other: other, Scripted())
        refill()
        refill()
        assert n.tolist() == [0, 1, 2]


def test_contents_made_ahead_are_drawn_from_and_none_are_made_later():
    made = []

    def make(number):
        made.append(number)
        return {"n": torch.full((2,), number), "left": "alone"}

    n = torch.zeros(2, dtype=torch.int64)
    refill = Refill({"n": n}, make, Scripted(1, 0, 1), ahead=2)
    seen = []
    for _ in range(3):
        refill()
        seen.append(n.tolist())
    assert made == [1, 2]
    assert seen == [[2, 2], [1, 1], [2, 2]]
    refill.undo()
    assert n.tolist() == [0, 0]


def test_where_there_is_no_room_contents_stay():
    n = torch.zeros(2, dtype=torch.int64)
    refill = Refill({"n": n}, lambda number: {"n": n + number}, Scripted(), ahead=0)
    refill()
    assert n.tolist() == [0, 0]


@pytest.mark.parametrize(("free", "contents"), [(2999, 0), (3000, 1), (6000, 2), (90_000, 2)])
def test_there_is_room_for_what_memory_is_left(monkeypatch, free, contents):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 100_000))
    x, y = torch.zeros(150), np.zeros(50, dtype=np.float64)
    assert room_for({"x": x, "y": y, "causal": True}) == contents


def test_contents_that_take_long_are_made_for_a_while_only(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(spot_check, "perf_counter", lambda: next(clock) * 0.4)
    made = []
    refill = Refill(
        {"n": torch.zeros(1)},
        lambda number: made.append(number) or {"n": torch.ones(1)},
        random.Random(0),
    )
    for _ in range(10):
        refill()
    assert made == [1, 2, 3], "three times 0.4 s are more than a second"


def test_the_drawn_call_is_kept_as_it_was():
    x = torch.randn(16, 4)
    before = x.clone()
    call = run(check_of(lambda x, n: (x * n, n), {"x": x, "n": 3}), 40)
    assert torch.equal(x, before), "the inputs get their contents back"
    assert call.inputs["n"] == 3
    assert not torch.equal(call.inputs["x"], before)
    assert torch.equal(call.result[0], call.inputs["x"] * 3)
    assert call.changed == ()


def test_any_of_the_later_calls_may_be_the_drawn_one():
    drawn = Counter()
    for _ in range(400):
        entry = partial(next, iter(range(1, 25)))
        drawn[run(check_of(lambda entry: entry(), {"entry": entry}), 24).result] += 1
    # the sixteenth call is where the last draw began; 400 / 9 of each are expected
    assert set(drawn) == set(range(16, 25))
    assert min(drawn.values()) >= 15


def test_no_call_can_tell_that_it_is_going_to_be_drawn(monkeypatch):
    made, seen = [], set()
    monkeypatch.setattr(spot_check, "copied", lambda value: made.append(value) or copied(value))

    def entry(x):
        seen.add(len(made))
        made.clear()
        return x * 2

    check = check_of(entry, {"x": torch.randn(8, 3)})
    made.clear()
    for _ in range(20):
        check.before()
        del made[:-1]  # the copy of an answer that was drawn
        check.call()
    assert seen == {1}


def test_a_hook_that_is_left_behind_by_a_timed_call_is_refused():
    def entry(x):
        sys.setprofile(lambda *_: None)
        return x * 2

    check = check_of(entry, {"x": torch.randn(8, 3)})
    check.before()
    try:
        with pytest.raises(AssertionError, match="a hook of the interpreter was left behind"):
            check.call()
    finally:
        sys.setprofile(None)


def test_calls_of_a_baseline_in_between_are_not_drawn():
    check = check_of(lambda x: x * 2, {"x": torch.randn(8, 3)})
    for _ in range(20):
        check.before()
        check.call()
        check.before()  # ahead of the baseline
    call = check.drawn()
    assert torch.equal(call.result, call.inputs["x"] * 2)


@pytest.mark.parametrize("timed", [1, 3, 7])
def test_a_call_that_is_watched_is_not_drawn(timed):
    """The one after the others would be, were it counted: a draw starts afresh there."""
    watched = []
    check = check_of(lambda x: torch.full_like(x, len(watched)), {"x": torch.arange(8.0)})
    for off_the_clock in (True, *timed * [False], True):
        watched[:] = [1] * off_the_clock
        check.before(timed=not off_the_clock)
        check.call()
    assert check.drawn().result.unique().tolist() == [0]


def test_structured_inputs_keep_their_contents():
    rows, table = torch.arange(6), torch.arange(6.0)
    seen = set()

    def entry(rows, table):
        seen.add((tuple(rows.tolist()), tuple(table.tolist())))
        return rows + 1

    inputs = {"rows": rows, "table": table}
    run(check_of(entry, inputs, structured=("rows", "table")), 10)
    assert len(seen) == 1


def test_an_input_that_was_written_to_is_named():
    def entry(x, y, out):
        x[0] = 0
        out.copy_(y)
        return out

    inputs = {"x": torch.ones(3, 2), "y": torch.ones(3, 2), "out": torch.zeros(3, 2)}
    assert run(check_of(entry, inputs, writes=("out",)), 5).changed == ("x",)


def test_arrays_are_nudged_too_and_stay_arrays():
    a = np.arange(12.0).reshape(4, 3)
    call = run(check_of(lambda a: a.T.copy(), {"a": a}), 9)
    assert isinstance(call.inputs["a"], np.ndarray)
    assert np.array_equal(call.result, call.inputs["a"].T)
    assert np.array_equal(a, np.arange(12.0).reshape(4, 3))
