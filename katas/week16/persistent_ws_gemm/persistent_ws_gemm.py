"""Kata week16/persistent_ws_gemm: one warp loads, two warpgroups multiply, tile after tile.

A program stays on its SM and walks through the tiles. Its warps are specialized: they meet only
at the mbarriers of a ring of slots, so that loads run ahead into the next tile.
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
CONSUMERS = 2  # warpgroups, each with its half of a tile's rows
PARTS = 4  # of a consumer's columns, in which it stores them


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Tile shape, slots, and tile rows that share a band of the order of tiles."""

    m: int
    n: int
    k: int
    stages: int
    group_m: int


CONFIG = Config(m=128, n=256, k=64, stages=4, group_m=8)
SIMULATED = Config(m=128, n=64, k=32, stages=3, group_m=2)


@gluon.jit
def _tile_of(tile, num_m, num_n, GROUP_M: gl.constexpr):
    """Row and column of a tile: bands of GROUP_M tile rows, each walked column by column."""
    first_m = tile // (GROUP_M * num_n) * GROUP_M
    height = gl.minimum(num_m - first_m, GROUP_M)
    within = tile - first_m * num_n
    return first_m + within % height, within // height


@gluon.jit
def _ws_gemm_kernel(
    a_desc, b_desc, c_desc, M, N, K,
    STAGES: gl.constexpr, GROUP_M: gl.constexpr, CONSUMERS: gl.constexpr,
):  # fmt: skip
    # TODO(kata): slots and barriers, fill the slots, multiply, free the slots, store in parts
    # (about 75 lines with helpers)
    pass


def persistent_ws_gemm(a: Float[Tensor, "m k"], b: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
    """
    a @ b in one kernel, contiguous, float16.

    Sums are float32 and rounded once. Rows of the operands may have gaps after them, and are read
    where they are.

    Raises:
        ValueError: `a` or `b` is not a float16 matrix on one device, their inner sizes differ, or
            TMA cannot address one of them, or the result.
    """
    raise NotImplementedError  # TODO(kata): check (about 30 lines with helpers)


def _launch(a: Tensor, b: Tensor, c: Tensor) -> None:
    config = CONFIG if a.is_cuda else SIMULATED
    (M, K), N = a.shape, b.shape[1]
    tiles = triton.cdiv(M, config.m) * triton.cdiv(N, config.n)
    _ws_gemm_kernel[(min(tiles, _programs(a)),)](
        descriptor(a, [config.m, config.k]),
        descriptor(b, [config.k, config.n]),
        descriptor(c, [config.m // CONSUMERS, config.n // PARTS]),
        M, N, K,
        STAGES=config.stages, GROUP_M=config.group_m, CONSUMERS=CONSUMERS, num_warps=4,
    )  # fmt: skip


def _programs(a: Tensor) -> int:
    """One for each multiprocessor."""
    return torch.cuda.get_device_properties(a.device).multi_processor_count if a.is_cuda else 3
