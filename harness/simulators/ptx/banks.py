"""What an access to shared memory costs in wavefronts."""

from typing import NamedTuple

import numpy as np

from harness.simulators.ptx.formats import Array, i64

BANKS, WORD_BYTES = 32, 4


class Cost(NamedTuple):
    """Requests of warps, the wavefronts they take, and as many as they took without conflicts."""

    requests: int
    wavefronts: int
    ideal: int


def wavefronts(threads: Array, offsets: Array, size: int, lanes: int | None = None) -> Cost:
    """
    The cost of accesses of `size` bytes: a wavefront moves a word from each bank.

    An access of 8 bytes is made by half a warp at a time, one of 16 by a quarter: 128 bytes.

    Args:
        threads: Who asks.
        offsets: Bytes into shared memory.
        size: Bytes for each.
        lanes: Threads at a time, where that is another number.
    """
    together = lanes or min(32, 128 // max(size, WORD_BYTES))
    phase = threads.astype(i64) // together
    words = offsets[:, None] // WORD_BYTES + np.arange(max(1, size // WORD_BYTES))
    keys = np.unique(((phase[:, None] << 24) | words).ravel())  # lanes share a word for nothing
    number = np.cumsum(np.r_[0, (keys[1:] >> 24) != (keys[:-1] >> 24)])
    counts = np.bincount(number * BANKS + (keys & 31), minlength=(number[-1] + 1) * BANKS)
    by_bank = counts.reshape(-1, BANKS)
    return Cost(len(np.unique(threads >> 5)), int(by_bank.max(1).sum()), len(by_bank))
