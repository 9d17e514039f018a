"""Kata week18/profile_guided_gemm_fix: from a report to what to change, and the kernel mended.

The slow kernel is slow_gemm.py, beside the brief; reports of it and others are in data/.
"""

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
    raise NotImplementedError  # TODO(kata): flaws and gains (about 20 lines with helpers)


def predicted_gain(flaw: str, report: Report) -> float:
    """
    By how much a tile is faster when this flaw alone is mended; 1 where the report lacks it.

    Raises:
        ValueError: There is no flaw of this name, or the report lacks something.
    """
    raise NotImplementedError  # TODO(kata): flaws and gains (about 35 lines with helpers)


def plan(report: Report) -> list[tuple[str, float]]:
    """
    One flaw after the other, always the one that gains most now; with what it gains then.

    Raises:
        ValueError: The report lacks something.
    """
    raise NotImplementedError  # TODO(kata): flaws and gains (about 5 lines)


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
    # TODO(kata): check and launch, order of tiles, loads ahead, wide products, store by TMA (about
    # 70 lines with helpers)
    raise NotImplementedError


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
