"""Kata week02/transpose_tiled: both sides coalesced, by way of a tile in shared memory.

HBM: the matrix is read once and written once; nothing is computed.
"""

from numba import cuda

from harness.arrays import Array, empty

TILE = 32  # rows and columns that one block transposes
ROWS = 8  # rows of threads in a block: each thread moves TILE // ROWS elements
BLOCK = (TILE, ROWS)


def tiles(rows: int, cols: int) -> tuple[int, int]:
    """Grid that covers a [rows, cols] matrix with one block a tile: x along a row, y down."""
    return -(-cols // TILE), -(-rows // TILE)


def overlap(a: Array, b: Array) -> bool:
    """Whether the address ranges of two arrays have a byte in common; strides are positive."""
    first, second = _addresses(a), _addresses(b)
    return max(first.start, second.start) < min(first.stop, second.stop)


def _addresses(x) -> range:
    """From the first byte of `x` to past its last."""
    interface = getattr(x, "__cuda_array_interface__", None) or x.__array_interface__
    start = interface["data"][0]
    last = sum((size - 1) * step for size, step in zip(x.shape, x.strides, strict=True))
    return range(start, start + (last + x.dtype.itemsize if x.size else 0))


@cuda.jit
def transpose(a, out) -> None:
    """
    Write the transpose of `a` [rows, cols] to `out` [cols, rows].

    Launched with blocks of `BLOCK` threads on the grid `tiles(rows, cols)`: one tile a block,
    one barrier, and at most TILE // ROWS elements for each thread.
    """
    # TODO(kata): lay out the tile, rows into the tile, wait for the block, rows of the result
    # (about 15 lines with helpers)
    raise NotImplementedError


def transpose_tiled(a: Array, out: Array | None = None) -> Array:
    """
    Transpose of a 2-D array, in its dtype and in the memory where it is.

    It goes into `out` if that is given, and into a new C-contiguous array otherwise.

    Raises:
        ValueError: `a` is not 2-D, or `out` does not have the transposed shape, has another
            dtype or shares memory with `a`.
    """
    raise NotImplementedError  # TODO(kata): check, launch (about 15 lines)
