"""Kata week15/cute_swizzle_transpose: a tile in shared memory without conflicts or padding."""

from collections.abc import Callable

from numba import cuda

from harness.arrays import Array, empty

TILE = 32  # rows and columns that one block transposes
ELEMENTS = 1024  # of the tile; the GPU's compiler wants a plain number
ROWS = 8  # rows of threads in a block: each thread moves TILE // ROWS elements
BLOCK = (TILE, ROWS)

BANKS = 32  # of shared memory, 4 bytes wide
ELEM_BYTES = (1, 2, 4, 8, 16)


def tiles(rows: int, cols: int) -> tuple[int, int]:
    """Grid that covers a [rows, cols] matrix with one block a tile: x along a row, y down."""
    return -(-cols // TILE), -(-rows // TILE)


def swizzle(b: int, m: int, s: int) -> Callable[[int], int]:
    """
    CuTe's Swizzle<b, m, s>: XORs `b` bits of an offset, those from m + s on, into those from m on.

    Raises:
        ValueError: `b` or `m` is below 0, or `s` below `b`; the message begins with its name.

    Source: CUTLASS, include/cute/swizzle.hpp.
    """
    raise NotImplementedError  # TODO(kata): check, XOR bits of the offset (about 5 lines)


def conflict_free(b: int, m: int, s: int, elem_bytes: int, tile: tuple[int, int]) -> bool:
    """
    Whether warps that write rows and read columns of a swizzled tile meet no bank conflict.

    Args:
        b: Of the swizzle, like `m` and `s`.
        m: See `b`.
        s: See `b`.
        elem_bytes: Bytes of an element, which each lane accesses as one.
        tile: Rows and columns, row-major below the swizzle; powers of two, 32 or more.

    Raises:
        ValueError: what `swizzle` refuses, another size of elements or of the tile; the message
            begins with the argument's name.
    """
    raise NotImplementedError  # TODO(kata): check, banks of a column (about 7 lines)


@cuda.jit
def transpose(x, out) -> None:
    """
    Write the transpose of `x` [rows, cols] to `out` [cols, rows].

    Launched with blocks of `BLOCK` threads on the grid `tiles(rows, cols)`: one tile a block,
    one barrier, and at most TILE // ROWS elements for each thread.
    """
    # TODO(kata): rows into the tile, rows of the transpose (about 15 lines)
    raise NotImplementedError


def cute_swizzle_transpose(x: Array, out: Array | None = None) -> Array:
    """
    Transpose of a float32 matrix, in the memory where it is.

    It goes into `out` if that is given, and into a new C-contiguous array otherwise.

    Raises:
        ValueError: `x` is not 2-D or not float32, or `out` has not the transposed shape; the
            message begins with the argument's name.
    """
    raise NotImplementedError  # TODO(kata): check, allocate and launch (about 10 lines)
