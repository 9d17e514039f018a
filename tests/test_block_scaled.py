"""
FP8 and FP4: rounding, block scales, short sums, and how answers of such arithmetic are judged.

Honest kernels pass, others that lack a bit somewhere do not, over shapes and seeds.
"""

import math

import pytest
import torch

from harness.hardware.environment import device_present
from harness.judge import Yardstick, assert_matches, assert_nearest
from harness.simulators.block_scaled import (
    E2M1,
    E2M1_VALUES,
    E4M3,
    E5M2,
    block_products,
    dequantised,
    quantised,
    spread,
    sum_bits,
)

HOPPER = 13  # bits that its sums of FP8 products keep
ROWS, SQUARE = (1, 128), (128, 128)
SHAPES = ((1, 128, 512), (17, 200, 384), (64, 64, 1024))


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ---- the formats ---------------------------------------------------------------------------


@pytest.mark.parametrize("form", [E4M3, E5M2], ids=lambda form: form.name)
def test_rounding_is_that_of_torch(form):
    dtype = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[form.name]
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).double()
    codes = codes[codes.isfinite()].sort().values
    x = torch.cat([codes, (codes[1:] + codes[:-1]) / 2, drawn(4096) * 300])
    x = x.clamp(-form.largest, form.largest)
    assert torch.equal(form.round(x), x.float().to(dtype).double())
    assert form.round(torch.tensor([1e9, -1e9])).tolist() == [form.largest, -form.largest]


def test_four_bits_have_eight_magnitudes_and_ties_go_to_even():
    found = E2M1.round(torch.linspace(-8, 8, 1001, dtype=torch.float64)).abs().unique()
    assert found.tolist() == list(E2M1_VALUES)
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert E2M1.round(ties).tolist() == [0, 1, 1, 2, 2, 4, 4]


def test_a_bit_fewer_is_every_other_number():
    found = E4M3.coarser().round(torch.linspace(8, 16, 101, dtype=torch.float64)).unique()
    assert found.tolist() == [8, 10, 12, 14, 16]


def test_scales_are_those_of_the_blocks_the_last_ones_cut_short():
    x = torch.ones(3, 200)
    x[2, 150] = 896
    numbers, scales = quantised(x, E4M3, (2, 128))
    assert scales.tolist() == [[pytest.approx(1 / 448)] * 2, [pytest.approx(1 / 448), 2.0]]
    assert torch.allclose(dequantised(numbers, scales, (2, 128))[:2], torch.ones(2, 200).double())
    assert dequantised(numbers, scales, (2, 128))[2, 150] == 896


def test_a_block_of_zeros_stays_zero():
    numbers, scales = quantised(torch.zeros(2, 32), E2M1, (1, 16))
    assert not numbers.any()
    assert torch.equal(scales, torch.ones(2, 2))


def test_scales_may_follow_another_rule():
    powers = lambda most: torch.exp2(torch.log2(most / E2M1.largest).ceil())  # noqa: E731
    x = drawn(4, 64)
    numbers, scales = quantised(x, E2M1, (1, 32), powers)
    assert torch.equal(torch.frexp(scales).mantissa, torch.full((4, 2), 0.5))
    assert_nearest(numbers, scales, x, E2M1, (1, 32))


# ---- sums ----------------------------------------------------------------------------------


def test_a_short_sum_loses_what_is_far_below_its_largest_addend():
    a = torch.tensor([[256.0, *[2.0**-6] * 31]])
    parts = block_products(a, torch.ones(32, 1), every=32, bits=HOPPER)
    assert parts.item() == 256  # each is less than 256 / 2**13
    assert block_products(a, torch.ones(32, 1), every=32).item() == 256 + 31 / 64


def test_short_sums_of_4096_are_off_by_percents_unless_promoted():
    a, b = (drawn(16, 4096, seed=seed).abs() for seed in (0, 1))
    a, b = E4M3.round(a), E4M3.round(b).T
    truth = a @ b

    def off(every):
        found = block_products(a, b, every=every, bits=HOPPER).sum(0)
        return float(((found - truth).abs() / truth).max())

    assert off(4096) > 0.01
    assert off(128) < 0.001


# ---- products of blocks --------------------------------------------------------------------


