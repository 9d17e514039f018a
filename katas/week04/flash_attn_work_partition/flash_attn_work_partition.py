"""Kata week04/flash_attn_work_partition: who computes what in FlashAttention 1 and 2, and when.

Work is counted in pairs of a tile of queries and a tile of keys: two products each.
"""

import heapq
from collections.abc import Iterable
from typing import Literal, NamedTuple


class Tile(NamedTuple):
    """
    What one thread block computes: the tile `i` of the queries of head `h` of sequence `b`.

    `kv_blocks` counts the tiles of keys that it visits. In version 1 a block has all queries of
    a head: `i` is 0, and `kv_blocks` the sum over all tiles of queries.
    """

    b: int
    h: int
    i: int
    kv_blocks: int


def work_tiles(
    version: int, B: int, H: int, Sq: int, Sk: int, Br: int, Bc: int, causal: bool = False
) -> list[Tile]:
    """
    List the work of attention, in any order: all of it once, and nothing that is fully masked.

    Args:
        version: 1, a block for each head, or 2, one for each tile of queries of each head.
        B: Sequences.
        H: Heads of each.
        Sq: Queries.
        Sk: Keys.
        Br: Queries in a tile; the last tile may have fewer.
        Bc: Keys in a tile, likewise.
        causal: Query i sees keys up to i + Sk - Sq; tiles that no query of a tile sees are
            skipped.

    Raises:
        ValueError: `version` is neither 1 nor 2.

    Source: Dao 2023 (FlashAttention-2), section 3.2.
    """
    # TODO(kata): check, keys that a tile sees, list the blocks (about 15 lines with helpers)
    raise NotImplementedError


def assign(tiles: Iterable[Tile], n_slots: int) -> list[list[Tile]]:
    """
    Share `tiles` out: for each of `n_slots` slots those it computes, one after the other.

    The slot with most work has at most 4/3 - 1/(3 n_slots) times what the best sharing gives it.

    Raises:
        ValueError: `n_slots` is below 1.

    Source: Graham 1969, Bounds on Multiprocessing Timing Anomalies.
    """
    raise NotImplementedError  # TODO(kata): check, share them out (about 9 lines)


def exchange_bytes(split: Literal["k", "q"], Br: int, d: int, warps: int) -> int:
    """
    Bytes that the warps of a block pass through shared memory for each tile of keys.

    Split "k": each warp has some of the keys and all queries, so its row maxima, row sums and
    output [Br, d], all float32, are written once and read once. Split "q": each warp has some of
    the queries and all keys. A single warp exchanges nothing.

    Raises:
        ValueError: `split` is neither "k" nor "q".

    Source: Dao 2023 (FlashAttention-2), section 3.3.
    """
    raise NotImplementedError  # TODO(kata): check, exchange between warps (about 5 lines)
