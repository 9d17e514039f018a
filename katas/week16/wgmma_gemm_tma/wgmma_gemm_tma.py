"""Kata week16/wgmma_gemm_tma: TMA fills one slot while an asynchronous wgmma reads another.

A program makes one tile of c. Its slots form a ring along K, with an mbarrier for each.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Tile shape, slots, warps, and tile rows that share a band of the order of programs."""

    m: int
    n: int
    k: int
    stages: int
    warps: int
    group_m: int


CONFIG = Config(m=128, n=256, k=64, stages=4, warps=8, group_m=8)
SIMULATED = Config(m=64, n=128, k=32, stages=3, warps=4, group_m=2)


@gluon.jit
def _tile_of(pid, num_m, num_n, GROUP_M: gl.constexpr):
    """Tile row and column of program `pid`: bands of GROUP_M tile rows, column by column."""
    first_m = pid // (GROUP_M * num_n) * GROUP_M
    height = gl.minimum(num_m - first_m, GROUP_M)
    within = pid - first_m * num_n
    return first_m + within % height, within // height


@gluon.jit
def _wgmma_gemm_kernel(
    a_desc, b_desc, c_desc, M, N, K, STAGES: gl.constexpr, GROUP_M: gl.constexpr
):
    # TODO(kata): set up and fill the ring, multiply, refill the free slot, store the tile (about 40
    # lines with helpers)
    pass


def wgmma_gemm_tma(a: Float[Tensor, "m k"], b: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
    """
    a @ b in one kernel, contiguous, float16.

    Sums are float32 and rounded once. Rows of the operands may have gaps after them, and are read
    where they are.

    Raises:
        ValueError: `a` or `b` is not a float16 matrix on one device, their inner sizes differ, or
            TMA cannot address one of them, or the result.
    """
    # TODO(kata): check, allocate and launch (about 30 lines with helpers)
    raise NotImplementedError


def _launch(a: Tensor, b: Tensor, c: Tensor) -> None:
    config = CONFIG if a.is_cuda else SIMULATED
    (M, K), N = a.shape, b.shape[1]
    tiles = triton.cdiv(M, config.m) * triton.cdiv(N, config.n)
    _wgmma_gemm_kernel[(tiles,)](
        descriptor(a, [config.m, config.k]),
        descriptor(b, [config.k, config.n]),
        descriptor(c, [config.m, config.n]),
        M, N, K,
        STAGES=config.stages, GROUP_M=config.group_m, num_warps=config.warps,
    )  # fmt: skip
