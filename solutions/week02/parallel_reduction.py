"""Kata week02/parallel_reduction: a sum as a tree, in three rungs of Harris's ladder.

HBM: each element is read once; what the blocks leave is next to nothing.
"""

import numpy as np
from numba import cuda

from harness.arrays import Array, empty

WARP = 32
FULL = 0xFFFFFFFF  # a mask that names every lane of a warp
MIN_BLOCK, BLOCK, MAX_BLOCK = WARP, 256, 1024  # threads: the fewest, the usual number, the most
PER_THREAD = 8  # elements of each thread of the first pass, in as many blocks as that takes
MAX_BLOCKS = 4096  # of the first pass: beyond that, threads sum more elements


@cuda.jit
def block_sum_interleaved(x, partial) -> None:
    """
    Write the sum of each block's blockDim.x elements of `x` to `partial`: the first rung.

    Neighbours add first, so the active threads lie ever further apart.
    """
    sums = cuda.shared.array(MAX_BLOCK, np.float32)
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    sums[thread] = x[i] if i < x.size else np.float32(0)
    apart = 1
    while apart < cuda.blockDim.x:
        cuda.syncthreads()
        if thread % (2 * apart) == 0:
            sums[thread] += sums[thread + apart]
        apart *= 2
    if thread == 0:
        partial[cuda.blockIdx.x] = sums[0]


@cuda.jit
def block_sum_sequential(x, partial) -> None:
    """
    Write the sum of the 2 * blockDim.x elements of `x` that belong to each block to `partial`.

    float32, in shared memory. Launched with a power of two of threads, MIN_BLOCK to MAX_BLOCK, on
    a grid that covers `x`; block b has the elements from 2 * b * blockDim.x, and partial[b].
    """
    sums = cuda.shared.array(MAX_BLOCK, np.float32)
    thread = cuda.threadIdx.x
    i = 2 * cuda.blockIdx.x * cuda.blockDim.x + thread

    # add while loading
    # half of the threads would have nothing to do but load: let each add its first pair
    total = np.float32(0)
    if i < x.size:
        total = x[i]
    if i + cuda.blockDim.x < x.size:
        total += x[i + cuda.blockDim.x]
    sums[thread] = total

    # halve the threads
    # the threads at work are neighbours: whole warps retire, and lanes read neighbouring banks
    half = cuda.blockDim.x // 2
    while half > 0:
        cuda.syncthreads()
        if thread < half:
            total += sums[thread + half]
            sums[thread] = total
        half //= 2
    if thread == 0:
        partial[cuda.blockIdx.x] = total


@cuda.jit(device=True)
def warp_sum(value):
    """Sum of `value` over the 32 lanes of a warp; lane 0 has it, the others have less."""
    # shuffle
    for apart in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(FULL, value, apart)
    return value


@cuda.jit
def block_sum_warp(x, partial) -> None:
    """
    Write to partial[b] what the threads of block b sum: together the blocks sum all of `x`.

    float32. Launched with a power of two of threads, MIN_BLOCK to MAX_BLOCK, on any 1-D grid.
    Lanes exchange registers; one barrier, and one element of shared memory for each warp.
    """
    warp_sums = cuda.shared.array(WARP, np.float32)
    lane, warp = cuda.threadIdx.x % WARP, cuda.threadIdx.x // WARP
    i, step = cuda.grid(1), cuda.gridsize(1)

    # sum in registers
    # four sums at a time, so that four loads are under way and no addition waits for another
    first = second = third = fourth = np.float32(0)
    while i + 3 * step < x.size:
        first += x[i]
        second += x[i + step]
        third += x[i + 2 * step]
        fourth += x[i + 3 * step]
        i += 4 * step
    while i < x.size:
        first += x[i]
        i += step

    # shuffle
    total = warp_sum((first + second) + (third + fourth))
    if lane == 0:
        warp_sums[warp] = total
    cuda.syncthreads()
    if warp == 0:  # the whole of it: every lane takes part in a shuffle
        warps = cuda.blockDim.x // WARP
        total = warp_sum(warp_sums[lane] if lane < warps else np.float32(0))
        if lane == 0:
            partial[cuda.blockIdx.x] = total


def parallel_reduction(
    x: Array, block: int = BLOCK, out: Array | None = None, partial: Array | None = None
) -> Array:
    """
    Sum of a 1-D float32 array, as an array of one element in the memory where `x` is.

    The same input gives the same bits each time. The blocks' sums go into `partial` and their sum
    into `out`; with both given nothing is allocated.

    Args:
        x: The elements; there may be none.
        block: Threads of a block.
        out: At least 1 element; the first is returned.
        partial: At least MAX_BLOCKS elements.

    Raises:
        ValueError: `x` is not 1-D or not float32, `block` is not a power of two from MIN_BLOCK to
            MAX_BLOCK, or `out` or `partial` is too small.
    """
    # check
    if x.ndim != 1:
        raise ValueError(f"x: expected a 1-D array, found {x.ndim}-D")
    if x.dtype != np.float32:
        raise ValueError(f"x: expected float32, found {x.dtype}")
    if not MIN_BLOCK <= block <= MAX_BLOCK or block & (block - 1):
        raise ValueError(
            f"block: expected a power of two from {MIN_BLOCK} to {MAX_BLOCK}, found {block}"
        )
    out = empty(1, like=x) if out is None else out
    partial = empty(MAX_BLOCKS, like=x) if partial is None else partial
    for name, array, least in (("out", out, 1), ("partial", partial, MAX_BLOCKS)):
        if array.size < least:
            raise ValueError(f"{name}: expected at least {least} elements, found {array.size}")

    # launch twice
    blocks = max(1, min(-(-x.size // (block * PER_THREAD)), MAX_BLOCKS))
    block_sum_warp[blocks, block](x, partial)
    block_sum_warp[1, block](partial[:blocks], out)
    return out[:1]
