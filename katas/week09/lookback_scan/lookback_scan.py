"""Kata week09/lookback_scan: a prefix sum in one pass, its blocks passing their sums on.

HBM: each element is read once and written once; besides that a word of 8 bytes for each block is
written twice and looked at by the blocks after it.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_BLOCK = 16384

# what a block's word says of its value; a word of zeros says nothing
NOTHING = tl.constexpr(0)
AGGREGATE = tl.constexpr(1)  # the sum of the block
PREFIX = tl.constexpr(2)  # the sum of the block and all before it


@triton.jit
def _pack(value, state):
    """One word of 64 bits: the state above the bits of a float32 value."""
    bits = value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return bits | (tl.cast(state, tl.int64) << 32)


@triton.jit
def _unpack(words):
    """Values and states of packed words."""
    return words.to(tl.int32).to(tl.float32, bitcast=True), (words >> 32).to(tl.int32)


@triton.jit
def _lookback_kernel(
    x_ptr, y_ptr, words_ptr, ticket_ptr, n, x_stride, BLOCK: tl.constexpr, WINDOW: tl.constexpr
):
    # TODO(kata): ticket, aggregate, look back, prefix and result (about 20 lines)
    pass


def lookback_scan(x: Float[Tensor, " n"], block: int = 4096) -> Float[Tensor, " n"]:
    """
    The inclusive prefix sum of `x`, contiguous, in its dtype, by one launch.

    Sums are float32 and rounded once, at the end. The last bits of a sum may change from run to
    run: in which pieces a block adds what lies before it depends on which were faster.

    Args:
        x: The numbers, any stride apart.
        block: Elements for each program, a power of two from 1 to `MAX_BLOCK`.

    Raises:
        ValueError: an argument is not as said above, the dtype is not one of `DTYPES`, or it is
            bfloat16 on the CPU, where the interpreter cannot compute with it.

    Source: Merrill and Garland 2016, Single-pass parallel prefix scan with decoupled look-back.
    """
    raise NotImplementedError  # TODO(kata): check, launch (about 10 lines)


def _check(x: Tensor, block: int) -> None:
    raise NotImplementedError  # TODO(kata): check (about 6 lines)