class Gemm:
    """A product of block-scaled operands, by many ways."""

    def __init__(self, m, n, k, seed, magnitudes=0.0):
        a, b = drawn(m, k, seed=seed), drawn(k, n, seed=seed + 1000)
        self.a, self.sa = quantised(a, E4M3, ROWS)
        self.b, self.sb = quantised(b, E4M3, SQUARE)
        self.sa *= 10.0 ** (magnitudes * drawn(*self.sa.shape, seed=seed + 2000).clamp(-1, 1))
        self.factors = self.sa.T[:, :, None] * spread(self.sb, (len(self.sb), n), ROWS)[:, None]
        a, b = self.exact
        self.truth, self.size = a @ b, a.abs() @ b.abs()

    @property
    def exact(self):
        return dequantised(self.a, self.sa, ROWS), dequantised(self.b, self.sb, SQUARE)

    def promoted(self, bits=None, dtype=torch.float32):
        parts = block_products(self.a, self.b, bits=bits) * self.factors
        return parts.sum(0).to(dtype)

    def judged(self, found, bits=None):
        own = self.promoted(bits, found.dtype)
        assert_matches(found, self.truth, same_precision=Yardstick(own, self.size))

    def accepts(self, found, bits=None):
        try:
            self.judged(found, bits)
        except AssertionError:
            return False
        return True


@pytest.mark.parametrize("magnitudes", [0.0, 3.0], ids=["alike", "far-apart"])
@pytest.mark.parametrize(("m", "n", "k"), SHAPES, ids=str)
def test_an_honest_product_of_blocks_passes(m, n, k, magnitudes):
    for seed in range(4):
        gemm = Gemm(m, n, k, seed, magnitudes)
        a, b = gemm.exact
        steps = torch.zeros(m, n)
        for part, factor in zip(block_products(gemm.a, gemm.b), gemm.factors, strict=True):
            steps += part * factor
        gemm.judged(steps)
        gemm.judged(a.float() @ b.float())
        gemm.judged(steps.half() if not magnitudes else steps.bfloat16())
        gemm.judged(gemm.promoted(HOPPER), HOPPER)
        gemm.judged(steps, HOPPER)  # better than it needs to be


@pytest.mark.parametrize(("m", "n", "k"), SHAPES, ids=str)
def test_a_product_with_a_bit_missing_fails(m, n, k):
    for seed in range(4):
        gemm = Gemm(m, n, k, seed)
        a, b = gemm.exact
        sums = torch.zeros(m, n, dtype=torch.float16)
        for part, factor in zip(block_products(gemm.a, gemm.b), gemm.factors, strict=True):
            sums = (sums + part * factor).half()
        powers = torch.exp2(torch.log2(gemm.factors).round())
        coarse = dequantised(E4M3.coarser().round(gemm.a), gemm.sa, ROWS).float() @ b.float()
        wrong = {
            "half": (a.half() @ b.half()).float(),
            "sums in half": sums.float(),
            "short sums": gemm.promoted(HOPPER),
            "bfloat16": a.bfloat16().float() @ b.bfloat16().float(),
            "a bit fewer": coarse,
            "powers of two": (block_products(gemm.a, gemm.b) * powers).sum(0),
        }
        for name, found in wrong.items():
            assert not gemm.accepts(found), f"{name} passed, seed {seed}"
        for name in ("bfloat16", "a bit fewer", "powers of two"):
            assert not gemm.accepts(wrong[name], HOPPER), f"{name} passed, seed {seed}"


def test_sums_that_are_not_promoted_fail_beside_promoted_ones():
    for seed in range(4):
        a, b = drawn(32, 1024, seed=seed), drawn(1024, 64, seed=seed + 1000)
        a, b = E4M3.round(a), E4M3.round(b)
        own = block_products(a, b, bits=HOPPER).sum(0)
        yardstick = Yardstick(own, a.abs() @ b.abs())
        assert_matches(own, a @ b, same_precision=yardstick)
        unpromoted = block_products(a, b, every=1024, bits=HOPPER)[0]
        with pytest.raises(AssertionError, match="root mean square|values off"):
            assert_matches(unpromoted, a @ b, same_precision=yardstick)


def test_an_error_in_a_row_of_small_scale_is_seen():
    gemm = Gemm(64, 64, 256, 0, magnitudes=3.0)
    found = gemm.promoted()
    row = int(gemm.sa.amax(1).argmin())
    found[row] = found[row].bfloat16().float()
    with pytest.raises(AssertionError, match="values off"):
        gemm.judged(found)


