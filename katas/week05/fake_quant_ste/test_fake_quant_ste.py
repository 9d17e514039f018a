"""Codes and gradients against PyTorch's own, the edges by hand, and what training makes of it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

NAN, INF = float("nan"), float("inf")


def per_tensor(device, scale=1.0, zero_point=0):
    """0-d scale and zero point."""
    zero_point = torch.tensor(zero_point, dtype=torch.int32, device=device)
    return torch.tensor(scale, device=device), zero_point


def value_and_gradient(kata, x, *args, pull=None):
    """What becomes of `x`, and of a gradient `pull` (ones by default) on the way back."""
    x = x.detach().requires_grad_()
    out = kata.fake_quantize(x, *args)
    out.backward(torch.ones_like(out) if pull is None else pull)
    return out.detach(), x.grad


# ---- values and gradients ------------------------------------------------------------------


@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    bits=st.integers(2, 8),
    unsigned=st.booleans(),
    where=st.integers(-3, 3),
    seed=st.integers(0, 2**31),
)
def test_bits_and_gradient_are_those_of_torch(
    kata, oracle, device, shape, bits, unsigned, where, seed
):
    axis = where if -len(shape) <= where < len(shape) else None
    inputs = oracle.make_inputs(
        shape=shape, bits=bits, unsigned=unsigned, axis=axis, dtype=torch.float32, device=device,
        seed=seed,
    )  # fmt: skip
    x, *rest = inputs.values()
    pull = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)).to(device)
    out, grad = value_and_gradient(kata, x, *rest, pull=pull)
    leaf = x.requires_grad_()
    want = oracle.torch_fake_quantize(leaf, *rest)
    want.backward(pull)
    assert torch.equal(out, want.detach()), f"expected {want.tolist()}, found {out.tolist()}"
    assert torch.equal(grad, leaf.grad), f"expected {leaf.grad.tolist()}, found {grad.tolist()}"


def test_ties_go_to_even_codes(kata, device):
    # steps of 0.5: the codes are -2.5, -1.5, -0.5, 0.5, 1.5 and 2.5
    x = torch.tensor([-1.25, -0.75, -0.25, 0.25, 0.75, 1.25], device=device)
    out = kata.fake_quantize(x, *per_tensor(device, scale=0.5), -4, 3)
    assert out.tolist() == [-1.0, -1.0, 0.0, 0.0, 1.0, 1.0]


def test_ties_are_rounded_before_the_zero_point(kata, device):
    # 0.5 goes to 0 and 1.5 to 2, whatever is added to them then
    x = torch.tensor([-0.5, 0.5, 1.5], device=device)
    out = kata.fake_quantize(x, *per_tensor(device, zero_point=1), -4, 3)
    assert out.tolist() == [0.0, 0.0, 2.0]


def test_gradient_ends_where_codes_are_clamped(kata, device):
    # codes -4.6, -4.4, -4, 3, 3.4 and 3.6: half a step beyond the last code is still that code
    x = torch.tensor([-2.3, -2.2, -2.0, 1.5, 1.7, 1.8], device=device)
    out, grad = value_and_gradient(kata, x, *per_tensor(device, scale=0.5), -4, 3)
    assert out.tolist() == [-2.0, -2.0, -2.0, 1.5, 1.5, 1.5]
    assert grad.tolist() == [0.0, 1.0, 1.0, 1.0, 1.0, 0.0]


def test_what_is_clamped_has_no_gradient_whatever_comes_back(kata, device):
    # codes 0, 5, -6 and 9 within -4 … 3, and a NaN, which has none either
    x = torch.tensor([0.0, 5.0, -6.0, 9.0, NAN], device=device)
    pull = torch.tensor([INF, INF, -INF, NAN, INF], device=device)
    _, grad = value_and_gradient(kata, x, *per_tensor(device), -4, 3, pull=pull)
    assert grad.tolist() == [INF, 0.0, 0.0, 0.0, 0.0]


def test_the_gradient_that_comes_back_stays_as_it_is(kata, device):
    # whoever holds it reads it after this step too
    x = torch.tensor([0.0, 5.0, -6.0], device=device)
    pull = torch.tensor([2.0, 3.0, 4.0], device=device)
    value_and_gradient(kata, x, *per_tensor(device), -4, 3, pull=pull)
    assert pull.tolist() == [2.0, 3.0, 4.0]


def test_nan_stays_and_what_is_huge_is_clamped(kata, device):
    x = torch.tensor([NAN, INF, -INF, 3e38, -3e38], device=device)
    out, grad = value_and_gradient(kata, x, *per_tensor(device, scale=0.5, zero_point=1), -4, 3)
    assert out.isnan().tolist() == [True, False, False, False, False]
    assert out[1:].tolist() == [1.0, -2.5, 1.0, -2.5]
    assert grad.tolist() == [0.0] * 5


def test_half_precision_is_computed_in_single(kata, device):
    # codes 258.57, 278.57 and 288.57: float16 goes by quarters there, and makes ties of them
    x = torch.tensor([181.0, 195.0, 202.0], dtype=torch.float16, device=device)
    out, grad = value_and_gradient(kata, x, *per_tensor(device, scale=0.7), 0, 1023)
    want = torch.tensor([0.7 * 259, 0.7 * 279, 0.7 * 289]).half()
    assert out.dtype == grad.dtype == torch.float16
    assert out.tolist() == want.tolist()


@given(
    bits=st.integers(2, 8), by_row=st.booleans(), seed=st.integers(0, 2**31)
)  # fmt: skip
def test_what_is_quantized_stays_as_it_is(kata, oracle, device, bits, by_row, seed):
    inputs = oracle.make_inputs(
        shape=[4, 9], bits=bits, axis=0 if by_row else None, dtype=torch.float32, device=device,
        seed=seed,
    )  # fmt: skip
    _, *rest = inputs.values()
    once = kata.fake_quantize(**inputs)
    twice, grad = value_and_gradient(kata, once, *rest)
    assert torch.equal(twice, once)
    assert grad.min() == 1.0, "every code is within the range: expected gradients of 1"


def test_each_call_goes_back_by_its_own_mask(kata, device):
    # two calls of one shape before the first gradient, as of two layers
    first, second = (torch.full((3,), at, device=device).requires_grad_() for at in (1.0, 9.0))
    outs = [kata.fake_quantize(x, *per_tensor(device), -4, 3) for x in (first, second)]
    sum(outs).sum().backward()
    assert (first.grad.tolist(), second.grad.tolist()) == ([1.0] * 3, [0.0] * 3)


def test_one_byte_an_element_is_kept(kata, oracle, dispatch, cost, seed):
    # counted on the CPU in every session; alive in the end are the result and what backward needs
    inputs = oracle.make_inputs(
        shape=[64, 1024], bits=8, axis=0, dtype=torch.float32, device="cpu", seed=seed
    )
    leaf = inputs.pop("x").requires_grad_()
    with dispatch() as ops:
        x = leaf * 1.0  # of which the test keeps nothing
        out = kata.fake_quantize(x, **inputs)
        del x
        probe = torch.empty(1 << 26, dtype=torch.uint8)  # so much that now is the peak
    want = oracle.reference(x=leaf.detach(), **inputs)
    assert torch.equal(out.detach().double(), want)
    cost.check("saved_bytes", ops.peak_live_bytes - probe.nbytes - out.nbytes)


# ---- scales --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axis", "largest"),
    [
        (None, 12.0),
        (0, [7.0, 12.0]),
        (-2, [7.0, 12.0]),
        (1, [12.0, 3.0, 7.0]),
        (-1, [12.0, 3.0, 7.0]),
    ],
    ids=["all", "rows", "first", "columns", "last"],
)
def test_scale_is_the_largest_magnitude_over_the_largest_code(kata, device, axis, largest):
    w = torch.tensor([[1.0, 3.0, -7.0], [-12.0, 2.0, 4.0]], device=device)
    scale, zero_point = kata.absmax_scale(w, 3, axis)
    # a GPU multiplies by the reciprocal of a number that all are divided by
    assert scale.tolist() == pytest.approx((torch.tensor(largest) / 3).tolist(), rel=1e-6)
    assert (scale.dtype, zero_point.dtype) == (torch.float32, torch.int32)
    assert zero_point.tolist() == torch.zeros_like(scale).tolist()


@pytest.mark.parametrize(("bits", "largest_code"), [(2, 1), (16, 32767)])
def test_fewest_and_most_bits(kata, device, bits, largest_code):
    scale, _ = kata.absmax_scale(torch.tensor([1.0, -3.0], device=device), bits)
    assert scale.item() == (torch.tensor(3.0) / largest_code).item()


def test_scale_of_half_precision_weights_is_single(kata, device):
    w = torch.tensor([1.0, -3.0], dtype=torch.float16, device=device)
    scale, _ = kata.absmax_scale(w, 8, 0)
    assert scale.tolist() == (torch.tensor([1.0, 3.0]) / 127).tolist()


def test_scale_has_no_gradient(kata, device):
    w = torch.ones(2, 3, device=device, requires_grad=True)
    scale, _ = kata.absmax_scale(w, 4, 0)
    assert not scale.requires_grad


@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-39], ids=["zeros", "smallest", "subnormal"])
def test_channels_of_nothing_have_a_scale(kata, device, value):
    w = torch.full((2, 3), value, device=device)
    w[0] = 6.0
    scale, zero_point = kata.absmax_scale(w, 3, 0)
    assert scale.tolist() == [2.0, torch.finfo(torch.float32).tiny]
    out, grad = value_and_gradient(kata, w, scale, zero_point, -3, 3, 0)
    assert out.tolist() == [[6.0] * 3, [0.0] * 3]
    assert grad.tolist() == [[1.0] * 3] * 2


# ---- training ------------------------------------------------------------------------------


def test_training_through_rounding_beats_rounding_afterwards(kata, oracle, cost, seed, one_thread):
    w1, w2, learn, hold_out = oracle.weights_and_data(seed)
    after = oracle.rounded_loss(w1, w2, *hold_out, bits=3)  # before it, there is no loss at all
    model = kata.Student(w1, w2)
    kata.qat_fit(model, *learn, steps=200, bits=3)
    cost.check("qat_loss", oracle.rounded_loss(model.w1, model.w2, *hold_out, bits=3) / after)


def test_a_step_is_one_forward_pass_and_one_of_adam(kata, oracle, seed):
    w1, w2, learn, _ = oracle.weights_and_data(seed)
    calls, off = [], []

    class Watched(kata.Student):
        def forward(self, x, quantize):
            calls.append(len(x))
            for w in self.parameters():  # the weights as they are now
                rounded = oracle.rounded(w, 4)
                off.append(int(((quantize(w) - rounded).abs() > 1e-6).sum()))
            return super().forward(x, quantize)

    model = Watched(w1, w2)
    kata.qat_fit(model, *learn, steps=2, bits=4)
    assert calls == [256, 256]
    assert max(off) <= 2, f"weights off the codes of their rows: {off} (a tie or two may be)"
    # where gradients agree, a step of Adam is about the whole rate: 0.01, and then 0.005
    moved = (model.w2.detach() - w2).abs()
    assert 0.013 <= float(moved.max()) <= 0.017
    kata.qat_fit(model, *learn, steps=0, bits=4)
    assert len(calls) == 2


@pytest.mark.parametrize("size", [1.0, 1e-4], ids=["data", "gradients near Adam's epsilon"])
def test_weights_go_where_adam_takes_them(kata, oracle, size, one_thread):
    # fixed inputs, none of whose codes is near a tie in three steps
    generator = torch.Generator().manual_seed(5)
    shapes = ((6, 5), (3, 6), (16, 5), (16, 3))
    w1, w2, x, y = (torch.randn(shape, generator=generator) for shape in shapes)
    model = kata.Student(w1, w2)
    for w in model.parameters():
        w.grad = torch.ones_like(w)  # of whatever came before
    kata.qat_fit(model, size * x, size * y, steps=3, bits=4)
    want = oracle.trained(w1, w2, size * x, size * y, steps=3, bits=4)
    for name, found, expected in zip(("w1", "w2"), model.parameters(), want, strict=True):
        off = float((found.detach() - expected).abs().max())
        assert off <= 1e-5, f"{name}: expected {expected.tolist()}, found {found.tolist()}"


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.0, -1.0, NAN, INF], ids=str)
def test_scales_that_divide_nothing_are_refused(kata, device, value):
    scale, zero_point = torch.tensor([0.5, value, 0.5]), torch.zeros(3, dtype=torch.int32)
    with pytest.raises(ValueError, match="^scale: "):
        kata.fake_quantize(
            torch.ones(2, 3, device=device), scale.to(device), zero_point.to(device), -4, 3, axis=1
        )


@pytest.mark.parametrize("channels", [1, 3])
def test_scales_of_channels_need_an_axis(kata, device, channels):
    scale = torch.ones(channels, device=device)
    with pytest.raises(ValueError, match="^scale: "):
        kata.fake_quantize(torch.ones(2, 3, device=device), scale, scale.int(), -4, 3)


@pytest.mark.parametrize(
    ("name", "bits", "axis"), [("bits", 1, 0), ("bits", 17, 0), ("axis", 4, 2), ("axis", 4, -3)]
)
def test_what_has_no_scale_is_refused(kata, device, name, bits, axis):
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.absmax_scale(torch.ones(2, 3, device=device), bits, axis)


@pytest.mark.parametrize("bits", [1, 17])
def test_training_for_no_such_codes_is_refused(kata, bits):
    model = kata.Student(torch.ones(2, 3), torch.ones(1, 2))
    with pytest.raises(ValueError, match="^bits: "):
        kata.qat_fit(model, torch.ones(4, 3), torch.ones(4, 1), steps=1, bits=bits)
