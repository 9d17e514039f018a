"""The formula against real layers, the paper and a list; the meter against the house's."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from harness.meters.dispatch import flop_meter, saved_meter

GPT3, MT_NLG = (2048, 1, 12288, 96), (2048, 1, 20480, 128)
PLAIN = {
    "elt": 2, "dropout": True, "mask_bytes": 1, "stat_bytes": 0, "flash": False, "tp": 1,
    "sp": False, "recompute": "none",
}  # fmt: skip


# ---- the formula ---------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [GPT3, MT_NLG], ids=["gpt3", "mt-nlg"])
def test_a_layer_keeps_sbh_times_34_and_5_as_over_h(kata, sizes):
    s, b, h, a = sizes
    assert kata.layer_activation_bytes(*sizes) == s * b * h * 34 + 5 * a * s * s * b


@pytest.mark.parametrize(("sizes", "saved"), [(GPT3, 0.70), (MT_NLG, 0.65)], ids=["gpt3", "mt-nlg"])
def test_selective_recomputation_saves_what_was_published(kata, sizes, saved):
    kept = kata.layer_activation_bytes(*sizes, recompute="selective")
    whole = kata.layer_activation_bytes(*sizes)
    assert round(1 - kept / whole, 2) == saved


def test_sequence_parallelism_divides_what_tensor_parallelism_leaves_whole(kata):
    s, b, h, a = GPT3
    of_whole = kata.layer_activation_bytes(*GPT3, tp=8)
    assert of_whole == s * b * h * (10 + 24 // 8) + 5 * a * s * s * b // 8
    assert 8 * kata.layer_activation_bytes(*GPT3, tp=8, sp=True) == (
        kata.layer_activation_bytes(*GPT3)
    )


@st.composite
def layers(draw):
    tp, per_rank, d = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    sizes = (
        tp * draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
        tp * per_rank * d,
        tp * per_rank,
    )
    switches = {
        "elt": draw(st.sampled_from((1, 2, 4))),
        "dropout": draw(st.booleans()),
        "mask_bytes": draw(st.sampled_from((1, 2, 4))),
        "stat_bytes": draw(st.sampled_from((0, 2, 4))),
        "flash": draw(st.booleans()),
        "tp": tp,
        "sp": tp > 1 and draw(st.booleans()),
        "recompute": draw(st.sampled_from(("none", "selective", "full"))),
    }
    return sizes, switches


STATS = {**PLAIN, "stat_bytes": 4, "tp": 3}


@example(layer=((6, 2, 12, 3), {**STATS, "sp": True}))
@example(layer=((6, 2, 12, 3), {**STATS, "sp": True, "recompute": "full"}))
@example(layer=((5, 2, 12, 3), {**STATS, "recompute": "full"}))
@example(layer=((6, 2, 12, 3), {**PLAIN, "recompute": "selective"}))
@example(layer=((6, 2, 12, 3), {**STATS, "flash": True}))
@example(layer=((6, 2, 12, 3), {**STATS, "flash": True, "elt": 4}))
@example(layer=((6, 2, 12, 3), {**STATS, "flash": True, "recompute": "selective"}))
@example(layer=((6, 2, 12, 3), {**STATS, "dropout": False, "mask_bytes": 4}))
# 1.5e17 bytes: a double has no odd numbers there
@example(layer=((3 * (2**25 + 1), 1, 45, 15), {**STATS, "elt": 1, "sp": True}))
@given(layer=layers())
def test_every_tensor_is_counted(kata, oracle, layer):
    sizes, switches = layer
    found = kata.layer_activation_bytes(*sizes, **switches)
    assert found == oracle.total(*sizes, **switches)
    assert isinstance(found, int)


@pytest.mark.parametrize("name", [name for name in PLAIN if name != "sp"])
def test_defaults_are_the_papers(kata, name):
    # everything else is given, so that the default of this one shows
    given = {key: value for key, value in PLAIN.items() if key != name}
    assert kata.layer_activation_bytes(6, 2, 12, 3, **given) == 34 * 6 * 2 * 12 + 5 * 3 * 6 * 6 * 2


def on_real_layers(oracle, dtype, **build):
    """What a layer of each shape keeps, and its formula's arguments."""
    for s, b, h, a in oracle.SHAPES:
        layer = oracle.Layer(h, a, dtype=dtype, **build)
        x = torch.randn(s, b, h, dtype=dtype)
        # on a CPU the statistics of a norm have the dtype of its input
        yield by_the_house(layer, x), (s, b, h, a), {"elt": x.itemsize, "stat_bytes": x.itemsize}


