"""Groups bound where tokens go, slices add up to what they were cut from, layers by hand."""

import math

import pytest
import torch

from harness.judge import assert_matches
from harness.meters.dispatch import flop_meter

LAYERS = {  # tokens, d, f, shared, experts, k, n_group, topk_group
    "1 shared, 12 in 4 groups": (29, 6, 5, 1, 12, 3, 4, 2),
    "2 shared, plain top-k": (17, 5, 4, 2, 7, 2, 1, 1),
    "none shared": (12, 4, 3, 0, 8, 4, 4, 2),
    "one token": (1, 4, 6, 3, 6, 1, 3, 1),
    "no tokens": (0, 4, 3, 1, 6, 2, 3, 2),
}
SCALE = 2.5


def experts(kata, made, like):
    return kata.Experts(*(one.to(like) for one in made))


# ---- choosing ----------------------------------------------------------------------------------


def test_by_hand(kata, device):
    """The best expert of all, 9, is in a group whose two best, 9 + 0, are beaten by 5 + 5."""
    scores = torch.tensor([[9.0, 0.0, 0.0, 5.0, 5.0, 1.0, 7.0, -1.0, 2.0]], device=device)
    gates, idx = kata.group_limited_topk(scores, 3, 1, 2)
    assert idx.tolist() == [[3, 4]], "groups of 3 score 9, 10 and 9"
    assert gates.tolist() == [[5.0, 5.0]]


def test_scores_are_compared_as_they_are(kata, device):
    """In float32 those of the first group would be equal; all are far below any usual score."""
    row = torch.arange(4, dtype=torch.float64, device=device) - 3e12
    scores = torch.stack([torch.cat([row, row - 9]), torch.cat([row - 9, row])])
    gates, idx = kata.group_limited_topk(scores, 2, 1, 2)
    told = f"scores {scores.tolist()}, 2 groups, 1 open, k = 2"
    assert idx.tolist() == [[3, 2], [7, 6]], f"{told}: expected [[3, 2], [7, 6]], found {idx}"
    assert torch.equal(gates, scores.gather(1, idx)), f"{told}: expected the scores at idx"


def test_gradient_goes_to_the_chosen(kata, device):
    scores = torch.tensor([[4.0, 1.0, 3.0, 3.5], [-1.0, -2.0, -9.0, -8.0]], device=device)
    scores.requires_grad_()
    gates, _ = kata.group_limited_topk(scores, 2, 1, 2)
    (gates * torch.tensor([[2.0, 3.0], [5.0, 7.0]], device=device)).sum().backward()
    assert scores.grad.tolist() == [[0.0, 0.0, 3.0, 2.0], [5.0, 7.0, 0.0, 0.0]]


