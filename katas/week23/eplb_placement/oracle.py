"""What is right: the rules in exact fractions, by looking at everything, and the best by trying."""

import random
from fractions import Fraction
from itertools import combinations

# EPLB's README: 2 layers of 12 experts, 16 replicas, 4 groups, 2 nodes, 8 GPUs
PUBLISHED_LOAD = (
    (90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86),
    (20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27),
)
PUBLISHED = [
    [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
    [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
]


def zipf(n, exponent, seed):
    """Loads of 1 / rank ** exponent, dealt out at random."""
    loads = [1 / (rank + 1) ** exponent for rank in range(n)]
    random.Random(seed).shuffle(loads)
    return loads


def replicate(load, n_phys):
    """Look at all experts for each further replica."""
    counts = [1] * len(load)
    replicas = [*range(len(load))]
    for _ in range(n_phys - len(load)):
        turn = min(range(len(load)), key=lambda e: (-Fraction(load[e]) / counts[e], counts[e], e))
        counts[turn] += 1
        replicas.append(turn)
    return replicas


def least_maximum(load, n_phys):
    """Load per replica of the worst expert, when the replicas are shared out in the best way."""
    if len(load) == 1:
        return Fraction(load[0]) / n_phys
    return min(
        max(Fraction(load[0]) / own, least_maximum(load[1:], n_phys - own))
        for own in range(1, n_phys - len(load) + 2)
    )


def pack(load, n_bins):
    """Look at all bins for each item."""
    exact = [Fraction(one) for one in load]
    bins = [[] for _ in range(n_bins)]
    for item in sorted(range(len(load)), key=lambda item: (-exact[item], item)):
        room = [at for at in range(n_bins) if len(bins[at]) < len(load) // n_bins]
        bins[min(room, key=lambda at: (sum(exact[i] for i in bins[at]), at))].append(item)
    return bins


def least_largest_bin(load, n_bins):
    """Load of the largest bin in the best packing of equally many items each."""
    items = [*enumerate(load)]
    if n_bins == 1:
        return sum(load)
    first, rest = items[0], items[1:]
    best = None
    for others in combinations(rest, len(load) // n_bins - 1):
        left = [one for at, one in rest if (at, one) not in others]
        own = first[1] + sum(one for _, one in others)
        largest = max(own, least_largest_bin(left, n_bins - 1))
        best = largest if best is None else min(best, largest)
    return best


def place(load, n_phys, n_groups, n_nodes, n_gpus):
    """One layer: the rules one after the other, for integer loads."""
    if n_groups % n_nodes:
        n_groups, n_nodes = 1, 1
    size = len(load) // n_groups
    groups = [range(g * size, (g + 1) * size) for g in range(n_groups)]
    placed = []
    for node in pack([sum(load[e] for e in group) for group in groups], n_nodes):
        experts = [e for g in node for e in groups[g]]
        copies = [experts[at] for at in replicate([load[e] for e in experts], n_phys // n_nodes)]
        shares = [Fraction(load[e], copies.count(e)) for e in copies]
        placed += [copies[at] for gpu in pack(shares, n_gpus // n_nodes) for at in gpu]
    return placed
