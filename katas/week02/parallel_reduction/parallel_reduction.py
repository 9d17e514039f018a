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
    raise NotImplementedError  # TODO(kata): add while loading, halve the threads (about 20 lines)


@cuda.jit
def block_sum_warp(x, partial) -> None:
    """
    Write to partial[b] what the threads of block b sum: together the blocks sum all of `x`.

    float32. Launched with a power of two of threads, MIN_BLOCK to MAX_BLOCK, on any 1-D grid.
    Lanes exchange registers; one barrier, and one element of shared memory for each warp.
    """
    raise NotImplementedError  # TODO(kata): sum in registers, shuffle (about 25 lines with helpers)


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
    raise NotImplementedError  # TODO(kata): check, launch twice (about 15 lines)