def test_a_token_is_sent_to_few_groups(kata, cost, device):
    scores = torch.rand(2000, 64, generator=torch.Generator().manual_seed(0)).to(device)
    _, idx = kata.group_limited_topk(scores, 8, 4, 8)
    sent = torch.zeros(2000, 8, device=device).scatter(1, idx // 8, 1.0).sum(1)
    cost.check("destinations", sent.mean().item())
    assert sent.max().item() <= 4, f"a token went to {sent.max().item():.0f} groups of 8, not 4"


def test_operators_do_not_grow_with_groups_or_tokens(kata, dispatch, cost):
    found = []
    for t, n_group in ((2, 2), (50, 16)):
        scores = torch.rand(t, 64, generator=torch.Generator().manual_seed(0))
        with dispatch() as d:
            kata.group_limited_topk(scores, n_group, 2, 3)
        found.append(sum(d.calls.values()))
    cost.check("operators", max(found))


# ---- cutting -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("e", "d", "f", "m"),
    [(3, 4, 6, 1), (3, 4, 6, 2), (2, 5, 12, 4), (4, 3, 3, 3), (1, 4, 8, 2), (0, 4, 8, 2)],
)
def test_parts_hold_neighbouring_hidden_channels(kata, oracle, device, seed, e, d, f, m):
    made = oracle.weights(e, d, f, torch.Generator().manual_seed(seed))
    whole = experts(kata, made, torch.empty(0, device=device))
    parts = kata.split_experts(whole, m)
    shapes = [tuple(one.shape) for one in parts]
    assert shapes == [(m * e, d, f // m), (m * e, d, f // m), (m * e, f // m, d)]
    for one in range(e):
        for part in range(m):
            cut = slice(part * f // m, (part + 1) * f // m)
            told = f"part {part} of expert {one}, of {m}"
            assert torch.equal(parts.w_gate[one * m + part], whole.w_gate[one][:, cut]), told
            assert torch.equal(parts.w_up[one * m + part], whole.w_up[one][:, cut]), told
            assert torch.equal(parts.w_down[one * m + part], whole.w_down[one][cut]), told


def test_weights_of_any_strides_are_cut(kata, oracle, device):
    made = oracle.weights(2, 4, 6, torch.Generator().manual_seed(0))
    apart = [one.transpose(1, 2).contiguous().transpose(1, 2) for one in made]
    parts = kata.split_experts(experts(kata, apart, torch.empty(0, device=device)), 3)
    assert torch.equal(parts.w_gate[4].cpu(), made[0][1, :, 2:4])
    assert torch.equal(parts.w_down[4].cpu(), made[2][1, 2:4])


@pytest.mark.parametrize("n_group", [1, 2, 4])
def test_all_parts_of_the_experts_chosen_are_the_coarse_layer(kata, oracle, device, seed, n_group):
    """A fine router that repeats each row scores the parts alike, and gates 1 / m each."""
    t, d, f, m, k = 21, 5, 12, 3, 2
    size = (t, d, f, 1, 8, k, n_group, n_group)
    x, shared, routed, router_w = (on(one, device) for one in oracle.layer(*size, seed))
    shared, routed = kata.Experts(*shared), kata.Experts(*routed)
    coarse = kata.deepseek_moe(x, shared, routed, router_w, k, n_group, n_group)
    fine = kata.deepseek_moe(
        x,
        kata.split_experts(shared, m),
        kata.split_experts(routed, m),
        router_w.repeat_interleave(m, 0),
        m * k,
        n_group,
        n_group,
        scale=float(m),
    )
    off = (fine - coarse).abs().max().item()
    assert off < 1e-12, f"cut into {m}, {m * k} chosen, scale {m}: off by {off}"


def on(made, device):
    """Put a tensor, or each of a list, in float64 on the device."""
    if isinstance(made, torch.Tensor):
        return made.double().to(device)
    return [one.double().to(device) for one in made]


@pytest.mark.parametrize("m", [0, -2, 4, 12])
def test_m_divides_the_hidden_channels(kata, oracle, device, m):
    made = oracle.weights(2, 3, 6, torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="^m: "):
        kata.split_experts(experts(kata, made, torch.empty(0, device=device)), m)


# ---- the layer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", LAYERS.values(), ids=LAYERS)
def test_is_the_mixture_with_zeros_as_gates(kata, oracle, device, seed, size):
    _, _, _, _, _, k, n_group, topk_group = size
    x, shared, routed, router_w = oracle.layer(*size, seed)
    like = torch.empty(0, device=device)
    y = kata.deepseek_moe(
        x.to(like), experts(kata, shared, like), experts(kata, routed, like), router_w.to(like),
        k, n_group, topk_group, SCALE,
    )  # fmt: skip
    rest = (k, n_group, topk_group, SCALE)
    wide = [on(one, device) for one in (x, shared, routed, router_w)]
    close = oracle.dense(x, shared, routed, router_w, *rest)
    assert_matches(y, oracle.dense(*wide, *rest), same_precision=close.to(device))


def test_the_layer_leaves_what_it_is_given(kata, oracle, device, seed):
    size = LAYERS["2 shared, plain top-k"]
    x, shared, routed, router_w = (on(one, device) for one in oracle.layer(*size, seed))
    given = [x, *shared, *routed, router_w]
    before = [one.clone() for one in given]
    kata.deepseek_moe(x, kata.Experts(*shared), kata.Experts(*routed), router_w, 2, 1, 1, SCALE)
    names = ["x", *["shared"] * 3, *["routed"] * 3, "router_w"]
    for name, now, then in zip(names, given, before, strict=True):
        assert torch.equal(now, then), f"{name}: expected as before the call, found it written to"


def test_affinities_near_zero_weigh_as_much(kata, oracle, device):
    """Gates add up to `scale` however small their sum was."""
    draw = torch.Generator().manual_seed(0)
    routed = kata.Experts(*on(oracle.weights(4, 3, 5, draw), device))
    none = kata.Experts(*on(oracle.weights(0, 3, 5, draw), device))
    x = torch.ones(2, 3, dtype=torch.float64, device=device)
    router_w = torch.full((4, 3), -40.0, dtype=torch.float64, device=device)
    y = kata.deepseek_moe(x, none, routed, router_w, 2, 1, 1)
    expected = (kata.swiglu(routed, 0, x) + kata.swiglu(routed, 1, x)) / 2
    told = "all affinities 7.7e-53, k = 2"
    assert torch.allclose(y, expected, rtol=1e-9), f"{told}: expected {expected}, found {y}"


def test_an_answer_stays_what_it_was(kata, oracle, device):
    size = LAYERS["none shared"]
    x, shared, routed, router_w = (on(one, device) for one in oracle.layer(*size, 0))
    given = kata.Experts(*shared), kata.Experts(*routed), router_w, *size[5:]
    first = kata.deepseek_moe(x, *given)
    before = first.clone()
    kata.deepseek_moe(2 * x, *given)
    assert torch.equal(first, before), f"expected {before} after a second call, found {first}"


def test_gradients_are_those_of_the_mixture(kata, oracle, device, seed):
    size = LAYERS["1 shared, 12 in 4 groups"]
    rest = (*size[5:], SCALE)
    x, shared, routed, router_w = oracle.layer(*size, seed)
    weight = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed))

    def gradients(layer, dtype, place, wrap):
        leaves = [
            one.to(place, dtype, copy=True).requires_grad_()
            for one in (x, *shared, *routed, router_w)
        ]
        y = layer(leaves[0], wrap(*leaves[1:4]), wrap(*leaves[4:7]), leaves[7], *rest)
        (y * weight.to(y)).sum().backward()
        return [one.grad for one in leaves]

    found = gradients(kata.deepseek_moe, torch.float32, device, kata.Experts)
    want = gradients(oracle.dense, torch.float64, device, lambda *parts: parts)
    close = gradients(oracle.dense, torch.float32, device, lambda *parts: parts)
    names = ["x", *(f"shared.{n}" for n in kata.Experts._fields)]
    names += [*(f"routed.{n}" for n in kata.Experts._fields), "router_w"]
    for name, *grads in zip(names, found, want, close, strict=True):
        assert grads[0] is not None, f"expected a gradient of {name}, found None"
        assert_matches(grads[0], grads[1], same_precision=grads[2], name=f"the gradient of {name}")


def test_shared_experts_answer_whatever_the_router_says(kata, oracle, device, seed):
    size = LAYERS["2 shared, plain top-k"]
    x, shared, routed, router_w = (on(one, device) for one in oracle.layer(*size, seed))
    routed[2].zero_()  # the routed experts answer with zeros
    router_w.requires_grad_()
    given = kata.Experts(*shared), kata.Experts(*routed)
    y = kata.deepseek_moe(x, *given, router_w, 2, 1, 1, SCALE)
    expected = oracle.mixture(x, x.new_ones(len(x), 2), *shared)
    off = (y - expected).abs().max().item()
    assert off < 1e-12, f"routed experts are 0: expected the sum of the shared, off by {off}"
    y.sum().backward()
    assert not router_w.grad.any(), "the router's gradient through shared experts: expected 0"


def test_equal_parameters_cost_equal_flops(kata, oracle, cost):
    """16 experts of which 2 answer, cut into 4, and one of the parts shared."""
    t, d, f = 24, 8, 16
    plain = {  # f, shared, experts, k, n_group
        "2 of 16": (f, 0, 16, 2, 4),
        "8 of 64": (f // 4, 0, 64, 8, 4),
        "1 shared and 7 of 63": (f // 4, 1, 63, 7, 9),
    }
    coarse = 6 * t * 2 * d * f  # two experts of three products each
    found = {}
    for name, (width, shared, routed, k, n_group) in plain.items():
        made = oracle.layer(t, d, width, shared, routed, k, n_group, n_group, 0)
        x, everybody, chosen, router_w = made
        given = kata.Experts(*everybody), kata.Experts(*chosen)
        with flop_meter() as counted:
            kata.deepseek_moe(x, *given, router_w, k, n_group, n_group)
        found[name] = (counted.flops - 2 * t * d * routed) / coarse
    cost.check("expert_flops", max(found.values()))


def test_the_layer_does_not_go_token_by_token(kata, oracle, dispatch, cost):
    x, shared, routed, router_w = oracle.layer(60, 8, 4, 2, 8, 2, 4, 2, 0)
    given = kata.Experts(*shared), kata.Experts(*routed)
    with dispatch() as d:
        kata.deepseek_moe(x, *given, router_w, 2, 4, 2)
    cost.check("layer_operators", sum(d.calls.values()))


@pytest.mark.parametrize(
    ("rows", "rest", "name"),
    [
        (5, (2, 3, 1), "router_w"),
        (7, (2, 1, 1), "router_w"),
        (6, (2, 4, 1), "n_group"),
        (6, (2, 3, 4), "topk_group"),
        (6, (3, 3, 1), "k"),
    ],
    ids=["a row too few", "a row too many", "uneven groups", "too many groups", "too many experts"],
)
def test_what_the_layer_refuses(kata, oracle, device, rows, rest, name):
    draw = torch.Generator().manual_seed(0)
    like = torch.empty(0, device=device)
    shared = experts(kata, oracle.weights(1, 4, 3, draw), like)
    routed = experts(kata, oracle.weights(6, 4, 3, draw), like)
    given = torch.ones(2, 4, device=device), shared, routed, torch.ones(rows, 4, device=device)
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.deepseek_moe(*given, *rest)


# ---- counting ----------------------------------------------------------------------------------


def test_published_combinations(kata):
    assert kata.n_combinations(16, 2) == 120
    assert kata.n_combinations(64, 8) == 4_426_165_368


@pytest.mark.parametrize("k", [1, 2, 3, 5, 6, 7, 12, 13])
def test_sets_are_those_within_few_groups(kata, oracle, k):
    for n_group in (1, 3, 4, 12):
        for topk_group in {1, min(2, n_group), n_group}:
            expected = oracle.count_sets(12, k, n_group, topk_group)
            found = kata.n_combinations(12, k, n_group, topk_group)
            told = f"n_combinations(12, {k}, {n_group}, {topk_group})"
            assert found == expected, f"{told}: expected {expected}, found {found}"


def test_large_counts_are_exact(kata):
    found = kata.n_combinations(256, 8, 8, 8)
    assert found == math.comb(256, 8)
    assert type(found) is int
    assert kata.n_combinations(256, 128, 8, 7) == math.comb(256, 128) - sum(
        (-1) ** (8 - i) * math.comb(8, i) * math.comb(32 * i, 128) for i in range(4, 9)
    )
