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
    # stride by the grid
    # the whole grid takes one step at a time, so at each step neighbours read neighbours
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = a[i] + b[i]


@cuda.jit
def broadcast_add(col, row, out) -> None:
    """
    Write col [M, 1] + row [1, N] to `out` [M, N].

    Right for every 2-D launch, whether either axis has more threads than elements or fewer.
    """
    # who begins where
    # x is the axis that varies within a warp, so it must run along a row of out
    first_x, first_y = cuda.grid(2)
    step_x, step_y = cuda.gridsize(2)
    # stride by the grid
    for y in range(first_y, out.shape[0], step_y):
        left = col[y, 0]  # one for the whole row
        for x in range(first_x, out.shape[1], step_x):
            out[y, x] = left + row[0, x]


def cuda_vector_add(a: Array, b: Array, out: Array | None = None) -> Array:
    """
    Sum of two 1-D arrays, in their dtype and in the memory where they are.

    The sum goes into `out` if that is given, which may be `a` or `b`, and into a new array
    otherwise. The kernel works on these arrays: nothing is copied on the way.

    Raises:
        ValueError: `a` is not 1-D, or `b` or `out` has another shape or dtype than `a`.
    """
    # check
    if a.ndim != 1:
        raise ValueError(f"a: expected a 1-D array, found {a.ndim}-D")
    if out is None:
        out = empty(a.shape, like=a)
    for name, other in (("b", b), ("out", out)):
        if other.shape != a.shape:
            raise ValueError(f"{name}: expected the shape of a, {a.shape}, found {other.shape}")
        if other.dtype != a.dtype:
            raise ValueError(f"{name}: expected the dtype of a, {a.dtype}, found {other.dtype}")

    # launch
    vector_add[launch_shape(out)](a, b, out)
    return out


def achieved_bandwidth(n: int, itemsize: int, seconds: float) -> float:
    """Bytes per second that adding two vectors of `n` elements in `seconds` moved."""
    return 3 * n * itemsize / seconds
