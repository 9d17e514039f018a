"""Against every candidate measured on all tokens, who is protected, and that folding is exact."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from harness.judge import assert_matches
from harness.meters.dispatch import flop_meter


def draw(oracle, device, seed, **changes):
    sizes = {"n": 6, "k": 24, "s": 40, "bits": 4, "group_size": 8, "dtype": torch.float32}
    return oracle.make_inputs(**{**sizes, **changes}, device=device, seed=seed)


def normal(seed, *shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def assert_right(kata, oracle, inputs):
    trusted = oracle.same_precision(**inputs)
    got = kata.awq_channel_scaling(**inputs)
    assert_matches(got, oracle.reference(**inputs), same_precision=trusted)


def plain_error(kata, oracle, inputs):
    w_hat = kata.round_groups(inputs["w"], inputs["bits"], inputs["group_size"])
    return oracle.output_error(inputs["w"], w_hat, inputs["x"])


def error_with(kata, oracle, s, inputs):
    w_hat = kata.round_groups(inputs["w"] * s, inputs["bits"], inputs["group_size"]) / s
    return oracle.output_error(inputs["w"], w_hat, inputs["x"])


# ---- the search ----------------------------------------------------------------------------


@given(
    n=st.integers(3, 5),
    groups=st.integers(1, 3),
    group_size=st.integers(3, 9),
    s=st.integers(4, 30),
    bits=st.integers(2, 4),
    grid=st.integers(1, 8),
    seed=st.integers(0, 2**31),
)
def test_any_sizes(kata, oracle, device, n, groups, group_size, s, bits, grid, seed):
    sizes = {"n": n, "k": groups * group_size, "s": s, "group_size": group_size, "bits": bits}
    assert_right(kata, oracle, draw(oracle, device, seed, **sizes, grid=grid, loud=[1]))


@given(
    bits=st.integers(2, 8),
    group_size=st.sampled_from([1, 2, 6, 12]),
    spread=st.floats(0, 4),
    seed=st.integers(0, 2**31),
)
def test_never_worse_than_plain_rounding(kata, oracle, device, bits, group_size, spread, seed):
    w, x, volume = (part.to(device) for part in normal(seed, (3, 12), (20, 12), (12,)))
    inputs = {"w": w, "x": x * (spread * volume).exp(), "bits": bits, "group_size": group_size}
    s, _, _ = kata.awq_channel_scaling(**inputs)
    ours, plain = error_with(kata, oracle, s, inputs), plain_error(kata, oracle, inputs)
    size = oracle.output_error(w, torch.zeros_like(w), inputs["x"])
    assert ours <= plain * (1 + 1e-3) + 1e-6 * size


def test_of_equal_candidates_the_first(kata, device, seed):
    # every channel is as loud as every other: all scales are 1, and all errors equal
    w, x = (part.to(device) for part in normal(seed, (4, 12), (30, 12)))
    s, alpha, _ = kata.awq_channel_scaling(w, x.sign(), group_size=6)
    assert alpha == 0.0
    assert s.tolist() == [1.0] * 12


@pytest.mark.parametrize(("ahead", "best"), [(4e-4, 0.5), (-4e-4, 0.0)], ids=["1/2", "0"])
def test_a_little_better_is_better(kata, oracle, device, seed, ahead, best):
    # by 0.02 % of the error: float32 is good for a hundredth of that
    inputs = oracle.close_call(k=16, s=64, ahead=ahead, device=device, seed=seed)
    assert kata.awq_channel_scaling(**inputs)[1] == best


def test_rounding_leaves_no_less_than_nothing(kata, device):
    # Each of these weights is off by so much that the two meet in the sum: 4767 · 4149 / 2¹⁴
    # less 4149 · 4767 / 2¹⁴. In float32 xᵀx is such that the trace is below 0, however it is added
    x = torch.tensor([[0.0, 0.0, 4767.0, 4149.0]], device=device)
    w = torch.tensor([[0.0, 3.0, 1 + 4149 / 2**14, 1 - 4767 / 2**14]], device=device)
    _, _, share = kata.awq_channel_scaling(w, x, bits=2, group_size=4, grid=1)
    assert float(share) >= 0.0
    assert float(share) <= 1e-3


def test_channels_without_input_have_no_part(kata, oracle, device, seed):
    inputs = draw(oracle, device, seed, loud=[3], dead=[5, 16])
    s, _, _ = kata.awq_channel_scaling(**inputs)
    assert s[[5, 16]].tolist() == [1.0, 1.0]
    used = [at for at in range(24) if at not in (5, 16)]
    assert float(s[used].max() * s[used].min()) == pytest.approx(1.0, rel=1e-5)


def test_inputs_of_zeros(kata, device, seed):
    (w,) = normal(seed, (3, 6))
    x = torch.zeros(4, 6, device=device)
    s, alpha, share = kata.awq_channel_scaling(w.to(device), x, group_size=3)
    assert (s.tolist(), alpha, float(share)) == ([1.0] * 6, 0.0, 0.0)


def test_weights_that_meet_no_input(kata, device):
    w = torch.tensor([[0.0, 0.3, 0.0, -0.7]], device=device)
    x = torch.tensor([[1.3, 0.0, 0.1, 0.0], [0.2, 0.0, 0.7, 0.0]], device=device)
    _, alpha, share = kata.awq_channel_scaling(w, x, group_size=4)
    assert (alpha, float(share)) == (0.0, 0.0)


def test_weights_on_the_grid_have_no_error(kata, device):
    w = torch.tensor([[0.0, 1, 7, 15], [-3, 12, 5, 0]], device=device)
    x = torch.tensor([[1.0, 100, -1, 2], [2, 50, 3, 1]], device=device)
    s, alpha, share = kata.awq_channel_scaling(w, x, group_size=4)
    assert (s.tolist(), alpha, float(share)) == ([1.0] * 4, 0.0, 0.0)


def test_eight_bits(kata, oracle, device, seed):
    # in float32 the share has no five digits any more: errors are thousandths of a weight
    inputs = draw(oracle, device, seed, n=3, k=12, group_size=6, bits=8, grid=5, loud=[2])
    s, alpha, share = kata.awq_channel_scaling(**inputs)
    want = oracle.reference(**inputs)
    assert alpha == want[1]
    assert_matches(s, want[0], same_precision=oracle.same_precision(**inputs)[0])
    assert float(share) == pytest.approx(float(want[2]), rel=1e-3)


def test_defaults(kata, oracle, device, seed):
    inputs = draw(oracle, device, seed, n=1, k=128, group_size=128, loud=[7], grid=20)
    assert kata.awq_channel_scaling(inputs["w"], inputs["x"])[1] == oracle.reference(**inputs)[1]


def test_sums_past_half_precision(kata, oracle, device, seed):
    # inputs of hundreds: sums of magnitudes, and squares, are more than float16 holds
    inputs = draw(oracle, device, seed, dtype=torch.float16, s=400, grid=5, loud=[3])
    inputs["x"] = inputs["x"] * 128
    assert_right(kata, oracle, inputs)


def test_small_inputs(kata, oracle, device, seed):
    # millionths: the square of the outputs is about 10⁻⁹
    inputs = draw(oracle, device, seed, grid=5, loud=[3])
    inputs["x"] = inputs["x"] * 2.0**-20
    assert_right(kata, oracle, inputs)


def test_weights_may_be_parameters(kata, device, seed):
    w, x = (part.to(device) for part in normal(seed, (3, 8), (9, 8)))
    s, _, share = kata.awq_channel_scaling(torch.nn.Parameter(w), x.requires_grad_(), group_size=4)
    assert [s.requires_grad, share.requires_grad] == [False, False], "expected no gradients"


# ---- what it is worth, and costs -----------------------------------------------------------


def test_one_loud_channel_in_a_hundred(kata, oracle, cost, seed):
    w, x = normal(seed, (128, 128), (256, 128))
    x[:, seed % 128] *= 30
    inputs = {"w": w, "x": x, "bits": 4, "group_size": 128}
    s, _, share = kata.awq_channel_scaling(**inputs)
    ours = error_with(kata, oracle, s, inputs)
    size = oracle.output_error(w, torch.zeros_like(w), x)
    assert float(share) == pytest.approx(ours / size, rel=1e-3)
    cost.check("output_error", (ours / plain_error(kata, oracle, inputs)) ** 2)


def test_tokens_are_multiplied_once(kata, oracle, cost, seed):
    # counted on the CPU in every session
    w, x = normal(seed, (32, 64), (4096, 64))
    x[:, 5] *= 30
    inputs = {"w": w, "x": x, "bits": 4, "group_size": 32}
    with flop_meter() as meter:
        s, _, _ = kata.awq_channel_scaling(**inputs, grid=20)
    assert error_with(kata, oracle, s, inputs) <= 0.9 * plain_error(kata, oracle, inputs)
    cost.check("flops", meter.flops)


# ---- folding -------------------------------------------------------------------------------


def folding_case(seed, device):
    """Scales from 1/8 to 8, and weights [6, 6] of float64: the wrong axis fits, too."""
    parts = normal(seed, (6,), (6, 6), (6, 6), (6, 6), (9, 6), (6,), dtype=torch.float64)
    exponents, *rest = (part.to(device) for part in parts)
    return 2 ** exponents.clamp(-3, 3), *rest


def assert_same(got, want):
    """Within 1e-12 of the largest."""
    off = float((got - want).abs().max() / want.abs().max())
    assert off <= 1e-12, f"expected the outputs as they were, found them {off:.2g} off"


def test_norm_folds_exactly(kata, device, seed):
    s, w, _, _, x, norm_w = folding_case(seed, device)
    folded, scaled = kata.fold_norm(norm_w, w, s)
    assert_same(scaled, w * s)
    before = F.rms_norm(x, (6,), norm_w) @ w.mT
    assert_same(F.rms_norm(x, (6,), folded) @ scaled.mT, before)


def test_linear_folds_exactly(kata, device, seed):
    s, w, w_prev, _, x, bias = folding_case(seed, device)
    folded, folded_bias, scaled = kata.fold_linear(w_prev, bias, w, s)
    assert_same(scaled, w * s)
    assert_same((x @ folded.mT + folded_bias) @ scaled.mT, (x @ w_prev.mT + bias) @ w.mT)


def test_linear_without_bias_has_none_afterwards(kata, device, seed):
    s, w, w_prev, _, x, _ = folding_case(seed, device)
    folded, bias, scaled = kata.fold_linear(w_prev, None, w, s)
    assert bias is None
    assert kata.fold_linear(w_prev, torch.zeros_like(s), w, s)[1].tolist() == [0.0] * 6
    assert_same(x @ folded.mT @ scaled.mT, x @ w_prev.mT @ w.mT)


def test_swiglu_folds_exactly(kata, device, seed):
    s, w_down, w_up, w_gate, x, _ = folding_case(seed, device)
    folded, scaled = kata.fold_swiglu(w_up, w_down, s)
    assert_same(scaled, w_down * s)
    gate = F.silu(x @ w_gate.mT)
    assert_same(gate * (x @ folded.mT) @ scaled.mT, gate * (x @ w_up.mT) @ w_down.mT)


@pytest.mark.parametrize("fold", ["norm", "linear", "swiglu"])
def test_half_precision_weights_are_rounded_once(kata, device, seed, fold):
    w, w_prev, norm_w, s = (
        part.to(device) for part in normal(seed, (64, 64), (64, 64), (64,), (64,))
    )
    w, w_prev, norm_w, s = w.half(), w_prev.half(), norm_w.half(), s.exp()
    before = {"norm": (norm_w,), "linear": (w_prev, norm_w), "swiglu": (w_prev,)}[fold]
    folded = getattr(kata, f"fold_{fold}")(*before, w, s)
    want = [(part.double() / (s if part.dim() == 1 else s[:, None])).half() for part in before]
    off = 0
    for part, truth in zip(folded, [*want, (w.double() * s).half()], strict=True):
        assert part.dtype == torch.float16
        off += int((part != truth).sum())
    assert off <= 20, f"{off} weights are not those of float32, rounded: expected one in thousands"


def test_folding_leaves_the_weights_alone(kata, device, seed):
    s, w, w_prev, _, _, bias = folding_case(seed, device)
    given = [part.clone() for part in (s, w, w_prev, bias)]
    kata.fold_norm(bias, w, s)
    kata.fold_linear(w_prev, bias, w, s)
    kata.fold_swiglu(w_prev, w, s)
    for part, before in zip((s, w, w_prev, bias), given, strict=True):
        assert torch.equal(part, before), "an argument was written to"


@pytest.mark.parametrize("length", [1, 5, 7])
@pytest.mark.parametrize("fold", ["norm", "linear", "swiglu"])
def test_scales_of_another_length_are_refused(kata, device, fold, length):
    s, w, before = (torch.ones(shape, device=device) for shape in ((length,), (5, 6), (6, 4)))
    arguments = {"norm": (w[0], w), "linear": (before, None, w), "swiglu": (before, w)}[fold]
    with pytest.raises(ValueError, match="^s: "):
        getattr(kata, f"fold_{fold}")(*arguments, s)
