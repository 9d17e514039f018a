"""Kata week23/eplb_placement: which experts have replicas, and which GPU has which.

Popular experts are copied, and the copies are packed so that all GPUs have about as much to do.
"""

from collections import Counter
from collections.abc import Sequence


def imbalance(phy2log: Sequence[int], load: Sequence[float], n_gpus: int) -> float:
    """Return the load of the busiest GPU over the mean; replicas of an expert share its load."""
    counts = Counter(phy2log)
    slots = len(phy2log) // n_gpus
    loads = [
        sum(load[e] / counts[e] for e in phy2log[at : at + slots])
        for at in range(0, len(phy2log), slots)
    ]
    return max(loads) * n_gpus / sum(loads)


def replicate(load: Sequence[float], n_phys: int) -> list[int]:
    """
    Return the expert of each of `n_phys` replicas: each expert once, then more, one at a time.

    The next replica is of the expert with the largest load per replica; of equal ones that with
    the fewest replicas, then the lowest number.

    Raises:
        ValueError: load is empty or not all at least 0; n_phys is below the number of experts.
    """
    raise NotImplementedError  # TODO(kata): check, copy the busiest (about 15 lines with helpers)


def balanced_pack(load: Sequence[float], n_bins: int) -> list[list[int]]:
    """
    Return the items of each bin, equally many, in the order in which they were put there.

    The largest item goes first (of equal ones that with the lowest number), each to the bin with
    the smallest load that has room (of equal ones the first).

    Raises:
        ValueError: load is empty or not all at least 0; n_bins does not divide the items.
    """
    raise NotImplementedError  # TODO(kata): check, pack by falling load (about 15 lines)


def rebalance(
    load: Sequence[Sequence[float]], n_phys: int, n_groups: int, n_nodes: int, n_gpus: int
) -> tuple[list[list[int]], list[list[list[int]]], list[list[int]]]:
    """
    Place the experts of each layer: `n_phys` replicas, as many on each of `n_gpus`.

    Experts of a group stay on one node if the nodes can share the groups evenly.

    Returns for each layer the expert of each replica, GPU by GPU; the replicas of each expert, in
    ascending order; and how many they are.

    Raises:
        ValueError: load: layers of different lengths, empty or not all at least 0; n_groups does
            not divide the experts; n_gpus is no multiple of n_nodes; n_phys is below the number of
            experts or no multiple of n_gpus.

    Source: DeepSeek-AI, EPLB.
    """
    # TODO(kata): check, groups to nodes, place inside a node, index the replicas (about 35 lines
    # with helpers)
    raise NotImplementedError
