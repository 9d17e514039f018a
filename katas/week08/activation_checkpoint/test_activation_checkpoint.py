"""Gradients to the bit, random numbers and autocast as they were, bytes counted, cuts tried out."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn


def draw(seed, *shape, device="cpu"):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def trained(apply, module, x, seed, *, meddle=False):
    """Result, gradient of `x` and gradients of the parameters, after one backward pass."""
    module.zero_grad()
    x = x.detach().clone().requires_grad_(x.requires_grad)
    torch.manual_seed(seed)
    out = apply(module, x)
    if meddle:
        torch.rand(3, device=x.device)
        torch.manual_seed(seed + 1)
    out.backward(torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out).to(out.dtype))
    return [out.detach(), x.grad, *(w.grad for w in module.parameters())]


def assert_same(found, expected):
    for ours, plain in zip(found, expected, strict=True):
        if plain is None:
            assert ours is None
        else:
            off = (ours.double() - plain.double()).abs().max()
            assert torch.equal(ours, plain), (
                f"expected the same bits, found up to {off} of difference"
            )


# ---- the same gradients --------------------------------------------------------------------


@pytest.mark.parametrize("needs_grad", [True, False], ids=["input with gradient", "input without"])
def test_result_and_gradients_are_those_of_the_plain_run(kata, oracle, device, seed, needs_grad):
    module = oracle.Mixing(16).to(device)
    x = draw(seed, 5, 16, device=device).requires_grad_(needs_grad)
    expected = trained(oracle.plain, module, x, seed)
    assert_same(trained(kata.checkpoint, module, x, seed), expected)


def test_masks_are_the_same_whatever_random_numbers_are_drawn_meanwhile(kata, oracle, device, seed):
    module = oracle.Mixing(16).to(device)
    x = draw(seed, 5, 16, device=device).requires_grad_()
    expected = trained(oracle.plain, module, x, seed)
    assert_same(trained(kata.checkpoint, module, x, seed, meddle=True), expected)


def test_random_numbers_outside_go_on_as_without_checkpoints(kata, oracle, device, seed):
    drawn = []
    for apply in (oracle.plain, kata.checkpoint):
        module, x = oracle.Mixing(8).to(device), draw(seed, 3, 8, device=device)
        torch.manual_seed(seed)
        out = apply(module, x)
        between = [torch.rand(4), torch.rand(4, device=device)]
        out.sum().backward()
        drawn.append([*between, torch.rand(4), torch.rand(4, device=device)])
    assert_same(drawn[1], drawn[0])


def test_backward_computes_under_the_autocast_of_forward(kata, oracle, device, seed):
    seen = []
    dtype = torch.float16 if device == "cpu" else torch.bfloat16  # not the device's own choice

    class Watched(oracle.Mixing):
        def forward(self, x):
            out = super().forward(x)
            seen.append(out.dtype)
            return out

    module, x = Watched(16).to(device), draw(seed, 5, 16, device=device).requires_grad_()

    def within(apply):
        def under_autocast(fn, x):
            with torch.autocast(device, dtype=dtype):
                return apply(fn, x)

        return under_autocast

    expected = trained(within(oracle.plain), module, x, seed)
    assert_same(trained(within(kata.checkpoint), module, x, seed), expected)
    assert seen == [dtype] * 3


def test_backward_is_not_under_the_autocast_around_it(kata, oracle, seed):
    seen = []

    def fn(x, w):
        out = x @ w
        seen.append(out.dtype)
        return out

    x, w = (draw(seed + i, 4, 4).requires_grad_() for i in range(2))
    out = kata.checkpoint(fn, x, w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out.sum().backward()
    assert seen == [torch.float32] * 2


def test_gradients_are_not_computed_under_the_autocast_of_forward(kata, oracle, seed):
    # a product in float32, which autocast would round: its gradients are products, too
    def fn(x, w):
        with torch.autocast("cpu", enabled=False):
            return x @ w

    found = []
    for apply in (kata.checkpoint, oracle.plain):
        x, w = (draw(seed + i, 4, 4).requires_grad_() for i in range(2))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = apply(fn, x, w)
        out.backward(draw(seed + 2, 4, 4))
        found.append([out.detach(), x.grad, w.grad])
    assert_same(*found)


def test_gradients_accumulate(kata, oracle, device, seed):
    module = oracle.Mixing(8).to(device)
    x = draw(seed, 3, 8, device=device)
    once = trained(oracle.plain, module, x, seed)[2:]
    twice = [2 * grad for grad in once]
    module.zero_grad()
    for _ in range(2):
        torch.manual_seed(seed)
        out = kata.checkpoint(module, x)
        out.backward(torch.linspace(-1, 1, out.numel(), device=device).view_as(out))
    assert_same([w.grad for w in module.parameters()], twice)


# ---- what goes in and comes out ------------------------------------------------------------


def test_arguments_need_not_be_tensors(kata, device):
    def fn(scale, x, nothing, w, *, power=2):
        assert nothing is None
        return scale * x**power * w

    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    w = torch.tensor([3.0, 5.0], device=device, requires_grad=True)
    out = kata.checkpoint(fn, 2, x, None, w)
    out.sum().backward()
    assert out.tolist() == [6.0, 40.0]
    assert x.grad.tolist() == [12.0, 40.0]
    assert w.grad.tolist() == [2.0, 8.0]


def test_arguments_are_needed_one_by_one(kata, device):
    frozen = torch.tensor([3.0], device=device)
    index = torch.tensor([1, 0], device=device)
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    out = kata.checkpoint(lambda a, i, b: (a * b)[i] * a, x, index, frozen)
    out.sum().backward()
    assert out.tolist() == [6.0, 6.0]
    assert x.grad.tolist() == [12.0, 6.0]
    assert frozen.grad is None


def test_one_tensor_may_be_given_twice(kata, device):
    x = torch.tensor([3.0], device=device, requires_grad=True)
    kata.checkpoint(lambda a, b: a * b, x, x).backward()
    assert x.grad.tolist() == [6.0]


def test_gradient_goes_on_into_what_made_the_argument(kata, device):
    x = torch.tensor([2.0], device=device, requires_grad=True)
    y = x * x
    (kata.checkpoint(torch.exp, y.log()) + y).backward()  # x² and x² once more
    assert x.grad.item() == pytest.approx(8.0)


def test_tuples_come_back_whole(kata, device):
    def fn(x):
        return x * 2, None, x.argmax(), x.detach() * 3, x * x, "done"

    x = torch.tensor([1.0, 4.0], device=device, requires_grad=True)
    double, nothing, index, apart, square, word = kata.checkpoint(fn, x)
    assert (nothing, index.item(), word) == (None, 1, "done")
    assert (double.tolist(), apart.tolist(), square.tolist()) == ([2, 8], [3, 12], [1, 16])
    (square.sum() + apart.sum()).backward()  # `double` is not used, `apart` leads nowhere
    assert x.grad.tolist() == [2.0, 8.0]


def test_an_output_that_is_not_used_takes_no_part(kata, device):
    # the root's derivative at 0 is infinite, and 0 times that is no number
    x = torch.zeros(2, device=device, requires_grad=True)
    double, _ = kata.checkpoint(lambda a: (a * 2, a.sqrt()), x)
    double.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_what_leads_nowhere_has_no_gradient(kata, device):
    x = torch.ones(2, device=device, requires_grad=True)
    (kata.checkpoint(lambda a: a.detach() * 3, x) + x).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]


def test_a_tuple_of_one_stays_a_tuple(kata, device):
    out = kata.checkpoint(lambda x: (x * 2,), torch.ones(2, device=device, requires_grad=True))
    assert isinstance(out, tuple)
    assert out[0].tolist() == [2.0, 2.0]


def test_argument_handed_through(kata, device):
    x = torch.ones(2, device=device, requires_grad=True)
    out = kata.checkpoint(lambda a: a, x * 3)
    out.sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_fn_may_work_in_place_on_what_is_its_own(kata, device):
    x = torch.tensor([1.0, -2.0], device=device, requires_grad=True)
    out = kata.checkpoint(lambda a: (a * 2).add_(1).mul_(3).relu_(), x)
    out.sum().backward()
    assert out.tolist() == [9.0, 0.0]
    assert x.grad.tolist() == [6.0, 0.0]


def test_checkpoints_nest(kata, oracle, device, seed):
    calls = []

    class Inner(oracle.Mixing):
        def forward(self, x):
            calls.append(torch.is_grad_enabled())
            return super().forward(x)

    module = nn.Sequential(Inner(8), Inner(8)).to(device)
    x = draw(seed, 3, 8, device=device).requires_grad_()
    expected = trained(oracle.plain, module, x, seed)
    calls.clear()

    def nested(fn, x):
        def outer(x):
            for layer in fn:
                x = kata.checkpoint(layer, x)
            return x * 1.0

        return kata.checkpoint(outer, x)

    assert_same(trained(nested, module, x, seed), expected)
    assert len(calls) == 6, f"expected 3 runs of either layer, found {len(calls)} in all"


def test_without_gradients_it_just_runs(kata, oracle):
    calls = []

    def fn(x):
        calls.append(1)
        return x * 2

    with torch.no_grad():
        out = kata.checkpoint(fn, torch.ones(2, requires_grad=True))
    assert out.tolist() == [2.0, 2.0]
    assert not out.requires_grad
    assert calls == [1]


# ---- what autograd refuses -----------------------------------------------------------------


def test_second_backward_is_refused(kata):
    x = torch.ones(2, requires_grad=True)
    loss = kata.checkpoint(torch.exp, x).sum()
    loss.backward()
    with pytest.raises(RuntimeError):
        loss.backward()


def test_argument_written_to_before_backward_is_refused(kata):
    x = torch.ones(2, requires_grad=True)
    y = x * 1.0
    loss = kata.checkpoint(torch.exp, y).sum()
    y.detach().add_(1.0)
    with pytest.raises(RuntimeError):
        loss.backward()


@pytest.mark.parametrize("value", [None, 3, (), (None, 2)], ids=str)
def test_fn_without_a_tensor_is_refused(kata, value):
    for grads in (True, False):
        with torch.set_grad_enabled(grads), pytest.raises(ValueError, match="^fn: "):
            kata.checkpoint(lambda x: value, torch.ones(2, requires_grad=True))


# ---- segments and bytes --------------------------------------------------------------------

L, ROWS, D = 64, 64, 256  # a layer's input takes 64 KiB


def stack(oracle, many=L):
    return nn.Sequential(*(oracle.Block(D) for _ in range(many)))


@pytest.mark.parametrize(
    ("many", "segments"), [(7, 1), (7, 3), (7, 7), (1, 1)], ids=["one", "uneven", "each", "single"]
)
def test_segments_make_no_difference_to_gradients(kata, oracle, device, seed, many, segments):
    layers = nn.Sequential(*(oracle.Mixing(8) for _ in range(many))).to(device)
    x = draw(seed, 3, 8, device=device).requires_grad_()

    def in_segments(layers, x):
        return kata.checkpoint_sequential(list(layers), x, segments)

    expected = trained(oracle.plain, layers, x, seed)
    assert_same(trained(in_segments, layers, x, seed), expected)


def test_each_layer_runs_twice(kata, oracle, cost, seed):
    layers, calls = stack(oracle), [0] * L
    for at, layer in enumerate(layers):
        layer.register_forward_hook(
            lambda *_, at=at: calls.__setitem__(at, calls[at] + 1)
        )  # fmt: skip
    kata.checkpoint_sequential(layers, draw(seed, 2, D), 8).sum().backward()
    assert min(calls) == max(calls), f"runs of each layer: {calls}"
    cost.check("runs_of_a_layer", max(calls))


def bytes_of_one_layer(oracle, dispatch, seed):
    """What a layer keeps, and its result among it, as the next one's input."""
    x = draw(seed, ROWS, D).requires_grad_()
    with dispatch() as ops:
        out = stack(oracle, 1)(x)
        probe = torch.empty(1 << 28, dtype=torch.uint8)
    assert out.requires_grad
    return ops.peak_live_bytes - probe.nbytes


