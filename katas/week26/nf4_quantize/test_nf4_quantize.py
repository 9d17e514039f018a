"""Levels by their definition, codes and bytes by hand, and what is lost on normal weights."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

NAN, INF = float("nan"), float("inf")


def normal(device, seed, *shape):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw).to(device)


# ---- levels --------------------------------------------------------------------------------


def test_levels_are_the_published_ones(kata, oracle):
    levels = kata.nf4_codebook()
    assert levels.dtype == torch.float32
    published = torch.tensor(oracle.PUBLISHED, dtype=torch.float64)
    off = (levels.double() - published).abs().max().item()
    assert off <= 2e-7, f"expected {published.tolist()}, found {levels.tolist()}"
    assert (levels[0].item(), levels[7].item(), levels[15].item()) == (-1.0, 0.0, 1.0)


@pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])
def test_dynamic_map_goes_decade_by_decade(kata, oracle, signed):
    table = kata.dynamic_map(signed)
    assert (table.dtype, tuple(table.shape)) == (torch.float32, (256,))
    want = torch.tensor(oracle.decade_by_decade(signed), dtype=torch.float64)
    wrong = (table.double() - want).abs() > 1e-6 * want.abs()
    for i in wrong.nonzero().flatten()[:1].tolist():
        assert not wrong[i], f"level {i}: expected {want[i].item()}, found {table[i].item()}"


@pytest.mark.parametrize("function", ["nf4_codebook", "dynamic_map"])
def test_levels_are_the_callers_to_change(kata, function):
    make = getattr(kata, function)
    first = make()
    want = first.tolist()
    first.zero_()
    assert make().tolist() == want, f"{function}: the levels of a later call were changed"


# ---- codes ---------------------------------------------------------------------------------


def test_the_first_code_is_in_the_high_bits(kata, device):
    # codes 0 15, 7 8, 15 0 and, after an odd number, 11 with the code of 0
    w = [-2.0, 2.0, 0.0, 2 * 0.0796, 2.0, -2.0, 2 * 0.3379]
    packed, absmax = kata.nf4_quantize(torch.tensor(w, device=device))
    assert packed.tolist() == [0x0F, 0x78, 0xF0, 0xB7]
    assert absmax.tolist() == [2.0]
    whole = kata.nf4_dequantize(packed, absmax, (7,), torch.float32)
    assert whole[[0, 1, 2, 4, 5]].tolist() == [-2.0, 2.0, 0.0, 2.0, -2.0]


def test_in_the_middle_the_lower_level_is_taken(kata, device):
    # halves of the levels next to 0 are exact: both lie in the middle between it and them
    levels = kata.nf4_codebook()
    w = torch.stack([torch.tensor(1.0), levels[8] / 2, levels[6] / 2, torch.tensor(-0.0)])
    packed, _ = kata.nf4_quantize(w.to(device))
    assert packed.tolist() == [0xF7, 0x67]


def test_levels_stay_what_they_are(kata, device):
    levels = kata.nf4_codebook().to(device)
    packed, absmax = kata.nf4_quantize(levels * 0.375)
    assert packed.tolist() == [0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF]
    assert torch.equal(kata.nf4_dequantize(packed, absmax, (16,), torch.float32), levels * 0.375)


@pytest.mark.parametrize("size", [1e-45, 1e-39, 3e38], ids=str)
def test_blocks_of_the_smallest_and_the_largest_numbers(kata, device, size):
    w = torch.tensor([size, 0.0, -size, 0.0], device=device)
    packed, absmax = kata.nf4_quantize(w)
    assert packed.tolist() == [0xF7, 0x07]
    assert absmax.tolist() == w[:1].tolist()


def test_scales_of_half_precision_weights_are_single(kata, device):
    w = torch.tensor([0.1, -0.3], dtype=torch.float16, device=device)
    packed, absmax = kata.nf4_quantize(w)
    assert absmax.dtype == torch.float32
    assert absmax.tolist() == [-w[1].item()]
    assert packed.tolist() == [0xB0]


def test_half_precision_weights_are_scaled_in_single(kata, device):
    # sevenths so close to the middle between two levels that float16 takes them to the other side
    w = torch.tensor([7.0, -0.96533203125, 1.4248046875, 3.51171875], dtype=torch.float16)
    packed, _ = kata.nf4_quantize(w.to(device))
    assert packed.tolist() == [0xF6, 0xAD]


@given(n=st.integers(1, 70), block=st.sampled_from([2, 4, 64]), seed=st.integers(0, 2**31))
def test_what_is_quantized_stays_as_it_is(kata, device, n, block, seed):
    packed, absmax = kata.nf4_quantize(normal(device, seed, n), block)
    once = kata.nf4_dequantize(packed, absmax, (n,), torch.float32, block)
    again, same = kata.nf4_quantize(once, block)
    assert again.tolist() == packed.tolist()
    assert same.tolist() == absmax.tolist()


@pytest.mark.parametrize("value", [NAN, INF, -INF], ids=str)
def test_what_is_not_finite_is_refused(kata, device, value):
    w = torch.ones(3, 5, device=device)
    w[2, 4] = value
    with pytest.raises(ValueError, match="^w: "):
        kata.nf4_quantize(w)


@pytest.mark.parametrize("dtype", [torch.float64, torch.uint8], ids=str)
def test_weights_of_another_dtype_are_not_made(kata, device, dtype):
    packed, absmax = kata.nf4_quantize(torch.ones(4, device=device))
    with pytest.raises(ValueError, match="^dtype: "):
        kata.nf4_dequantize(packed, absmax, (4,), dtype)
    with pytest.raises(ValueError, match="^dtype: "):
        kata.nf4_dequantize(packed[:1], absmax, (4,), dtype)
    with pytest.raises(ValueError, match="^block: "):
        kata.nf4_dequantize(packed, absmax, (4,), dtype, 3)


# ---- scales of scales ----------------------------------------------------------------------


def scales_again(double):
    """What double-quantized scales stand for, in float64."""
    groups = double.absmax2.double().repeat_interleave(double.block)[: len(double.codes)]
    return double.table.double()[double.codes.long()] * groups + double.offset.double()


def test_scales_by_hand(kata, device):
    # mean 4: -3, -1, 0, 4 in steps of 4, so -0.75, -0.25, 0 and 1, whose neighbours are 0.0141 off
    double = kata.double_quantize(torch.tensor([1.0, 3.0, 4.0, 8.0], device=device), 8)
    assert (double.offset.item(), double.absmax2.tolist(), double.block) == (4.0, [4.0], 8)
    assert torch.equal(double.table.cpu(), kata.dynamic_map())
    assert double.codes.dtype == torch.uint8
    assert double.codes[2:].tolist() == [127, 255]
    off = (double.table[double.codes[:2].int()].cpu() - torch.tensor([-0.75, -0.25])).abs()
    assert off.max() <= 0.00704, f"expected the levels nearest to -0.75 and -0.25, found {off} away"


@given(n=st.integers(1, 40), block=st.sampled_from([2, 16, 256]), seed=st.integers(0, 2**31))
def test_each_scale_goes_to_the_nearest_level(kata, oracle, device, n, block, seed):
    absmax = 0.02 + 0.01 * normal(device, seed, n).abs()
    double = kata.double_quantize(absmax, block)
    assert len(double.absmax2) == -(-n // block)
    rest = absmax.double().cpu() - absmax.double().mean().cpu()
    table = torch.tensor(oracle.decade_by_decade(signed=True), dtype=torch.float64)
    off = scales_again(double).cpu() - absmax.cpu()
    for i, (found, part) in enumerate(zip(off.split(block), rest.split(block), strict=True)):
        largest = part.abs().max()
        best = (part[:, None] - table * largest).abs().amin(1)
        worst = (found.abs() - best).max().item()
        # roundings of the scale, of its product with a level, and of the sum with the offset
        limit = 3 * torch.finfo(torch.float32).eps * absmax.max().item()
        assert worst <= limit, f"block {i} of {absmax.tolist()}: {worst} farther than the nearest"


@pytest.mark.parametrize("count", [1, 5])
def test_scales_that_are_all_the_same_stay(kata, device, count):
    double = kata.double_quantize(torch.full((count,), 0.75, device=device))
    assert (double.codes.tolist(), double.offset.item()) == ([127] * count, 0.75)
    assert scales_again(double).tolist() == [0.75] * count


def test_no_scales_at_all(kata, device):
    double = kata.double_quantize(torch.zeros(0, device=device))
    assert (len(double.codes), len(double.absmax2), double.offset.item()) == (0, 0, 0.0)
    assert tuple(double.offset.shape) == ()
    found = kata.nf4_dequantize(
        torch.zeros(0, dtype=torch.uint8, device=device), double, (0, 3), torch.float16
    )
    assert (tuple(found.shape), found.dtype) == ((0, 3), torch.float16)


@pytest.mark.parametrize("block", [0, 1, 24])
def test_scales_in_blocks_of_no_power_of_two_are_refused(kata, device, block):
    with pytest.raises(ValueError, match="^block: "):
        kata.double_quantize(torch.ones(3, device=device), block)


def test_weights_from_scales_in_8_bits(kata, oracle, device, seed):
    # nine blocks in groups of four, the last weight alone in its block
    w = normal(device, seed, 3, 171)
    packed, absmax = kata.nf4_quantize(w, 64)
    double = kata.double_quantize(absmax, 4)
    found = kata.nf4_dequantize(packed, double, (3, 171), torch.float32, 64)
    scales = scales_again(double).float().to(device)
    want = oracle.reference_nf4_dequantize(
        packed=packed, absmax=scales, shape=(3, 171), dtype=torch.float32
    )
    off = (found.cpu() - want).abs().max().item()
    assert off <= 1e-6, f"off by {off} from level · (table[code] · absmax2 + offset)"


def test_scales_are_decoded_by_the_table_that_came_with_them(kata, device):
    def one(*numbers, dtype=torch.float32):
        return torch.tensor(numbers, dtype=dtype, device=device)

    double = kata.double_quantize(one(1, 2, 3), 2)._replace(
        codes=one(1, 2, 3, dtype=torch.uint8), absmax2=one(10, 100), offset=one(0.5)[0],
        table=torch.arange(256.0, device=device),
    )  # fmt: skip
    packed = one(0xFF, 0x0F, 0xF0, dtype=torch.uint8)
    found = kata.nf4_dequantize(packed, double, (6,), torch.float32, 2)
    assert found.tolist() == [10.5, 10.5, -20.5, 20.5, 300.5, -300.5]


def test_too_few_codes_of_scales_are_refused(kata, device):
    packed, absmax = kata.nf4_quantize(torch.ones(130, device=device))
    with pytest.raises(ValueError, match="^absmax: "):
        kata.nf4_dequantize(packed, kata.double_quantize(absmax[:2]), (130,), torch.float32)


# ---- what it costs -------------------------------------------------------------------------


def test_error_on_normal_weights(kata, oracle, device, seed, cost):
    w = normal(device, seed, 65_536) * 0.02
    packed, absmax = kata.nf4_quantize(w)
    plain = kata.nf4_dequantize(packed, absmax, (65_536,), torch.float32)
    error = oracle.relative_error(w, plain).item()
    assert 0.090 <= error <= 0.094, f"expected about 0.092, found {error}"
    cost.check("error_to_int4", error / oracle.relative_error(w, oracle.int4(w)).item())
    double = kata.double_quantize(absmax)
    doubled = kata.nf4_dequantize(packed, double, (65_536,), torch.float32)
    cost.check("error_doubled", oracle.relative_error(w, doubled).item() / error)


def test_bits_are_those_of_what_is_stored(kata, device, seed, cost):
    for n in (65_536, 130):
        packed, absmax = kata.nf4_quantize(normal(device, seed, n))
        assert kata.bits_per_param(n) == 8 * (packed.nbytes + absmax.nbytes) / n
        double = kata.double_quantize(absmax)
        stored = (packed, double.codes, double.absmax2, double.offset)
        bits = 8 * sum(one.nbytes for one in stored) / n
        assert kata.bits_per_param(n, double=True) == bits
        if n == 65_536:
            cost.check("bits", bits)


@pytest.mark.parametrize(
    ("arguments", "bits"),
    [
        ((1024,), 4.5),
        ((1024, 32), 5.0),
        ((7, 4), 96 / 7),
        ((19_200, 64, True), 4.13),
        ((257 * 2, 2, True), 8 * (257 + 257 + 8 + 4) / 514),
    ],
    ids=["plain", "smaller blocks", "a short block", "two groups", "a group of one scale"],
)
def test_bits_by_hand(kata, arguments, bits):
    assert kata.bits_per_param(*arguments) == pytest.approx(bits, abs=1e-6)


def test_no_loop_over_weights_and_no_table_of_distances(kata, device, lines, dispatch, cost, seed):
    w = normal(device, seed, 4096)
    with lines(limit=3000) as counted:
        kata.nf4_quantize(w, 16)
    cost.check("instructions", counted.lines)
    w = normal("cpu", seed, 65_536)
    with dispatch() as ops:
        kata.nf4_quantize(w)
    cost.check("peak_memory", ops.peak_live_bytes)
