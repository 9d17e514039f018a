"""Scales of blocks in both operands, quantizers number by number, and the instructions used."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.judge import assert_matches, assert_nearest
from harness.simulators.block_scaled import E4M3, block_amax, dequantised

SPEED_CASE = {"m": 4096, "n": 4096, "k": 7168, "dtype": "bfloat16"}
TINY = torch.finfo(torch.float32).tiny
QUANTIZERS = [
    pytest.param("quant_act", "x", (1, 128), id="quant_act"),
    pytest.param("quant_weight", "w", (128, 128), id="quant_weight"),
]


# ---- the product ---------------------------------------------------------------------------


@settings(max_examples=5)
@given(m=st.integers(1, 40), n=st.integers(1, 280), blocks=st.integers(1, 3))
def test_each_block_has_its_own_scale(kata, device, m, n, blocks):
    # integers and powers of two: sums are exact, also those of 13 bits
    def draw(rows, high):
        numbers = torch.randint(-2, 3, (rows, 128 * blocks), device=device)
        exponents = torch.randint(-1, 2, (-(-rows // high), blocks), device=device)
        return numbers.to(torch.float8_e4m3fn), torch.exp2(exponents.float())

    (aq, a_scale), (wq, w_scale) = draw(m, 1), draw(n, 128)
    want = dequantised(aq, a_scale, (1, 128)) @ dequantised(wq, w_scale, (128, 128)).T
    found = kata.fp8_block_gemm(aq, a_scale, wq, w_scale, torch.float32)
    wrong = (found.double() != want).nonzero().tolist()
    assert not wrong, (
        f"m {m}, n {n}, k {128 * blocks}: element {wrong[0]} is {found[tuple(wrong[0])].item()}, "
        f"expected {want[tuple(wrong[0])].item()}"
    )


@pytest.mark.parametrize("width", [32, 64])
def test_a_tile_may_be_narrower_than_its_scales(kata, device, monkeypatch, width):
    # both halves lie in one block of weights
    for config in ("CPU", "GPU"):
        monkeypatch.setattr(kata, config, kata.Config(m=64, n=width))
    a_scale, w_scale = (
        torch.tensor(x, device=device) for x in ([[1.0]] * 9, [[1.0], [2.0], [4.0]])
    )
    aq, wq = (torch.ones(rows, 128, device=device).to(torch.float8_e4m3fn) for rows in (9, 300))
    found = kata.fp8_block_gemm(aq, a_scale, wq, w_scale, torch.float32)
    want = 128 * w_scale[:, 0].repeat_interleave(128)[:300].expand(9, 300)
    wrong = (found != want).nonzero().tolist()
    assert not wrong, (
        f"n 300, BLOCK_N {width}: element {wrong[0]} is {found[tuple(wrong[0])].item()}, "
        f"expected {want[tuple(wrong[0])].item()}"
    )


def test_a_block_of_zeros_adds_nothing(kata, oracle, device, seed):
    # the smallest scale times the smallest scale is zero
    x = torch.randn(20, 384, generator=torch.Generator().manual_seed(seed)).to(device)
    x[:, 128:256] = 0
    names = ("aq", "a_scale", "wq", "w_scale", "out_dtype")
    values = (*kata.quant_act(x), *kata.quant_weight(x), torch.float32)
    inputs = dict(zip(names, values, strict=True))
    want, trusted = oracle.reference(**inputs), oracle.same_precision(**inputs)
    assert_matches(kata.fp8_block_gemm(**inputs), want, same_precision=trusted)


@pytest.mark.parametrize("name", ["aq", "wq"])
def test_numbers_that_tma_cannot_read_are_refused(kata, oracle, device, seed, name):
    inputs = oracle.make_inputs(m=4, n=4, k=128, dtype=torch.float16, device=device, seed=seed)
    room = torch.zeros(8 + 4 * 128, dtype=torch.uint8, device=device)
    inputs[name] = room[8:].view(torch.float8_e4m3fn).view(4, 128)
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.fp8_block_gemm(**inputs)


@pytest.mark.parametrize("out_dtype", [torch.float64, torch.float8_e4m3fn, torch.int32], ids=str)
def test_other_result_dtypes_are_refused(kata, oracle, device, seed, out_dtype):
    inputs = oracle.make_inputs(m=4, n=4, k=128, dtype=out_dtype, device=device, seed=seed)
    with pytest.raises(ValueError, match="^out_dtype: "):
        kata.fp8_block_gemm(**inputs)


def test_every_product_is_one_of_fp8(compiled):
    kernels = compiled(target="sm_90", **SPEED_CASE)
    ptx = "".join(kernel.ptx for kernel in kernels)
    products = [line for line in ptx.splitlines() if "wgmma.mma_async" in line]
    assert products, "expected wgmma in the build for sm_90"
    wide = [line.strip() for line in products if "k32.f32.e4m3.e4m3" not in line]
    assert not wide, f"expected products of e4m3, found {wide[0][:80]}"


# ---- the quantizers ------------------------------------------------------------------------


def hard(seed, device, rows, k=384):
    """Zero blocks, one outlier in a block, tiny and huge blocks, a block just in range."""
    x = torch.randn(rows, k, generator=torch.Generator().manual_seed(seed))
    x[:, :128] = 0
    x[rows // 2, 130] = 3e4
    x[-1, 256:] *= 1e-30
    x[0, 256:] *= 1e30
    x[0, 300] = -3e32
    return x.to(device)


def assert_quantized(found, x, block):
    """Numbers are the nearest by their scales, and scales put the largest magnitude at 448."""
    numbers, scales = found
    assert numbers.dtype == torch.float8_e4m3fn, f"numbers: found {numbers.dtype}"
    assert scales.dtype == torch.float32, f"scales: found {scales.dtype}"
    assert numbers.is_contiguous(), f"numbers: expected contiguous, found {numbers.stride()}"
    assert scales.is_contiguous(), f"scales: expected contiguous, found {scales.stride()}"
    want = (block_amax(x.double(), block) / 448).clamp_min(TINY)
    assert scales.shape == want.shape, f"scales: expected {want.shape}, found {scales.shape}"
    off = (scales.double() - want).abs() / want
    at = tuple(int(i[0]) for i in torch.nonzero(off == off.max(), as_tuple=True))
    assert float(off.max()) < 2**-22, (
        f"scales: block {at} has {scales[at].item():g}, expected {want[at].item():g}"
    )
    assert_nearest(numbers, scales, x, E4M3, block)


@pytest.mark.parametrize(("name", "_", "block"), QUANTIZERS)
@pytest.mark.parametrize("rows", [1, 128, 200])
def test_numbers_are_the_nearest(kata, device, seed, name, _, block, rows):
    x = hard(seed, device, rows)
    before = x.clone()
    assert_quantized(getattr(kata, name)(x), before, block)
    assert torch.equal(x, before), "x: expected as it was, found other numbers in it"


@pytest.mark.parametrize(("name", "_", "block"), QUANTIZERS)
def test_any_layout_and_dtype_is_quantized(kata, device, name, _, block):
    x = torch.randn(256, 130, device=device).half().T  # [130, 256], by columns
    assert_quantized(getattr(kata, name)(x), x, block)


@pytest.mark.parametrize(("name", "_", "block"), QUANTIZERS)
def test_no_rows(kata, device, name, _, block):
    numbers, scales = getattr(kata, name)(torch.zeros(0, 256, device=device))
    assert (tuple(numbers.shape), tuple(scales.shape)) == ((0, 256), (0, 2))


@pytest.mark.parametrize(("name", "argument", "_"), QUANTIZERS)
@pytest.mark.parametrize("k", [0, 100, 192])
def test_columns_that_fill_no_blocks_are_refused(kata, device, name, argument, _, k):
    with pytest.raises(ValueError, match=f"^{argument}: "):
        getattr(kata, name)(torch.ones(3, k, device=device))


@pytest.mark.parametrize(("name", "argument", "_"), QUANTIZERS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_what_is_not_finite_is_refused(kata, device, name, argument, _, bad):
    x = torch.ones(3, 128, device=device)
    x[2, 100] = bad
    with pytest.raises(ValueError, match=f"^{argument}: "):
        getattr(kata, name)(x)


@pytest.mark.parametrize(("name", "argument", "_"), QUANTIZERS)
def test_what_float32_cannot_hold_is_refused(kata, device, name, argument, _):
    x = torch.ones(3, 128, dtype=torch.float64, device=device)
    x[2, 100] = -1e39
    with pytest.raises(ValueError, match=f"^{argument}: "):
        getattr(kata, name)(x)


def test_an_outlier_does_not_reach_other_blocks(kata, device, seed, cost):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(64, 512, generator=draw).to(device)
    w = torch.randn(96, 512, generator=draw).to(device)
    x[:, 200] *= 1e6
    w[:, 128:256] = 0  # what the outlier does to its own block does not count
    found = kata.fp8_block_gemm(*kata.quant_act(x), *kata.quant_weight(w), torch.float32)
    want = x.double() @ w.double().T
    cost.check("relative_error", float((found - want).norm() / want.norm()))
