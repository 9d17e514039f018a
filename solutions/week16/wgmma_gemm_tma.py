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
def _load(a_desc, b_desc, m, n, k, full, a_slot, b_slot, more):
    mbarrier.expect(full, a_desc.block_type.nbytes + b_desc.block_type.nbytes, pred=more)
    tma_load(a_desc, [m, k], full, a_slot, pred=more)
    tma_load(b_desc, [k, n], full, b_slot, pred=more)


@gluon.jit
def _wgmma_gemm_kernel(
    a_desc, b_desc, c_desc, M, N, K, STAGES: gl.constexpr, GROUP_M: gl.constexpr
):
    # set up and fill the ring
    BLOCK_M: gl.constexpr = c_desc.block_type.shape[0]
    BLOCK_N: gl.constexpr = c_desc.block_type.shape[1]
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    wgmma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BLOCK_N, 16])
    a_slots = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], a_desc.layout)
    b_slots = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BLOCK_K, BLOCK_N], b_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)

    tile_m, tile_n = _tile_of(gl.program_id(0), gl.cdiv(M, BLOCK_M), gl.cdiv(N, BLOCK_N), GROUP_M)
    m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
    steps = gl.cdiv(K, BLOCK_K)
    for i in gl.static_range(STAGES - 1):
        _load(
            a_desc, b_desc, m, n, i * BLOCK_K,
            full.index(i), a_slots.index(i), b_slots.index(i), i < steps,
        )  # fmt: skip

    # multiply
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, wgmma)
    for step in range(steps):
        slot = step % STAGES
        mbarrier.wait(full.index(slot), step // STAGES & 1)
        acc = warpgroup_mma(a_slots.index(slot), b_slots.index(slot), acc, is_async=True)
        # refill the free slot
        # all but the newest product are done: the slot of the one before can be filled again
        acc = warpgroup_mma_wait(1, deps=(acc,))
        ahead = step + STAGES - 1
        free = ahead % STAGES
        _load(
            a_desc, b_desc, m, n, ahead * BLOCK_K,
            full.index(free), a_slots.index(free), b_slots.index(free), ahead < steps,
        )  # fmt: skip
    # store the tile
    acc = warpgroup_mma_wait(0, deps=(acc,))

    # allocated where the slots are needed no more: the compiler puts it into their place
    c_tile = gl.allocate_shared_memory(c_desc.dtype, [BLOCK_M, BLOCK_N], c_desc.layout)
    c_tile.store(acc.to(c_desc.dtype))
    fence_async_shared()
    tma_store(c_desc, [m, n], c_tile)
    tma.store_wait(pendings=0)


def wgmma_gemm_tma(a: Float[Tensor, "m k"], b: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
    """
    a @ b in one kernel, contiguous, float16.

    Sums are float32 and rounded once. Rows of the operands may have gaps after them, and are read
    where they are.

    Raises:
        ValueError: `a` or `b` is not a float16 matrix on one device, their inner sizes differ, or
            TMA cannot address one of them, or the result.
    """
    # check
    _check(a, b)
    # allocate and launch
    shape = a.shape[0], b.shape[1]
    if not (a.numel() and b.numel()):
        return a.new_zeros(shape)
    c = a.new_empty(shape)
    _launch(a, b, c)
    return c


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


def _check(a: Tensor, b: Tensor) -> None:
    # check
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
