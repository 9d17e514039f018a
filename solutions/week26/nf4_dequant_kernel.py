"""Kata week26/nf4_dequant_kernel: from packed NF4 with 8-bit scales to weights, in one kernel.

HBM: half a byte and 1/64 of a byte are read for each weight, and the weight is written. The scales
are never in memory.
"""

import math

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32, UInt8
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BLOCK = 64  # weights to a scale
GROUP = 256  # scales to a scale of scales

# blocks of weights a program, and warps
CPU = (16, 1)
GPU = (64, 4)


@triton.jit
def _nf4_dequant_kernel(
    packed_ptr, levels_ptr, codes_ptr, table_ptr, absmax2_ptr, w_ptr, offset, n_blocks,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    # scales of the blocks
    first = tl.program_id(0).to(tl.int64) * BLOCKS
    row = tl.arange(0, BLOCKS)
    mask = first + row < n_blocks
    code = tl.load(codes_ptr + first + row, mask=mask).to(tl.int32)
    # without a mask: 256 is a multiple of BLOCKS, so that all are in the group of the first
    absmax2 = tl.load(absmax2_ptr + (first + row) // 256)
    scale = tl.load(table_ptr + code) * absmax2 + offset  # [BLOCKS] fp32
    scale = tl.broadcast_to(scale[:, None], [BLOCKS, 8]).reshape(8 * BLOCKS, 1)

    # unpack words
    # eight codes a word, of each byte the high four bits first, and the lowest byte first
    word = tl.arange(0, 8 * BLOCKS)
    mask = first + word // 8 < n_blocks
    words = tl.load(packed_ptr + first * 8 + word, mask=mask)  # [8 BLOCKS] i32
    eight = tl.arange(0, 8)
    code = (words[:, None] >> (4 * (eight ^ 1))[None, :]) & 15
    # look up and scale
    w = tl.load(levels_ptr + code) * scale  # [8 BLOCKS, 8] fp32
    # store
    at = word[:, None] * 8 + eight[None, :]
    tl.store(w_ptr + first * 64 + at, w.to(w_ptr.dtype.element_ty), mask=mask[:, None])


def nf4_dequant_kernel(
    packed: UInt8[Tensor, " bytes"],
    levels: Float32[Tensor, "16"],
    codes: UInt8[Tensor, " blocks"],
    table: Float32[Tensor, "256"],
    absmax2: Float32[Tensor, " groups"],
    offset: float,
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> Float[Tensor, "..."]:
    """
    The weights that are packed, as a contiguous tensor.

    Weight i is levels[its code] * scale, with scale = table[codes[i // 64]] *
    absmax2[i // 64 // 256] + offset, both in float32, the product rounded once to `dtype`.

    Args:
        packed: Two codes a byte, the first in the high four bits.
        levels: What the 16 codes stand for.
        codes: Of the scales, one for each 64 weights.
        table: What their codes stand for.
        absmax2: A scale for each 256 scales.
        offset: What was subtracted from all scales.
        shape: Of the weights; their number is a multiple of 64, maybe 0.
        dtype: Of the weights.

    Raises:
        ValueError: `shape` has no multiple of 64 weights; `dtype` is not one of `DTYPES`, or
            bfloat16 on the CPU; of `packed`, `levels`, `codes`, `table` and `absmax2` one has
            another number of elements, is not contiguous, or is not on the device of `packed`;
            `packed` does not begin at a multiple of 16 bytes. The message begins with the
            argument's name.
    """
    # check
    n_blocks = _check(packed, levels, codes, table, absmax2, shape, dtype)
    # allocate and launch
    w = torch.empty(shape, dtype=dtype, device=packed.device)
    blocks, warps = GPU if packed.is_cuda else CPU
    _nf4_dequant_kernel[(triton.cdiv(n_blocks, blocks),)](
        packed.view(torch.int32), levels, codes, table, absmax2, w, offset, n_blocks,
        BLOCKS=blocks, num_warps=warps,
    )  # fmt: skip
    return w


def _check(
    packed: Tensor, levels: Tensor, codes: Tensor, table: Tensor, absmax2: Tensor,
    shape: tuple[int, ...], dtype: torch.dtype,
) -> int:  # fmt: skip
    """Raise what is to be raised; return the number of blocks."""
    n_blocks, rest = divmod(math.prod(shape), BLOCK)
    if rest:
        raise ValueError(f"shape: expected a multiple of {BLOCK} weights, found {shape}")
    if dtype not in DTYPES or (dtype == torch.bfloat16 and not packed.is_cuda):
        raise ValueError(f"dtype: expected one of {DTYPES}, bfloat16 on a GPU only, found {dtype}")
    for name, one, count in (
        ("packed", packed, n_blocks * BLOCK // 2), ("levels", levels, 16),
        ("codes", codes, n_blocks), ("table", table, 256),
        ("absmax2", absmax2, triton.cdiv(n_blocks, GROUP)),
    ):  # fmt: skip
        if one.shape != (count,) or not one.is_contiguous() or one.device != packed.device:
            raise ValueError(
                f"{name}: expected {count} elements, contiguous, on {packed.device}, found "
                f"{tuple(one.shape)} with strides {one.stride()} on {one.device}"
            )
    if packed.data_ptr() % 16:
        raise ValueError("packed: expected it to begin at a multiple of 16 bytes")
    return n_blocks
