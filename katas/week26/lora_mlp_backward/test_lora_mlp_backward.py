"""Gradients against autograd, and what they cost: products, bytes kept, bytes alive."""

from itertools import product

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from harness.meters.dispatch import flop_meter, saved_meter

T, D, FF, R = 96, 32, 160, 2


def drawn(seed, *shapes, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draw).to(dtype) / shape[-1] ** 0.5 for shape in shapes]


def adapter(kata, seed, out, into, r, s=1.5, dtype=torch.float64, trains=True):
    w, a, b = drawn(seed, (out, into), (r, into), (out, r), dtype=dtype)
    return kata.Lora(w, a.requires_grad_(trains), b.requires_grad_(trains), s)


def mlp(kata, seed=0, *, d=D, f=FF, ranks=(R, R, R), trains=(True, True, True), **how):
    shapes = ((f, d), (f, d), (d, f))
    return [
        adapter(kata, seed + at, *shape, r, trains=train, **how)
        for at, (shape, r, train) in enumerate(zip(shapes, ranks, trains, strict=True))
    ]


def qkv(kata, seed=0, *, d=D, outs=(32, 8, 16), r=R, trains=(True, True, True), **how):
    return [
        adapter(kata, seed + at, out, d, r, trains=train, **how)
        for at, (out, train) in enumerate(zip(outs, trains, strict=True))
    ]


def plain(oracle, loras, x):
    """What autograd makes of the formulas: of an MLP, or of three projections."""
    if loras[2].w.shape[1] == x.shape[1] and len({one.w.shape[1] for one in loras}) == 1:
        return tuple(oracle.project(x, *one) for one in loras)
    return oracle.eager(x, *(part for one in loras for part in one))


def leaves_of(x, loras):
    named = {"x": x}
    for at, one in enumerate(loras):
        named |= {f"a of {at}": one.a, f"b of {at}": one.b}
    return {name: one for name, one in named.items() if one.requires_grad}


def assert_gradients(oracle, function, x, loras, douts):
    """Hold results and gradients against autograd's; everything is float64."""
    leaves = leaves_of(x, loras)
    got, want = function(x, *loras), plain(oracle, loras, x)
    got, want = (one if isinstance(one, tuple) else (one,) for one in (got, want))
    pairs = [("result", mine, true) for mine, true in zip(got, want, strict=True)]
    grads = [torch.autograd.grad(one, list(leaves.values()), douts) for one in (got, want)]
    pairs += list(zip([f"gradient of {name}" for name in leaves], *grads, strict=True))
    for name, mine, true in pairs:
        assert mine.shape == true.shape, f"{name}: expected {true.shape}, found {mine.shape}"
        off, size = (mine - true).abs().max().item(), true.abs().max().item()
        assert off <= 1e-10 * size, f"{name}: off by {off:.3g}, where the largest is {size:.3g}"


# ---- gradients -----------------------------------------------------------------------------


@example(t=1, d=1, f=1, ranks=(1, 1, 1), seed=0)
@example(t=5, d=3, f=7, ranks=(64, 1, 9), seed=0)  # ranks above all widths
@given(
    t=st.integers(1, 9),
    d=st.integers(1, 9),
    f=st.integers(1, 9),
    ranks=st.tuples(*[st.integers(1, 5)] * 3),
    seed=st.integers(0, 2**20),
)
def test_any_mlp_has_autograds_gradients(kata, oracle, t, d, f, ranks, seed):
    x, dy = drawn(seed + 9, (t, d), (t, d))
    loras = mlp(kata, seed, d=d, f=f + (f == d), ranks=ranks)
    assert_gradients(oracle, kata.lora_mlp, x.requires_grad_(), loras, (dy,))


@pytest.mark.parametrize("t", [1, 7])
def test_three_projections_add_up_in_the_input(kata, oracle, seed, t):
    x, *douts = drawn(seed, (t, D), (t, 32), (t, 8), (t, 16))
    assert_gradients(oracle, kata.lora_qkv, x.requires_grad_(), qkv(kata, seed), douts)


def test_strided_inputs_and_gradients(kata, oracle, seed):
    x, dy = (one.t() for one in drawn(seed, (D, 7), (D, 7)))
    assert_gradients(oracle, kata.lora_mlp, x.detach().requires_grad_(), mlp(kata, seed), (dy,))
    (dv,) = drawn(seed, (7, 1))
    douts = [dv.expand(7, out) for out in (32, 8, 16)]
    assert_gradients(oracle, kata.lora_qkv, x.detach().requires_grad_(), qkv(kata, seed), douts)


def test_a_scale_may_be_zero(kata, oracle, seed):
    x, dy = drawn(seed, (5, D), (5, D))
    loras = mlp(kata, seed, s=0.0)
    assert_gradients(oracle, kata.lora_mlp, x.requires_grad_(), loras, (dy,))


