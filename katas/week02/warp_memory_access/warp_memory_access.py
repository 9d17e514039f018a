"""Kata week02/warp_memory_access: what one load or store of a warp costs.

Sectors of global memory, passes over the banks of shared memory, hits in a cache of lines.
"""

from collections import OrderedDict

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

LANES = 32
SIZES = (1, 2, 4, 8, 16)  # bytes that one lane can access
SECTOR = 32  # bytes
BANKS, WORD = 32, 4  # of shared memory; a bank delivers one word of this many bytes in a pass
PASS = BANKS * WORD  # bytes of lanes that one pass serves


def sectors(addr: Integers, size: int, active: Flags) -> Integers:
    """
    Count the sectors of global memory that each request touches.

    Args:
        addr: Byte address of each lane, [requests, 32].
        size: Bytes that every lane accesses.
        active: Lanes that take part, [requests, 32].

    Raises:
        ValueError: a size, shape or alignment that no warp can issue; the message names the
            argument.
    """
    raise NotImplementedError  # TODO(kata): check, distinct values (about 20 lines with helpers)


def smem_wavefronts(addr: Integers, size: int, active: Flags) -> Integers:
    """
    Count the passes through shared memory that each request takes.

    A pass serves 128 bytes of lanes, and of each bank one word. Arguments and errors are those
    of `sectors`.
    """
    # TODO(kata): check, distinct values, words of each group, busiest bank (about 10 lines)
    raise NotImplementedError


def cache_replay(
    addr: Integers,
    size: int,
    active: Flags,
    capacity_bytes: int,
    line: int = 128,
    sector: int = SECTOR,
) -> tuple[int, int]:
    """
    Send the requests through an empty cache; return the sectors that hit and those that miss.

    Fully associative, least recently used line out first, sectors filled when asked for.

    Args:
        addr: Byte address of each lane, [requests, 32], in order of time.
        size: Bytes that every lane accesses.
        active: Lanes that take part, [requests, 32].
        capacity_bytes: Of the cache; whole lines count.
        line: Bytes of a line, a multiple of `sector`.
        sector: Bytes of a sector, a multiple of 16.

    Raises:
        ValueError: as for `sectors`, or `capacity_bytes` is less than a line.
    """
    raise NotImplementedError  # TODO(kata): check, oldest line out, hit or miss (about 20 lines)
