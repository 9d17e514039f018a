"""What is right: threads numbered one by one, and blocks handed out one by one."""

import heapq
from itertools import product


def lanes(block, warp_size):
    """Number the threads of a block as the hardware does: thread index to (warp, lane)."""
    indices = product(*(range(size) for size in reversed(block)))
    return {
        tuple(reversed(index)): (at // warp_size, at % warp_size)
        for at, index in enumerate(indices)
    }


def tiles_of(m, n, tile):
    """Upper left corners of the tiles that cover the matrix."""
    return [(row, col) for row in range(0, m, tile[0]) for col in range(0, n, tile[1])]


def makespan(blocks, slots, block_time):
    """Give each block to the slot that is free first; when is the last one done?"""
    free_at = [0] * slots
    for _ in range(blocks):
        heapq.heapreplace(free_at, free_at[0] + block_time)
    return max(free_at)
