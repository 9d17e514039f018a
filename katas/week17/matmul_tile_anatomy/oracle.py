"""What is right: times from a wave-by-wave account in fractions, panels counted, H200 timings."""

import csv
from fractions import Fraction
from pathlib import Path

# six tiles for each of four shapes: float16 to float32 with Triton 3.6 on one H200, of 96
# configurations every sixteenth by time, without those that spill
DATA = Path(__file__).parent / "data" / "timings.csv"

_SIZES = {
    "smem_per_sm_bytes": 233_472, "smem_per_block_bytes": 232_448, "registers_per_sm": 65_536,
    "warps_per_sm": 64, "blocks_per_sm": 32,
}  # fmt: skip
GPUS = {
    "h200": {
        "sms": 132, "clock_hz": 1.83e9, "bandwidth": 4.8e12,
        "flops_per_clk_per_sm": {"float16": 4096, "float8": 8192}, **_SIZES,
    },
    "a100": {
        "sms": 108, "clock_hz": 1.41e9, "bandwidth": 2.039e12,
        "flops_per_clk_per_sm": {"float16": 2048}, **_SIZES,
        "smem_per_sm_bytes": 167_936, "smem_per_block_bytes": 166_912,
    },
    # for sums by hand: 1000 clocks a second
    "toy": {
        "sms": 4, "clock_hz": 1e3, "bandwidth": 1e9,
        "flops_per_clk_per_sm": {"float16": 1024, "float8": 2048}, **_SIZES,
    },
}  # fmt: skip


def timings():
    """(m, n, k, tile as keywords, microseconds) of each row."""
    with DATA.open() as file:
        for row in csv.DictReader(file):
            tile = {name: int(row[name]) for name in ("bm", "bn", "bk", "stages", "warpgroups")}
            sizes = (int(row["m"]), int(row["n"]), int(row["k"]))
            yield *sizes, tile, float(row["microseconds"])


def resident(tile, itemsize, profile):
    """Blocks put on an SM one after the other until something runs out; 0 if not feasible."""
    regs = len(range(0, tile.bm * tile.bn, 128 * tile.warpgroups)) + 40
    smem = tile.stages * (tile.bm * tile.bk + tile.bn * tile.bk) * itemsize
    if regs > 255 or smem > profile.smem_per_block_bytes:
        return 0
    left = [profile.smem_per_sm_bytes, profile.registers_per_sm, profile.warps_per_sm]
    for block in range(profile.blocks_per_sm):
        takes = (smem + 1024, regs * 128 * tile.warpgroups, 4 * tile.warpgroups)
        left = [have - take for have, take in zip(left, takes, strict=True)]
        if min(left) < 0:
            return block
    return profile.blocks_per_sm


def seconds(m, n, k, tile, itemsize, profile):
    """Wave by wave, in fractions of a clock; infinite if the tile is not feasible."""
    fits = resident(tile, itemsize, profile)
    if not fits:
        return float("inf")
    tiles = [(row, col) for row in range(0, m, tile.bm) for col in range(0, n, tile.bn)]
    waves = range(0, len(tiles), profile.sms)
    rate = int(profile.flops_per_clk_per_sm[{1: "float8", 2: "float16"}[itemsize]])
    tensor = smem = 0
    for _ in range(0, tile.bm, 64):
        tensor += Fraction(2 * 64 * tile.bn * tile.bk, rate)
        smem += Fraction((64 * tile.bk + tile.bn * tile.bk) * itemsize, 128)
    brought = (tile.bm + tile.bn) * tile.bk * itemsize
    smem += Fraction(brought, 128)
    in_flight = (tile.stages - 1) * min(fits, len(waves))
    step = max(tensor, smem, Fraction(brought, 32), Fraction(1000, in_flight))
    clocks = 1000 + sum(step * len(range(0, k, tile.bk)) for _ in waves)
    moved = m * k * itemsize + k * n * itemsize + m * n * 4
    return max(float(clocks) / profile.clock_hz, moved / profile.bandwidth)


def panels(order, bm, bn, sms):
    """Rows of A and columns of B that waves read, each panel once a wave."""
    total, wave = 0, set()
    for at, (m, n) in enumerate(order):
        if at % sms == 0:
            wave = set()
        for panel, size in ((("A", m), bm), (("B", n), bn)):
            total += 0 if panel in wave else size
            wave.add(panel)
    return total


def row_by_row(gm, gn):
    return [(m, n) for m in range(gm) for n in range(gn)]


def column_by_column(gm, gn):
    return [(m, n) for n in range(gn) for m in range(gm)]


def rank_correlation(xs, ys):
    """Spearman's: the correlation of ranks, equals sharing theirs."""
    ranks = [[sum(b < a for b in values) + sum(b == a for b in values) / 2 for a in values]
             for values in (xs, ys)]  # fmt: skip
    mean = len(xs) / 2
    dots = [
        sum((a - mean) * (b - mean) for a, b in zip(one, other, strict=True))
        for one, other in ((ranks[0], ranks[1]), (ranks[0], ranks[0]), (ranks[1], ranks[1]))
    ]
    return dots[0] / (dots[1] * dots[2]) ** 0.5 if dots[1] else 0.0
