"""Kata week18/profile_guided_gemm_fix: from a report to what to change, and the kernel mended.

The slow kernel is slow_gemm.py, beside the brief; reports of it and others are in data/.
"""

import math
from dataclasses import dataclass

import torch
import triton
from jaxtyping import Float
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from harness.gluon import descriptor, tma_load, tma_store

ALIGNMENT = 16  # bytes: what TMA demands of addresses and of row pitches

Report = dict[str, dict[str, float]]  # by section, then by name

FIELDS = {
    "launch": ("tile_m", "tile_n", "tile_k", "steps", "threads", "blocks_per_sm"),
    "counters": ("load_overlap", "wave_bytes", "bank_passes", "store_bytes", "tma_store_bytes"),
    "code": ("product_n", "spill_bytes"),
}

# an H200, for each SM: clocks, and bytes a clock
SMS = 132
LOAD_LATENCY = 700  # from the issue of a TMA load to its first bytes
L2, SHARED, PLAIN, DRAM = 64, 128, 16, 20  # PLAIN: stores that are not by TMA

FLAWS = (
    "row_major_raster",
    "single_stage",
    "small_instr_n",
    "smem_conflict_epilogue",
    "spill",
    "sync_store",
)


# ---- the report ----------------------------------------------------------------------------


def diagnose(report: Report) -> list[str]:
    """
    The flaws that the report shows, those that gain most first; equal gains by name.

    Raises:
        ValueError: The report lacks something; the message begins with its section.
    """
    found = _flaws(report)
    return sorted(found, key=lambda flaw: (-predicted_gain(flaw, report), flaw))


def predicted_gain(flaw: str, report: Report) -> float:
    """
    By how much a tile is faster when this flaw alone is mended; 1 where the report lacks it.

    Raises:
        ValueError: There is no flaw of this name, or the report lacks something.
    """
    if flaw not in FLAWS:
        raise ValueError(f"flaw: expected one of {', '.join(FLAWS)}, found {flaw!r}")
    found = _flaws(report)
    return _clocks(report) / _clocks(_mended(report, flaw)) if flaw in found else 1.0


def plan(report: Report) -> list[tuple[str, float]]:
    """
    One flaw after the other, always the one that gains most now; with what it gains then.

    Raises:
        ValueError: The report lacks something.
    """
    steps = []
    while found := diagnose(report):
        steps.append((found[0], predicted_gain(found[0], report)))
        report = _mended(report, found[0])
    return steps


def _flaws(report: Report) -> list[str]:
    # flaws and gains
    for section, names in FIELDS.items():
        for name in names:
            if name not in report.get(section, {}):
                raise ValueError(f"{section}: expected {name}, which was not collected")
    launch, counters, code = (report[section] for section in FIELDS)
    shown = {
        "row_major_raster": counters["wave_bytes"] > 1.5 * _least_wave(launch),
        "single_stage": counters["load_overlap"] < 0.5,
        "small_instr_n": code["product_n"] < min(128, launch["tile_n"]),
        "smem_conflict_epilogue": counters["bank_passes"] > 0,
        "spill": code["spill_bytes"] > 0,
        "sync_store": counters["tma_store_bytes"] < counters["store_bytes"],
    }
    return [flaw for flaw, there in shown.items() if there]


def _programs(launch: dict[str, float]) -> float:
    """Those that run at the same time."""
    return SMS * launch["blocks_per_sm"]


def _least_wave(launch: dict[str, float]) -> float:
    """Bytes of a and b that a wave needs for a step if its tiles make up a square."""
    side = math.sqrt(_programs(launch) * launch["tile_m"] * launch["tile_n"])
    return 2 * side * launch["tile_k"] * 2


def _mended(report: Report, flaw: str) -> Report:
    """The report as it would be without the flaw."""
    # flaws and gains
    launch, counters, code = (dict(report[section]) for section in FIELDS)
    if flaw == "row_major_raster":
        counters["wave_bytes"] = _least_wave(launch)
    elif flaw == "single_stage":
        counters["load_overlap"] = 1
    elif flaw == "small_instr_n":
        code["product_n"] = launch["tile_n"]
    elif flaw == "smem_conflict_epilogue":
        counters["bank_passes"] = 0
    elif flaw == "spill":
        code["spill_bytes"] = 0
    else:
        counters["tma_store_bytes"] = counters["store_bytes"]
    return {"launch": launch, "counters": counters, "code": code}


def _clocks(report: Report) -> float:
    """Clocks of an SM for a tile, by the model of the brief."""
    launch, counters, code = (report[section] for section in FIELDS)
    # flaws and gains
    m, n, k, width = launch["tile_m"], launch["tile_n"], launch["tile_k"], code["product_n"]
    product = m / 64 * k / 16 * n / width * max(width / 2, 16 + width / 4)
    spilled = code["spill_bytes"] * launch["threads"] / SHARED
    load = (1 - counters["load_overlap"]) * (LOAD_LATENCY + 2 * (m + n) * k / L2)
    by_tma = counters["tma_store_bytes"]
    store = (
        counters["store_bytes"] / SHARED * (1 + counters["bank_passes"])
        + by_tma / L2
        + (counters["store_bytes"] - by_tma) / PLAIN
    )
    busy = launch["steps"] * (product + spilled) + store
    alone = busy + launch["steps"] * load
    memory = launch["steps"] * counters["wave_bytes"] / (_programs(launch) * DRAM)
    return max(busy, alone / launch["blocks_per_sm"], memory)


# ---- the kernel ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Tile shape, slots, warps, and tile rows that share a band of the order of programs."""

    m: int
    n: int
    k: int
    stages: int
    warps: int
    group_m: int


