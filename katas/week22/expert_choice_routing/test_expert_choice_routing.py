"""Ties, capacities, gradients, the causality that is lost; FLOPs and operators counted."""

import pytest
import torch

from harness.judge import assert_matches


@pytest.mark.parametrize(
    ("tokens", "experts", "factor", "capacity"),
    [
        (37, 5, 1.0, 7),  # 2 tokens' worth of places are missing
        (37, 5, 2.0, 14),
        (4, 4, 4.0, 4),  # every expert takes every token
        (6, 8, 1.4, 1),  # more experts than tokens: 1.05 places
        (10, 3, 0.9, 3),  # exactly 3, by a product that is exact
        (5, 2, 0.4, 1),
        (35, 3, 0.6, 7),  # 0.6 * (35 / 3) and 0.6 / 3 * 35 are a little less
    ],
    ids=["rounded down", "twice", "dense", "few tokens", "exact", "just one", "in order"],
)
def test_each_expert_takes_its_places(kata, seed, device, tokens, experts, factor, capacity):
    logits = torch.randn(tokens, experts, generator=torch.Generator().manual_seed(seed))
    gates, idx = kata.expert_choice(logits.to(device), factor)
    assert (gates.shape, idx.shape, idx.dtype) == (
        (experts, capacity),
        (experts, capacity),
        torch.int64,
    )
    assert all(len(set(taken)) == capacity for taken in idx.tolist()), f"tokens taken: {idx}"


def test_of_equal_tokens_the_earlier_are_taken(kata, device):
    best = torch.tensor([[2.0, 0.0, 2.0]], device=device)
    logits = torch.zeros(600, 3, device=device)
    logits[[40, 41, 500]] = best
    gates, idx = kata.expert_choice(logits, 0.025)
    assert idx.tolist() == [[40, 41, 500, 0, 1], [0, 1, 2, 3, 4], [40, 41, 500, 0, 1]]
    thirds = torch.full_like(gates[1], 1 / 3)
    assert_matches(gates[1], thirds)


def test_gates_are_what_the_router_gives_over_experts(kata, device):
    # token 1 likes both experts alike, token 0 far prefers expert 1, which token 2 dislikes
    logits = torch.tensor([[0.0, 2.0], [3.0, 3.0], [2.0, 0.0]], device=device)
    gates, idx = kata.expert_choice(logits, 1.4)  # 2.1 places
    assert idx.tolist() == [[2, 1], [0, 1]]
    sigmoid = torch.sigmoid(torch.tensor([2.0, 0.0], dtype=torch.float64))
    assert_matches(gates, torch.stack([sigmoid, sigmoid]))


def test_float64_stays(kata, oracle, device, seed):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((6, 3), (3, 2), (2, 3, 4), (2, 4, 3))
    inputs = [torch.rand(shape, generator=generator).double().to(device) for shape in shapes]
    y, expected = (oracle.layer(functions, *inputs, 2.0) for functions in (kata, oracle.Loops))
    assert y.dtype == torch.float64
    off = (y - expected).abs().max().item()
    assert off < 1e-12, f"computed in a lower precision: off by {off}"


def test_a_later_token_takes_an_earlier_ones_place(kata, device):
    logits = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 1.0]], device=device)
    x = torch.eye(4, device=device)
    w1, w2 = torch.ones(2, 4, 3, device=device), torch.ones(2, 3, 4, device=device)
    before = kata.expert_choice_ffn(x, *kata.expert_choice(logits, 0.5), w1, w2)
    logits[3] = torch.tensor([3.0, 0.0])
    after = kata.expert_choice_ffn(x, *kata.expert_choice(logits, 0.5), w1, w2)
    assert before[0].sum() > 0
    assert (after[0] == 0).all()


@pytest.mark.parametrize(
    ("factor", "tokens"), [(0.9, 5), (6.0, 5), (1.0, 0)], ids=["no place", "too many", "no token"]
)
def test_places_are_one_to_all_tokens(kata, device, factor, tokens):
    with pytest.raises(ValueError, match="^capacity_factor: "):
        kata.expert_choice(torch.zeros(tokens, 5, device=device), factor)


