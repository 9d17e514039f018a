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
    # TODO(kata): check, last key of the tile, scores of the tile, weights of the tile, rescale the
    # old sums, divide and store (about 40 lines with helpers)
    raise NotImplementedError
