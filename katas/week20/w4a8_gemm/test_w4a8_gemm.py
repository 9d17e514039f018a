"""Words of four weights, exhaustively; both levels of the quantizer; sums and instructions."""

import re

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

SPEED_CASE = {"m": 16, "n": 8192, "k": 8192, "dtype": "int8"}
TINY = torch.finfo(torch.float32).tiny
SHIFTS = (0, 8, 16, 24, 4, 12, 20, 28)


# ---- four weights in a word ----------------------------------------------------------------


@triton.jit
def _dequant_kernel(
    dequant4: tl.constexpr, word_ptr, s_ptr, a_ptr, out_ptr, SIZE: tl.constexpr
):  # fmt: skip
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    word = tl.load(word_ptr + at).to(tl.uint32, bitcast=True)
    s, a = tl.load(s_ptr + at).to(tl.uint32), tl.load(a_ptr + at).to(tl.uint32)
    tl.store(out_ptr + at, dequant4(word, s, a).to(tl.int32, bitcast=True))


def test_no_byte_carries(kata, device):
    # each step, least int8 and code that a group of numbers up to 119 can have, in each byte
    rows = []
    for s in range(1, 17):
        for low in range(-119, 120 - (15 * (s - 1) + 1 if s > 1 else 0)):
            most = round(min(15 * s, 119 - low) / s)
            rows += [(s, low, q, most - q, most, q // 2) for q in range(most + 1)]
    size = 8192
    table = np.array(rows + rows[:1] * (-len(rows) % size))
    s, low, codes = table[:, 0], table[:, 1], table[:, 2:]
    word = (codes << np.array([0, 8, 16, 24])).sum(axis=1)
    tensors = [torch.tensor(x, dtype=torch.int32, device=device) for x in (word, s, low + 128)]
    out = torch.zeros(len(table), dtype=torch.int32, device=device)
    try:
        _dequant_kernel[(len(table) // size,)](kata.dequant4, *tensors, out, size)
    except InterpreterError as error:
        if "NotImplementedError" in str(error):
            raise NotImplementedError from None
        raise
    found = out.cpu().numpy().view(np.int8).reshape(-1, 4)
    want = codes * s[:, None] + low[:, None]
    wrong = np.argwhere(found != want)
    assert not len(wrong), (
        f"codes {codes[wrong[0, 0]].tolist()}, s {s[wrong[0, 0]]}, a {low[wrong[0, 0]] + 128}: "
        f"bytes are {found[wrong[0, 0]].tolist()}, expected {want[wrong[0, 0]].tolist()}"
    )


# ---- the quantizer -------------------------------------------------------------------------


def unpacked(packed):
    """[n, k] codes."""
    words = packed.cpu().numpy().astype(np.int64)
    return (words[:, :, None] >> np.array(SHIFTS) & 15).reshape(len(words), -1)


def by_hand(w8, group):
    """Codes, steps and offsets of integers [n, k], number by number."""
    n, k = w8.shape
    codes, s, a = (np.zeros(shape, int) for shape in ((n, k), (n, k // group), (n, k // group)))
    for row in range(n):
        for at in range(0, k, group):
            numbers = [int(x) for x in w8[row, at : at + group]]
            low, high = min(numbers), max(numbers)
            step = max(1, -(-(high - low) // 15))
            codes[row, at : at + group] = [round((x - low) / step) for x in numbers]
            s[row, at // group], a[row, at // group] = step, low + 128
    return codes, s, a


@pytest.mark.parametrize("group", [8, 64, 192])
def test_integers_are_quantized_by_hand(kata, device, seed, group):
    draw = np.random.default_rng(seed)
    w8 = draw.integers(-119, 120, (4, 384))
    w8[0, ::7] = 119  # the largest step, and the smallest: a group of one number
    w8[0, 1::7] = -119
    w8[1, :192] = -119
    w8[2] = 119 - draw.integers(0, 17, 384)  # steps of 1 and 2, in ties
    w8[2:, 5] = 119
    w8[3, ::2] = 0
    scale = np.array([1.0, 0.25, 2.0**-20, 2.0**30])
    w = torch.tensor(w8 * scale[:, None], dtype=torch.float32, device=device)
    before = w.clone()
    packed, s, a, channel_scale = kata.quant_w4(w, group)
    assert torch.equal(w, before), "w: expected as it was, found other numbers in it"
    dtypes = (torch.int32, torch.uint8, torch.uint8, torch.float32)
    assert tuple(x.dtype for x in (packed, s, a, channel_scale)) == dtypes
    assert all(x.is_contiguous() for x in (packed, s, a, channel_scale))
    assert channel_scale.tolist() == scale.tolist()
    codes, steps, offsets = by_hand(w8, group)
    assert s.tolist() == steps.tolist()
    assert a.tolist() == offsets.tolist()
    wrong = np.argwhere(unpacked(packed) != codes)
    assert not len(wrong), (
        f"row {wrong[0, 0]}, column {wrong[0, 1]}: w8 is {w8[tuple(wrong[0])]}, the code "
        f"{unpacked(packed)[tuple(wrong[0])]}, expected {codes[tuple(wrong[0])]}"
    )


def test_halves_are_rounded_to_even(kata, device):
    # scales whose reciprocals are no float32: only a division leaves all halves halves
    scale = torch.tensor([1.0, 3.0, 41.0, 119.0], device=device)
    halves = torch.cat([torch.arange(-112, 112) + 0.5, torch.full((8,), 119.0)]).to(device)
    packed, s, a, channel_scale = kata.quant_w4(scale[:, None] * halves, 8)
    assert channel_scale.tolist() == scale.tolist()
    s, a = (x.cpu().numpy().astype(int).repeat(8, axis=1) for x in (s, a))
    found, want = unpacked(packed) * s + a - 128, np.rint(halves.cpu().numpy())
    wrong = np.argwhere(found != want)
    assert not len(wrong), (
        f"scale {scale[wrong[0, 0]]:g}: {halves[wrong[0, 1]]:g} of it became w8 = "
        f"{found[tuple(wrong[0])]}, expected {want[wrong[0, 1]]:g}"
    )


def test_every_weight_is_near_its_own(kata, device, seed):
    # half a step of either level; rows far apart, by columns in memory, one of zeros
    w = torch.randn(256, 6, generator=torch.Generator().manual_seed(seed)).T.to(device)
    w = w * torch.tensor([1.0, 1e-30, 1e30, 1.0, 0.0, 1.0], device=device)[:, None]
    w[3, 9] = 1e4
    packed, s, a, channel_scale = kata.quant_w4(w)
    assert s.shape == a.shape == (6, 4), f"w [6, 256]: steps {tuple(s.shape)}, expected (6, 4)"
    s, a = (x.cpu().numpy().astype(int).repeat(64, axis=1) for x in (s, a))
    scale = channel_scale.double().cpu().numpy()[:, None]
    fair = np.maximum(np.abs(w.double().cpu().numpy()).max(axis=1) / 119, TINY)[:, None]
    assert np.abs(scale / fair - 1).max() < 2**-22, (
        f"channel_scale: expected {fair[:, 0].tolist()}, found {scale[:, 0].tolist()}"
    )
    stands_for = (unpacked(packed) * s + a - 128) * scale
    off = np.abs(stands_for - w.double().cpu().numpy()) - (0.5 * s + 0.501) * scale
    at = np.unravel_index(off.argmax(), off.shape)
    assert off.max() <= 0, (
        f"{at}: {w[at].item():g} became {stands_for[at]:g}, more than half a step of "
        f"{(s * scale)[at]:g} off"
    )


@pytest.mark.parametrize("group", [0, -8, 4, 12])
def test_groups_that_fill_no_words_are_refused(kata, device, group):
    with pytest.raises(ValueError, match="^group: "):
        kata.quant_w4(torch.ones(2, 48, device=device), group)


@pytest.mark.parametrize("k", [0, 8, 65, 100])
def test_columns_that_fill_no_groups_are_refused(kata, device, k):
    with pytest.raises(ValueError, match="^w: "):
        kata.quant_w4(torch.ones(2, k, device=device))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_what_is_not_finite_is_refused(kata, device, bad):
    w = torch.ones(3, 64, device=device)
    w[2, 33] = bad
    with pytest.raises(ValueError, match="^w: "):
        kata.quant_w4(w)


# ---- the product ---------------------------------------------------------------------------


def test_sums_are_exact(kata, device):
    # 1, then 128 · 119 · 1280, which is past 2^24, and then as much taken away again
    xq = torch.full((1, 2624), -128, dtype=torch.int8, device=device)
    w = torch.full((1, 2624), -119.0, device=device)
    w[:, 1344:] = 119.0
    w[:, :64] = 1.0
    xq[:, :64] = 0
    xq[0, 0] = 1
    one = torch.ones(1, device=device)
    found = kata.w4a8_gemm(xq, one, *kata.quant_w4(w))
    assert found.item() == 1.0, (
        f"a sum of 1, 19 million and -19 million: expected 1, found {found.item()}"
    )


@pytest.mark.parametrize(("m", "n"), [(0, 70), (5, 0)])
def test_nothing_is_launched_for_nothing(kata, oracle, device, seed, traffic, m, n):
    inputs = oracle.make_inputs(m=m, n=n, k=64, dtype=torch.int8, device=device, seed=seed)
    with traffic() as t:
        y = kata.w4a8_gemm(**inputs)
    assert y.shape == (m, n)
    assert t.launches == 0, f"m {m}, n {n}: expected no launch, found {t.launches}"


def test_the_last_group_has_a_step_of_its_own(kata, device):
    # 24 groups of 8: a tile begins and ends within none
    w8 = torch.arange(192).view(24, 8) % 16 + torch.arange(24)[:, None]
    w = torch.cat([w8.flatten(), torch.full((8,), 119.0)]).to(device)[None]
    xq = torch.eye(200, dtype=torch.int8, device=device)
    one = torch.ones(200, device=device)
    found = kata.w4a8_gemm(xq, one, *kata.quant_w4(w, 8))
    assert found.flatten().tolist() == w.flatten().tolist()


def test_products_are_those_of_int8(compiled):
    ptx = "".join(kernel.ptx for kernel in compiled(target="sm_90", **SPEED_CASE))
    products = [line.strip() for line in ptx.splitlines() if "mma" in line and "sync" in line]
    products = [line for line in products if re.match(r"(mma|wgmma\.mma_async)\.", line)]
    assert products, "expected mma or wgmma in the build for sm_90"
    wide = [line for line in products if "s32.s8.s8" not in line]
    assert not wide, f"expected products of int8, found {wide[0][:80]}"


def test_two_instructions_make_four_weights(kata, compiled, cost):
    ptx = "".join(kernel.ptx for kernel in compiled(target="sm_90", **SPEED_CASE))
    used = re.findall(r"^\s*(?:mad|mul|xor|bfe|bfi|sub|lop3|cvt)\.(?!wide)\S+", ptx, re.MULTILINE)
    used = [one for one in used if not re.search(r"64|f16|f32|u16", one)]
    config = kata.GPU  # what a thread unpacks in a step along k
    fours = config.n * 2 * config.words / (32 * config.warps)
    cost.check("instructions_for_four_weights", len(used) / fours)
