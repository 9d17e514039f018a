"""Kata week04/flash_attn_tiling: attention a tile at a time, inside a small on-chip memory.

Slow memory: Q is read once, K and V once for each tile of queries, O and L are written once.
"""

from typing import Any, Protocol

import numpy as np

# A tile is used like a NumPy array: operators, ufuncs such as np.exp, np.where, indices, .T,
# .shape, .max(axis, keepdims), .sum(axis, keepdims). What is computed from a tile is a tile.
Tile = Any
Index = tuple[int, int, slice]  # batch, head, rows


class Hbm(Protocol):
    """Slow memory: Q, O [b, h, q, d], K, V [b, h, k, d] and L [b, h, q]; see oracle.py."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a whole array."""

    def load(self, name: str, index: Index) -> Tile:
        """Copy rows into a new tile; a slice may reach past the end, as in NumPy."""

    def store(self, name: str, index: Index, tile: Tile) -> None:
        """Write a tile, or an array, to rows that have its shape."""


def flash_attn_tiling(
    hbm: Hbm, Br: int, Bc: int, causal: bool = False, sm_scale: float | None = None
) -> None:
    """
    Write O = softmax(Q Kᵀ sm_scale) V, and L, the natural logarithm of the softmax's denominator.

    Causal masks are aligned bottom right: query i sees keys up to i + k - q. A query that sees no
    key gets O = 0 and L = -inf. All numbers are float64.

    Args:
        hbm: The machine.
        Br: Queries in a tile; the last tile may have fewer.
        Bc: Keys in a tile, likewise.
        causal: Hide later keys. Tiles that no query of a tile sees are not loaded.
        sm_scale: Factor of the scores; default 1 / sqrt(d).

    Raises:
        ValueError: `Br` or `Bc` is below 1, K differs from Q in batch, heads or d, or V from K in
            its shape; the message names which.

    Source: Dao 2023 (FlashAttention-2), algorithm 1.
    """
    # check
    _check(hbm, Br, Bc)
    batch, heads, queries, d = hbm.shape("Q")
    scale = d**-0.5 if sm_scale is None else sm_scale
    for b, h in np.ndindex(batch, heads):
        for start in range(0, queries, Br):
            rows = slice(start, min(start + Br, queries))
            _attend(hbm, b, h, rows, Bc, causal, scale)


def _attend(hbm: Hbm, b: int, h: int, rows: slice, Bc: int, causal: bool, scale: float) -> None:
    """Compute and store the rows of O and L of one tile of queries."""
    # last key of the tile
    queries, d = hbm.shape("Q")[2:]
    keys = hbm.shape("K")[2]
    # query i sees the keys below limit[i], and none of the tile's queries one from `end` on
    limit = np.arange(rows.start, rows.stop) + 1 + keys - queries
    end = min(keys, limit[-1]) if causal else keys

    # scores of the tile
    q = hbm.load("Q", (b, h, rows)) * scale  # [Br, d]
    acc = np.zeros((len(limit), d))  # output so far, not yet divided by row_sum
    row_max = np.full((len(limit), 1), -np.inf)
    row_sum = np.zeros((len(limit), 1))
    for start in range(0, end, Bc):
        cols = slice(start, min(start + Bc, keys))
        s = q @ hbm.load("K", (b, h, cols)).T  # [Br, Bc]
        if causal:
            s[np.arange(cols.start, cols.stop) >= limit[:, None]] = -np.inf
        # weights of the tile
        new_max = np.maximum(row_max, s.max(axis=1, keepdims=True))
        # a row that has seen no key yet would compute -inf - -inf
        base = np.where(new_max == -np.inf, 0.0, new_max)
        s = np.exp(s - base)  # weights in the place of scores: there is room for one of them
        # rescale the old sums
        shrink = np.exp(row_max - base)
        row_max = new_max
        row_sum = row_sum * shrink + s.sum(axis=1, keepdims=True)
        acc = acc * shrink + s @ hbm.load("V", (b, h, cols))

    # divide and store
    # a row that saw no key: O = 0, L = -inf
    row_sum = np.where(row_sum == 0.0, 1.0, row_sum)
    hbm.store("O", (b, h, rows), acc / row_sum)
    hbm.store("L", (b, h, rows), (row_max + np.log(row_sum))[:, 0])


def _check(hbm: Hbm, Br: int, Bc: int) -> None:
    # check
    for name, size in (("Br", Br), ("Bc", Bc)):
        if size < 1:
            raise ValueError(f"{name}: expected 1 or more, found {size}")
    q, k, v = (hbm.shape(name) for name in "QKV")
    if (*k[:2], k[3]) != (*q[:2], q[3]):
        raise ValueError(f"K: expected [{q[0]}, {q[1]}, keys, {q[3]}] as Q has, found {list(k)}")
    if v != k:
        raise ValueError(f"V: expected {list(k)} as K has, found {list(v)}")
