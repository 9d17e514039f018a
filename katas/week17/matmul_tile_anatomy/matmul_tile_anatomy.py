"""Kata week17/matmul_tile_anatomy: what a tile of a matrix product costs, before any code.

Shared memory and registers of a tile, the time of its waves, and the order tiles are visited in.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.hardware import Profile

RATES = {1: "float8", 2: "float16"}  # bytes of an element to its name in flops_per_clk_per_sm
OUT_BYTES = 4  # of an element of the result
WARPGROUP = 128  # threads
WARPS = 4  # of a warpgroup
MAX_REGS = 255  # of a thread
OTHER_REGS = 40  # of a thread, for all but accumulators  # modelled
SMEM_RESERVED = 1024  # bytes of shared memory that each block takes for the system
PRODUCT_ROWS = 64  # of A in one wgmma
SMEM_BYTES_PER_CLK = 128  # of an SM, reads and writes together
L2_BYTES_PER_CLK = 32  # that an SM gets when all ask the L2 cache  # modelled
LATENCY = 1000  # clocks from the request of a load until its barrier is passed  # modelled


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A block computes `bm` x `bn` of C in steps of `bk`, with a ring of `stages` steps."""

    bm: int
    bn: int
    bk: int
    stages: int
    warpgroups: int  # that multiply; they share the accumulators


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """
    What a tile takes of an SM.

    `intensity` is in FLOP per byte that is loaded into shared memory, `smem_ratio` the clocks of
    shared memory over those of the tensor cores, `resident` the blocks of which an SM has room.
    """

    smem_bytes: int
    regs: int
    intensity: float
    smem_ratio: float
    resident: int
    feasible: bool


CANDIDATES = tuple(
    Tile(bm=bm, bn=bn, bk=bk, stages=stages, warpgroups=warpgroups)
    for bm, bn, bk, stages, warpgroups in (
        (64, 16, 128, 4, 1), (64, 64, 64, 4, 1), (64, 64, 128, 3, 2), (64, 128, 64, 4, 1),
        (64, 128, 128, 3, 2), (64, 256, 32, 4, 1), (64, 256, 64, 4, 2), (128, 64, 64, 4, 2),
        (128, 64, 128, 3, 2), (128, 128, 64, 3, 1), (128, 128, 64, 4, 2), (128, 128, 128, 3, 2),
        (128, 256, 64, 3, 2), (128, 256, 64, 4, 2), (256, 128, 64, 3, 2), (256, 128, 64, 4, 2),
        (192, 256, 128, 3, 3), (256, 256, 64, 3, 4), (128, 256, 128, 3, 2), (256, 64, 64, 4, 1),
    )
)  # fmt: skip


def wave_efficiency(tiles: int, sms: int) -> float:
    """Share of the SMs that have a tile, over all waves; 0 without tiles."""
    waves = -(-tiles // sms)
    return tiles / (waves * sms) if tiles else 0.0


def panel_bytes(
    order: Sequence[tuple[int, int]], bm: int, bn: int, k: int, itemsize: int, sms: int
) -> int:
    """Bytes of A and B that waves of `sms` tiles read, each row and column of tiles once a wave."""
    panels = 0
    for start in range(0, len(order), sms):
        wave = order[start : start + sms]
        panels += len({m for m, _ in wave}) * bm + len({n for _, n in wave}) * bn
    return panels * k * itemsize


def tile_metrics(tile: Tile, itemsize: int, profile: Profile) -> Metrics:
    """
    What a tile takes of an SM, and whether it can be launched at all.

    Args:
        tile: Feasible or not.
        itemsize: Bytes of an element of A and B, a key of `RATES`.
        profile: Whose limits count.

    Raises:
        ValueError: `bm`, `bn` or `bk` is below 1, `stages` below 2, `warpgroups` not in 1..8, or
            `itemsize` one that `RATES` or the tensor cores of the profile lack.
    """
    # TODO(kata): check, count what a block takes (about 35 lines with helpers)
    raise NotImplementedError


def predict_time(m: int, n: int, k: int, tile: Tile, itemsize: int, profile: Profile) -> float:
    """
    Seconds of C = A B, an m x k matrix times a k x n one, with tiles of this form.

    Raises:
        ValueError: a size below 1, what `tile_metrics` refuses, or a tile that is not feasible
            (`tile: `).
    """
    raise NotImplementedError  # TODO(kata): check, whole waves, clocks of a step (about 15 lines)


def best_tile(m: int, n: int, k: int, itemsize: int, profile: Profile) -> Tile:
    """
    The tile of `CANDIDATES` with the shortest predicted time; of equals any.

    Raises:
        ValueError: what `predict_time` refuses of the sizes, or no candidate is feasible.
    """
    raise NotImplementedError  # TODO(kata): fastest candidate (about 4 lines)


def raster(gm: int, gn: int, bm: int, bn: int, sms: int) -> list[tuple[int, int]]:
    """
    An order of all `gm` x `gn` tiles whose waves of `sms` tiles read few panels.

    Args:
        gm: Rows of tiles.
        gn: Columns of tiles.
        bm: Rows of a tile.
        bn: Columns of a tile.
        sms: Tiles of a wave: as they come in the order, the last wave what is left.

    Raises:
        ValueError: an argument is below 1.
    """
    raise NotImplementedError  # TODO(kata): check, order in bands (about 15 lines with helpers)
