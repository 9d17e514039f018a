"""Kata week19/wavefront64_reduce: row sums and compaction, on wavefronts of 32 or of 64 lanes.

HBM: each element is read once; sums and what is kept are written once.
"""

import math
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
    # masks from the width
    full = (1 << warp) - 1
    most_waves = MAX_BLOCK // warp

    @cuda.jit(device=True)
    def lanes_present():
        """Count the lanes of the thread's wavefront that the block has."""
        return min(warp, cuda.blockDim.x - cuda.threadIdx.x // warp * warp)

    @cuda.jit(device=True)
    def wave_sum(value, lanes):
        """Sum `value` over the lanes of a wavefront: lane 0 has it."""
        # sum over a wavefront
        mask, apart = full >> (warp - lanes), lanes >> 1
        while apart > 0:
            value += cuda.shfl_down_sync(mask, value, apart)
            apart >>= 1
        return value

    @cuda.jit
    def row_sum(x, sums):
        room = cuda.shared.array(most_waves, np.float32)
        held = cuda.local.array(AHEAD, np.float32)
        row, thread, step = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
        lanes = lanes_present()

        # sum over a wavefront
        total = np.float32(0)
        for first in range(thread, x.shape[1], AHEAD * step):
            load(x[row], first, x.shape[1], held)
            for r in range(AHEAD):
                total += held[r]
        total = wave_sum(total, lanes)

        # partial sums of the block
        if step > warp:
            if thread % warp == 0:
                room[thread // warp] = total
            cuda.syncthreads()
            if thread < warp:  # the first wavefront, which is full: there is a second
                waves = (step + warp - 1) // warp
                total = wave_sum(room[thread] if thread < waves else np.float32(0), lanes)
        if thread == 0:
            sums[row] = total

    @cuda.jit
    def compact(x, threshold, out, counter):
        at, lane = cuda.grid(1), cuda.threadIdx.x % warp
        mask = full >> (warp - lanes_present())
        # vote
        # nothing leaves before the vote: behind the end lanes hold what is not kept
        value = x[at] if at < x.size else threshold
        # a ballot of 32 lanes is signed in Numba: the mask takes off what its sign filled in
        votes = cuda.ballot_sync(mask, value > threshold) & mask
        # places by one atomic
        place = 0
        if lane == 0 and votes != 0:
            place = cuda.atomic.add(counter, 0, cuda.popc(votes))
        place = cuda.shfl_sync(mask, place, 0)
        if value > threshold:
            out[place + cuda.popc(votes & ((1 << lane) - 1))] = value

    return Kernels(row_sum, compact)


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
    # check and launch
    check(x, 2, warp, block)
    sums = empty(len(x), like=x) if sums is None else sums
    if sums.shape != (len(x),) or sums.dtype != np.float32:
        found = f"{sums.dtype} of the shape {sums.shape}"
        raise ValueError(f"sums: expected float32 of the shape {(len(x),)}, found {found}")
    if len(x):
        make_kernels(warp).row_sum[len(x), block](x, sums)
    return sums


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
    # check and launch
    check(x, 1, warp, block)
    if math.isnan(threshold):
        raise ValueError("threshold: expected a number, found NaN")
    out = empty(x.size, like=x)
    if x.size == 0:
        return out
    counter = beside(np.zeros(1, np.int32), like=x)
    blocks = -(-x.size // block)
    make_kernels(warp).compact[blocks, block](x, np.float32(threshold), out, counter)
    return out[: int(counter[0])]
