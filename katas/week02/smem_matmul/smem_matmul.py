"""Kata week02/smem_matmul: a tile of each operand in shared memory, used by the whole block.

HBM: each element of a is loaded once for each tile of columns, each of b for each tile of rows.
"""

import numpy as np
from numba import config, cuda

from harness.arrays import Array, empty

# rows and columns of a tile; every thread of a simulated block is run in Python: few of them, then
TILE = 8 if config.ENABLE_CUDASIM else 32
BLOCK = (TILE, TILE)


def tiles(rows: int, cols: int) -> tuple[int, int]:
    """Grid that covers a [rows, cols] matrix with one block a tile: x along a row, y down."""
    return -(-cols // TILE), -(-rows // TILE)


@cuda.jit
def matmul(a, b, c) -> None:
    """
    Write the product of `a` [m, k] and `b` [k, n] to `c` [m, n].

    float32, any strides. Launched with blocks of `BLOCK` threads on the grid `tiles(m, n)`: one
    tile of `c` a block, one element a thread.
    """
    # TODO(kata): load both tiles, wait for the block, multiply the tiles, store (about 15 lines)
    raise NotImplementedError


def smem_matmul(a: Array, b: Array, out: Array | None = None) -> Array:
    """
    Matrix product of two float32 arrays, in the memory where they are.

    It goes into `out` if that is given, which must not overlap `a` or `b`, and into a new
    C-contiguous array otherwise.

    Raises:
        ValueError: `a` or `b` is not 2-D or not float32, their inner sizes differ, or `out` has
            another shape or dtype than the product.
    """
    raise NotImplementedError  # TODO(kata): check, launch (about 15 lines)
