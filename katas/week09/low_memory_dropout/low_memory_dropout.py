"""Kata week09/low_memory_dropout: a mask that is never stored.

HBM: the forward pass reads x and writes y, the backward pass reads dy and writes dx. Only
four numbers are kept in between: the mask is computed again.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable


@triton.jit
def _kept(seed, counter, threshold, BLOCK: tl.constexpr):
    # TODO(kata): draw the words (3 lines)
    pass


# not specialized: no seed, offset or threshold needs a build of its own for being 1, or 16 n
@triton.jit(do_not_specialize=["seed", "offset", "threshold"])
def _dropout_kernel(x_ptr, y_ptr, n, seed, offset, threshold, scale, BLOCK: tl.constexpr):
    # TODO(kata): locate the block, draw the words, drop and scale (about 6 lines)
    pass


@triton.jit(do_not_specialize=["threshold"])
def _dropout_rows_kernel(
    x_ptr,
    y_ptr,
    seeds_ptr,
    x_row_stride,
    y_row_stride,
    seeds_stride,
    n_cols,
    threshold,
    scale,
    BLOCK: tl.constexpr,
):
    # TODO(kata): locate the block, draw the words, drop and scale (about 8 lines)
    pass


class SeededDropout(torch.autograd.Function):
    """Dropout whose backward pass makes the mask again, from the numbers that made it."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, p: float, seed: int, offset: int) -> Tensor:
        """Drop elements of `x`, which is contiguous, and keep no tensor."""
        # TODO(kata): keep the numbers, launch (about 10 lines with helpers)
        raise NotImplementedError

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, dy: Tensor) -> tuple[Tensor, None, None, None]:
        """Drop the same elements of `dy`, however it lies in memory."""
        raise NotImplementedError  # TODO(kata): launch (1 line)


def low_memory_dropout(
    x: Float[Tensor, "*shape"], p: float, seed: int, offset: int = 0
) -> Float[Tensor, "*shape"]:
    """
    Drop elements of `x` with probability `p` and divide the others by 1 - p; differentiable.

    Element i, in the order of memory, has the number offset + i. It is kept when word number % 4
    of Philox4x32-10 with the key `seed` and the counter number // 4 is at least int(p * 2**32).
    A dropped element is +0, whatever it was. The product is computed in float32.

    Args:
        x: What to drop from, contiguous.
        p: The probability of being dropped.
        seed: The key, 64 bits.
        offset: The number of the first element, a multiple of 4.

    Raises:
        ValueError: `x` is not float16, bfloat16 or float32, or not contiguous; `p` is not in
            [0, 1), `seed` not in [0, 2**63), or `offset` negative or no multiple of 4.
    """
    raise NotImplementedError  # TODO(kata): check, launch (about 15 lines with helpers)


def dropout_rows(
    x: Float[Tensor, "rows cols"], p: float, seeds: Int64[Tensor, " rows"]
) -> Float[Tensor, "rows cols"]:
    """
    Drop elements of each row by a seed of its own: the number of an element is its column.

    The result is contiguous. Rows of `x` may lie any stride apart, and so may `seeds`; nothing is
    copied. There is no backward pass.

    Args:
        x: What to drop from.
        p: The probability of being dropped.
        seeds: The key of each row.

    Raises:
        ValueError: `x` is not float16, bfloat16 or float32, not 2-D, or its last axis is not
            contiguous; `p` is not in [0, 1); `seeds` is not int64, or not one for each row.
    """
    raise NotImplementedError  # TODO(kata): check, launch (about 15 lines)
