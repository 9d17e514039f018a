"""Kata week02/cuda_vector_add: maps that are right for any launch shape and read neighbours.

HBM: two arrays are read once, one is written once.
"""

import numpy as np
from numba import cuda

from harness.arrays import Array, empty


def launch_shape(out) -> tuple[int, int]:
    """Blocks and threads per block for a 1-D result: always a launch, often one that must loop."""
    # every thread of a simulated launch is run in Python: few of them, then
    threads, most_blocks = (64, 4) if isinstance(out, np.ndarray) else (256, 65536)
    return max(1, min(-(-out.size // threads), most_blocks)), threads


@cuda.jit
def vector_add(a, b, out) -> None:
    """
    Write a + b to `out`, 1-D arrays of one shape with any strides.

    Right for every 1-D launch, whether it has more threads than elements or fewer.
    """
    raise NotImplementedError  # TODO(kata): stride by the grid (2 lines)


@cuda.jit
def broadcast_add(col, row, out) -> None:
    """
    Write col [M, 1] + row [1, N] to `out` [M, N].

    Right for every 2-D launch, whether either axis has more threads than elements or fewer.
    """
    raise NotImplementedError  # TODO(kata): who begins where, stride by the grid (about 6 lines)


def cuda_vector_add(a: Array, b: Array, out: Array | None = None) -> Array:
    """
    Sum of two 1-D arrays, in their dtype and in the memory where they are.

    The sum goes into `out` if that is given, which may be `a` or `b`, and into a new array
    otherwise. The kernel works on these arrays: nothing is copied on the way.

    Raises:
        ValueError: `a` is not 1-D, or `b` or `out` has another shape or dtype than `a`.
    """
    raise NotImplementedError  # TODO(kata): check, launch (about 10 lines)


def achieved_bandwidth(n: int, itemsize: int, seconds: float) -> float:
    """Bytes per second that adding two vectors of `n` elements in `seconds` moved."""
    raise NotImplementedError  # TODO(kata): (1 line)
