"""Kata week15/cute_tv_partition: who loads what, as one layout of threads and values.

It maps (thread, value) to a place in the tile; how wide the loads may be follows from it.
"""

from collections.abc import Iterator
from math import gcd

from pycute import (
    Layout,
    coalesce,
    composition,
    flatten,
    logical_product,
    make_layout,
    right_inverse,
    size,
)

WIDEST = 128  # bits that a thread loads at once, at most


def make_layout_tv(thr: Layout, val: Layout) -> tuple[tuple[int, int], Layout]:
    """
    The tile that threads and values cover, and which of its elements each thread has.

    Args:
        thr: (rows, columns) of threads to the thread's number; each number once, from 0.
        val: (rows, columns) of one thread's values to the value's number; each once, from 0.

    Returns:
        (rows, columns) of the tile; and a layout of two modes, thread and value, to the place in
        the tile, row + rows · column.

    Raises:
        ValueError: `thr` or `val` leaves out or repeats a number; the message begins with its
            name.
    """
    # check
    _check_numbering("thr", thr)
    _check_numbering("val", val)
    # product of threads and values
    threads, values = logical_product(thr, val)
    # raked: a thread's values lie next to each other, the threads around them
    raked = make_layout(*(make_layout(values[axis], threads[axis]) for axis in (0, 1)))
    # invert to thread and value
    tv = composition(right_inverse(raked), Layout((size(thr), size(val))))
    return (size(raked[0]), size(raked[1])), tv


def partition(
    tensor: Layout, tiler: tuple[int, int], tv: Layout, tid: int, tile_crd: tuple[int, int]
) -> list[int]:
    """
    The offsets of one thread's values in one tile of a tensor, value 0 first.

    Args:
        tensor: (rows, columns) to the offset of an element.
        tiler: (rows, columns) of a tile.
        tv: (thread, value) to the place in the tile; either mode may have modes of its own.
        tid: The thread.
        tile_crd: (row, column) of the tile, in tiles.

    Raises:
        ValueError: `tensor` is no whole number of tiles, `tid` is no thread of `tv`, `tile_crd` no
            tile of the tensor; the message begins with the name.
    """
    # check
    tiles = _tiles(tensor, tiler)
    if not 0 <= tid < size(tv[0]):
        raise ValueError(f"tid: expected 0 to {size(tv[0]) - 1}, found {tid}")
    if not all(0 <= at < count for at, count in zip(tile_crd, tiles, strict=True)):
        raise ValueError(f"tile_crd: expected one of {tiles} tiles, found {tile_crd}")
    # offsets of a thread
    first_row, first_column = tile_crd[0] * tiler[0], tile_crd[1] * tiler[1]
    offsets = []
    for value in range(size(tv[1])):
        column, row = divmod(tv(tid, value), tiler[0])
        offsets.append(tensor(first_row + row, first_column + column))
    return offsets


def vector_bits(tensor: Layout, tiler: tuple[int, int], tv: Layout, elem_bits: int) -> int:
    """
    The widest loads, in bits, with which every thread can fetch its values in every tile.

    A load of n elements fetches values k·n … k·n + n - 1, which have to lie one after the other at
    an offset that is a multiple of n. Computed from shapes and strides alone.

    Args:
        tensor: (rows, columns) to the offset of an element.
        tiler: (rows, columns) of a tile.
        tv: (thread, value) to the place in the tile; either mode may have modes of its own.
        elem_bits: Of an element.

    Returns:
        A power of two from `elem_bits` to 128.

    Raises:
        ValueError: `tensor` is no whole number of tiles, or `elem_bits` no power of two from 1 to
            128; the message begins with the name.
    """
    # check
    if elem_bits not in (1, 2, 4, 8, 16, 32, 64, 128):
        raise ValueError(f"elem_bits: expected a power of two up to {WIDEST}, found {elem_bits}")
    tiles = _tiles(tensor, tiler)
    # first run of values
    tile = composition(tensor, tiler)
    threads, values = composition(tile, tv)
    (run, step), *others = _modes(coalesce(values))
    if step != 1:
        return elem_bits
    # common divisor of the steps
    others += _modes(threads)
    others += [(tiles[axis], tiler[axis] * tensor.stride[axis]) for axis in (0, 1)]
    # where any step is not a multiple of the load, some load begins between two
    steps = [run, WIDEST // elem_bits]
    steps += [stride for count, stride in others if count > 1]
    return elem_bits * gcd(*steps)


def _check_numbering(name: str, layout: Layout) -> None:
    # check
    reached = 1
    for stride, count in sorted((stride, count) for count, stride in _modes(layout) if count > 1):
        if stride != reached:
            raise ValueError(f"{name}: expected each number from 0 once, found {layout}")
        reached *= count


def _tiles(tensor: Layout, tiler: tuple[int, int]) -> tuple[int, int]:
    """How many tiles the tensor has along rows and columns."""
    (rows, columns), (tile_rows, tile_columns) = tensor.shape, tiler
    if rows % tile_rows or columns % tile_columns:
        raise ValueError(f"tensor: expected a multiple of {tiler}, found {tensor.shape}")
    return rows // tile_rows, columns // tile_columns


def _modes(layout: Layout) -> Iterator[tuple[int, int]]:
    """Pairs (size, stride) of the leaves."""
    return zip(flatten(layout.shape), flatten(layout.stride), strict=True)
