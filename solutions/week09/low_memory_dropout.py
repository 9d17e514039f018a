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
    a, b, c, d = tl.randint4x(seed, counter + tl.arange(0, BLOCK // 4))  # [BLOCK / 4] u32, each
    words = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))  # [BLOCK] u32: a b c d a b …
    return words >= threshold.to(tl.uint32)


# not specialized: no seed, offset or threshold needs a build of its own for being 1, or 16 n
@triton.jit(do_not_specialize=["seed", "offset", "threshold"])
def _dropout_kernel(x_ptr, y_ptr, n, seed, offset, threshold, scale, BLOCK: tl.constexpr):
    # locate the block
    # int64: a tensor may have more than 2**31 elements, and offset may lie anywhere
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = start + tl.arange(0, BLOCK)  # [BLOCK] i64
    # draw the words
    kept = _kept(seed, (offset + start) // 4, threshold, BLOCK)  # [BLOCK] i1

    # drop and scale
    x = tl.load(x_ptr + at, mask=at < n).to(tl.float32)  # [BLOCK] fp32
    y = tl.where(kept, x * scale, 0.0)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=at < n)


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
    # locate the block
    blocks_per_row = tl.cdiv(n_cols, BLOCK)
    row = (tl.program_id(0) // blocks_per_row).to(tl.int64)
    start = (tl.program_id(0) % blocks_per_row) * BLOCK
    cols = start + tl.arange(0, BLOCK)  # [BLOCK] i32
    # draw the words
    kept = _kept(tl.load(seeds_ptr + row * seeds_stride), start // 4, threshold, BLOCK)

    # drop and scale
    x = tl.load(x_ptr + row * x_row_stride + cols, mask=cols < n_cols).to(tl.float32)
    y = tl.where(kept, x * scale, 0.0)  # [BLOCK] fp32
    tl.store(y_ptr + row * y_row_stride + cols, y.to(y_ptr.dtype.element_ty), mask=cols < n_cols)


def _masked(x: Tensor, p: float, seed: int, offset: int) -> Tensor:
    # launch
    y = torch.empty_like(x)
    n = x.numel()
    if n:
        block = 2048
        grid = (triton.cdiv(n, block),)
        threshold, scale = int(p * 2**32), 1.0 / (1.0 - p)
        _dropout_kernel[grid](x, y, n, seed, offset, threshold, scale, BLOCK=block)
    return y


class SeededDropout(torch.autograd.Function):
    """Dropout whose backward pass makes the mask again, from the numbers that made it."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, p: float, seed: int, offset: int) -> Tensor:
        """Drop elements of `x`, which is contiguous, and keep no tensor."""
        # keep the numbers
        ctx.mask = (p, seed, offset)
        # launch
        return _masked(x, p, seed, offset)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, dy: Tensor) -> tuple[Tensor, None, None, None]:
        """Drop the same elements of `dy`, however it lies in memory."""
        # launch
        return _masked(dy.contiguous(), *ctx.mask), None, None, None


def _check(x: Tensor, p: float) -> None:
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise ValueError(f"x: expected float16, bfloat16 or float32, found {x.dtype}")
    if not 0 <= p < 1:
        raise ValueError(f"p: expected 0 <= p < 1, found {p}")


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
    # check
    _check(x, p)
    if not x.is_contiguous():
        raise ValueError(f"x: expected a contiguous tensor, found strides {x.stride()}")
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed: expected 0 <= seed < 2**63, found {seed}")
    if offset < 0 or offset % 4:
        raise ValueError(f"offset: expected a multiple of 4 that is not negative, found {offset}")
    # launch
    return SeededDropout.apply(x, p, seed, offset)


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
    # check
    _check(x, p)
    if x.ndim != 2:
        raise ValueError(f"x: expected two axes, found shape {tuple(x.shape)}")
    rows, cols = x.shape
    if cols > 1 and x.stride(1) != 1:
        raise ValueError(f"x: expected a contiguous last axis, found strides {x.stride()}")
    if seeds.dtype != torch.int64 or seeds.shape != (rows,):
        found = f"{seeds.dtype} of shape {tuple(seeds.shape)}"
        raise ValueError(f"seeds: expected int64 of shape ({rows},), found {found}")

    # launch
    y = torch.empty(rows, cols, dtype=x.dtype, device=x.device)
    if y.numel():
        block = 1024
        grid = (rows * triton.cdiv(cols, block),)
        threshold, scale = int(p * 2**32), 1.0 / (1.0 - p)
        strides = (x.stride(0), y.stride(0), seeds.stride(0))
        _dropout_rows_kernel[grid](x, y, seeds, *strides, cols, threshold, scale, BLOCK=block)
    return y
