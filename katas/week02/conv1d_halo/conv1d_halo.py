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
    # TODO(kata): load tile and halo, wait for the block, sum in registers, store (about 30 lines)
    raise NotImplementedError


def conv1d_halo(x: Array, w: Array, out: Array | None = None) -> Array:
    """
    Correlation of a float32 signal with 1 to MAX_TAPS weights, in the memory where they are.

    It goes into `out` if that is given, which must not overlap `x` or `w`, and into a new array
    otherwise. With K weights, w[(K - 1) // 2] meets the element that the output stands at.

    Raises:
        ValueError: `x` or `w` is not 1-D or not float32, `w` has no or too many elements, or
            `out` has another shape or dtype than `x`.
    """
    raise NotImplementedError  # TODO(kata): check, launch (about 15 lines)


def window_sum(x: Array, k: int) -> Array:
    """
    Sum of the `k` elements of `x` around each of its elements: pooling, a convolution with ones.

    Raises:
        ValueError: as `conv1d_halo`; `k` is not from 1 to MAX_TAPS.
    """
    raise NotImplementedError  # TODO(kata): (3 lines)
