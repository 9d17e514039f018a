"""Gradients, each quantized along its own axis; what is kept for them; the quantizers."""

import pytest
import torch

from harness.judge import assert_matches, assert_nearest
from harness.meters.dispatch import alive_bytes
from harness.simulators.block_scaled import E4M3, block_amax

BUILD = {"m": 8192, "n": 7168, "k": 4096, "dtype": "bfloat16"}
TINY = torch.finfo(torch.float32).tiny


def draw(oracle, device, seed, tokens=200, n=128, k=256, dtype=torch.float32, **more):
    """x, w and dy, the first two wanting gradients."""
    inputs = oracle.make_inputs(
        tokens=tokens, n=n, k=k, dtype=dtype, device=device, seed=seed, **more
    )
    x, w = (inputs[name].requires_grad_() for name in ("x", "w"))
    dy = torch.randn(tokens, n, generator=torch.Generator().manual_seed(seed + 1))
    return x, w, dy.to(dtype).to(device)


def assert_gradients(kata, oracle, x, w, dy):
    kata.fp8_train_linear(x, w).backward(dy)
    assert_right(oracle, x, w, dy, {"dx": x.grad, "dw": w.grad})


def assert_right(oracle, x, w, dy, gradients):
    right = oracle.gradients(x.detach(), w.detach(), dy)
    for name, found in gradients.items():
        want, trusted = right[name]
        assert found.dtype == x.dtype, f"{name}: expected {x.dtype}, found {found.dtype}"
        try:
            assert_matches(found, want, same_precision=trusted)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


# ---- gradients -----------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 128, 130])
def test_gradients_of_any_number_of_tokens(kata, oracle, device, seed, tokens):
    assert_gradients(kata, oracle, *draw(oracle, device, seed, tokens=tokens))


def test_gradients_where_tokens_and_channels_differ(kata, oracle, device, seed):
    # 10^4 apart: a scale along the wrong axis rounds the small ones away
    x, w, dy = draw(oracle, device, seed, decades=2.0)
    sizes = torch.rand(328, generator=torch.Generator().manual_seed(seed)).to(device)
    dy = dy * 100 ** (2 * sizes[:200, None] - 1) * 100 ** (2 * sizes[200:] - 1)
    assert_gradients(kata, oracle, x, w, dy)


def test_gradients_in_half_precision(kata, oracle, device, seed):
    assert_gradients(kata, oracle, *draw(oracle, device, seed, tokens=60, dtype=torch.float16))


def test_a_gradient_that_lies_anywhere(kata, oracle, device, seed):
    # of a sum it is one number, seen everywhere, here beyond float16; of a transposed loss it lies
    # by columns
    x, w, _ = draw(oracle, device, seed, tokens=140, n=128, k=128)
    assert_gradients(kata, oracle, x, w, torch.full((1, 1), 3e6, device=device).expand(140, 128))
    x.grad = w.grad = None
    by_columns = torch.randn(128, 140, generator=torch.Generator().manual_seed(seed)).to(device).T
    assert_gradients(kata, oracle, x, w, by_columns)


def test_weights_are_the_same_numbers_there_and_back(kata, oracle, device, seed):
    # products with one-hot rows show them
    x, w, _ = draw(oracle, device, seed, tokens=256, n=256, k=256, decades=1.0)
    w.requires_grad_(False)
    one_hot = torch.eye(256, device=device)
    there = kata.fp8_train_linear(one_hot, w)  # w.T
    y = kata.fp8_train_linear(x, w)
    w.mul_(3)  # what it is by now plays no part
    y.backward(one_hot)
    off = ((x.grad - there.T).abs() / there.T.abs().clamp_min(1e-20)).max().item()
    assert off < 1e-6, f"w as it is in y, and in dx: up to {off:.2g} of a number apart"


def test_an_outlier_of_a_token_is_its_own(kata, oracle, device, seed):
    # one number of x 10^7 times as large: dw knows no more of its column in its block of tokens
    x, w, dy = draw(oracle, device, seed, tokens=200)
    with torch.no_grad():
        x[100, 7] *= 1e7
        dy[:128] = 0  # what it does to its own block does not count
    kata.fp8_train_linear(x, w).backward(dy)
    want = dy.double().T @ x.detach().double()
    off = ((w.grad - want).norm() / want.norm()).item()
    assert off < 0.045, f"dw of the last 72 tokens: off by {off:.3f}, expected 0.037"


