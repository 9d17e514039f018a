"""
What the memory requests of a warp cost: 32-byte sectors of global, wavefronts of shared memory.

One row is one request, one column a lane. The laws give the counters of an H200 for every
pattern they were tried on: strides 1 to 33, shifts, broadcasts, permutations, exchanges and random
words, of 4, 8 and 16 bytes.
"""

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

SECTOR_BYTES = 32
BANKS = 32
BANK_BYTES = 4
WAVEFRONT_BYTES = BANKS * BANK_BYTES
NOTHING = -1  # where an inactive lane has no address


def sectors(offsets: Integers, active: Flags, size: int) -> Integers:
    """
    Count the sectors each request touches.

    Args:
        offsets: Byte offsets from an aligned base, [requests, lanes].
        active: Lanes that take part, [requests, lanes].
        size: Bytes each lane accesses, at most a sector.
    """
    ends = np.concatenate([offsets, offsets + size - 1], axis=1) // SECTOR_BYTES
    _, first = _sorted_distinct(np.where(np.tile(active, 2), ends, NOTHING))
    return _sum(first)


def wavefronts(offsets: Integers, active: Flags, size: int, *, store: bool) -> Integers:
    """
    Count the passes through shared memory each request takes.

    A pass serves 128 bytes of lanes: a warp of 4-byte accesses, half a warp of 8-byte and a
    quarter of 16-byte ones. It is repeated while two of its words share a bank; lanes that read
    one word share it. A wide load serves two neighbouring groups in one pass when all their
    lanes repeat the address of a neighbour (lane ^ 1, or lane ^ 2): a broadcast does.

    Args:
        offsets: Byte offsets in the allocation, [requests, lanes].
        active: Lanes that take part, [requests, lanes].
        size: Bytes each lane accesses, 1 to 16.
        store: Whether it is a store; stores are never joined.
    """
    lanes = min(BANKS, WAVEFRONT_BYTES // size)
    apart = _bank_conflicts(offsets, active, size, lanes)
    if size <= BANK_BYTES or store:
        return _sum(apart)
    joined = _bank_conflicts(offsets, active, size, 2 * lanes)
    repeats = _repeats_neighbour(offsets, active, 2 * lanes)
    return _sum(np.where(repeats, joined, apart[:, ::2] + apart[:, 1::2]))


def _bank_conflicts(offsets: Integers, active: Flags, size: int, lanes: int) -> Integers:
    """The most distinct words any bank must serve, by [request, group of `lanes`]."""
    words = offsets[:, :, None] // BANK_BYTES + np.arange(max(1, size // BANK_BYTES))
    words = np.where(active[:, :, None], words, NOTHING)
    words, first = _sorted_distinct(words.reshape(-1, lanes * words.shape[2]))
    load = np.zeros((len(words), BANKS), dtype=np.int64)
    np.add.at(load, (np.nonzero(first)[0], words[first] % BANKS), 1)
    most: Integers = load.max(axis=1)
    return most.reshape(len(offsets), -1)


def _sorted_distinct(values: Integers) -> tuple[Integers, Flags]:
    """Sort each row, and mark the first of each of its values but `NOTHING`."""
    ordered = np.sort(values, axis=1)
    first = ordered != NOTHING
    first[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    return ordered, first


def _repeats_neighbour(offsets: Integers, active: Flags, lanes: int) -> Flags:
    """Whether, in each group of `lanes`, every active lane repeats one and the same neighbour."""
    groups = np.zeros((len(offsets), offsets.shape[1] // lanes), dtype=np.bool_)
    for step in (1, 2):
        neighbour = np.arange(offsets.shape[1]) ^ step
        same = (offsets == offsets[:, neighbour]) | ~active | ~active[:, neighbour]
        groups |= same.reshape(*groups.shape, lanes).all(axis=2)
    return groups


def _sum(each: Integers | Flags) -> Integers:
    total: Integers = each.sum(axis=1)
    return total
