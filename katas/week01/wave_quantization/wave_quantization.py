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
    raise NotImplementedError  # TODO(kata): check, thread to warp and lane (about 9 lines)


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
    # TODO(kata): check, warps of a block, blocks and waves, efficiencies (about 25 lines with
    # helpers)
    raise NotImplementedError


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
    raise NotImplementedError  # TODO(kata): check, launch that ends first (about 7 lines)