def test_what_is_not_finite_has_no_error_to_measure():
    gemm = Gemm(17, 200, 384, 0)
    gemm.truth[3] = math.nan
    gemm.truth[4, 5] = math.inf
    gemm.size[3] = math.nan
    found = gemm.promoted()
    with pytest.raises(AssertionError, match="not finite where they should be"):
        gemm.judged(found)
    found[3], found[4, 5] = math.nan, math.inf
    gemm.judged(found)
    found[0, 0] *= 1.001
    with pytest.raises(AssertionError, match=r"1 of 3400 values off; worst at \(0, 0\)"):
        gemm.judged(found)


def test_a_yardstick_has_a_size_for_each_element():
    with pytest.raises(ValueError, match=r"element of \(2, 3\), found sizes of shape \(3,\)"):
        Yardstick(torch.ones(2, 3), torch.ones(3))
    with pytest.raises(ValueError, match="absolute values"):
        Yardstick(torch.ones(2), torch.tensor([1.0, -1.0]))


def test_torchs_own_product_passes():
    a, sa = quantised(drawn(64, 512), E4M3, (64, 512))
    b, sb = quantised(drawn(512, 32, seed=1), E4M3, (512, 32))
    exact = dequantised(a, sa, (64, 512)), dequantised(b, sb, (512, 32))
    a8, b8 = a.to(torch.float8_e4m3fn), b.T.contiguous().to(torch.float8_e4m3fn).T
    for dtype in (torch.float32, torch.bfloat16):
        found = torch._scaled_mm(a8, b8, sa.view(()), sb.view(()), out_dtype=dtype)
        own = (block_products(a, b, every=512)[0] * sa * sb).to(dtype)
        yardstick = Yardstick(own, exact[0].abs() @ exact[1].abs())
        assert_matches(found, exact[0] @ exact[1], same_precision=yardstick)


on_a_gpu = pytest.mark.skipif(
    not device_present() or torch.cuda.get_device_capability() < (8, 9),
    reason="needs a GPU with FP8",
)


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("k", [512, 4096], ids=str)
def test_a_gpus_sums_are_no_shorter_than_they_are_taken_to_be(k):
    """In float32 the sums show: promoted ones, and with `use_fast_accum` those that are not."""
    one = torch.ones((), device="cuda")
    for seed in range(3):
        a, b = (E4M3.round(drawn(64, k, seed=seed + at).cuda()).float() for at in (0, 1000))
        a8, b8 = (x.to(torch.float8_e4m3fn) for x in (a, b))
        exact, size = a.double() @ b.double().T, a.double().abs() @ b.double().abs().T
        bits = sum_bits(a.device)
        for fast, every in ((False, 128), (True, k)):
            found = torch._scaled_mm(
                a8, b8.T, one, one, out_dtype=torch.float32, use_fast_accum=fast
            )
            own = block_products(a, b.T, every=every, bits=bits).sum(0)
            yardstick = Yardstick(own, size)
            mine, theirs = (
                float(yardstick.errors(x, exact).square().mean().sqrt()) for x in (own, found)
            )
            told = f"k = {k}, fast = {fast}: {theirs:.2e}, taken to be {mine:.2e}"
            assert theirs <= yardstick.most(exact)[1], told


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize(("m", "n", "k"), [(64, 128, 512), (256, 512, 4096)], ids=str)
def test_the_vendors_own_product_passes_on_a_gpu(m, n, k):
    for seed in range(3):
        a, sa = quantised(drawn(m, k, seed=seed).cuda(), E4M3, (1, k))
        b, sb = quantised(drawn(k, n, seed=seed + 1).cuda(), E4M3, (k, 1))
        exact = dequantised(a, sa, (1, k)), dequantised(b, sb, (k, 1))
        a8, b8 = a.to(torch.float8_e4m3fn), b.T.contiguous().to(torch.float8_e4m3fn).T
        found = torch._scaled_mm(a8, b8, sa, sb, out_dtype=torch.bfloat16, use_fast_accum=False)
        own = (block_products(a, b, bits=sum_bits(a.device)).sum(0) * sa * sb).bfloat16()
        yardstick = Yardstick(own, exact[0].abs() @ exact[1].abs())
        assert_matches(found, exact[0] @ exact[1], same_precision=yardstick)


# ---- attention, which casts on its way -----------------------------------------------------


