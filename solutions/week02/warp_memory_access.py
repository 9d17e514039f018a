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


NOTHING = -1  # where an inactive lane has no address


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
    # check
    _check(addr, size, active)
    # distinct values
    _, first = _sorted_distinct(np.where(active, addr // SECTOR, NOTHING))
    return first.sum(axis=1)


def smem_wavefronts(addr: Integers, size: int, active: Flags) -> Integers:
    """
    Count the passes through shared memory that each request takes.

    A pass serves 128 bytes of lanes, and of each bank one word. Arguments and errors are those
    of `sectors`.
    """
    # check
    _check(addr, size, active)
    # words of each group
    words_of_lane = max(1, size // WORD)
    groups = max(1, size * LANES // PASS)
    words = addr[:, :, None] // WORD + np.arange(words_of_lane)
    words = np.where(active[:, :, None], words, NOTHING)
    words = words.reshape(len(addr) * groups, LANES // groups * words_of_lane)
    # distinct values
    words, first = _sorted_distinct(words)
    # busiest bank
    group = np.nonzero(first)[0]
    wanted = np.bincount(group * BANKS + words[first] % BANKS, minlength=len(words) * BANKS)
    passes = wanted.reshape(-1, BANKS).max(axis=1)
    return passes.reshape(len(addr), groups).sum(axis=1)


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
    # check
    _check(addr, size, active)
    if capacity_bytes < line:
        raise ValueError(
            f"capacity_bytes: expected a line of {line} or more, found {capacity_bytes}"
        )
    # oldest line out
    held: OrderedDict[int, set[int]] = OrderedDict()  # line to its sectors, the oldest line first
    hits = misses = 0
    for lanes, on in zip(addr, active, strict=True):
        for wanted in np.unique(lanes[on] // sector).tolist():
            number = wanted * sector // line
            held.setdefault(number, set())
            held.move_to_end(number)
            if len(held) > capacity_bytes // line:
                held.popitem(last=False)
            # hit or miss
            if wanted in held[number]:
                hits += 1
            else:
                misses += 1
                held[number].add(wanted)
    return hits, misses


def _sorted_distinct(values: Integers) -> tuple[Integers, Flags]:
    """Sort each row, and mark the first of each of its values but `NOTHING`."""
    # distinct values
    ordered = np.sort(values)
    first = ordered != NOTHING
    first[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    return ordered, first


def _check(addr: Integers, size: int, active: Flags) -> None:
    # check
    if size not in SIZES:
        raise ValueError(f"size: expected one of {SIZES}, found {size}")
    if addr.ndim != 2 or addr.shape[1] != LANES:
        raise ValueError(f"addr: expected shape (requests, {LANES}), found {addr.shape}")
    if active.shape != addr.shape:
        raise ValueError(f"active: expected the shape of addr, {addr.shape}, found {active.shape}")
    if ((addr & (size - 1) != 0) & active).any():
        raise ValueError(f"addr: expected multiples of the size, {size}, found others")
