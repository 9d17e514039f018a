"""What is right, place by place: a thread's values are a NumPy slice, loads are tried out."""

import numpy as np

# mma.m16n8, the accumulator: (thread, value) to row + 16 * column, by the PTX ISA: thread t has
# rows t // 4 and t // 4 + 8, columns 2 * (t % 4) and one more
ACCUMULATOR = (((4, 8), (2, 2)), ((32, 1), (16, 8)))


def numbers(shape, stride):
    """The number of each (row, column), as an array."""
    rows, columns = shape
    return np.arange(rows)[:, None] * stride[0] + np.arange(columns) * stride[1]


def places(thr, val):
    """The array [thread, value] of (row, column) in the tile; None is left at -1."""
    of_thread, of_value = numbers(*thr), numbers(*val)
    found = np.full((of_thread.size, of_value.size, 2), -1)
    for (i, j), thread in np.ndenumerate(of_thread):
        for (k, m), value in np.ndenumerate(of_value):
            found[thread, value] = i * val[0][0] + k, j * val[0][1] + m
    return found


def slices(tensor, thr, val, tile):
    """Offsets [thread, value] in a tile: cut into tiles, then into the threads' blocks."""
    (thr_rows, thr_columns), (rows, columns) = thr[0], val[0]
    height, width = thr_rows * rows, thr_columns * columns
    offsets = numbers(*tensor)
    top, left = tile[0] * height, tile[1] * width
    cut = offsets[top : top + height, left : left + width]
    order = np.argsort(numbers(*val), axis=None)
    found = np.empty((thr_rows * thr_columns, rows * columns), dtype=offsets.dtype)
    for (i, j), thread in np.ndenumerate(numbers(*thr)):
        block = cut[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
        found[thread] = block.reshape(-1)[order]
    return found


def widest(offsets, elem_bits):
    """Bits of the widest loads: [..., value] in groups that lie together and begin aligned."""
    values = offsets.shape[-1]
    bits = elem_bits
    while bits < 128 and values % (2 * bits // elem_bits) == 0:
        groups = offsets.reshape(-1, 2 * bits // elem_bits)
        together = np.diff(groups, axis=1) == 1
        if not together.all() or (groups[:, 0] % groups.shape[1]).any():
            break
        bits *= 2
    return bits


def sectors(offsets, elem_bits, load_bits):
    """32-byte sectors of each load of a warp: offsets [lane, value] to one count a load."""
    starts = np.array(offsets)[:, :: load_bits // elem_bits] * elem_bits // 8
    touched = starts[..., None] + np.arange(0, load_bits // 8)
    return [len(np.unique(touched[:, load] // 32)) for load in range(starts.shape[1])]
