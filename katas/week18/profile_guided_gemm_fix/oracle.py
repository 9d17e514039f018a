"""What is right, what to feed and what it costs: a @ b; and reports with planted flaws."""

import importlib.util
import json
import sys
from functools import cache
from pathlib import Path

import torch

from harness.hardware import Cost

HERE = Path(__file__).parent

# what is planted in each kernel of data/reports.json
PLANTED = {
    "shipped": {"single_stage", "small_instr_n", "row_major_raster", "sync_store"},
    "small_tiles": {"row_major_raster"},
    "four_warps": {"spill", "smem_conflict_epilogue"},
    "narrow": {"small_instr_n", "sync_store"},
    "one_slot": {"single_stage", "smem_conflict_epilogue"},
    "mended": set(),
}


def make_inputs(*, m, n, k, dtype, device, seed, layout="rows"):
    """N(0, 1) operands; layout "gaps": past each row up to 23 more elements, all NaN."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows, cols):
        values = torch.randn(rows, cols, generator=generator).to(dtype).to(device)
        if layout == "rows":
            return values
        pitch = (cols // 8 + 3) * 8
        wide = torch.full((rows, pitch), float("nan"), dtype=dtype, device=device)
        return wide[:, :cols].copy_(values)

    return {"a": matrix(m, k), "b": matrix(k, n)}


def reference(*, a, b):
    return a.double() @ b.double()


def same_precision(*, a, b):
    return (a.float() @ b.float()).to(a.dtype)


def cost(*, a, b):
    (m, k), n = a.shape, b.shape[1]
    return Cost(flops=2 * m * n * k, bytes=(m * k + k * n + m * n) * a.element_size())


def library(*, a, b):
    return torch.matmul(a, b)


@cache
def _slow_module():
    spec = importlib.util.spec_from_file_location("slow_gemm", HERE / "slow_gemm.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def slow(*, a, b):
    """The kernel that was profiled."""
    return _slow_module().slow_gemm(a, b)


# ---- reports -------------------------------------------------------------------------------


def reports():
    """What was counted of each kernel, by its name."""
    return json.loads((HERE / "data" / "reports.json").read_text(encoding="utf-8"))


def report(**changes):
    """
    Of a kernel without flaws, but for the changes.

    A tile of 128 x 128 at a step of 64, 10 steps: 512 clocks of products a step, and 256 + 512 of
    the store.
    """
    whole = {
        "launch": {
            "tile_m": 128, "tile_n": 128, "tile_k": 64, "steps": 10, "threads": 256,
            "blocks_per_sm": 1,
        },
        "counters": {
            "load_overlap": 1.0, "wave_bytes": 380_000, "bank_passes": 0, "store_bytes": 32768,
            "tma_store_bytes": 32768,
        },
        "code": {"product_n": 128, "spill_bytes": 0},
    }  # fmt: skip
    for name, value in changes.items():
        (section,) = (one for one in whole.values() if name in one)
        section[name] = value
    return whole
