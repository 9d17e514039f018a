"""Kata week13/radix_topk: the k largest of each row by radix select, and no sort.

HBM: a row is read five times, once for each digit of the k-th largest key and once to collect.
"""

import numpy as np
from numba import cuda

from harness.arrays import Array, empty

WARP = 32
FULL = 0xFFFFFFFF  # a mask that names every lane of a warp
MIN_BLOCK, BLOCK, MAX_BLOCK = WARP, 512, 512  # threads of a block, of 128 registers
WARPS = MAX_BLOCK // WARP  # the most that a block has
DIGIT_BITS = 8
BINS = 1 << DIGIT_BITS
AHEAD = 16  # loads that a thread has under way together


@cuda.jit(device=True)
def bits_of(x):
    """The bits of a float32, as an int64 from 0 to 2^32 - 1."""
    return np.int64(np.float32(x).view(np.int32)) & FULL


@cuda.jit(device=True)
def load(values, first, held):
    """Load AHEAD values a warp's width apart, from `first` on; behind the end nothing is loaded."""
    if first + (AHEAD - 1) * WARP < values.size:
        # without a test for each of them the loads are under way together
        for r in range(AHEAD):
            held[r] = values[first + r * WARP]
    else:
        for r in range(AHEAD):
            if first + r * WARP < values.size:
                held[r] = values[first + r * WARP]


@cuda.jit(device=True)
def float_key(bits):
    """
    Turn the bits of a float32 into an int64 from 0 to 2^32 - 1 that orders as the floats do.

    -0.0 and 0.0 have the same key; NaN, of any sign and payload, has the largest.
    """
    raise NotImplementedError  # TODO(kata): order-preserving key (2 lines)


@cuda.jit
def select_rows(x, k, values, indices) -> None:
    """
    Write the k largest elements of each row of `x` and their columns, in the order of columns.

    A block for each row; of MIN_BLOCK to MAX_BLOCK threads, whole warps.
    """
    # TODO(kata): count digits, choose the bin, vote on winners, place and store (about 80 lines
    # with helpers)
    raise NotImplementedError


def prepared(
    x: Array, k: int, values: Array | None, indices: Array | None, block: int
) -> tuple[Array, Array]:
    """Check what `radix_topk` was given, and return the results' arrays, new or given."""
    if x.ndim != 2:
        raise ValueError(f"x: expected a 2-D array, found {x.ndim}-D")
    if x.dtype != np.float32:
        raise ValueError(f"x: expected float32, found {x.dtype}")
    rows, vocab = x.shape
    if not 1 <= k <= vocab:
        raise ValueError(f"k: expected 1 to {vocab}, the length of a row, found {k}")
    if not MIN_BLOCK <= block <= MAX_BLOCK or block % WARP:
        raise ValueError(f"block: expected a multiple of {WARP} up to {MAX_BLOCK}, found {block}")
    values = empty((rows, k), like=x) if values is None else values
    indices = empty((rows, k), like=x).view(np.int32) if indices is None else indices
    for name, array, dtype in (("values", values, np.float32), ("indices", indices, np.int32)):
        if array.dtype != dtype:
            raise ValueError(f"{name}: expected {np.dtype(dtype)}, found {array.dtype}")
        if array.shape != (rows, k):
            raise ValueError(f"{name}: expected the shape {(rows, k)}, found {array.shape}")
    return values, indices


def radix_topk(
    x: Array,
    k: int,
    values: Array | None = None,
    indices: Array | None = None,
    block: int = BLOCK,
) -> tuple[Array, Array]:
    """
    The k largest elements of each row and their columns, by ascending column.

    NaN is larger than all numbers; of equal elements those in the lower columns are taken.

    Args:
        x: float32, 2-D, rows shorter than 2^31; rows may lie apart in memory.
        k: From 1 to the length of a row.
        values: float32, k for each row; allocated if not given.
        indices: int32; likewise.
        block: Threads of a block, which has a row.

    Raises:
        ValueError: `x` is not 2-D or not float32, `k` is out of range, a result has another shape
            or dtype, or `block` is not a multiple of 32 from MIN_BLOCK to MAX_BLOCK.
    """
    raise NotImplementedError  # TODO(kata): prepare and launch (about 4 lines)