def test_errors_are_those_of_two_roundings(kata, oracle, device, seed, cost):
    x, w, dy = draw(oracle, device, seed)
    y = kata.fp8_train_linear(x, w)
    y.backward(dy)
    right = oracle.gradients(x.detach(), w.detach(), dy)
    truths = {"y": oracle.reference(x=x.detach(), w=w.detach())}
    truths |= {name: want for name, (want, _) in right.items()}
    for name, found in (("y", y.detach()), ("dx", x.grad), ("dw", w.grad)):
        want = truths[name]
        cost.check(f"{name}_error", ((found - want).norm() / want.norm()).item())


# ---- what the backward pass takes ----------------------------------------------------------


def test_a_byte_is_kept_for_each_number(kata, oracle, device, seed, cost):
    # by whatever way: all tensors alive, once x is gone and w and y are left out
    _, w, _ = draw(oracle, device, seed, tokens=256, n=256, k=384)
    before = alive_bytes()
    x = torch.randn(256, 384, device=device) + torch.zeros((), device=device, requires_grad=True)
    y = kata.fp8_train_linear(x, w)
    numbers = x.numel() + w.numel()
    del x
    cost.check("saved", (alive_bytes() - before - y.nbytes) / numbers)


@pytest.mark.parametrize("needed", ["x", "w"])
def test_no_gradient_is_made_that_nobody_needs(kata, oracle, seed, traffic, needed):
    x, w, dy = draw(oracle, "cpu", seed, tokens=128, n=128, k=128)
    {"x": w, "w": x}[needed].requires_grad_(False)
    y = kata.fp8_train_linear(x, w)
    with traffic() as moved:
        y.backward(dy)
    assert moved.launches == 1, f"only {needed} needs a gradient: {moved.launches} products"
    assert ((x.grad is None), (w.grad is None)) == (needed == "w", needed == "x")


def test_backward_may_be_called_again(kata, oracle, device, seed):
    x, w, dy = draw(oracle, device, seed, tokens=128, n=128, k=128)
    y = kata.fp8_train_linear(x, w)
    first = torch.autograd.grad(y, (x, w), dy, retain_graph=True)
    again = torch.autograd.grad(y, (x, w), dy)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])


def test_layers_keep_what_is_theirs(kata, oracle, device, seed):
    # two of one shape, then the first with the input of the second; all go forward before one goes
    # back
    one, other = (draw(oracle, device, at, tokens=9, n=128, k=128) for at in (seed, seed + 2))
    calls = [one, other, (other[0], one[1], other[2])]
    results = [kata.fp8_train_linear(x, w) for x, w, _ in calls]
    for (x, w, dy), y in zip(calls, results, strict=True):
        dx, dw = torch.autograd.grad(y, (x, w), dy)
        assert_right(oracle, x, w, dy, {"dx": dx, "dw": dw})


@pytest.mark.parametrize("needed", ["x", "w"])
def test_a_bad_gradient_is_named(kata, oracle, device, seed, needed):
    x, w, dy = draw(oracle, device, seed, tokens=2, n=128, k=128)
    {"x": w, "w": x}[needed].requires_grad_(False)
    dy[1, 100] = float("nan")
    with pytest.raises(ValueError, match="^dy: "):
        kata.fp8_train_linear(x, w).backward(dy)


@pytest.mark.parametrize("name", ["x", "w"])
@pytest.mark.parametrize("bad", [float("nan"), -float("inf")], ids=str)
def test_what_is_not_finite_is_refused(kata, oracle, device, seed, name, bad):
    x, w, _ = draw(oracle, device, seed, tokens=2, n=128, k=128)
    with torch.no_grad():
        {"x": x, "w": w}[name][1, 100] = bad
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.fp8_train_linear(x, w)


# ---- the product ---------------------------------------------------------------------------


@pytest.mark.parametrize("by_row", [0, 1], ids=["blocks", "rows"])
@pytest.mark.parametrize("width", [32, 64])
def test_a_tile_may_be_narrower_than_its_scales(
    kata, oracle, device, seed, monkeypatch, by_row, width
):
    for config in ("CPU", "BY_BLOCK", "BY_ROW"):
        monkeypatch.setattr(kata, config, kata.Config(m=64, n=width))
    inputs = oracle.make_inputs_fp8_gemm_nt(
        m=9, n=300, k=256, dtype=torch.float32, device=device, seed=seed, by_row=by_row, decades=2.0
    )
    want = oracle.reference_fp8_gemm_nt(**inputs)
    trusted = oracle.same_precision_fp8_gemm_nt(**inputs)
    assert_matches(kata.fp8_gemm_nt(**inputs), want, same_precision=trusted)


