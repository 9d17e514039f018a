"""Slots against a loop, drops and padding by hand, the least capacity tried out; work counted."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st


def matrix(*rows, device="cpu", dtype=torch.int64):
    return torch.tensor(rows, dtype=dtype, device=device)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((1024, 1, 8, 1.0), 128),
        ((1000, 2, 64, 1.25), 40),  # 39.0625
        ((1000, 2, 60, 2.0), 67),  # 66.7: factor 2 and two choices
        ((3, 1, 8, 1.0), 1),
        ((0, 2, 8, 1.25), 0),
        ((64, 2, 8, 4.0), 64),  # experts / k: nothing can be dropped
        ((50, 2, 10, 1.1), 12),  # 110.00000000000001 / 10, where 1.1 * (100 / 10) is 11
        ((65, 2, 11, 1.1), 13),  # 143 / 11, where 1.1 * (130 / 11) is a little more
    ],
    ids=["even", "rounded up", "two choices", "less than one", "empty", "no drops", "more", "less"],
)
def test_capacity(kata, arguments, expected):
    assert kata.capacity(*arguments) == expected
    assert type(kata.capacity(*arguments)) is int


def test_all_first_choices_come_before_any_second(kata, device):
    idx = matrix([0, 1], [1, 0], [1, 0], [0, 1], device=device)
    slots = kata.dispatch_slots(idx, torch.ones(4, 2, device=device), 2, 3, "position")
    assert slots.tolist() == [[0, 5], [3, 2], [4, -1], [1, -1]]
    assert slots.dtype == torch.int64


def test_the_largest_gate_of_a_token_is_its_priority(kata, device):
    idx = matrix([0, 1], [0, 1], [0, 2], [0, 2], device=device)
    gates = torch.tensor([[0.3, 0.6], [0.4, 0.1], [0.6, 0.2], [0.9, 0.1]], device=device)
    slots = kata.dispatch_slots(idx, gates, 3, 2, "gate")  # tokens 3, 0, 2, 1
    assert slots.tolist() == [[1, 2], [-1, 3], [-1, 5], [0, 4]]


def test_gates_are_compared_in_their_own_precision(kata, device):
    idx = matrix([0], [0], [0], device=device)
    gates = torch.tensor([[0.5], [0.5 + 2**-40], [0.5 + 2**-41]], dtype=torch.float64)
    slots = kata.dispatch_slots(idx, gates.to(device), 1, 2, "gate")  # tokens 1, 2, 0
    assert slots.tolist() == [[-1], [0], [1]]


@given(
    choices=st.integers(1, 3),
    rows=st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), max_size=12),
    levels=st.lists(st.lists(st.integers(-1, 1), min_size=3, max_size=3), min_size=12, max_size=12),
    places=st.integers(1, 5),
    priority=st.sampled_from(["position", "gate"]),
)
@settings(max_examples=25)
def test_any_choices_get_the_slots_of_the_loop(
    kata, oracle, choices, rows, levels, places, priority
):
    idx = torch.tensor([row[:choices] for row in rows], dtype=torch.int64).view(-1, choices)
    gates = torch.tensor([row[:choices] for row in levels[: len(rows)]]).view(-1, choices) * 0.5
    call = {"idx": idx, "gates": gates, "experts": 4, "capacity": places, "priority": priority}
    assert kata.dispatch_slots(**call).tolist() == oracle.reference(**call).tolist()


def test_an_expert_named_twice_has_two_assignments(kata, device):
    idx = matrix([0, 0], [1, 1], [0, 1], device=device)
    slots = kata.dispatch_slots(idx, torch.ones(3, 2, device=device), 2, 3, "position")
    assert slots.tolist() == [[0, 2], [3, 4], [1, 5]]


def test_slots_of_int32_choices_may_be_large(kata, device):
    idx = matrix([2], [1], [2], device=device, dtype=torch.int32)
    slots = kata.dispatch_slots(idx, torch.ones(3, 1, device=device), 3, 2**31, "position")
    assert slots.tolist() == [[2**32], [2**31], [2**32 + 1]]


def test_columns_may_lie_apart(kata, device):
    idx = matrix([0, 0, 1, 1], [1, 0, 0, 1], device=device).T
    gates = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.0, 0.0]], device=device).T
    slots = kata.dispatch_slots(idx, gates, 2, 2, "gate")
    assert slots.tolist() == [[1, -1], [0, -1], [3, -1], [2, -1]]


# ---- drops and padding ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "choices", "places", "dropped", "padded"),
    [
        ([4, 4, 4, 4], 2, 4, Fraction(0), Fraction(0)),
        ([8, 0, 4, 4], 2, 4, Fraction(4, 16), Fraction(4, 16)),
        ([16, 0, 0, 0], 1, 3, Fraction(13, 16), Fraction(9, 12)),
        ([5, 3, 3, 1], 1, 6, Fraction(0), Fraction(12, 24)),
        ([0, 0, 0, 0], 2, 2, Fraction(0), Fraction(1)),
    ],
    ids=["even", "moved", "all to one", "all fit", "no tokens"],
)
def test_what_is_dropped_and_what_stays_empty(
    kata, device, counts, choices, places, dropped, padded
):
    flat = torch.repeat_interleave(torch.arange(4), torch.tensor(counts))
    idx = flat.view(choices, -1).T.to(device)
    found = kata.drop_pad_stats(idx, 4, places)
    assert found == pytest.approx((float(dropped), float(padded)), abs=1e-15)
    assert [type(share) for share in found] == [float, float]


# 0.29 * 100 is less than 29, and 1 - 0.7 more than 0.3: it is the share dropped that is compared
@pytest.mark.parametrize(
    "max_drop", [0.0, 0.1, 0.25, 0.29, 0.5, 0.7, 0.9, 1.0], ids="drop{}".format
)
@pytest.mark.parametrize(
    "counts", [[4, 4, 4], [10, 0, 2], [0, 0, 1], [20, 20, 0], [0, 0, 0], [100, 0, 0]], ids=str
)
def test_the_least_capacity_is_tight(kata, device, counts, max_drop):
    idx = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))[:, None].to(device)
    total = max(sum(counts), 1)

    def drops(places):
        return sum(max(n - places, 0) for n in counts) / total

    least = next(places for places in range(1, 101) if drops(places) <= max_drop)
    assert kata.min_capacity(idx, 3, max_drop) == least


# ---- work ----------------------------------------------------------------------------------


@pytest.mark.parametrize("priority", ["position", "gate"])
def test_no_mask_and_no_loop(kata, oracle, dispatch, lines, cost, priority):
    inputs = oracle.make_inputs(
        tokens=4096, k=2, experts=64, capacity=160, priority=priority, skew=2.0,
        dtype=torch.float32, device="cpu", seed=0,
    )  # fmt: skip
    with lines(limit=2000) as counted:
        kata.dispatch_slots(**inputs)
    with dispatch() as d:
        kata.dispatch_slots(**inputs)
    cost.check("peak_bytes", d.peak_live_bytes)
    cost.check("lines", counted.lines)


def test_capacities_are_not_tried_one_by_one(kata, lines, cost):
    idx = torch.zeros(8192, 2, dtype=torch.int64)
    with lines(limit=20_000) as counted:
        assert kata.min_capacity(idx, 8, 0.0) == 16_384
    cost.check("search_lines", counted.lines)


# ---- what is refused -----------------------------------------------------------------------


@pytest.mark.parametrize("bad", [-1, 3], ids=["negative", "one too many"])
def test_experts_there_are_not(kata, device, bad):
    idx = matrix([0, 2], [bad, 1], device=device)
    with pytest.raises(ValueError, match="^idx: "):
        kata.dispatch_slots(idx, torch.ones(2, 2, device=device), 3, 2, "gate")
    with pytest.raises(ValueError, match="^idx: "):
        kata.drop_pad_stats(idx, 3, 2)
    with pytest.raises(ValueError, match="^idx: "):
        kata.min_capacity(idx, 3, 0.5)


def test_a_buffer_without_slots(kata, device):
    idx = matrix([0, 1], device=device)
    with pytest.raises(ValueError, match="^capacity: "):
        kata.dispatch_slots(idx, torch.ones(1, 2, device=device), 3, 0, "position")
    with pytest.raises(ValueError, match="^capacity: "):
        kata.drop_pad_stats(idx, 3, 0)


def test_other_priorities_and_shares(kata, device):
    idx = matrix([0, 1], device=device)
    with pytest.raises(ValueError, match="^priority: "):
        kata.dispatch_slots(idx, torch.ones(1, 2, device=device), 3, 1, "gates")
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="^max_drop: "):
            kata.min_capacity(idx, 3, share)
