"""Who is chosen and in which order, whatever the probabilities are, and with what weight."""

import math

import pytest
import torch

INF = float("inf")


def row(values, device, dtype=torch.float32):
    return torch.tensor([values], dtype=dtype, device=device)


def indices(found):
    return found[1].cpu().tolist()


# ---- who ---------------------------------------------------------------------------------------

TIES = {
    "all equal": ([0.5] * 10, [0, 1, 2, 3]),
    "zeros of both signs": ([-1.0, -0.0, 0.0, -0.0, 0.0, -2.0, -3.0, -4.0], [1, 2, 3, 4]),
    "two pairs": ([1.0, 3.0, 2.0, 3.0, 2.0, 0.0], [1, 3, 2, 4]),
    "the last place": ([5.0, 4.0, 3.0, 2.0, 2.0, 2.0], [0, 1, 2, 3]),
    "far below 0": ([-3e38, -2e38, -3.3e38, -2.5e38, -3.1e38], [1, 3, 0, 4]),
    # in float32 their probabilities are equal, their logits are not
    "one bit apart": ([0.0, 1.0, 1.0000001, 1.0000002, 1.0000001, -3.0], [3, 2, 4, 1]),
}


@pytest.mark.parametrize(("values", "expected"), TIES.values(), ids=TIES)
def test_of_equal_logits_the_lower_expert_comes_first(kata, device, values, expected):
    assert indices(kata.moe_topk_gate(row(values, device), 4, True)) == [expected]


@pytest.mark.parametrize("renormalize", [True, False])
def test_experts_of_no_probability_are_still_ranked(kata, device, renormalize):
    # next to 10⁴ each of the others is e⁻⁹⁹⁹⁰ or less
    logits = row([0.0, 3.0, 1e4, 2.0, 9.0, -1e4, 4.0, 5.0, 1.0, 6.0, 7.0, 8.0], device)
    weights, idx = kata.moe_topk_gate(logits, 8, renormalize)
    assert idx.cpu().tolist() == [[2, 4, 11, 10, 9, 7, 6, 1]]
    assert weights.cpu().tolist() == [[1.0] + [0.0] * 7]


@pytest.mark.parametrize("e", [9, 40])
def test_every_expert_is_chosen_once(kata, device, seed, e):
    logits = torch.randn(5, e, generator=torch.Generator().manual_seed(seed)) * 1e4
    idx = kata.moe_topk_gate(logits.to(device), e, True)[1].cpu()
    assert idx.sort(dim=1).values.tolist() == [list(range(e))] * 5


def test_a_masked_expert_is_never_chosen(kata, device):
    values = [-INF, -3.0, -INF, -1e30, -INF, 2.0, -INF, -2.0, -INF]
    weights, idx = kata.moe_topk_gate(row(values, device), 4, False)
    assert idx.cpu().tolist() == [[5, 7, 1, 3]]
    assert weights.isfinite().all()


def test_each_token_has_its_own(kata, device):
    # token i likes expert i best and expert 2i next; more tokens than a tile has
    logits = torch.zeros(70, 150)
    at = torch.arange(70)
    logits[at, 2 * at] = 1.0
    logits[at, at] = 2.0
    logits[0, 1] = 1.0
    idx = kata.moe_topk_gate(logits.to(device), 2, True)[1].cpu()
    assert idx.tolist() == [[0, 1]] + [[i, 2 * i] for i in range(1, 70)]


def test_gaps_are_between_the_elements_of_a_row(kata, device):
    # every second column: of two experts there is one, whose stride says nothing
    logits = torch.tensor([[1.0, -1.0, 2.0], [3.0, -2.0, 4.0]], device=device)
    weights, idx = kata.moe_topk_gate(logits[:, :2][:, ::2], 1, False)
    assert (weights.tolist(), idx.tolist()) == ([[1.0], [1.0]], [[0], [0]])
    with pytest.raises(ValueError, match="^logits: "):
        kata.moe_topk_gate(logits[:, ::2], 1, False)


# ---- with what weight --------------------------------------------------------------------------


def test_weights_by_hand(kata, device):
    # e to these are 1, 2, 3, 4
    logits = row([math.log(p) for p in (1, 2, 3, 4)], device)
    for renormalize, expected in ((False, [0.4, 0.3]), (True, [4 / 7, 3 / 7])):
        weights, idx = kata.moe_topk_gate(logits, 2, renormalize)
        assert idx.cpu().tolist() == [[3, 2]]
        assert weights[0].tolist() == pytest.approx(expected, rel=1e-6), f"{renormalize=}"


def test_renormalised_weights_are_a_softmax_of_the_chosen(kata, device, seed):
    logits = torch.randn(6, 33, generator=torch.Generator().manual_seed(seed)).to(device)
    weights, idx = kata.moe_topk_gate(logits, 5, True)
    expected = torch.softmax(logits.gather(1, idx.long()).double(), dim=1)
    assert weights.flatten().tolist() == pytest.approx(expected.flatten().tolist(), rel=1e-6)


def test_large_logits_overflow_nothing(kata, device):
    for values in ([1e4, 1e4, -1e4], [3e38, -3e38, 3e38], [-1e4, -1e4, -2e4]):
        weights = kata.moe_topk_gate(row(values, device), 2, False)[0].cpu()
        assert weights.tolist() == [[0.5, 0.5]]


def test_weights_of_half_precision_logits_are_float32(kata, device):
    # one part in 1025 is below what float16 tells from 1
    logits = row([0.0] * 1025, device, torch.float16)
    weights, _ = kata.moe_topk_gate(logits, 2, False)
    assert weights[0].tolist() == pytest.approx([1 / 1025] * 2, rel=1e-6)


# ---- what it takes -----------------------------------------------------------------------------


def test_a_program_has_several_tokens(kata, device, traffic, cost):
    with traffic() as counted:
        idx = kata.moe_topk_gate(torch.eye(64, device=device), 1, True)[1]
    assert idx[:, 0].tolist() == list(range(64))
    cost.check("programs_per_token", counted.programs / 64)


def test_without_tokens_nothing_is_launched(kata, device, traffic):
    with traffic() as counted:
        weights, idx = kata.moe_topk_gate(torch.ones(0, 8, device=device), 2, True)
    assert (weights.shape, idx.shape) == ((0, 2), (0, 2))
    assert counted.launches == 0
