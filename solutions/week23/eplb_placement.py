"""Kata week23/eplb_placement: which experts have replicas, and which GPU has which.

Popular experts are copied, and the copies are packed so that all GPUs have about as much to do.
"""

from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace


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
    # check
    _check(load)
    if n_phys < len(load):
        raise ValueError(f"n_phys: expected at least {len(load)} experts, found {n_phys}.")
    # copy the busiest
    phy2log = [*range(len(load))]
    heap = [(-one, 1, expert) for expert, one in enumerate(load)]
    heapify(heap)
    while len(phy2log) < n_phys:
        _, count, expert = heap[0]
        phy2log.append(expert)
        heapreplace(heap, (-load[expert] / (count + 1), count + 1, expert))
    return phy2log


def balanced_pack(load: Sequence[float], n_bins: int) -> list[list[int]]:
    """
    Return the items of each bin, equally many, in the order in which they were put there.

    The largest item goes first (of equal ones that with the lowest number), each to the bin with
    the smallest load that has room (of equal ones the first).

    Raises:
        ValueError: load is empty or not all at least 0; n_bins does not divide the items.
    """
    # check
    _check(load)
    if n_bins < 1 or len(load) % n_bins:
        raise ValueError(f"n_bins: expected a divisor of {len(load)} items, found {n_bins}.")
    # pack by falling load
    bins: list[list[int]] = [[] for _ in range(n_bins)]
    heap = [(0.0, at) for at in range(n_bins)]
    for item in sorted(range(len(load)), key=load.__getitem__, reverse=True):
        total, at = heap[0]
        bins[at].append(item)
        if len(bins[at]) == len(load) // n_bins:
            heappop(heap)
        else:
            heapreplace(heap, (total + load[item], at))
    return bins


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
    # check
    for layer in load:
        _check(layer)
    if len({len(layer) for layer in load}) != 1:
        raise ValueError(f"load: expected layers of one length, found {[*map(len, load)]}.")
    n_experts = len(load[0])
    if n_groups < 1 or n_experts % n_groups:
        raise ValueError(f"n_groups: expected a divisor of {n_experts}, found {n_groups}.")
    if n_nodes < 1:
        raise ValueError(f"n_nodes: expected at least 1, found {n_nodes}.")
    if n_gpus < 1 or n_gpus % n_nodes:
        raise ValueError(f"n_gpus: expected a multiple of {n_nodes} nodes, found {n_gpus}.")
    if n_phys < n_experts or n_phys % n_gpus:
        raise ValueError(
            f"n_phys: expected a multiple of {n_gpus} GPUs, {n_experts} or more, found {n_phys}."
        )
    # groups to nodes
    if n_groups % n_nodes:
        n_groups = n_nodes = 1
    phy2log = [_place(layer, n_phys, n_groups, n_nodes, n_gpus) for layer in load]
    # index the replicas
    log2phy = [[[] for _ in range(n_experts)] for _ in load]
    for replicas, experts in zip(log2phy, phy2log, strict=True):
        for at, expert in enumerate(experts):
            replicas[expert].append(at)
    return phy2log, log2phy, [[*map(len, replicas)] for replicas in log2phy]


def _place(
    load: Sequence[float], n_phys: int, n_groups: int, n_nodes: int, n_gpus: int
) -> list[int]:
    """Return the expert of each replica of one layer: groups to nodes, copies, copies to GPUs."""
    # groups to nodes
    size = len(load) // n_groups
    groups = [sum(load[at : at + size]) for at in range(0, len(load), size)]
    phy2log = []
    for node in balanced_pack(groups, n_nodes):
        # place inside a node
        experts = [group * size + at for group in node for at in range(size)]
        replicas = [experts[at] for at in replicate([load[e] for e in experts], n_phys // n_nodes)]
        counts = Counter(replicas)
        for gpu in balanced_pack([load[e] / counts[e] for e in replicas], n_gpus // n_nodes):
            phy2log += [replicas[at] for at in gpu]
    return phy2log


def _check(load: Sequence[float]) -> None:
    if not load or not all(one >= 0 for one in load):
        raise ValueError(f"load: expected one or more numbers, all at least 0, found {[*load]}.")
