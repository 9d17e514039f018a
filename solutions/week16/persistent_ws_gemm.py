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
def _produce(a_desc, b_desc, a_slots, b_slots, full, empty, M, N, K, GROUP_M: gl.constexpr):
    """Fill slots with the operands of all steps of all tiles."""
    # fill the slots
    STAGES: gl.constexpr = a_slots.shape[0]
    BLOCK_M: gl.constexpr = a_desc.block_type.shape[0]
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    BLOCK_N: gl.constexpr = b_desc.block_type.shape[1]
    NBYTES: gl.constexpr = a_desc.block_type.nbytes + b_desc.block_type.nbytes
    num_m, num_n = gl.cdiv(M, BLOCK_M), gl.cdiv(N, BLOCK_N)
    used = 0  # slots so far, over all tiles
    for tile in range(gl.program_id(0), num_m * num_n, gl.num_programs(0)):
        tile_m, tile_n = _tile_of(tile, num_m, num_n, GROUP_M)
        for k in range(0, K, BLOCK_K):
            slot = used % STAGES
            # the first round finds every slot empty: an unused barrier lets parity 1 pass
            mbarrier.wait(empty.index(slot), used // STAGES & 1 ^ 1)
            mbarrier.expect(full.index(slot), NBYTES)
            tma_load(a_desc, [tile_m * BLOCK_M, k], full.index(slot), a_slots.index(slot))
            tma_load(b_desc, [k, tile_n * BLOCK_N], full.index(slot), b_slots.index(slot))
            used += 1


@gluon.jit
def _consume(
    which: gl.constexpr, c_desc, a_slots, b_slots, full, empty, M, N, K, GROUP_M: gl.constexpr
):
    """Multiply what arrives by its rows of a, and store the result of each tile."""
    # multiply
    STAGES: gl.constexpr = a_slots.shape[0]
    BLOCK_M: gl.constexpr = a_slots.shape[1]
    BLOCK_K: gl.constexpr = a_slots.shape[2]
    BLOCK_N: gl.constexpr = b_slots.shape[2]
    ROWS: gl.constexpr = c_desc.block_type.shape[0]
    PART: gl.constexpr = c_desc.block_type.shape[1]
    wgmma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BLOCK_N, 16])
    c_parts = gl.allocate_shared_memory(c_desc.dtype, [2, ROWS, PART], c_desc.layout)
    num_m, num_n = gl.cdiv(M, BLOCK_M), gl.cdiv(N, BLOCK_N)
    used = 0
    for tile in range(gl.program_id(0), num_m * num_n, gl.num_programs(0)):
        acc = gl.zeros([ROWS, BLOCK_N], gl.float32, wgmma)
        for k in range(0, K, BLOCK_K):
            slot = used % STAGES
            mbarrier.wait(full.index(slot), used // STAGES & 1)
            a_rows = a_slots.index(slot).slice(which * ROWS, ROWS)
            acc = warpgroup_mma(a_rows, b_slots.index(slot), acc, is_async=True)
            # free the slots
            # all but the newest product are done: the slot of the one before is free
            acc = warpgroup_mma_wait(1, deps=(acc,))
            mbarrier.arrive(empty.index((used - 1) % STAGES), pred=k != 0)
            used += 1
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(empty.index((used - 1) % STAGES))

        # store in parts
        tile_m, tile_n = _tile_of(tile, num_m, num_n, GROUP_M)
        m, n = tile_m * BLOCK_M + which * ROWS, tile_n * BLOCK_N
        left, right = _halves(acc)
        part_0, part_1 = _halves(left)
        part_2, part_3 = _halves(right)
        parts = (part_0, part_1, part_2, part_3)
        for i in gl.static_range(4):
            tma.store_wait(pendings=1)  # the store before the last one has left its place
            c_parts.index(i % 2).store(parts[i].to(c_desc.dtype))
            fence_async_shared()
            tma_store(c_desc, [m, n + i * PART], c_parts.index(i % 2))
    tma.store_wait(pendings=0)


@gluon.jit
def _halves(x):
    """The left and the right half of the columns; every element stays in its thread."""
    return x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute(0, 2, 1).split()


@gluon.jit
def _ws_gemm_kernel(
    a_desc, b_desc, c_desc, M, N, K,
    STAGES: gl.constexpr, GROUP_M: gl.constexpr, CONSUMERS: gl.constexpr,
):  # fmt: skip
    # slots and barriers
    BLOCK_M: gl.constexpr = a_desc.block_type.shape[0]
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    BLOCK_N: gl.constexpr = b_desc.block_type.shape[1]
    a_slots = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], a_desc.layout)
    b_slots = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BLOCK_K, BLOCK_N], b_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=CONSUMERS)
    gl.warp_specialize(
        [
            (_consume, (0, c_desc, a_slots, b_slots, full, empty, M, N, K, GROUP_M)),
            (_consume, (1, c_desc, a_slots, b_slots, full, empty, M, N, K, GROUP_M)),
            (_produce, (a_desc, b_desc, a_slots, b_slots, full, empty, M, N, K, GROUP_M)),
        ],
        [4, 1],
        [240, 24],
    )


def persistent_ws_gemm(a: Float[Tensor, "m k"], b: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
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
