"""Kata week01/pointer_chase: the latency of each memory level, by loads that wait for each other.

One random cycle through all slots, a walk along it, and what the times of such walks tell.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Slots = npt.NDArray[np.int32]  # the index of the next slot, in each slot


def chase(nxt: Slots, start: int, steps: int) -> int:
    """
    Follow `nxt` for `steps` loads from `start`; return the slot it ends in.

    Plain Python, to be compiled by Numba for the CPU and, as a device function, for the GPU.
    """
    raise NotImplementedError  # TODO(kata): follow the chain (about 4 lines)


def one_cycle(n: int, seed: int) -> Slots:
    """
    Draw one of the (n - 1)! cycles through all `n` slots, each as likely as the others.

    Raises:
        ValueError: `n` is below 1.
    """
    raise NotImplementedError  # TODO(kata): check, one random cycle (about 6 lines)


def knees(sizes_bytes: Sequence[int], ns_per_load: Sequence[float]) -> list[int]:
    """
    Find the sizes up to which each level of the memory holds the array; the last one has no end.

    A level is two or more neighbouring sizes within 25 % of each other. A size that took longer
    than a larger one was disturbed, and counts as if it had been as fast.

    Args:
        sizes_bytes: Sizes of the arrays, ascending.
        ns_per_load: The latency measured in each.

    Raises:
        ValueError: the sizes do not ascend, or there are not as many latencies.
    """
    # TODO(kata): check, clear disturbances, group into levels (about 15 lines with helpers)
    raise NotImplementedError


def bytes_in_flight(latency_s: float, bandwidth: float) -> float:
    """Bytes that must be on their way at any time to fill `bandwidth`, in bytes per second."""
    raise NotImplementedError  # TODO(kata): bytes in flight (1 line)
