"""Kata week01/wave_quantization: threads into warps, blocks onto SMs, all of it by division."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harness.hardware import Profile

MAX_THREADS = 1024  # per block, on every NVIDIA GPU

Tile = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchShape:
    """
    How a launch fills a GPU.

    `blocks` of the grid; `warps_per_block`, of whose lanes `idle_lanes` have no thread; `waves`
    in which the blocks run; `wave_efficiency`, the share of block slots that had work over all
    waves; `tile_efficiency`, the share of the tiles' elements that lie inside the matrix.
    """

    blocks: int
    warps_per_block: int
    idle_lanes: int
    waves: int
    wave_efficiency: float
    tile_efficiency: float


def warp_lane(tid: tuple[int, ...], block: tuple[int, ...], warp_size: int = 32) -> tuple[int, int]:
    """
    Warp within its block, and lane within that warp, of one thread.

    Args:
        tid: threadIdx as (x,), (x, y) or (x, y, z).
        block: blockDim, as many numbers; x varies fastest.
        warp_size: Threads in a warp.

    Raises:
        ValueError: `block` has over 1024 threads, or `tid` lies outside it or has another number
            of axes; the message names which.
    """
    # check
    if math.prod(block) > MAX_THREADS:
        raise ValueError(f"block: expected at most {MAX_THREADS} threads, found {block}")
    inside = [0 <= index < size for index, size in zip(tid, block, strict=False)]
    if len(tid) != len(block) or not all(inside):
        raise ValueError(f"tid: expected a thread of the block {block}, found {tid}")
    # thread to warp and lane
    linear = 0
    for index, size in zip(reversed(tid), reversed(block), strict=True):
        linear = linear * size + index
    return divmod(linear, warp_size)


def launch_shape(
    m: int, n: int, tile: Tile, threads: int, blocks_per_sm: int, profile: Profile
) -> LaunchShape:
    """
    Shape of a launch that computes an m by n matrix, one block per tile.

    Args:
        m: Rows of the matrix, 0 or more.
        n: Columns of the matrix, 0 or more.
        tile: Rows and columns that one block computes.
        threads: Threads in a block.
        blocks_per_sm: Blocks that one SM holds at a time.
        profile: Whose `sms` and `warp_size` count.

    Raises:
        ValueError: a side of the matrix is negative, `threads` is not in 1..1024, or a side of
            the tile or `blocks_per_sm` is below 1; the message names which.
    """
    # check
    if min(m, n) < 0:
        raise ValueError(f"m, n: expected 0 or more, found {m} and {n}")
    if min(tile) < 1:
        raise ValueError(f"tile: expected sides of 1 or more, found {tile}")
    if not 1 <= threads <= MAX_THREADS:
        raise ValueError(f"threads: expected 1 to {MAX_THREADS}, found {threads}")
    if blocks_per_sm < 1:
        raise ValueError(f"blocks_per_sm: expected 1 or more, found {blocks_per_sm}")
    # warps of a block
    warps = _ceil_div(threads, profile.warp_size)
    # blocks and waves
    blocks = _ceil_div(m, tile[0]) * _ceil_div(n, tile[1])
    slots = profile.sms * blocks_per_sm
    waves = _ceil_div(blocks, slots)
    # efficiencies
    return LaunchShape(
        blocks=blocks,
        warps_per_block=warps,
        idle_lanes=warps * profile.warp_size - threads,
        waves=waves,
        wave_efficiency=_share(blocks, waves * slots),
        tile_efficiency=_share(m * n, blocks * math.prod(tile)),
    )


def best_tile(
    m: int,
    n: int,
    tiles: Iterable[Tile],
    tile_time: Callable[[Tile], float],
    blocks_per_sm: int,
    profile: Profile,
) -> Tile:
    """
    The tile with which an m by n matrix is done first; among equals, the one that comes first.

    Args:
        m: Rows of the matrix.
        n: Columns of the matrix.
        tiles: The candidates.
        tile_time: How long a block takes with such a tile, on an SM as full as it gets; in any
            unit, and it need not be a whole number.
        blocks_per_sm: Blocks that one SM holds at a time, whatever the tile.
        profile: Whose `sms` count.

    Raises:
        ValueError: there are no `tiles`, or `launch_shape` would refuse the matrix, one of the
            tiles or `blocks_per_sm`; the message names which.
    """

    # launch that ends first
    def finished_at(tile: Tile) -> float:
        shape = launch_shape(m, n, tile, 1, blocks_per_sm, profile)  # threads play no part
        return shape.waves * tile_time(tile)

    # check
    candidates = list(tiles)
    if not candidates:
        raise ValueError("tiles: expected at least one, found none")
    # launch that ends first
    return min(candidates, key=finished_at)


def _ceil_div(amount: int, size: int) -> int:
    # in integers: a grid may have more blocks than a float can tell apart
    return -(-amount // size)


def _share(used: int, taken: int) -> float:
    """Of nothing, nothing is wasted."""
    return used / taken if taken else 1.0
