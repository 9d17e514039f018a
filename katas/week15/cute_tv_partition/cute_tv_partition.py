"""Kata week15/cute_tv_partition: who loads what, as one layout of threads and values.

It maps (thread, value) to a place in the tile; how wide the loads may be follows from it.
"""

from pycute import Layout

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
    # TODO(kata): check, product of threads and values, invert to thread and value (about 15 lines
    # with helpers)
    raise NotImplementedError


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
    # TODO(kata): check, offsets of a thread (about 15 lines with helpers)
    raise NotImplementedError


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
    # TODO(kata): check, first run of values, common divisor of the steps (about 15 lines)
    raise NotImplementedError