def test_only_b_learns_in_the_first_step(kata, seed):
    x, dy = drawn(seed, (5, D), (5, D))
    loras = mlp(kata, seed)
    for one in loras:
        one.b.detach().zero_()
    kata.lora_mlp(x, *loras).backward(dy)
    assert [one.a.grad.any().item() for one in loras] == [False] * 3
    assert [one.b.grad.any().item() for one in loras] == [True] * 3


def test_outputs_that_are_not_used_cost_nothing(kata, oracle, seed):
    x, dq = drawn(seed, (5, D), (5, 32))
    loras = qkv(kata, seed)
    x.requires_grad_()
    q, *_ = kata.lora_qkv(x, *loras)
    with flop_meter() as counted:
        (dx,) = torch.autograd.grad(q, x, dq)
    want = dq @ (loras[0].w + 1.5 * loras[0].b @ loras[0].a)
    assert (dx - want).abs().max().item() <= 1e-10 * want.abs().max().item()
    assert counted.flops <= 2 * 5 * (32 * D + R * (3 * D + 2 * 32))


def test_a_graph_may_be_walked_twice(kata, oracle, seed):
    x, dy = drawn(seed, (5, D), (5, D))
    x.requires_grad_()
    for function, loras in ((kata.lora_mlp, mlp(kata, seed)), (kata.lora_qkv, qkv(kata, seed))):
        y = function(x, *loras)
        y = y if function is kata.lora_mlp else y[0]
        leaves = [x, loras[0].a, loras[0].b]
        kept = y.detach().clone()
        once = torch.autograd.grad(y, leaves, dy, retain_graph=True)
        again = torch.autograd.grad(y, leaves, dy)
        assert all(map(torch.equal, once, again))
        assert torch.equal(y, kept)


# ---- what it costs -------------------------------------------------------------------------


def thin(out, into, forward=1, grads=1, passed=1, *, t=T):
    """FLOPs of an adapter on t rows, in the order that keeps every product thin."""
    times = forward * (into + out) + grads * (2 * into + out) + max(grads, passed) * out
    return 2 * t * R * (times + passed * into)


def flops_of_step(function, x, loras):
    with flop_meter() as counted:
        y = function(x, *loras)
        y = torch.cat(y, 1) if isinstance(y, tuple) else y
        y.backward(torch.ones_like(y))
    return counted.flops


def test_every_product_of_an_adapter_is_thin(kata, cost, seed):
    ratios = []
    for t in (T, 4):  # of four tokens B A costs more than both thin products
        (x,) = drawn(seed, (t, D))
        x.requires_grad_()
        want = 6 * 2 * t * D * FF + 2 * thin(FF, D, t=t) + thin(D, FF, t=t)
        ratios.append(flops_of_step(kata.lora_mlp, x, mlp(kata)) / want)
        want = 2 * 2 * t * D * 56 + sum(thin(out, D, t=t) for out in (32, 8, 16))
        ratios.append(flops_of_step(kata.lora_qkv, x, qkv(kata)) / want)
    cost.check("flops_of_least", max(ratios))


@pytest.mark.parametrize("trains", list(product((True, False), repeat=4))[:-1], ids=str)
def test_what_needs_no_gradient_costs_nothing(kata, oracle, seed, trains):
    for_x, *trained = trains
    x, dy, *douts = drawn(seed, (T, D), (T, D), (T, 32), (T, 8), (T, 16))
    x.requires_grad_(for_x)
    big = 2 * T * D * FF
    gate, up, down = trained
    deeper = for_x or gate or up
    want = (3 + deeper + 2 * for_x) * big + thin(D, FF, 1, down, deeper)
    want += thin(FF, D, 1, gate, for_x) + thin(FF, D, 1, up, for_x)
    loras = mlp(kata, trains=trained)
    assert flops_of_step(kata.lora_mlp, x, loras) <= 1.001 * want
    assert_gradients(oracle, kata.lora_mlp, x, loras, (dy,))  # and what is needed is there
    loras = qkv(kata, trains=trained)
    want = (1 + for_x) * 2 * T * D * 56
    for out, learns in zip((32, 8, 16), trained, strict=True):
        want += thin(out, D, 1, learns, for_x)
    assert flops_of_step(kata.lora_qkv, x, loras) <= 1.001 * want
    if for_x or all(trained):  # an output without a gradient is nothing to differentiate
        assert_gradients(oracle, kata.lora_qkv, x, loras, douts)


def kept_after(dispatch, call):
    """Bytes that `call` made and that are alive when it is over, its results apart."""
    with dispatch() as ops:
        y = call()
        probe = torch.empty(1 << 28, dtype=torch.uint8)  # so large that now is the peak
    results = y if isinstance(y, tuple) else (y,)
    return ops.peak_live_bytes - probe.nbytes - sum(one.nbytes for one in results)


