"""What is right: masks looked at score by score, all ways of sharing out, and a lower bound."""

import math
from itertools import product


def kv_blocks(i, Sq, Sk, Br, Bc, causal):
    """Tiles of keys of which some key is seen by some query of tile `i`: looks at each score."""
    return sum(
        any(
            not causal or k <= q + Sk - Sq
            for q in range(i * Br, min((i + 1) * Br, Sq))
            for k in range(start, min(start + Bc, Sk))
        )
        for start in range(0, Sk, Bc)
    )


def causal_work(B, H, Sq, Sk, Br, Bc):
    """Tiles of keys of every tile of queries: those that begin where its last query still sees."""
    last_seen = [min(start + Br, Sq) - 1 + Sk - Sq for start in range(0, Sq, Br)]
    return B * H * [sum(start <= last for start in range(0, Sk, Bc)) for last in last_seen]


def makespan(slots):
    """When the last slot is done; each computes its tiles one after the other."""
    return max(sum(tile.kv_blocks for tile in slot) for slot in slots)


def best_makespan(work, n_slots):
    """Try every way of sharing out."""
    return min(
        max(
            sum(one for one, at in zip(work, places, strict=True) if at == slot)
            for slot in range(n_slots)
        )
        for places in product(range(n_slots), repeat=len(work))
    )


def least_makespan(work, n_slots):
    """
    A time that no way of sharing out can beat.

    All slots busy to the end; the longest tile; and of the k·n + 1 longest tiles some slot gets
    k + 1, at best the shortest of them.
    """
    work = sorted(work, reverse=True)
    last = (len(work) - 1) // n_slots
    crowded = (sum(work[k * n_slots - k : k * n_slots + 1]) for k in range(1, last + 1))
    return max(math.ceil(sum(work) / n_slots), work[0], *crowded)
