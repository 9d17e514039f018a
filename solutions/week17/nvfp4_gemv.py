"""Kata week17/nvfp4_gemv: one vector through weights of four bits, NVFP4.

HBM: codes and scales are read once, 0.5625 bytes a weight. The vector stays in the caches.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float16, Float32, UInt8
from torch import Tensor

GROUP = 16  # weights that share a scale
# what the codes 0 to 7 stand for; 8 more are negative
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_LARGEST, E4M3_LARGEST = 6.0, 448.0
E4M3_LEAST = 2.0**-9  # above zero
TINY = torch.finfo(torch.float32).tiny  # the smallest normal number
KEPT = tl.constexpr(0x81C00000 - 2**32)  # of a float32: sign, two bits of exponent, one of mantissa
# their value lacks 2¹²⁶ for E2M1's smaller exponents, and a scale read as float16 lacks 2⁸; a part
# goes to x, so that products of float32's smallest numbers are none
TO_X, TO_Y = tl.constexpr(2.0**100), tl.constexpr(2.0 ** (126 + 8 - 100))
TILE = (32, 64)  # rows, groups of 16
WARPS = 4
STAGES = 1  # loads go to registers, and the warps of other programs have work meanwhile


@triton.jit
def _nvfp4_gemv_kernel(
    codes_ptr, scales_ptr, global_ptr, x_ptr, y_ptr, N, groups,
    BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr, GROUP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    # load codes and scales
    rows = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)  # [BLOCK_N] i64
    acc = tl.zeros([BLOCK_N, BLOCK_G], tl.float32)
    for start in tl.range(0, groups, BLOCK_G, num_stages=STAGES):
        cols = start + tl.arange(0, BLOCK_G)
        mask = (rows < N)[:, None] & (cols < groups)[None, :]
        # two neighbours a lane, 16 bytes of codes: more would leave it fewer rows to use its x for
        offsets = tl.max_contiguous(rows[:, None] * groups + cols[None, :], [1, 2])
        codes = tl.load(codes_ptr + offsets, mask=mask, other=0)  # [BLOCK_N, BLOCK_G] u64, a group
        # as float16 by its bits, since GPUs before sm_89 know no e4m3; the sign of a -0 is dropped
        scales = (tl.load(scales_ptr + offsets, mask=mask, other=0).to(tl.uint16) & 0x7F) << 7
        # decode and multiply
        part = tl.zeros([BLOCK_N, BLOCK_G], tl.float32)
        for i in tl.static_range(GROUP):
            if i % 4 == 0:  # four of x in a word: loaded one by one they take as long as the codes
                four = tl.load(x_ptr + cols * (GROUP // 4) + i // 4, mask=cols < groups, other=0)
            x = (four >> (16 * (i % 4))).to(tl.uint16).to(tl.float16, bitcast=True)
            x = x.to(tl.float32) * TO_X
            words = (codes >> (32 * (i // 8))).to(tl.int32)
            # to the top, then down with copies of the sign, until the rest lies around bit 23
            bits = ((words << (28 - 4 * (i % 8))) >> 6) & KEPT
            part += bits.to(tl.float32, bitcast=True) * x[None, :]
        # scale and add up
        acc += part * scales.to(tl.float16, bitcast=True).to(tl.float32)
    y = tl.sum(acc, axis=1) * TO_Y * tl.load(global_ptr)  # [BLOCK_N] fp32
    tl.store(y_ptr + rows, y, mask=rows < N)


def nvfp4_gemv(
    packed: UInt8[Tensor, "n half_k"],
    scales: Float[Tensor, "n groups"],
    global_scale: Float32[Tensor, ""],
    x: Float16[Tensor, " k"],
) -> Float32[Tensor, " n"]:
    """
    w @ x of weights as `nvfp4_quantize` leaves them; codes and scales are read once.

    Weights are decoded exactly; products and sums are float32.

    Args:
        packed: Two codes a byte, the low four bits the even k. Contiguous, and begins at a
            multiple of 8 bytes.
        scales: torch.float8_e4m3fn, one for each 16 weights of a row, not negative. Contiguous.
        global_scale: One for all weights.
        x: The vector, contiguous; k is a multiple of 16.

    Raises:
        ValueError: an argument is not as said above; the message begins with its name.
    """
    # check
    _check(packed, scales, global_scale, x)
    N, groups = scales.shape
    y = torch.empty(N, dtype=torch.float32, device=x.device)
    BLOCK_N, BLOCK_G = TILE
    if not N or not groups:
        return y.zero_()
    if x.data_ptr() % 8:
        x = x.clone()
    _nvfp4_gemv_kernel[(triton.cdiv(N, BLOCK_N),)](
        packed.view(torch.uint64), scales.view(torch.uint8), global_scale, x.view(torch.uint64),
        y, N, groups,
        BLOCK_N=BLOCK_N, BLOCK_G=BLOCK_G, GROUP=GROUP, STAGES=STAGES, num_warps=WARPS,
    )  # fmt: skip
    return y


def _check(packed: Tensor, scales: Tensor, global_scale: Tensor, x: Tensor) -> None:
    # check
    if x.ndim != 1 or x.shape[0] % GROUP:
        raise ValueError(f"x: expected [k], k a multiple of {GROUP}, found {tuple(x.shape)}")
    k = x.shape[0]
    if packed.ndim != 2 or packed.shape[1] != k // 2:
        raise ValueError(f"packed: expected [n, {k // 2}], found {tuple(packed.shape)}")
    shape = (packed.shape[0], k // GROUP)
    if scales.shape != shape:
        raise ValueError(f"scales: expected {shape}, found {tuple(scales.shape)}")
    if global_scale.ndim:
        raise ValueError(f"global_scale: expected shape [], found {tuple(global_scale.shape)}")
    for name, one, dtype in (
        ("packed", packed, torch.uint8),
        ("scales", scales, torch.float8_e4m3fn),
        ("global_scale", global_scale, torch.float32),
        ("x", x, torch.float16),
    ):
        if one.dtype != dtype or one.device != x.device:
            raise ValueError(
                f"{name}: expected {dtype} on {x.device}, found {one.dtype} on {one.device}"
            )
        if not one.is_contiguous():
            raise ValueError(f"{name}: expected it contiguous, found strides {one.stride()}")
    if packed.data_ptr() % 8:
        raise ValueError("packed: expected it aligned to 8 bytes")


def nvfp4_quantize(
    w: Float32[Tensor, "n k"],
) -> tuple[UInt8[Tensor, "n half_k"], Float[Tensor, "n groups"], Float32[Tensor, ""]]:
    """
    `w` as packed E2M1 codes, an e4m3 scale for each 16 of a row, and a float32 scale for all.

    The scale of all puts the largest magnitude at 6 · 448, and is at least `TINY`; a group's puts
    the group's largest at 6, rounds to the nearest e4m3 number, and is at least `E4M3_LEAST`.
    A code is that of the nearest value, ties to the code without the last bit; beyond 6 it is 6.
    All three are contiguous, however `w` lies.

    Raises:
        ValueError: `w` is not 2-D, its columns are no multiple of 16, or not all of it is finite.
    """
    # check
    if w.ndim != 2 or w.shape[1] % GROUP:
        raise ValueError(f"w: expected [n, k], k a multiple of {GROUP}, found {tuple(w.shape)}")
    if not w.isfinite().all():
        raise ValueError(f"w: expected finite numbers, found {w[~w.isfinite()][0].item()}")
    # scales of all and of groups
    n, k = w.shape
    groups = w.reshape(n, k // GROUP, GROUP)
    most = groups.abs().amax(dim=2)  # [n, groups]
    largest = most.max() if most.numel() else w.new_zeros(())
    global_scale = (largest / (E2M1_LARGEST * E4M3_LARGEST)).clamp_min(TINY)
    scales = (most / E2M1_LARGEST / global_scale).clamp(E4M3_LEAST, E4M3_LARGEST)
    scales = scales.to(torch.float8_e4m3fn)
    # nearest codes
    codes = _nearest_codes(groups / (scales.float() * global_scale)[:, :, None])
    pairs = codes.reshape(n, k // 2, 2)
    return pairs[:, :, 0] | pairs[:, :, 1] << 4, scales, global_scale


def _nearest_codes(x: Tensor) -> Tensor:
    """The E2M1 codes nearest to `x`, uint8; halfway it is the code whose last bit is 0."""
    # nearest codes
    values = torch.tensor(E2M1_VALUES, device=x.device)
    halfway = (values[1:] + values[:-1]) / 2  # [7], between the codes c and c + 1
    size = x.abs().contiguous()  # bucketize copies it anyway, with a warning
    # halfway above an odd code goes up, halfway above an even one stays
    above = torch.bucketize(size, halfway)  # how many are below
    at = torch.bucketize(size, halfway, right=True)  # how many are below or equal
    codes = torch.where(at % 2 == 0, at, above)
    return (codes + 8 * x.signbit()).to(torch.uint8)
