"""The bias chooses and does not weigh, ranks count together, loads settle, and health has names."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

U = 2.0**-9  # sums of biases are exact


# ---- choosing ----------------------------------------------------------------------------------


def test_by_hand(kata, device):
    scores = torch.tensor([[0.5, 0.75, 0.25]], device=device)
    bias = torch.tensor([0.125, -0.5, 0.25], device=device)
    gates, idx = kata.select_with_bias(scores, bias, 2)
    assert idx.tolist() == [[0, 2]], "sums 0.625, 0.25 and 0.5"
    assert gates.tolist() == [[0.5, 0.25]], "the scores, without the bias"


def test_gates_are_the_scores_to_the_bit(kata, device, seed):
    """A bias that was added and taken off again leaves rounding errors behind."""
    draw = torch.Generator().manual_seed(seed)
    scores = torch.rand(60, 12, generator=draw).to(device)
    bias = torch.randn(12, generator=draw).to(device)
    gates, idx = kata.select_with_bias(scores, bias, 3)
    assert torch.equal(gates, scores.gather(1, idx)), "gates: expected the scores at idx"


def test_only_scores_have_a_gradient(kata, device):
    scores = torch.tensor([[0.5, 0.25, 0.125], [0.0, 1.0, 0.5]], device=device).requires_grad_()
    bias = torch.tensor([-1.0, 0.0, 0.0], device=device).requires_grad_()
    gates, _ = kata.select_with_bias(scores, bias, 2)
    (gates * torch.tensor([[2.0, 3.0], [5.0, 7.0]], device=device)).sum().backward()
    assert scores.grad.tolist() == [[0.0, 2.0, 3.0], [0.0, 5.0, 7.0]]
    assert bias.grad is None or not bias.grad.any(), f"the gradient of bias: {bias.grad}"


# ---- nudging -----------------------------------------------------------------------------------

COUNTS = {
    "above, at and below the mean": [5, 3, 1],
    "all equal": [4, 4, 4, 4],
    "a mean that is no whole number": [1, 0, 0],
    "just above and below": [7, 6, 6, 6, 6],
    "nothing chosen": [0, 0, 0],
    "one expert": [9],
    "loads that float32 cannot tell apart": [2**24 + 1, 2**24, 2**24 - 1],
    "a load whose multiple does not fit 32 bits": [2**30, 5, 6, 7, 8, 9, 10, 11],
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=["int64", "int32"])
@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
def test_nudges_go_against_the_load(kata, oracle, device, counts, dtype):
    before = [i / 8 for i in range(len(counts))]
    bias = torch.tensor(before, device=device)
    found = kata.update_bias(bias, torch.tensor(counts, dtype=dtype, device=device), U)
    assert found.tolist() == oracle.nudged(before, counts, U), f"bias {before}, counts {counts}"
    assert found.dtype == torch.float32
    assert bias.tolist() == before, "bias: expected as before the call"


@settings(max_examples=20)
@given(data=st.data())
def test_experts_have_no_order(kata, data):
    counts = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=8), label="counts")
    order = data.draw(st.permutations(range(len(counts))), label="order")
    bias, counts = torch.arange(len(counts)) / 4, torch.tensor(counts)
    found = kata.update_bias(bias[order], counts[order], U)
    assert torch.equal(found, kata.update_bias(bias, counts, U)[order])


def test_the_new_bias_has_memory_of_its_own(kata, device):
    bias = torch.zeros(3, device=device)
    found = kata.update_bias(bias, torch.tensor([2, 2, 2], device=device), U)
    found += 1
    assert bias.tolist() == [0.0, 0.0, 0.0], "the result was changed, and bias with it"


def test_a_dead_expert_comes_back(kata, device):
    """It is 0.25 behind the others; each step brings it nearer by two nudges at least."""
    scores = torch.full((12, 4), 0.5, device=device) + torch.eye(4, device=device).repeat(3, 1) / 64
    scores[:, 2] = 0.25
    bias, steps = torch.zeros(4, device=device), 0
    while not (kata.select_with_bias(scores, bias, 1)[1] == 2).any():
        _, idx = kata.select_with_bias(scores, bias, 1)
        bias = kata.update_bias(bias, idx.flatten().bincount(minlength=4), 1 / 64)
        steps += 1
        assert steps <= 17, f"0.25 behind, u = 1/64: expected it back, bias is {bias.tolist()}"
    assert steps >= 8, f"asked after {steps} steps, in which it cannot have caught up"


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=["int64", "int32"])
def test_ranks_count_together(kata, oracle, device, cost, dtype):
    """Most experts are above the mean on one rank and below it on another."""
    draw = torch.Generator().manual_seed(7)
    loads = torch.randint(0, 50, (4, 16), generator=draw)
    loads[:, 0] = torch.tensor([0, 999, 0, 0])
    loads[3] = 0  # a rank without tokens
    loads = loads.to(device)
    before = [i / 8 for i in range(16)]
    expected = oracle.nudged(before, loads.sum(0).tolist(), U)
    apart = torch.zeros(16, 2, dtype=dtype, device=device)
    sent = []
    for rank in range(4):
        told = f"rank {rank} of 4, with counts {loads[rank].tolist()}"
        for counts in (apart[:, 0], apart.T.contiguous()[0]):  # with gaps, without
            counts.copy_(loads[rank])
            dp = oracle.OneOfMany(rank, loads)
            found = kata.update_bias(torch.tensor(before, device=device), counts, U, dp)
            assert found.tolist() == expected, f"{told}: counts of all {loads.sum(0).tolist()}"
            assert counts.tolist() == loads[rank].tolist(), f"{told}: counts were written to"
            waits = [one.waits for one in dp.started]
            assert waits == [1], f"{told}: expected one all-reduce, waited for once: waits {waits}"
            sent.append(dp.bytes_sent)
    cost.check("comm_bytes", max(sent))


def test_large_loads_of_all_ranks_are_compared_exactly(kata, oracle, device):
    loads = torch.tensor([[2**24, 2**24 - 1, 2**24], [1, 1, 0]], device=device)
    bias = torch.zeros(3, device=device)
    found = kata.update_bias(bias, loads[0], U, oracle.OneOfMany(0, loads))
    expected = oracle.nudged([0.0] * 3, loads.sum(0).tolist(), U)
    assert found.tolist() == expected, f"counts of all {loads.sum(0).tolist()}"


def test_the_host_waits_for_nothing(kata, dispatch, cost):
    scores, bias, counts = torch.rand(40, 6), torch.zeros(6), torch.arange(6)
    with dispatch() as d:
        kata.select_with_bias(scores, bias, 2)
        kata.update_bias(bias, counts, U)
    cost.check("host_syncs", d.host_syncs)


REFUSED = {
    "u of 0": ((torch.zeros(4), torch.ones(4).long(), 0.0), "u"),
    "u below 0": ((torch.zeros(4), torch.ones(4).long(), -0.1), "u"),
    "u is NaN": ((torch.zeros(4), torch.ones(4).long(), float("nan")), "u"),
    "a count too few": ((torch.zeros(4), torch.ones(3).long(), U), "counts"),
    "a count for all": ((torch.zeros(4), torch.ones(1).long(), U), "counts"),
    "counts of two steps": ((torch.zeros(4), torch.ones(2, 4).long(), U), "counts"),
}


@pytest.mark.parametrize(("given", "name"), REFUSED.values(), ids=REFUSED)
def test_what_an_update_refuses(kata, oracle, given, name):
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.update_bias(*given, oracle.Closed())


# ---- settling ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def settled(kata, oracle):
    """`settled(u, steps)`: the counts of each step of the stream, [steps, 16]."""

    def run(u, steps):
        bias, history = torch.zeros(16), []
        for scores in oracle.stream(steps):
            _, idx = kata.select_with_bias(scores, bias, 2)
            history.append(idx.flatten().bincount(minlength=16))
            bias = kata.update_bias(bias, history[-1], u)
        return torch.stack(history)

    return run


def mean_vio(history):
    """Average max(c) / mean(c) - 1 over the steps."""
    return (history.amax(1) / history.double().mean(1) - 1).mean().item()


def test_small_nudges_balance(kata, settled, one_thread, cost):
    history = settled(0.002, 300)
    cost.check("max_vio", mean_vio(history[250:]))
    assert kata.diagnose(history[:40]) == "skewed"
    assert kata.diagnose(history) == "healthy"


def test_large_nudges_swing(kata, settled, one_thread, cost):
    history = settled(0.1, 60)
    cost.check("max_vio_large_u", mean_vio(history[30:]))
    assert kata.diagnose(history) == "oscillating"


# ---- health ------------------------------------------------------------------------------------


def test_health_by_hand(kata, device):
    found = kata.routing_health(torch.tensor([2, 1, 1, 0], device=device))
    expected = {"max_vio": 1.0, "entropy": 0.75, "dead": 1, "gini": 0.375}
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    "counts",
    [
        [6, 6, 6, 6, 6],
        [0, 9, 0],
        [1, 3],
        [7, 2, 3, 5, 4, 1, 6],
        [0, 3_000_000_019, 7, 1],
        [2**30, 2**30, 5],
        [2**62, 2**62, 2**61, 7],  # a sum that int64 does not hold
    ],
    ids=str,
)
def test_health_is_that_of_its_formulas(kata, oracle, device, counts):
    dtype = torch.int32 if max(counts) < 2**31 else torch.int64
    found = kata.routing_health(torch.tensor(counts, dtype=dtype, device=device))
    expected = {
        "max_vio": max(counts) / (sum(counts) / len(counts)) - 1,
        "entropy": oracle.entropy(counts),
        "dead": counts.count(0),
        "gini": oracle.gini(counts),
    }
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert {name: type(one) for name, one in found.items()} == {
        "max_vio": float, "entropy": float, "dead": int, "gini": float,
    }  # fmt: skip


def test_a_single_expert_is_healthy(kata, device):
    found = kata.routing_health(torch.tensor([5], device=device))
    assert found == {"max_vio": 0.0, "entropy": 1.0, "dead": 0, "gini": 0.0}


def test_no_choices_have_no_health(kata, device):
    with pytest.raises(ValueError, match="^counts: "):
        kata.routing_health(torch.zeros(4, dtype=torch.int64, device=device))
    late = torch.tensor([[3, 3], [0, 0], [0, 0]], device=device)
    for history in (late, late[:0]):
        with pytest.raises(ValueError, match="^history: "):
            kata.diagnose(history)


EVEN = [4] * 8
LEFT, RIGHT = [8, 0] * 4, [0, 8] * 4
HISTORIES = {
    "even": ([EVEN] * 4, "healthy"),
    "one step": ([EVEN], "healthy"),
    "recovered": ([[32, *[0] * 7]] * 3 + [EVEN] * 3, "healthy"),
    "the middle step counts": ([EVEN, [32, *[0] * 7], EVEN], "skewed"),
    "all to one": ([EVEN] * 2 + [[32, *[0] * 7]] * 2, "collapsed"),
    "nearly all to one, the others alive": ([[93, *[1] * 7]] * 3, "collapsed"),
    "most to three": ([[14, 6, 4, *[0] * 5]], "collapsed"),
    "a single choice": ([[0, 0, 1, 0]], "collapsed"),
    "evenly to three": ([[8, 8, 8, *[0] * 5]], "dead_experts"),
    "one without choices": ([[5, 5, 0, 5, 5, 4, 4, 4]] * 4, "dead_experts"),
    "dead at first": ([[5, 5, 0, 5, 5, 4, 4, 4]] * 2 + [EVEN] * 2, "healthy"),
    "now one, now another": ([[8, 0, *[4] * 6], [0, 8, *[4] * 6]], "dead_experts"),
    "from side to side": ([LEFT, RIGHT] * 4, "oscillating"),
    "one swing in eight": ([EVEN] * 15 + [LEFT], "healthy"),
    "a large step counts once": ([EVEN] * 3 + [LEFT, RIGHT, [400] * 8], "oscillating"),
    "steps without tokens": (([LEFT, RIGHT] + [[0] * 8] * 3) * 2, "oscillating"),
    "half of all steps": ([[32, *[0] * 7]] * 2 + [[0] * 8] * 3 + [EVEN], "healthy"),
    "popular, in every step": ([[9, 4, 4, 3, 3, 3, 3, 3]] * 3, "skewed"),
    "half above the mean": ([[6, *[4] * 6, 2]] * 3, "healthy"),
    "half above the mean, step by step": ([[6, 2, *[4] * 6], [2, 6, *[4] * 6]] * 2, "healthy"),
    "skewed, and swinging": ([[14, 0, 6, 4, 4, 4, 0, 0], [0, 10, 0, 0, 4, 4, 7, 7]] * 4, "skewed"),
}


@pytest.mark.parametrize(("history", "expected"), HISTORIES.values(), ids=HISTORIES)
def test_diagnosis(kata, device, history, expected):
    assert kata.diagnose(torch.tensor(history, device=device)) == expected