def test_forward_keeps_the_inputs_of_segments(kata, oracle, dispatch, cost, seed):
    layers, x = stack(oracle), draw(seed, ROWS, D)
    with dispatch() as ops:
        out = kata.checkpoint_sequential(layers, x, 8)
        probe = torch.empty(1 << 28, dtype=torch.uint8)  # so much that now is the peak
    cost.check("saved_bytes", ops.peak_live_bytes - probe.nbytes - out.nbytes)


def test_backward_frees_the_arguments(kata, dispatch, seed):
    x = draw(seed, ROWS, D).requires_grad_()
    with dispatch() as ops:
        y = x * 1.0
        loss = kata.checkpoint(torch.exp, y).sum()
        del y
        loss.backward()
        probe = torch.empty(1 << 28, dtype=torch.uint8)
    assert loss.requires_grad
    assert ops.peak_live_bytes - probe.nbytes < 2 * x.nbytes, "more than the gradient is alive"


def test_peak_grows_with_the_root_of_the_layers(kata, oracle, dispatch, cost, seed):
    layers, x = stack(oracle), draw(seed, ROWS, D)
    with dispatch() as ops:
        kata.checkpoint_sequential(layers, x, round(math.sqrt(L))).sum().backward()
    one = bytes_of_one_layer(oracle, dispatch, seed)
    cost.check("peak_over_root", ops.peak_live_bytes / (math.sqrt(L) * one))