@pytest.mark.parametrize("by_row", [0, 1], ids=["blocks", "rows"])
def test_every_product_is_one_of_fp8(compiled, by_row):
    kernels = compiled(
        target="sm_90", function="fp8_gemm_nt", **BUILD, **({"by_row": 1} if by_row else {})
    )
    ptx = "".join(kernel.ptx for kernel in kernels)
    products = [line for line in ptx.splitlines() if "wgmma.mma_async" in line]
    assert products, "expected wgmma in the build for sm_90"
    wide = [line.strip() for line in products if "k32.f32.e4m3.e4m3" not in line]
    assert not wide, f"expected products of e4m3, found {wide[0][:80]}"


# ---- the quantizers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "block"),
    [("quant_1x128", (1, 128)), ("quant_128x128", (128, 128))],
    ids=["rows", "blocks"],
)
@pytest.mark.parametrize("rows", [1, 200])
def test_numbers_are_the_nearest(kata, device, seed, name, block, rows):
    x = torch.randn(384, rows, generator=torch.Generator().manual_seed(seed)).to(device).T
    x[:, :128] = 0
    x[rows // 2, 130] = 3e4
    x[-1, 256:] *= 1e-37 if rows == 1 else 1e-30  # a scale at the floor, or above it
    before = x.clone()
    numbers, scales = getattr(kata, name)(x)
    assert torch.equal(x, before), "x: expected as it was, found other numbers in it"
    assert (numbers.dtype, scales.dtype) == (torch.float8_e4m3fn, torch.float32)
    assert numbers.is_contiguous(), f"numbers: expected contiguous, found {numbers.stride()}"
    assert scales.is_contiguous(), f"scales: expected contiguous, found {scales.stride()}"
    want = (block_amax(before.double(), block) / 448).clamp_min(TINY)
    assert scales.shape == want.shape, f"scales: expected {want.shape}, found {scales.shape}"
    off = (scales.double() / want - 1).abs().max().item()
    assert off < 2**-22, f"scales: {scales.tolist()}, expected {want.tolist()}"
    assert_nearest(numbers, scales, before, E4M3, block)


@pytest.mark.parametrize("name", ["quant_1x128", "quant_128x128"])
def test_no_rows_have_no_scales(kata, device, name):
    numbers, scales = getattr(kata, name)(torch.ones(0, 256, device=device))
    found = [tuple(x.shape) for x in (numbers, scales)]
    assert found == [(0, 256), (0, 2)], f"x [0, 256]: {found}, expected [(0, 256), (0, 2)]"


@pytest.mark.parametrize("name", ["quant_1x128", "quant_128x128"])
def test_half_precision_is_quantized_in_float32(kata, device, seed, name):
    x = torch.randn(130, 256, generator=torch.Generator().manual_seed(seed)).to(device).half()
    found, want = getattr(kata, name)(x), getattr(kata, name)(x.float())
    for what, one, other in zip(("numbers", "scales"), found, want, strict=True):
        off = int((one.float() != other.float()).sum())
        assert off == 0, f"{off} {what} of float16 differ from those of the same x in float32"


@pytest.mark.parametrize("name", ["quant_1x128", "quant_128x128"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_numbers_may_be_finite_though_their_sum_is_not(kata, device, name, dtype):
    x = torch.full((2, 128), torch.finfo(dtype).max, dtype=dtype, device=device)
    numbers, scales = getattr(kata, name)(x)
    assert numbers.float().unique().tolist() == [448.0]
    assert scales.unique().tolist() == pytest.approx([torch.finfo(dtype).max / 448], rel=1e-6)


def test_products_are_of_three_dtypes(kata, device):
    a, scale = kata.quant_1x128(torch.ones(3, 128, device=device))
    for dtype in (torch.float64, torch.float8_e4m3fn):
        with pytest.raises(ValueError, match="^out_dtype: "):
            kata.fp8_gemm_nt(a, scale, a, scale, dtype)


@pytest.mark.parametrize(("name", "argument"), [("quant_1x128", "x"), ("quant_128x128", "w")])
def test_what_cannot_be_quantized_is_refused(kata, device, name, argument):
    bad, huge = torch.ones(2, 3, 128, device=device, dtype=torch.float64)
    bad[2, 100], huge[2, 100] = -float("inf"), 1e39  # the latter has no float32
    for x in (bad[:, :100].float(), bad[:, :0].float(), bad.float(), bad, huge):
        with pytest.raises(ValueError, match=f"^{argument}: "):
            getattr(kata, name)(x)
