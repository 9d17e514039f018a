"""The algorithms, executed line by line on memory that counts, and tiles by trying all of them."""

import numpy as np

STATISTICS = ("l", "m", "lse")
STATISTIC_BYTES = 4


class Memory:
    """Device memory: matrices and statistics by name, read and written by ranges of rows."""

    def __init__(self, itemsize, **arrays):
        self.arrays = arrays
        self.itemsize = itemsize
        self.bytes = 0

    def load(self, name, rows=slice(None)):
        part = self.arrays[name][rows]
        self._count(name, part)
        return part.copy()

    def store(self, name, value, rows=slice(None)):
        self.arrays[name][rows] = value
        self._count(name, self.arrays[name][rows])

    def _count(self, name, part):
        self.bytes += part.size * (STATISTIC_BYTES if name in STATISTICS else self.itemsize)


def standard(memory, n):
    """FlashAttention, algorithm 0."""
    memory.store("scores", memory.load("q") @ memory.load("k").T)
    scores = memory.load("scores")
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    memory.store("p", p / p.sum(axis=1, keepdims=True))
    memory.store("o", memory.load("p") @ memory.load("v"))


def flash1(memory, n, br, bc):
    """FlashAttention, algorithm 1."""
    memory.store("o", 0.0)
    memory.store("l", 0.0)
    memory.store("m", -np.inf)
    for keys in tiles(n, bc):
        k, v = memory.load("k", keys), memory.load("v", keys)
        for rows in tiles(n, br):
            q, o, l_i, m_i = (memory.load(name, rows) for name in ("q", "o", "l", "m"))
            scores = q @ k.T
            m_tile = scores.max(axis=1)
            p = np.exp(scores - m_tile[:, None])
            m_new = np.maximum(m_i, m_tile)
            old, new = np.exp(m_i - m_new), np.exp(m_tile - m_new)
            l_new = old * l_i + new * p.sum(axis=1)
            o = ((l_i * old)[:, None] * o + new[:, None] * (p @ v)) / l_new[:, None]
            memory.store("o", o, rows)
            memory.store("l", l_new, rows)
            memory.store("m", m_new, rows)


def flash2(memory, n, br, bc):
    """FlashAttention-2, algorithm 1."""
    for rows in tiles(n, br):
        q = memory.load("q", rows)
        acc, total, largest = np.zeros_like(q), np.zeros(len(q)), np.full(len(q), -np.inf)
        for keys in tiles(n, bc):
            k, v = memory.load("k", keys), memory.load("v", keys)
            scores = q @ k.T
            new = np.maximum(largest, scores.max(axis=1))
            p, shrink = np.exp(scores - new[:, None]), np.exp(largest - new)
            total = shrink * total + p.sum(axis=1)
            acc = shrink[:, None] * acc + p @ v
            largest = new
        memory.store("o", acc / total[:, None], rows)
        memory.store("lse", largest + np.log(total), rows)


def tiles(n, size):
    """Ranges of rows; the last one may be short."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def traffic(algorithm, n, d, itemsize, *sizes):
    """Bytes that an algorithm moves, once its answer has been found right."""
    q, k, v = np.random.default_rng(0).normal(size=(3, n, d))
    memory = Memory(
        itemsize, q=q, k=k, v=v, o=np.empty((n, d)), scores=np.empty((n, n)), p=np.empty((n, n)),
        l=np.empty(n), m=np.empty(n), lse=np.empty(n),
    )  # fmt: skip
    algorithm(memory, n, *sizes)
    weights = np.exp(q @ k.T)
    right = weights @ v / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(memory.arrays["o"], right, rtol=1e-9, atol=1e-9)
    return memory.bytes


def best_tiles(n, d, itemsize, sram_bytes, stages):
    """Every pair of multiples of 16 that fits: fewest passes, then largest bc, then smallest br."""
    whole = -(-n // 16) * 16
    fitting = [
        (br, bc)
        for br in range(16, whole + 1, 16)
        for bc in range(16, whole + 1, 16)
        if (br + 2 * stages * bc) * d * itemsize <= sram_bytes
    ]
    return min(fitting, key=lambda tile: (-(-n // tile[0]), -tile[1], tile[0]))
