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
    a_tile = cuda.shared.array((TILE, TILE), np.float32)
    b_tile = cuda.shared.array((TILE, TILE), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    depth = a.shape[1]
    has_row, has_col = row < a.shape[0], col < b.shape[1]

    total = np.float32(0)
    # load both tiles
    for start in range(0, depth, TILE):
        # lanes run along rows of both; what lies outside adds nothing to any sum
        a_tile[y, x] = a[row, start + x] if has_row and start + x < depth else np.float32(0)
        b_tile[y, x] = b[start + y, col] if has_col and start + y < depth else np.float32(0)
        # wait for the block
        cuda.syncthreads()  # nobody multiplies before all have loaded
        # multiply the tiles
        for k in range(TILE):
            total += a_tile[y, k] * b_tile[k, x]
        # wait for the block
        cuda.syncthreads()  # nobody loads again before all have multiplied

    # store
    if has_row and has_col:
        c[row, col] = total


def smem_matmul(a: Array, b: Array, out: Array | None = None) -> Array:
    """
    Matrix product of two float32 arrays, in the memory where they are.

    It goes into `out` if that is given, which must not overlap `a` or `b`, and into a new
    C-contiguous array otherwise.

    Raises:
        ValueError: `a` or `b` is not 2-D or not float32, their inner sizes differ, or `out` has
            another shape or dtype than the product.
    """
    # check
    for name, matrix in (("a", a), ("b", b)):
        if matrix.ndim != 2:
            raise ValueError(f"{name}: expected a 2-D array, found {matrix.ndim}-D")
        if matrix.dtype != np.float32:
            raise ValueError(f"{name}: expected float32, found {matrix.dtype}")
    (rows, depth), (b_rows, cols) = a.shape, b.shape
    if b_rows != depth:
        raise ValueError(f"b: expected as many rows as a has columns, {depth}, found {b_rows}")
    if out is None:
        out = empty((rows, cols), like=a)
    elif out.shape != (rows, cols):
        raise ValueError(f"out: expected shape {(rows, cols)}, found {out.shape}")
    elif out.dtype != np.float32:
        raise ValueError(f"out: expected dtype float32, found {out.dtype}")

    # launch
    if rows and cols:  # a grid has at least one block
        matmul[tiles(rows, cols), BLOCK](a, b, out)
    return out
