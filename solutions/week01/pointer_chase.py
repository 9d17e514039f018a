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
    at = start
    for _ in range(steps):
        at = nxt[at]
    return at


def one_cycle(n: int, seed: int) -> Slots:
    """
    Draw one of the (n - 1)! cycles through all `n` slots, each as likely as the others.

    Raises:
        ValueError: `n` is below 1.
    """
    # check
    if n < 1:
        raise ValueError(f"n: expected 1 slot or more, found {n}")
    # one random cycle
    # the slots in the order of their visit: any order is one cycle
    order = np.random.default_rng(seed).permutation(n).astype(np.int32)
    nxt = np.empty_like(order)
    nxt[order] = np.roll(order, -1)
    return nxt


RISE = 1.25  # above the first of a group, the next one begins


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
    # check
    if len(ns_per_load) != len(sizes_bytes):
        raise ValueError(
            f"ns_per_load: expected {len(sizes_bytes)} latencies, found {len(ns_per_load)}"
        )
    if any(after <= before for before, after in pairwise(sizes_bytes)):
        raise ValueError(f"sizes_bytes: expected ascending sizes, found {list(sizes_bytes)}")
    # clear disturbances
    undisturbed = np.minimum.accumulate(ns_per_load[::-1])[::-1]
    # group into levels
    groups: list[list[int]] = []
    lowest = -math.inf
    for size, ns in zip(sizes_bytes, undisturbed.tolist(), strict=True):
        if ns > RISE * lowest:
            groups.append([])
            lowest = ns
        groups[-1].append(size)
    # a group of one is a size on the step between two levels
    levels = [group for group in groups if len(group) > 1]
    return [level[-1] for level in levels[:-1]]


def bytes_in_flight(latency_s: float, bandwidth: float) -> float:
    """Bytes that must be on their way at any time to fill `bandwidth`, in bytes per second."""
    return latency_s * bandwidth
