"""Kata week13/layernorm_warp_shuffle: mean and variance of a row in one read, merged by shuffles.

HBM: a row is read once, into registers, and written once; gamma and beta come from the cache.
"""

import math

import numpy as np
from numba import cuda

from harness.arrays import Array, empty

WARP = 32
FULL = 0xFFFFFFFF  # a mask that names every lane of a warp
MIN_BLOCK, BLOCK, MAX_BLOCK = WARP, 256, 512  # threads of a block, of 128 registers
WARPS = MAX_BLOCK // WARP  # the most that a block has
PER_THREAD = 16  # elements that a thread holds: a row has at most this many for each thread


@cuda.jit(device=True)
def load(values, n, held):
    """Load the thread's PER_THREAD values, which lie a block apart; none beyond n."""
    thread, step = cuda.threadIdx.x, cuda.blockDim.x
    if thread + (PER_THREAD - 1) * step < n:
        # without a test for each of them the loads are under way together
        for r in range(PER_THREAD):
            held[r] = values[np.uint32(thread + r * step)]
    else:
        for r in range(PER_THREAD):
            if thread + r * step < n:
                held[r] = values[thread + r * step]


@cuda.jit(device=True)
def welford_merge(n_a, mean_a, m2_a, n_b, mean_b, m2_b):
    """
    Count, mean and sum of squared differences from the mean, of two sets together.

    All float32. A set without elements changes nothing, to the bit.
    """
    raise NotImplementedError  # TODO(kata): merge two sets (3 lines)


@cuda.jit
def normalize_rows(x, gamma, beta, eps, y, mean, rstd) -> None:
    """
    Write LayerNorm of each row of `x` to `y`, and the row's mean and 1 / sqrt(variance + eps).

    A block for each row; of MIN_BLOCK to MAX_BLOCK threads, whole warps, PER_THREAD elements each.
    """
    # TODO(kata): moments of a thread, merge a warp, merge the warps, normalize and store (about 50
    # lines with helpers)
    raise NotImplementedError


def prepared(
    x: Array,
    gamma: Array,
    beta: Array,
    eps: float,
    y: Array | None,
    mean: Array | None,
    rstd: Array | None,
    block: int,
) -> tuple[np.float32, Array, Array, Array]:
    """Check what `layernorm_warp_shuffle` was given; return eps in float32, y, mean and rstd."""
    if x.ndim != 2:
        raise ValueError(f"x: expected a 2-D array, found {x.ndim}-D")
    rows, cols = x.shape
    if cols == 0:
        raise ValueError("x: expected at least one column, found none")
    if not MIN_BLOCK <= block <= MAX_BLOCK or block % WARP:
        raise ValueError(f"block: expected a multiple of {WARP} up to {MAX_BLOCK}, found {block}")
    if cols > PER_THREAD * block:
        raise ValueError(f"x: expected at most {PER_THREAD * block} columns, found {cols}")
    if not eps > 0:
        raise ValueError(f"eps: expected a positive number, found {eps}")
    y = empty(x.shape, like=x) if y is None else y
    mean = empty(rows, like=x) if mean is None else mean
    rstd = empty(rows, like=x) if rstd is None else rstd
    for name, array, shape in (
        ("x", x, x.shape),
        ("gamma", gamma, (cols,)),
        ("beta", beta, (cols,)),
        ("y", y, x.shape),
        ("mean", mean, (rows,)),
        ("rstd", rstd, (rows,)),
    ):
        if array.dtype != np.float32:
            raise ValueError(f"{name}: expected float32, found {array.dtype}")
        if array.shape != shape:
            raise ValueError(f"{name}: expected the shape {shape}, found {array.shape}")
    return np.float32(eps), y, mean, rstd


def layernorm_warp_shuffle(
    x: Array,
    gamma: Array,
    beta: Array,
    eps: float,
    y: Array | None = None,
    mean: Array | None = None,
    rstd: Array | None = None,
    block: int = BLOCK,
) -> tuple[Array, Array, Array]:
    """
    LayerNorm of each row: (x - mean) * rstd * gamma + beta, rstd = 1 / sqrt(variance + eps).

    The variance is that of all elements of the row: their squared differences from the mean, summed
    and divided by how many there are.

    Args:
        x: float32, 2-D, at most PER_THREAD * block columns; rows may lie apart in memory.
        gamma: float32, one element for each column.
        beta: Likewise.
        eps: Positive.
        y: float32, the shape of `x`; allocated if not given, as are the next two.
        mean: float32, one element for each row.
        rstd: Likewise.
        block: Threads of a block, which has a row.

    Raises:
        ValueError: An array has another shape or dtype, `x` has no columns or too many, `eps` is
            not positive, or `block` is not a multiple of 32 from MIN_BLOCK to MAX_BLOCK.
    """
    raise NotImplementedError  # TODO(kata): prepare and launch (about 4 lines)