class Attention:
    """Attention over quantised q, k and v, whose probabilities are cast to e4m3."""

    def __init__(self, length, width, seed, peak, *, far):
        self.block = (64, width)
        made = [drawn(length, width, seed=10 * seed + at) for at in range(3)]
        made[0] *= peak
        (self.q, self.sq), (self.k, self.sk), (self.v, self.sv) = (
            quantised(one, E4M3, self.block) for one in made
        )
        self.sv *= 10.0 ** (far * drawn(*self.sv.shape, seed=seed + 99).clamp(-1, 1))
        q, k, v = (
            dequantised(one, scale, self.block)
            for one, scale in ((self.q, self.sq), (self.k, self.sk), (self.v, self.sv))
        )
        weights = torch.softmax(q @ k.T / math.sqrt(width), dim=-1)
        self.truth, self.size = weights @ v, weights @ v.abs()

    def run(self, *, keys=64, form=E4M3, factor=256.0, online=True, bits=None):
        (length, width), column = self.q.shape, (64, 1)
        of_q, of_k, of_v = (
            spread(scale, (length, 1), column) for scale in (self.sq, self.sk, self.sv)
        )
        scores = block_products(self.q, self.k.T, every=width, bits=bits)[0]
        scores = scores * of_q * of_k.T / math.sqrt(width)
        largest = torch.full((length, 1), -math.inf) if online else scores.amax(-1, keepdim=True)
        total, acc = torch.zeros(length, 1), torch.zeros(length, width)
        for at in range(0, length, keys):
            tile = scores[:, at : at + keys]
            above = torch.maximum(largest, tile.amax(-1, keepdim=True))
            p, kept = torch.exp(tile - above), torch.exp(largest - above)
            rounded = form.round(p * factor).float()
            part = block_products(rounded, self.v[at : at + keys], every=keys, bits=bits)[0]
            acc = acc * kept + part * (of_v[at] / factor)
            total, largest = total * kept + p.sum(-1, keepdim=True), above
        return (acc / total).half()

    def judged(self, found):
        assert_matches(found, self.truth, same_precision=Yardstick(self.run(), self.size))


@pytest.mark.parametrize("peak", [1.0, 4.0], ids=["flat", "peaked"])
@pytest.mark.parametrize(("length", "width"), [(64, 64), (128, 128), (200, 64)], ids=str)
def test_attention_that_casts_its_weights_passes_and_one_bit_fewer_fails(length, width, peak):
    for seed in range(4):
        attention = Attention(length, width, seed, peak, far=1)
        attention.judged(attention.run(keys=32))
        if (
            peak == 1.0
        ):  # of a peaked row the one large weight is exact, where it is the largest yet
            attention.judged(attention.run(online=False))
        attention.judged(attention.run(factor=448.0))
        attention.judged(attention.run(bits=HOPPER))
        for wrong in (E4M3.coarser(), E5M2):
            with pytest.raises(AssertionError, match="result"):
                attention.judged(attention.run(form=wrong))


def test_weights_that_underflow_fail_where_small_ones_matter():
    for seed in range(6):
        attention = Attention(200, 64, seed, peak=4.0, far=3)
        with pytest.raises(AssertionError, match="result"):
            attention.judged(attention.run(factor=1.0))


# ---- quantisers ----------------------------------------------------------------------------


def test_a_quantiser_is_judged_number_by_number():
    x = drawn(33, 300)
    numbers, scales = quantised(x, E4M3, ROWS)
    assert_nearest(numbers.to(torch.float8_e4m3fn), scales, x, E4M3, ROWS)
    each = spread(scales, (33, 300), ROWS)
    assert_nearest(E4M3.round(x * (1 / each)), scales, x, E4M3, ROWS)
    for wrong in (
        E4M3.coarser().round(x / each),
        torch.where(numbers == 448, 416, numbers),
        (x / each).trunc(),
        numbers.masked_fill(numbers == 448, math.nan),
    ):
        with pytest.raises(AssertionError, match=r"not the nearest of e4m3; worst at \(\d+"):
            assert_nearest(wrong, scales, x, E4M3, ROWS)


def test_scales_that_are_no_scales_are_told():
    x = torch.ones(2, 32)
    with pytest.raises(AssertionError, match="positive, finite numbers, found 0"):
        assert_nearest(x, torch.zeros(2, 2), x, E2M1, (1, 16))
    with pytest.raises(AssertionError, match="one for each block of 1 x 16"):
        assert_nearest(x, torch.ones(2, 1), x, E2M1, (1, 16))
