"""What is right: counters of a real GPU, brute force, and a cache kept as a list."""

import numpy as np

# One warp of an H200 reads `size` bytes at lane * stride * size, stride 1 to 33; counters of
# Nsight Compute 2025.3. For 4 bytes the passes are gcd(stride, 32).
MEASURED_PASSES = {
    4: [1, 2, 1, 4, 1, 2, 1, 8, 1, 2, 1, 4, 1, 2, 1, 16, 1,
        2, 1, 4, 1, 2, 1, 8, 1, 2, 1, 4, 1, 2, 1, 32, 1],
    8: [2, 4, 2, 8, 2, 4, 2, 16, 2, 4, 2, 8, 2, 4, 2, 32, 2,
        4, 2, 8, 2, 4, 2, 16, 2, 4, 2, 8, 2, 4, 2, 32, 2],
    16: [4, 8, 4, 16, 4, 8, 4, 32, 4, 8, 4, 16, 4, 8, 4, 32, 4,
         8, 4, 16, 4, 8, 4, 32, 4, 8, 4, 16, 4, 8, 4, 32, 4],
}  # fmt: skip
MEASURED_SECTORS = {
    4: [4, 8, 12, 16, 20, 24, 28] + [32] * 26,
    8: [8, 16, 24] + [32] * 30,
    16: [16] + [32] * 32,
}


def strided(size):
    """The requests behind the measured counters, [33, 32]."""
    return np.arange(1, 34)[:, None] * np.arange(32) * size


def make_inputs(*, requests, device, seed):
    """Random words within 4 KiB; one warp in eight is at the edge and has some lanes off."""
    generator = np.random.default_rng(seed)
    lanes = np.where(np.arange(requests) % 8, 32, generator.integers(0, 33, requests))
    return {
        "addr": 4 * generator.integers(0, 1024, (requests, 32)),
        "size": 4,
        "active": np.arange(32) < lanes[:, None],
    }


def lane_by_lane(*, addr, size, active):
    """The plain loop."""
    counts = np.zeros(len(addr), dtype=np.int64)
    for request in range(len(addr)):
        touched = set()
        for lane in range(32):
            if active[request, lane]:
                touched.add(addr[request, lane] // 32)
        counts[request] = len(touched)
    return counts


def reference(*, addr, size, active):
    """Every byte of every lane."""
    return np.array([len(touched) for touched in pieces(addr, size, active, of=32)])


def pieces(addr, size, active, *, of, lanes=slice(None)):
    """For each request the set of pieces, `of` bytes each, in which its bytes lie."""
    return [
        {(start + byte) // of for start in row[lanes][on[lanes]].tolist() for byte in range(size)}
        for row, on in zip(addr, active, strict=True)
    ]


def passes(addr, size, active):
    """Hand out words until every bank is empty, group after group."""
    counts = np.zeros(len(addr), dtype=np.int64)
    lanes = min(32, 128 // size)
    for start in range(0, 32, lanes):
        wanted = pieces(addr, size, active, of=4, lanes=slice(start, start + lanes))
        for request, words in enumerate(wanted):
            while words:
                counts[request] += 1
                words -= set({word % 32: word for word in words}.values())
    return counts


def replay(addr, size, active, *, lines, line, sector):
    """Hits and misses, with the lines in a list and every sector there is in a set."""
    recent, filled = [], set()
    hits = misses = 0
    for touched in pieces(addr, size, active, of=sector):
        for one in sorted(touched):
            number = one // (line // sector)
            recent = [number, *(other for other in recent if other != number)]
            filled = {other for other in filled if other // (line // sector) in recent[:lines]}
            recent = recent[:lines]
            hits, misses = hits + (one in filled), misses + (one not in filled)
            filled.add(one)
    return hits, misses