@pytest.mark.parametrize(("many", "segments"), [(15, 8), (9, 4), (7, 3), (8, 4), (3, 1)])
def test_lengths_of_segments_differ_by_one_at_most(kata, oracle, many, segments):
    layers, order = stack(oracle, many), []
    for at, layer in enumerate(layers):
        layer.register_forward_hook(lambda *_, at=at: order.append(at))
    out = kata.checkpoint_sequential(layers, torch.ones(1, D), segments)
    order.clear()
    out.sum().backward()
    # the second runs climb within a segment, and fall to the one before
    starts = [0, *(at for at in range(1, len(order)) if order[at] < order[at - 1]), len(order)]
    lengths = [end - start for start, end in pairwise(starts)]
    assert len(lengths) == segments, f"layers were run again in this order: {order}"
    assert max(lengths) - min(lengths) <= 1, f"layers were run again in this order: {order}"


@pytest.mark.parametrize("segments", [0, -1, 4])
def test_impossible_segments_are_refused(kata, oracle, segments):
    with pytest.raises(ValueError, match="^segments: "):
        kata.checkpoint_sequential(stack(oracle, 3), torch.ones(2, D), segments)


# ---- where to cut --------------------------------------------------------------------------


@example(layers=[])
@example(layers=[(5, 2)])
@example(layers=[(1, 0)] * 9)
@example(layers=[(4, 1)] * 9)
@example(layers=[(1, 9)] * 5)  # not worth a cut
@example(layers=[(9, 1), (1, 9), (1, 9), (9, 1), (1, 1), (9, 9)])
@given(layers=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=9))
def test_best_segments_are_as_good_as_any(kata, oracle, layers):
    kept, inputs = [k for k, _ in layers], [i for _, i in layers]
    cuts = kata.best_segments(kept, inputs)
    if not layers:
        assert cuts == []
        return
    assert cuts == sorted(set(cuts)), "expected ascending places"
    assert all(0 < at < len(kept) for at in cuts)
    assert oracle.peak(kept, inputs, cuts) == oracle.lowest_peak(kept, inputs)


def test_cuts_are_found_in_quadratic_time(kata, lines, cost):
    with lines(limit=1_000_000) as counted:
        cuts = kata.best_segments([3] * 200, [1] * 200)
    assert cuts
    cost.check("lines", counted.lines)


def test_sizes_of_another_number_of_layers_are_refused(kata):
    with pytest.raises(ValueError, match="^input_bytes: "):
        kata.best_segments([1, 2, 3], [1, 2])