def test_little_is_kept_for_backward(kata, dispatch, cost, seed):
    (x,) = drawn(seed, (D, T), dtype=torch.float32)
    x = x.t().requires_grad_()  # strided, which is no reason for a copy
    saved = []
    for function, make in ((kata.lora_mlp, mlp), (kata.lora_qkv, qkv)):
        loras = make(kata, dtype=torch.float32)
        own = [part for one in loras for part in one[:3]]
        with saved_meter(exclude=own) as meter:
            function(x, *loras)
        made = kept_after(dispatch, lambda f=function, own=loras: f(x, *own))
        saved.append(max(meter.bytes, made + x.nbytes))  # kept by other ways counts as well
    cost.check("saved_of_mlp", saved[0])
    cost.check("saved_of_qkv", saved[1])


def test_backward_needs_two_buffers(kata, oracle, dispatch, cost, seed):
    x, dy = drawn(seed, (T, D), (T, D), dtype=torch.float32)
    x.requires_grad_()
    loras = [one._replace(w=oracle.Quantized(one.w)) for one in mlp(kata, dtype=torch.float32)]
    y = kata.lora_mlp(x, *loras)
    with dispatch() as ops:
        y.backward(dy)
    cost.check("peak_memory", ops.peak_live_bytes)


def test_nothing_is_kept_without_gradients(kata, dispatch, seed):
    x, *_ = drawn(seed, (T, D))
    loras = mlp(kata)
    with torch.no_grad():
        made = kept_after(dispatch, lambda: kata.lora_mlp(x.requires_grad_(), *loras))
    assert made == 0


# ---- quantised weights ---------------------------------------------------------------------


@pytest.mark.parametrize(("for_x", "backward"), [(True, (1, 1, 1)), (False, (0, 0, 1))], ids=str)
def test_weights_are_unpacked_once_for_each_product(kata, oracle, seed, for_x, backward):
    x, dy = drawn(seed, (5, D), (5, D))
    x.requires_grad_(for_x)
    loras = [one._replace(w=oracle.Quantized(one.w)) for one in mlp(kata, seed)]
    y = kata.lora_mlp(x, *loras)
    assert [one.w.calls for one in loras] == [1, 1, 1]
    assert oracle.Quantized.alive() == [], "kept after forward"
    assert_gradients(oracle, kata.lora_mlp, x, loras, (dy,))
    y.backward(dy)
    assert [one.w.calls for one in loras] == [2 + 2 * more for more in backward]
    assert oracle.Quantized.alive() == [], "kept after backward"
    assert [one.w.most for one in loras] == [1, 1, 1], "unpacked at once"


def test_quantised_projections_do_the_same(kata, oracle, seed):
    x, *douts = drawn(seed, (5, D), (5, 32), (5, 8), (5, 16))
    loras = [one._replace(w=oracle.Quantized(one.w)) for one in qkv(kata, seed)]
    assert_gradients(oracle, kata.lora_qkv, x.requires_grad_(), loras, douts)
    assert [one.w.calls for one in loras] == [2, 2, 2]
    assert [one.w.most for one in loras] == [1, 1, 1]


# ---- bad input -----------------------------------------------------------------------------


def bad_ones(one):
    """Ways to spoil an adapter."""
    yield "w requires a gradient", one._replace(w=one.w.clone().requires_grad_())
    yield "w too wide", one._replace(w=torch.ones(len(one.w), one.w.shape[1] + 1).double())
    yield "a too wide", one._replace(a=torch.ones(R, one.w.shape[1] + 1).double())
    yield "b too long", one._replace(b=torch.ones(len(one.w) + 1, R).double())
    yield "another rank", one._replace(b=torch.ones(len(one.w), R + 1).double())
    yield "another dtype", one._replace(a=one.a.detach().float())
    yield "w of another dtype", one._replace(w=one.w.float())


def test_what_does_not_fit_is_refused(kata):
    x = torch.ones(3, D, dtype=torch.float64)
    for function, make, names in (
        (kata.lora_mlp, mlp, ("gate", "up", "down")), (kata.lora_qkv, qkv, "qkv")
    ):  # fmt: skip
        for at, name in enumerate(names):
            for _, spoiled in bad_ones(make(kata)[at]):
                loras = make(kata)
                loras[at] = spoiled
                if at < 2:
                    loras[2] = spoiled._replace(a=x)  # the first one counts
                with pytest.raises(ValueError, match=f"^{name}: "):
                    function(x, *loras)
    gate, up, down = mlp(kata)
    with pytest.raises(ValueError, match="^up: "):
        kata.lora_mlp(x, gate, adapter(kata, 0, FF + 1, D, R), down)
    with pytest.raises(ValueError, match="^down: "):
        kata.lora_mlp(x, gate, up, adapter(kata, 0, D, FF + 1, R))