def test_gradients_reach_tokens_router_and_experts(kata, oracle, device, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.tensor([[1.0], [0.3], [-0.4], [-1.1], [0.6], [-0.7], [0.1]])
    x = torch.cat([x, torch.rand(7, 2, generator=generator)], 1)
    router = torch.tensor([[2.0, -1.0, 0.5], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    w1, w2 = (torch.randn(shape, generator=generator) for shape in ((3, 3, 4), (3, 4, 3)))
    weight = torch.rand(7, 3, generator=generator)

    def gradients(functions, dtype, device="cpu"):
        leaves = [one.clone().to(device, dtype).requires_grad_() for one in (x, router, w1, w2)]
        y = oracle.layer(functions, *leaves, 1.3)  # 3 places each
        (y * weight.to(device)).sum().backward()
        return [leaf.grad for leaf in leaves]

    found = gradients(kata, torch.float32, device)
    exact, close = (gradients(oracle.Loops, dtype) for dtype in (torch.float64, torch.float32))
    for name, ours, theirs, same in zip(
        ("x", "router", "w1", "w2"), found, exact, close, strict=True
    ):
        assert ours is not None, f"expected a gradient of {name}, found None"
        assert_matches(ours, theirs, same_precision=same, name=f"the gradient of {name}")


def test_tokens_are_counted(kata, device):
    idx = torch.tensor([[4, 0], [0, 2], [0, 4]], device=device)
    counts = kata.experts_per_token(idx, 7)
    assert (counts.tolist(), counts.dtype) == ([3, 0, 1, 0, 2, 0, 0], torch.int64)


def test_choices_may_lie_apart(kata, device):
    idx = torch.tensor([[4, 0, 3], [0, 2, 3]], device=device)[:, :2]
    assert kata.experts_per_token(idx, 5).tolist() == [2, 0, 1, 0, 1]
    x = torch.eye(5, device=device)
    w1, w2 = torch.ones(2, 5, 3, device=device), torch.ones(2, 3, 5, device=device)
    y, alike = (kata.expert_choice_ffn(x, x[:2, :2], one, w1, w2) for one in (idx, idx.clone()))
    assert_matches(y, alike)


def test_large_logits_overflow_nothing(kata, device):
    logits = torch.tensor([[1000.0, -1000.0], [-1000.0, 1000.0], [999.0, 1000.0]], device=device)
    gates, idx = kata.expert_choice(logits, 1.4)  # 2.1 places
    assert idx.tolist() == [[0, 2], [1, 2]]
    sigmoid = torch.sigmoid(torch.tensor([-1.0, 1.0], dtype=torch.float64))
    assert_matches(gates, torch.stack([torch.ones(2, dtype=torch.float64), sigmoid], 1))


# ---- work ----------------------------------------------------------------------------------


def test_only_the_taken_tokens_are_computed(kata, oracle, cost):
    from harness.meters.dispatch import flop_meter

    inputs = oracle.make_inputs_expert_choice_ffn(
        tokens=96, experts=8, capacity=15, d=16, f=24, dtype=torch.float32, device="cpu", seed=0
    )
    with flop_meter() as f:
        kata.expert_choice_ffn(**inputs)
    cost.check("flops", f.flops)


def test_operators_do_not_grow_with_the_experts(kata, oracle, dispatch, cost):
    counts = []
    for experts in (4, 64):
        x, router = torch.ones(128, 8), torch.ones(8, experts)
        w1, w2 = torch.ones(experts, 8, 4), torch.ones(experts, 4, 8)
        with dispatch() as d:
            oracle.layer(kata, x, router, w1, w2, 1.0)
        counts.append(sum(d.calls.values()))
    assert counts[0] == counts[1], f"operators for 4 and for 64 experts: {counts}"
    cost.check("operators", counts[1])
