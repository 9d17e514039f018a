"""Codes, scales and their order one by one, bytes read once, and a quantizer at its limits."""

import re

import pytest
import torch

from harness.judge import assert_nearest
from harness.simulators.block_scaled import E2M1, E2M1_VALUES, E4M3

INF, NAN = float("inf"), float("nan")
VALUES = [*E2M1_VALUES, *(-value for value in E2M1_VALUES)]
LARGEST = torch.finfo(torch.float32).max
TINY = torch.finfo(torch.float32).tiny


def call(kata, codes, scales=None, global_scale=1.0, x=None):
    """The product for codes [n, k] given one by one; scales and x of ones unless given."""
    n, k = codes.shape
    device = codes.device
    codes = codes.to(torch.uint8)
    scales = torch.ones(n, k // 16, device=device) if scales is None else scales
    x = torch.ones(k, device=device) if x is None else x
    return kata.nvfp4_gemv(
        codes[:, ::2] | codes[:, 1::2] << 4,
        scales.to(torch.float8_e4m3fn),
        torch.tensor(global_scale, device=device),
        x.half(),
    )


# ---- decoding ------------------------------------------------------------------------------


def test_every_code_has_its_value(kata, device):
    codes = torch.arange(16, device=device)[:, None].expand(16, 16)
    assert call(kata, codes).tolist() == [16 * value for value in VALUES]


def test_the_low_four_bits_are_the_even_k(kata, device):
    # row i has a 1 at k = i alone
    x = torch.arange(1, 33, device=device)
    codes = 2 * torch.eye(32, dtype=torch.uint8, device=device)
    assert call(kata, codes, x=x).tolist() == x.tolist()


def test_every_scale_has_its_value(kata, device):
    # all that are positive and finite: seven subnormal ones, and 448; then -0
    scales = torch.tensor([*range(127), 0x80], dtype=torch.uint8, device=device)
    scales = scales.view(torch.float8_e4m3fn)
    codes = torch.full((128, 16), 2, device=device)
    want = (16 * scales.float()).tolist()
    assert call(kata, codes, scales[:, None]).tolist() == want


def test_a_scale_is_that_of_its_16(kata, device):
    scales = torch.tensor([[1.0, 448.0, 2.0**-9], [0.5, 0.0, 2.0]], device=device)
    codes = torch.full((2, 48), 2, device=device)
    x = torch.tensor([1.0, 2.0, 4.0], device=device).repeat_interleave(16)
    want = [16 * (1 + 2 * 448 + 4 * 2.0**-9), 16 * (0.5 + 8)]
    assert call(kata, codes, scales, x=x).tolist() == want


@pytest.mark.parametrize("value", [2.0**-120, 0.375, 2.0**112], ids="{:g}".format)
def test_the_global_scale_multiplies(kata, device, value):
    codes = torch.full((1, 16), 1, device=device)
    assert call(kata, codes, global_scale=value).tolist() == [8 * value]


def test_sums_and_products_are_float32(kata, device):
    # 6 · 60000 is more than float16 holds; pairs cancel, and what is left is 16 · 1.5
    codes = torch.full((2, 4112), 7, device=device)
    codes[:, 1:4096:2] = 15
    codes[:, 4096:] = 3
    x = torch.full((4112,), 60000.0, device=device)
    x[4096:] = 1.0
    assert call(kata, codes, x=x).tolist() == [24.0, 24.0]


# ---- memory --------------------------------------------------------------------------------


def test_codes_and_scales_are_read_once(kata, oracle, seed, traffic):
    inputs = oracle.make_inputs(n=40, k=528, dtype=torch.float16, device="cpu", seed=seed)
    with traffic() as moved:
        y = kata.nvfp4_gemv(**inputs)
    for name in ("packed", "scales"):
        loaded, least = moved.of(inputs[name]).loaded_bytes, inputs[name].nbytes
        assert loaded == least, f"{name}: expected {least} bytes, loaded {loaded}"
    assert moved.of(inputs["x"]).loaded_bytes <= 2 * inputs["x"].nbytes  # two tiles of 32 rows
    assert moved.stored_bytes == y.nbytes


def test_nothing_is_allocated_or_waited_for(kata, oracle, device, seed, dispatch):
    inputs = oracle.make_inputs(n=40, k=64, dtype=torch.float16, device=device, seed=seed)
    with dispatch() as ops:
        y = kata.nvfp4_gemv(**inputs)
    assert ops.allocated_bytes == y.nbytes
    assert ops.host_syncs == 0, "the global scale belongs to the device: load it in the kernel"


def test_codes_are_loaded_16_bytes_at_a_time(compiled):
    kernels = compiled(target="sm_90", n=16384, k=16384, dtype="float16")
    wide = [re.search(r"\b(LDG|LDGSTS)\.E\.(\S+\.)?128\b", kernel.sass) for kernel in kernels]
    assert any(wide), "expected loads of 128 bits in the build for sm_90"


def test_gpus_without_e4m3_take_it(compiled):
    kernels = compiled(target="sm_80", n=16384, k=16384, dtype="float16")
    assert kernels, "expected a kernel for sm_80, to which scales are bytes"


def test_x_may_begin_anywhere(kata, oracle, device, seed):
    inputs = oracle.make_inputs(n=2, k=32, dtype=torch.float16, device=device, seed=seed)
    for start in (1, 2, 3):
        x = inputs["x"].new_zeros(32 + start)[start:].copy_(inputs["x"])
        found = kata.nvfp4_gemv(**inputs | {"x": x})
        assert found.equal(kata.nvfp4_gemv(**inputs)), f"x begins {2 * start} bytes later"


def test_codes_that_are_not_aligned_are_refused(kata, oracle, device, seed):
    inputs = oracle.make_inputs(n=2, k=32, dtype=torch.float16, device=device, seed=seed)
    room = torch.zeros(40, dtype=torch.uint8, device=device)
    for start in (1, 4):
        with pytest.raises(ValueError, match="^packed: .*aligned"):
            kata.nvfp4_gemv(**{**inputs, "packed": room[start : start + 32].view(2, 16)})
    inputs["packed"] = room[8:].view(2, 16)
    assert kata.nvfp4_gemv(**inputs).tolist() == [0.0, 0.0]


# ---- the quantizer -------------------------------------------------------------------------


def assert_quantized(kata, w):
    """Shapes, dtypes, both kinds of scales, and each code the nearest that there is."""
    packed, scales, global_scale = kata.nvfp4_quantize(w)
    (n, k), groups = w.shape, w.shape[1] // 16
    found = [(one.dtype, tuple(one.shape)) for one in (packed, scales, global_scale)]
    assert found == [
        (torch.uint8, (n, k // 2)), (torch.float8_e4m3fn, (n, groups)), (torch.float32, ()),
    ]  # fmt: skip
    w = w.double()
    most = w.abs().reshape(n, groups, 16).amax(dim=2)
    want = max(float(w.abs().max()) / (6 * 448), TINY)
    assert float(global_scale) == pytest.approx(want, rel=1e-6, abs=0), "the global scale"
    unit = 6 * global_scale.double()
    assert_nearest(scales, unit[None, None], most.clamp(min=unit * 2.0**-9), E4M3, (n, groups))
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)
    numbers = torch.tensor(VALUES, device=w.device)[codes.int()]
    each = scales.double() * global_scale.double()
    numbers = numbers.double()
    want = w / each.repeat_interleave(16, dim=1)
    assert_nearest(
        numbers, each, want.clamp(-6, 6) * each.repeat_interleave(16, dim=1), E2M1, (1, 16)
    )


def test_codes_and_scales_are_the_nearest(kata, device, seed):
    draw = torch.Generator().manual_seed(seed)
    w = torch.randn(64, 9, generator=draw).to(device)
    w[16:32] *= torch.logspace(-9, 3, 9).to(device)  # from scales that vanish to the largest of all
    w[32:48] = 0
    w[50] = 30  # an outlier in each group
    before = w.clone()
    assert_quantized(kata, w.T)
    assert torch.equal(w, before), "w is not the same afterwards"


@pytest.mark.parametrize("value", [0.0, 1e-44, 1e-36, LARGEST], ids="{:g}".format)
def test_weights_at_the_limits_of_float32(kata, device, value):
    w = torch.full((2, 32), value, device=device)
    w[0, :16] = 0
    w[1, 3] = -value
    assert_quantized(kata, w)


def test_the_product_takes_what_the_quantizer_leaves(kata, device):
    # weights of E2M1 times 448, exact, transposed: codes and scales are not to lie as w does
    at = torch.arange(32, device=device)
    w = 448 * torch.tensor(VALUES, device=device)[at[:16, None] ^ at % 16].T
    x = at[1:17].half()
    y = kata.nvfp4_gemv(*kata.nvfp4_quantize(w), x)
    assert y.tolist() == (w @ x.float()).tolist()


def test_ties_go_to_even_codes(kata, device):
    # the first group makes both scales of the second 1
    w = torch.zeros(1, 32)
    w[0, 0] = 6 * 448
    w[0, 16:24] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    w[0, 24:] = -w[0, 16:24]
    packed, scales, global_scale = kata.nvfp4_quantize(w.to(device))
    assert (scales.float().tolist(), float(global_scale)) == ([[448.0, 1.0]], 1.0)
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).flatten()[16:].tolist()
    found = [VALUES[code] for code in codes]
    half = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0]
    assert found == half + [-value for value in half]


@pytest.mark.parametrize("shape", [(0, 32), (3, 0)], ids=str)
def test_no_weights_are_quantized_to_none(kata, device, shape):
    packed, scales, global_scale = kata.nvfp4_quantize(torch.ones(shape, device=device))
    n, k = shape
    assert (packed.shape, scales.shape) == ((n, k // 2), (n, k // 16))
    assert global_scale.item() == TINY


@pytest.mark.parametrize("shape", [(3, 8), (2, 40), (2, 1)], ids=str)
def test_weights_come_in_groups_of_16(kata, device, shape):
    with pytest.raises(ValueError, match="^w: "):
        kata.nvfp4_quantize(torch.ones(shape, device=device))


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_what_is_not_finite_is_refused(kata, device, value):
    w = torch.ones(2, 16, device=device)
    w[1, 15] = value
    with pytest.raises(ValueError, match="^w: "):
        kata.nvfp4_quantize(w)