CONFIG = Config(m=128, n=256, k=64, stages=4, warps=8, group_m=16)
SIMULATED = Config(m=64, n=128, k=32, stages=3, warps=4, group_m=16)


@gluon.jit
def _tile_of(pid, num_m, num_n, GROUP_M: gl.constexpr):
    """Tile row and column of program `pid`: bands of GROUP_M tile rows, column by column."""
    # order of tiles
    first_m = pid // (GROUP_M * num_n) * GROUP_M
    height = gl.minimum(num_m - first_m, GROUP_M)
    within = pid - first_m * num_n
    return first_m + within % height, within // height


@gluon.jit
def _load(a_desc, b_desc, m, n, k, full, a_slot, b_slot, more):
    mbarrier.expect(full, a_desc.block_type.nbytes + b_desc.block_type.nbytes, pred=more)
    tma_load(a_desc, [m, k], full, a_slot, pred=more)
    tma_load(b_desc, [k, n], full, b_slot, pred=more)


@gluon.jit
def _fixed_kernel(a_desc, b_desc, c_desc, M, N, K, STAGES: gl.constexpr, GROUP_M: gl.constexpr):
    BLOCK_M: gl.constexpr = c_desc.block_type.shape[0]
    BLOCK_N: gl.constexpr = c_desc.block_type.shape[1]
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    wgmma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BLOCK_N, 16])
    a_slots = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], a_desc.layout)
    b_slots = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BLOCK_K, BLOCK_N], b_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)

    # order of tiles
    tile_m, tile_n = _tile_of(gl.program_id(0), gl.cdiv(M, BLOCK_M), gl.cdiv(N, BLOCK_N), GROUP_M)
    m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
    steps = gl.cdiv(K, BLOCK_K)
    # loads ahead
    for i in gl.static_range(STAGES - 1):
        _load(
            a_desc, b_desc, m, n, i * BLOCK_K,
            full.index(i), a_slots.index(i), b_slots.index(i), i < steps,
        )  # fmt: skip

    # wide products
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, wgmma)
    for step in range(steps):
        slot = step % STAGES
        mbarrier.wait(full.index(slot), step // STAGES & 1)
        acc = warpgroup_mma(a_slots.index(slot), b_slots.index(slot), acc, is_async=True)
        # all but the newest product are done: the slot of the one before can be filled again
        acc = warpgroup_mma_wait(1, deps=(acc,))
        # loads ahead
        ahead = step + STAGES - 1
        free = ahead % STAGES
        _load(
            a_desc, b_desc, m, n, ahead * BLOCK_K,
            full.index(free), a_slots.index(free), b_slots.index(free), ahead < steps,
        )  # fmt: skip
    acc = warpgroup_mma_wait(0, deps=(acc,))

    # store by TMA
    # allocated where the slots are needed no more: the compiler puts it into their place
    c_tile = gl.allocate_shared_memory(c_desc.dtype, [BLOCK_M, BLOCK_N], c_desc.layout)
    c_tile.store(acc.to(c_desc.dtype))
    fence_async_shared()
    tma_store(c_desc, [m, n], c_tile)
    tma.store_wait(pendings=0)


def profile_guided_gemm_fix(
    a: Float[Tensor, "m k"], b: Float[Tensor, "k n"]
) -> Float[Tensor, "m n"]:
    """
    a @ b in one kernel, contiguous, float16: what slow_gemm computes, without its flaws.

    Sums are float32 and rounded once. Rows of the operands may have gaps after them, and are read
    where they are.

    Raises:
        ValueError: `a` or `b` is not a float16 matrix on one device, their inner sizes differ, or
            TMA cannot address one of them, or the result.
    """
    # check and launch
    _check(a, b)
    shape = a.shape[0], b.shape[1]
    if not (a.numel() and b.numel()):
        return a.new_zeros(shape)
    c = a.new_empty(shape)
    _launch(a, b, c)
    return c


def _launch(a: Tensor, b: Tensor, c: Tensor) -> None:
    # check and launch
    config = CONFIG if a.is_cuda else SIMULATED
    (M, K), N = a.shape, b.shape[1]
    tiles = triton.cdiv(M, config.m) * triton.cdiv(N, config.n)
    _fixed_kernel[(tiles,)](
        descriptor(a, [config.m, config.k]),
        descriptor(b, [config.k, config.n]),
        descriptor(c, [config.m, config.n]),
        M, N, K,
        STAGES=config.stages, GROUP_M=config.group_m, num_warps=config.warps,
    )  # fmt: skip


def _check(a: Tensor, b: Tensor) -> None:
    for name, x in (("a", a), ("b", b)):
        if x.ndim != 2 or x.dtype != torch.float16:
            raise ValueError(f"{name}: expected a float16 matrix, found {x.ndim}-D {x.dtype}")
        if x.device != a.device:
            raise ValueError(f"{name}: expected it on {a.device} as a is, found {x.device}")
    if b.shape[0] != a.shape[1]:
        raise ValueError(f"b: expected {a.shape[1]} rows, one per column of a, found {b.shape[0]}")
    if b.shape[1] % 8:
        raise ValueError(f"b: expected a multiple of 8 columns, found {b.shape[1]}")
    for name, x in (("a", a), ("b", b)):
        if not x.numel():
            continue
        if x.stride(1) != 1:
            raise ValueError(f"{name}: expected a stride of 1 along a row, found {x.stride(1)}")
        pitch = x.stride(0) * x.element_size()
        if pitch % ALIGNMENT or x.data_ptr() % ALIGNMENT:
            raise ValueError(
                f"{name}: expected an address and a row pitch of whole {ALIGNMENT} bytes, "
                f"found {x.data_ptr():#x} and {pitch}"
            )