def by_the_house(layer, x):
    with saved_meter(exclude=[*layer.parameters()]) as saved:
        layer(x)
    return saved.bytes


def test_formula_is_what_real_layers_keep(kata, oracle, cost):
    off = 0
    for dtype in (torch.float32, torch.bfloat16):
        for real, sizes, switches in on_real_layers(oracle, dtype):
            off += abs(kata.layer_activation_bytes(*sizes, dropout=False, **switches) - real)
    cost.check("off_the_real_layer", off)


def test_formula_holds_with_dropout(kata, oracle):
    for real, sizes, switches in on_real_layers(oracle, torch.float32, p=0.5):
        masks = {"mask_bytes": switches["elt"]}  # on a CPU a mask is no narrower than its input
        assert kata.layer_activation_bytes(*sizes, **masks, **switches) == real


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_formula_holds_with_flash_attention(kata, oracle, dtype):
    layer, x = oracle.Layer(8, 1, flash=True, dtype=dtype), torch.randn(5, 3, 8, dtype=dtype)
    widths = {"elt": x.itemsize, "stat_bytes": x.itemsize}
    found = kata.layer_activation_bytes(5, 3, 8, 1, flash=True, dropout=False, **widths)
    assert found == by_the_house(layer, x)


def test_formula_holds_on_a_tensor_parallel_rank(kata, oracle):
    layer, x = oracle.Layer(24, 6, tp=3), torch.randn(5, 2, 24)
    found = kata.layer_activation_bytes(5, 2, 24, 6, elt=4, dropout=False, stat_bytes=4, tp=3)
    assert found == by_the_house(layer, x)


# ---- FLOPs of recomputation ----------------------------------------------------------------


@pytest.mark.parametrize(("s", "h", "a"), [(6, 16, 4), (40, 8, 2), (1, 12, 3)])
def test_overhead_is_that_of_the_flops_counted(kata, oracle, s, h, a):
    layer, x = oracle.Layer(h, a), torch.randn(s, 3, h, requires_grad=True)
    with flop_meter() as forward:
        loss = layer(x).sum()
    with flop_meter() as backward:
        loss.backward()
    with flop_meter() as core:
        layer.out = nn.Identity()
        layer.attend(torch.randn(s, 3, 3 * h))
    step = forward.flops + backward.flops
    assert kata.recompute_flops_overhead(s, h, "none") == 0
    selective = kata.recompute_flops_overhead(s, h, "selective")
    assert selective == pytest.approx(core.flops / step, rel=1e-12)
    full = kata.recompute_flops_overhead(s, h, "full")
    assert full == pytest.approx(forward.flops / step, rel=1e-12)


def test_gpt3_pays_under_one_percent_for_selective_recomputation(kata):
    overhead = kata.recompute_flops_overhead(2048, 12288, "selective")
    assert round(overhead, 4) == 0.009


# ---- the meter -----------------------------------------------------------------------------


class Views(nn.Module):
    """Multiplies views of one tensor by each other, whole and in part."""

    def forward(self, x):
        y = x * 2.0
        first, second = y.chunk(2, dim=-1)
        return (first * second).sum() + (y * y).sum()


