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


PITCH = TILE + 1  # of the tile's rows: odd, so that a column lies in 32 different banks


@cuda.jit
def transpose(a, out) -> None:
    """
    Write the transpose of `a` [rows, cols] to `out` [cols, rows].

    Launched with blocks of `BLOCK` threads on the grid `tiles(rows, cols)`: one tile a block,
    one barrier, and at most TILE // ROWS elements for each thread.
    """
    # lay out the tile
    tile = cuda.shared.array((TILE, PITCH), a.dtype)
    rows, cols = a.shape
    lane, warp = cuda.threadIdx.x, cuda.threadIdx.y

    # rows into the tile
    # without a test for each element the four loads are under way together
    whole = (cuda.blockIdx.x + 1) * TILE <= cols and (cuda.blockIdx.y + 1) * TILE <= rows

    # lanes run along a row of a, and along a row of the tile
    row = cuda.blockIdx.y * TILE + warp
    col = cuda.blockIdx.x * TILE + lane
    for step in range(0, TILE, ROWS):
        if whole or (row + step < rows and col < cols):
            tile[warp + step, lane] = a[row + step, col]

    # wait for the block
    # outside of any guard: a thread beyond the edge here may be inside it below
    cuda.syncthreads()

    # rows of the result
    # lanes run along a row of out, and down a column of the tile: the block's coordinates have
    # changed places, the thread's have not
    row = cuda.blockIdx.x * TILE + warp
    col = cuda.blockIdx.y * TILE + lane
    for step in range(0, TILE, ROWS):
        if whole or (row + step < cols and col < rows):
            out[row + step, col] = tile[lane, warp + step]


def transpose_tiled(a: Array, out: Array | None = None) -> Array:
    """
    Transpose of a 2-D array, in its dtype and in the memory where it is.

    It goes into `out` if that is given, and into a new C-contiguous array otherwise.

    Raises:
        ValueError: `a` is not 2-D, or `out` does not have the transposed shape, has another
            dtype or shares memory with `a`.
    """
    # check
    if a.ndim != 2:
        raise ValueError(f"a: expected a 2-D array, found {a.ndim}-D")
    rows, cols = a.shape
    if out is None:
        out = empty((cols, rows), like=a)
    elif out.shape != (cols, rows):
        raise ValueError(f"out: expected shape {(cols, rows)}, found {out.shape}")
    elif out.dtype != a.dtype:
        raise ValueError(f"out: expected the dtype of a, {a.dtype}, found {out.dtype}")
    elif overlap(a, out):
        raise ValueError("out: expected memory of its own, found that it overlaps a")

    # launch
    if a.size:  # a grid has at least one block
        transpose[tiles(rows, cols), BLOCK](a, out)
    return out
