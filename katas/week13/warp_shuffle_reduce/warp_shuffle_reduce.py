"""Kata week13/warp_shuffle_reduce: sum, largest element and its place, through registers.

HBM: each element is read once; what the rows leave is next to nothing.
"""

import math

import numpy as np
from numba import cuda

from harness.arrays import Array, empty

WARP = 32
FULL = 0xFFFFFFFF  # a mask that names every lane of a warp
MIN_BLOCK, BLOCK, MAX_BLOCK = WARP, 128, 1024  # threads of a block
WARPS = MAX_BLOCK // WARP  # the most that a block has
AHEAD = 8  # loads that a thread has under way together


@cuda.jit(device=True)
def load(values, first, n, held):
    """Load the thread's next AHEAD values, which lie a block apart; none beyond n."""
    step = cuda.blockDim.x
    if first + (AHEAD - 1) * step < n:
        # without a test for each of them the loads are under way together; and an index that is
        # unsigned is not asked whether it counts from the end
        for r in range(AHEAD):
            held[r] = values[np.uint32(first + r * step)]
    else:
        for r in range(AHEAD):
            if first + r * step < n:
                held[r] = values[np.uint32(first + r * step)]


@cuda.jit(device=True)
def warp_sum(value):
    """Sum of `value`, float32, over the lanes of a warp: lane 0 has it, the others need not."""
    raise NotImplementedError  # TODO(kata): reduce a warp (3 lines)


@cuda.jit(device=True)
def warp_argmax(value, index):
    """
    Return the highest of the lanes' pairs (float32, int32), to every lane of the warp.

    NaN ranks above all numbers; of equal values the lower index ranks higher.
    """
    # TODO(kata): rank two pairs, reduce a warp (about 10 lines with helpers)
    raise NotImplementedError


@cuda.jit(device=True)
def block_sum(value, room):
    """
    Sum of `value`, float32, over the threads of a block: every thread has it, to the bit.

    `room` is WARPS float32 of shared memory, free to be used again as soon as a thread returns.
    """
    raise NotImplementedError  # TODO(kata): reduce a warp, combine the warps (about 8 lines)


@cuda.jit
def reduce_rows(x, sums, maxima, indices) -> None:
    """
    Write the sum of each row of `x`, its largest element, and which column that is.

    A block for each row; of MIN_BLOCK to MAX_BLOCK threads, whole warps.
    """
    # TODO(kata): accumulate in registers, reduce a warp, combine the warps, store (about 25 lines
    # with helpers)
    raise NotImplementedError


def prepared(
    x: Array, sums: Array | None, maxima: Array | None, indices: Array | None, block: int
) -> tuple[Array, Array, Array]:
    """Check what `warp_shuffle_reduce` was given, and return the results' arrays, new or given."""
    if x.ndim != 2:
        raise ValueError(f"x: expected a 2-D array, found {x.ndim}-D")
    if x.dtype != np.float32:
        raise ValueError(f"x: expected float32, found {x.dtype}")
    rows, cols = x.shape
    if cols == 0:
        raise ValueError("x: expected at least one column, found none")
    if not MIN_BLOCK <= block <= MAX_BLOCK or block % WARP:
        raise ValueError(f"block: expected a multiple of {WARP} up to {MAX_BLOCK}, found {block}")
    sums = empty(rows, like=x) if sums is None else sums
    maxima = empty(rows, like=x) if maxima is None else maxima
    indices = empty(rows, like=x).view(np.int32) if indices is None else indices
    for name, array, dtype in (
        ("sums", sums, np.float32),
        ("maxima", maxima, np.float32),
        ("indices", indices, np.int32),
    ):
        if array.dtype != dtype:
            raise ValueError(f"{name}: expected {np.dtype(dtype)}, found {array.dtype}")
        if array.shape != (rows,):
            raise ValueError(f"{name}: expected the shape {(rows,)}, found {array.shape}")
    return sums, maxima, indices


def warp_shuffle_reduce(
    x: Array,
    sums: Array | None = None,
    maxima: Array | None = None,
    indices: Array | None = None,
    block: int = BLOCK,
) -> tuple[Array, Array, Array]:
    """
    Sum, largest element and its column, of each row of `x`, in the memory where it is.

    A NaN is the largest element of its row; of several largest the first counts.

    Args:
        x: float32, 2-D; rows may lie apart in memory.
        sums: float32, one element for each row; allocated if not given, as are the next two.
        maxima: float32.
        indices: int32.
        block: Threads of a block, which has a row.

    Raises:
        ValueError: `x` is not 2-D, not float32 or has no columns, a result has another shape or
            dtype, or `block` is not a multiple of 32 from MIN_BLOCK to MAX_BLOCK.
    """
    raise NotImplementedError  # TODO(kata): prepare and launch (about 4 lines)