class Own(nn.Module):
    """Reads its parameters as views, and a buffer beside them."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(12, 8))
        self.register_buffer("mask", torch.ones(4, 8))

    def forward(self, x):
        return (x * self.mask) @ self.w[2:10].T.contiguous() * self.w.flatten()[:8].view(1, 8)


class Chain(nn.Module):
    """Saves as many tensors of one size as it has steps, and holds none of them itself."""

    def forward(self, x):
        for _ in range(8):
            x = x.sin()
        return x


class Twice(nn.Module):
    """Saves its input in two operators."""

    def forward(self, x):
        return x.exp() + x.sin() + x.cos()


@pytest.mark.parametrize("build", [Views, Own, Chain, Twice, nn.Identity], ids=lambda b: b.__name__)
def test_each_storage_counts_once(kata, build):
    layer, x = build(), torch.randn(4, 8, requires_grad=True)
    with saved_meter(exclude=[*layer.parameters(), *layer.buffers()]) as saved:
        layer(x)
    assert kata.measured_bytes(layer, x) == saved.bytes


def test_an_input_that_is_a_view_counts_whole(kata):
    rows = torch.randn(10, 8, requires_grad=True)
    assert kata.measured_bytes(Twice(), rows[2:4]) == 4 * (
        10 * 8 + 2 * 8
    )  # and exp keeps its result


def test_what_needs_no_gradient_keeps_nothing(kata):
    assert kata.measured_bytes(Twice(), torch.randn(4, 8)) == 0


@pytest.mark.parametrize("build", [{}, {"p": 0.5}, {"flash": True}], ids=["plain", "drop", "flash"])
def test_real_layers_are_measured(kata, oracle, build):
    for s, b, h, a in oracle.SHAPES:
        layer = oracle.Layer(h, a, dtype=torch.float16, **build)
        x = torch.randn(s, b, h, dtype=torch.float16)
        house = by_the_house(layer, x)
        assert kata.measured_bytes(layer, x) == house, f"s, b, h, a = {s}, {b}, {h}, {a}"


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_the_layer_runs_once_and_stays_as_it_was(kata, oracle, training):
    calls = []
    layer = oracle.Layer(8, 2, p=0.5).train(training)
    layer.register_forward_hook(lambda *_: calls.append(1))
    for w in layer.parameters():
        w.grad = torch.ones_like(w)  # of the step that somebody is in the middle of
    before = [w.clone() for w in layer.parameters()]
    x = torch.randn(3, 2, 8)
    found = kata.measured_bytes(layer, x)
    assert len(calls) == 1
    assert layer.training == training
    assert all(map(torch.equal, layer.parameters(), before))
    assert all(w.grad is not None and (w.grad == 1).all() for w in layer.parameters())
    assert found == by_the_house(layer, x)


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "switches", "named"),
    [
        ((4, 1, 10, 3), {}, "a"),
        ((4, 1, 10, 0), {}, "a"),
        ((4, 1, 10, -2), {}, "a"),
        ((4, 1, 12, 4), {"tp": 3}, "tp"),
        ((4, 1, 12, 4), {"tp": 0}, "tp"),
        ((4, 1, 12, 4), {"tp": -2}, "tp"),
        ((5, 2, 12, 4), {"tp": 2, "sp": True}, "tp"),
        ((4, 1, 12, 4), {"sp": True}, "sp"),
        ((4, 1, 10, 3), {"recompute": "full"}, "a"),
        ((4, 1, 12, 4), {"tp": 3, "recompute": "full"}, "tp"),
        ((4, 1, 12, 4), {"recompute": "some"}, "recompute"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_impossible_layers_are_refused(kata, sizes, switches, named):
    with pytest.raises(ValueError, match=f"^{named}: "):
        kata.layer_activation_bytes(*sizes, **switches)


def test_unknown_recomputation_has_no_overhead(kata):
    with pytest.raises(ValueError, match="^mode: "):
        kata.recompute_flops_overhead(4, 12, "some")
