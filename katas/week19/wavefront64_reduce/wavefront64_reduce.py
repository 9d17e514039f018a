"""Kata week19/wavefront64_reduce: row sums and compaction, on wavefronts of 32 or of 64 lanes.

HBM: each element is read once; sums and what is kept are written once.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from harness.arrays import Array, beside, empty

WIDTHS = (32, 64)  # lanes of a wavefront: NVIDIA's GPUs and RDNA, and CDNA
HALF, BLOCK, MAX_BLOCK = 32, 128, 1024  # threads of a block: the least, the usual, the most
AHEAD = 8  # loads that a thread has under way together


class Kernels(NamedTuple):
    """The kernels for one width."""

    row_sum: Any
    compact: Any


@cuda.jit(device=True)
def load(values, first, n, held):
    """Load the thread's next AHEAD values, which lie a block apart; behind n there are zeros."""
    step = cuda.blockDim.x
    if first + (AHEAD - 1) * step < n:
        # without a test for each of them the loads are under way together; and an index that is
        # unsigned is not asked whether it counts from the end
        for r in range(AHEAD):
            held[r] = values[np.uint32(first + r * step)]
    else:
        for r in range(AHEAD):
            at = first + r * step
            held[r] = values[np.uint32(at)] if at < n else np.float32(0)


@cache
def make_kernels(warp: int) -> Kernels:
    """
    Make `row_sum(x, sums)` and `compact(x, threshold, out, counter)` for `warp` lanes.

    Made once for each width. Blocks have a multiple of HALF threads, so that at 64 lanes the last
    wavefront of a block may be half empty.
    """
    # TODO(kata): masks from the width, sum over a wavefront, partial sums of the block, vote,
    # places by one atomic (about 45 lines)
    raise NotImplementedError


def check(x: Array, ndim: int, warp: int, block: int) -> None:
    """Refuse what neither function takes."""
    if x.ndim != ndim:
        raise ValueError(f"x: expected a {ndim}-D array, found {x.ndim}-D")
    if x.dtype != np.float32:
        raise ValueError(f"x: expected float32, found {x.dtype}")
    if warp not in WIDTHS:
        raise ValueError(f"warp: expected 32 or 64, found {warp}")
    if not HALF <= block <= MAX_BLOCK or block % HALF:
        raise ValueError(f"block: expected a multiple of {HALF} up to {MAX_BLOCK}, found {block}")


def wavefront64_reduce(x: Array, warp: int, block: int = BLOCK, sums: Array | None = None) -> Array:
    """
    Sum each row of `x`, in the memory where it is, on wavefronts of `warp` lanes.

    Args:
        x: float32, 2-D; rows may lie apart in memory.
        warp: 32 or 64: what the machine has.
        block: Threads of a block, which has a row: a multiple of 32 up to 1024, at either width.
        sums: float32, one element for each row; allocated if not given.

    Raises:
        ValueError: `x` is not 2-D or not float32, `warp` or `block` is none of those, or `sums`
            has another shape or dtype.
    """
    raise NotImplementedError  # TODO(kata): check and launch (about 8 lines)


def compact(x: Array, threshold: float, warp: int, block: int = BLOCK) -> Array:
    """
    Return the elements of `x` above `threshold`, without gaps, as a new array.

    What a wavefront keeps stands together and in its order; wavefronts come in any order.

    Args:
        x: float32, 1-D, fewer than 2^31 elements.
        threshold: Rounded to float32.
        warp: 32 or 64: what the machine has.
        block: Threads of a block: a multiple of 32 up to 1024, at either width.

    Raises:
        ValueError: `x` is not 1-D or not float32, `threshold` is NaN, or `warp` or `block` is none
            of those.
    """
    raise NotImplementedError  # TODO(kata): check and launch (about 10 lines)
