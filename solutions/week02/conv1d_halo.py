"""Kata week02/conv1d_halo: each input loaded once for a block, then used for every tap.

HBM: the signal is read once, except the halos of the blocks, and the result is written once.
"""

import numpy as np
from numba import cuda

from harness.arrays import Array, beside, empty

BLOCK = 64  # threads
PER_THREAD = 8  # outputs of a thread
OUTPUTS = BLOCK * PER_THREAD  # of a block
MAX_TAPS = 33
TILE = OUTPUTS + MAX_TAPS - 1  # inputs that a block needs, at the most


def blocks_for(n: int) -> int:
    """Blocks that cover `n` outputs."""
    return -(-n // OUTPUTS)


@cuda.jit
def conv1d(x, w, out) -> None:
    """
    Write to out[i] the sum over j of x[i + j - (K - 1) // 2] * w[j]; `x` is zero outside.

    float32, 1-D, K = w.size from 1 to MAX_TAPS; `out` is as long as `x`. Launched with blocks of
    `BLOCK` threads on `blocks_for(x.size)`: block b has the outputs from b * OUTPUTS.
    """
    tile = cuda.shared.array(TILE, np.float32)
    weights = cuda.shared.array(MAX_TAPS, np.float32)
    sums = cuda.local.array(PER_THREAD, np.float32)
    thread, n, taps = cuda.threadIdx.x, x.size, w.size
    start = cuda.blockIdx.x * OUTPUTS
    first = start - (taps - 1) // 2  # the element of x in tile[0]
    needed = OUTPUTS + taps - 1

    # load tile and halo
    if thread < taps:
        weights[thread] = w[thread]
    if first >= 0 and first + needed <= n:
        # without a test for each element the loads are under way together
        for at in range(0, OUTPUTS, BLOCK):
            tile[at + thread] = x[first + at + thread]
        if thread < taps - 1:
            tile[OUTPUTS + thread] = x[first + OUTPUTS + thread]
    else:
        for at in range(thread, needed, BLOCK):
            i = first + at
            tile[at] = x[i] if i >= 0 and i < n else np.float32(0)

    # wait for the block
    # outside of any guard: a thread without outputs has loaded inputs of others
    cuda.syncthreads()

    # sum in registers
    for r in range(PER_THREAD):
        sums[r] = 0
    for j in range(taps):
        weight = weights[j]
        for r in range(PER_THREAD):  # BLOCK apart, so that lanes read neighbours
            sums[r] += weight * tile[r * BLOCK + thread + j]
    # store
    for r in range(PER_THREAD):
        i = start + r * BLOCK + thread
        if i < n:
            out[i] = sums[r]


def conv1d_halo(x: Array, w: Array, out: Array | None = None) -> Array:
    """
    Correlation of a float32 signal with 1 to MAX_TAPS weights, in the memory where they are.

    It goes into `out` if that is given, which must not overlap `x` or `w`, and into a new array
    otherwise. With K weights, w[(K - 1) // 2] meets the element that the output stands at.

    Raises:
        ValueError: `x` or `w` is not 1-D or not float32, `w` has no or too many elements, or
            `out` has another shape or dtype than `x`.
    """
    # check
    for name, array in (("x", x), ("w", w)):
        if array.ndim != 1:
            raise ValueError(f"{name}: expected a 1-D array, found {array.ndim}-D")
        if array.dtype != np.float32:
            raise ValueError(f"{name}: expected float32, found {array.dtype}")
    if not 1 <= w.size <= MAX_TAPS:
        raise ValueError(f"w: expected 1 to {MAX_TAPS} elements, found {w.size}")
    if out is None:
        out = empty(x.shape, like=x)
    elif out.shape != x.shape:
        raise ValueError(f"out: expected the shape of x, {x.shape}, found {out.shape}")
    elif out.dtype != x.dtype:
        raise ValueError(f"out: expected the dtype of x, {x.dtype}, found {out.dtype}")

    # launch
    if x.size:  # a grid has at least one block
        conv1d[blocks_for(x.size), BLOCK](x, w, out)
    return out


def window_sum(x: Array, k: int) -> Array:
    """
    Sum of the `k` elements of `x` around each of its elements: pooling, a convolution with ones.

    Raises:
        ValueError: as `conv1d_halo`; `k` is not from 1 to MAX_TAPS.
    """
    if not 1 <= k <= MAX_TAPS:
        raise ValueError(f"k: expected 1 to {MAX_TAPS}, found {k}")
    return conv1d_halo(x, beside(np.ones(k, dtype=np.float32), x))
