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
    # check
    for name, value, least in (("b", b, 0), ("m", m, 0), ("s", s, b)):
        if value < least:
            raise ValueError(f"{name}: expected {least} or more, found {value}")
    # XOR bits of the offset
    mask = ((1 << b) - 1) << m
    return lambda offset: offset ^ (offset >> s & mask)


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
    # check
    swizzled = swizzle(b, m, s)
    if elem_bytes not in ELEM_BYTES:
        raise ValueError(f"elem_bytes: expected one of {ELEM_BYTES}, found {elem_bytes}")
    if any(size < TILE or size & (size - 1) for size in tile):
        raise ValueError(f"tile: expected powers of two, {TILE} or more, found {tile}")
    # banks of a column
    # XOR is linear: any column is the first one with its banks renamed, and likewise the rows
    # below. Rows never conflict: their bits only ever get others XORed in from above.
    lanes = min(TILE, 4 * BANKS // elem_bytes)  # that are served at a time
    return len({swizzled(row * tile[1]) * elem_bytes // 4 % BANKS for row in range(lanes)}) == lanes


@cuda.jit
def transpose(x, out) -> None:
    """
    Write the transpose of `x` [rows, cols] to `out` [cols, rows].

    Launched with blocks of `BLOCK` threads on the grid `tiles(rows, cols)`: one tile a block,
    one barrier, and at most TILE // ROWS elements for each thread.
    """
    # rows into the tile
    tile = cuda.shared.array(ELEMENTS, x.dtype)
    rows, cols = x.shape
    lane, warp = cuda.threadIdx.x, cuda.threadIdx.y

    # without a test for each element the four loads are under way together
    whole = (cuda.blockIdx.x + 1) * TILE <= cols and (cuda.blockIdx.y + 1) * TILE <= rows

    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    for step in range(0, TILE, ROWS):
        i = warp + step
        if whole or (top + i < rows and left + lane < cols):
            # Swizzle<5, 0, 5> of the offset TILE * i + lane
            tile[TILE * i + (lane ^ i)] = x[top + i, left + lane]

    # rows of the transpose
    # outside of any guard: a thread beyond the edge here may be inside it below
    cuda.syncthreads()

    # the block's coordinates have changed places, the thread's have not
    for step in range(0, TILE, ROWS):
        i = warp + step
        if whole or (left + i < cols and top + lane < rows):
            out[left + i, top + lane] = tile[TILE * lane + (i ^ lane)]


def cute_swizzle_transpose(x: Array, out: Array | None = None) -> Array:
    """
    Transpose of a float32 matrix, in the memory where it is.

    It goes into `out` if that is given, and into a new C-contiguous array otherwise.

    Raises:
        ValueError: `x` is not 2-D or not float32, or `out` has not the transposed shape; the
            message begins with the argument's name.
    """
    # check
    if x.ndim != 2:
        raise ValueError(f"x: expected a 2-D array, found {x.ndim}-D")
    if x.dtype != "float32":
        raise ValueError(f"x: expected float32, found {x.dtype}")
    # allocate and launch
    rows, cols = x.shape
    if out is None:
        out = empty((cols, rows), like=x)
    elif out.shape != (cols, rows):
        raise ValueError(f"out: expected shape {(cols, rows)}, found {out.shape}")

    if x.size:  # a grid has at least one block
        transpose[tiles(rows, cols), BLOCK](x, out)
    return out
