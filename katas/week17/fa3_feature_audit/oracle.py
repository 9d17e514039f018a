"""What is right: twelve kernels whose features are known, for they were compiled to have them."""

import gzip
from pathlib import Path

# made by compile.py there: Triton 3.7.1, arithmetic and debug information left out
DATA = Path(__file__).parent / "data"

# feature -> number of lines that prove it; counted with grep, loops by eye
LABELS = {
    "sm80": {"cp_async": 48, "mma_sync": 256, "mufu_exp2": 68},
    "sm90_one_stage": {
        "tma_load": 3, "wgmma_async": 24, "register_p": 8, "mufu_exp2": 68, "wgmma_wait(0)": 2,
        "mbarrier_depth(1)": 3, "swizzle(128)": 2,
    },
    "sm90_pointers": {
        "cp_async": 48, "wgmma_async": 24, "register_p": 8, "mufu_exp2": 68, "wgmma_wait(0)": 1,
        "swizzle(128)": 2,
    },
    "sm90_descriptors": {
        "tma_load": 5, "wgmma_async": 24, "register_p": 8, "mufu_exp2": 68, "wgmma_wait(0)": 1,
        "mbarrier_depth(2)": 1, "swizzle(128)": 2,
    },
    # asked for warp specialization, and did not get it: 8 warps as before, no setmaxnreg
    "sm90_specialize": {
        "tma_load": 7, "wgmma_async": 12, "register_p": 4, "mufu_exp2": 34, "wgmma_wait(0)": 1,
        "mbarrier_depth(3)": 1, "swizzle(128)": 2,
    },
    # 20 warps
    "sm100_specialize": {
        "tma_load": 5, "tcgen05": 28, "warp_specialized": 12, "mufu_exp2": 34,
        "mbarrier_depth(3)": 4, "swizzle(128)": 2,
    },
    # V is loaded into one stage, though two were asked for, and goes through registers to be
    # transposed
    "sm90_fp8": {
        "tma_load": 5, "wgmma_async": 12, "register_p": 4, "mufu_exp2": 68, "fp8": 12,
        "wgmma_wait(0)": 2, "mbarrier_depth(2)": 1, "swizzle(128)": 3, "swizzle(64)": 1,
    },
    # the rest is not named in the brief
    "sm89_fp8": {"cp_async": 24, "mma_sync": 128, "mufu_exp2": 68, "fp8": 128},
    "sm90_unpipelined": {
        "wgmma_async": 24, "register_p": 8, "mufu_exp2": 68, "wgmma_wait(0)": 2, "swizzle(128)": 2,
    },
    "sm90_d32": {
        "tma_load": 9, "wgmma_async": 12, "register_p": 8, "mufu_exp2": 68, "wgmma_wait(0)": 1,
        "mbarrier_depth(4)": 1, "swizzle(64)": 2,
    },
    "sm100": {
        "tma_load": 8, "tcgen05": 32, "mufu_exp2": 130, "mbarrier_depth(2)": 4, "swizzle(128)": 2,
    },
    # no attention: a product that leaves one wgmma in flight
    "sm90_product": {
        "tma_load": 8, "wgmma_async": 8, "wgmma_wait(1)": 1, "mbarrier_depth(4)": 1,
        "swizzle(128)": 2,
    },
}  # fmt: skip

# FlashAttention-3, table 2, on an H100, d 128, float16: TFLOP/s without
ABLATION = {"wgmma_wait": 582, "warp_specialized": 570}

GPUS = {
    "h100": {
        "sms": 132, "clock_hz": 1.83e9, "sfu_per_clk_per_sm": 16,
        "flops_per_clk_per_sm": {"float16": 4096, "bfloat16": 4096, "float8": 8192},
    },
    "a100": {
        "sms": 108, "clock_hz": 1.41e9, "sfu_per_clk_per_sm": 16,
        "flops_per_clk_per_sm": {"float16": 2048, "bfloat16": 2048},
    },
    # for sums by hand
    "toy": {
        "sms": 10, "clock_hz": 1e10, "sfu_per_clk_per_sm": 2,
        "flops_per_clk_per_sm": {"float16": 1000, "float8": 4000},
    },
}  # fmt: skip


def texts(name):
    """(TTGIR, PTX) of a kernel."""
    return tuple(
        gzip.decompress((DATA / f"{name}.{kind}.gz").read_bytes()).decode()
        for kind in ("ttgir", "ptx")
    )
