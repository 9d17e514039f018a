"""Kata week17/fa3_wgmma_fwd: FlashAttention-3, forward: exponentials behind matrix products.

One warp loads, two warpgroups compute, each its half of a tile of queries. A warpgroup issues the
scores of the next keys before it needs them, leaves a product with the values in flight while it
takes exponentials, and lends the tensor cores to the other warpgroup meanwhile.
"""

import math
from dataclasses import dataclass

import torch
import triton
from jaxtyping import Float, Float32
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

HEAD_SIZE = 128
CONSUMERS = 2  # warpgroups, each with its half of a tile's queries
ALIGNMENT = 16  # bytes: what TMA demands of addresses and strides
LOG2E = math.log2(math.e)
LN2 = gl.constexpr(math.log(2.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Queries and keys a tile, and slots for tiles of keys or values."""

    m: int = 128
    n: int = 128
    stages: int = 4


CONFIG = Config()


@gluon.jit
def _tile_of(index, num_m, num_heads, CAUSAL: gl.constexpr):
    """Tile of queries and head: heads one after the other, or causal tiles with most keys first."""
    if CAUSAL:
        tile, head = num_m - 1 - index // num_heads, index % num_heads
    else:
        tile, head = index % num_m, index // num_m
    return tile, head


@gluon.jit
def _softmax_step(s, row_max, row_sum, scale):
    """One block of online softmax: weights, new maximum, new sum, factor of what was before."""
    new_max = gl.maximum(row_max, gl.max(s, axis=1))
    p = gl.exp2(s * scale - (new_max * scale)[:, None])
    alpha = gl.exp2((row_max - new_max) * scale)
    return p, new_max, row_sum * alpha + gl.sum(p, axis=1), alpha


@gluon.jit
def _fill(desc, b, h, row, slots, full, free, used):
    """Load rows of a head into the next slot, once it is free."""
    STAGES: gl.constexpr = slots.shape[0]
    slot = used % STAGES
    # the first round finds every slot free: an unused barrier lets parity 1 pass
    mbarrier.wait(free.index(slot), used // STAGES & 1 ^ 1)
    mbarrier.expect(full.index(slot), desc.block_type.nbytes)
    tma_load(desc, [b, h, row, 0], full.index(slot), slots.index(slot))


@gluon.jit
def _produce(
    q_desc, k_desc, v_desc, q_slots, q_full, q_free, slots, full, free,
    H, Sq, Sk, num_tiles, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Load the queries of all tiles, and their keys and values in the order of their use."""
    ROWS: gl.constexpr = q_slots.shape[3]
    CONSUMERS: gl.constexpr = q_slots.shape[0]
    BLOCK_M: gl.constexpr = CONSUMERS * ROWS
    BLOCK_N: gl.constexpr = slots.shape[3]
    num_m = gl.cdiv(Sq, BLOCK_M)
    index, rounds = gl.program_id(0), 0
    used = 0  # slots so far, over all tiles
    while index < num_tiles:
        tile, head = _tile_of(index, num_m, num_tiles // num_m, CAUSAL)
        b, h = head // H, head % H
        blocks = gl.cdiv(Sk, BLOCK_N)
        if CAUSAL:
            blocks = gl.minimum(blocks, gl.cdiv((tile + 1) * BLOCK_M, BLOCK_N))
        for i in gl.static_range(CONSUMERS):
            mbarrier.wait(q_free.index(i), rounds & 1 ^ 1)
            mbarrier.expect(q_full.index(i), q_desc.block_type.nbytes)
            row = tile * BLOCK_M + i * ROWS
            tma_load(q_desc, [b, h, row, 0], q_full.index(i), q_slots.index(i))
        start = (blocks - 1) * BLOCK_N
        _fill(k_desc, b, h, start, slots, full, free, used)
        used += 1
        for _ in range(blocks - 1):
            _fill(k_desc, b, h, start - BLOCK_N, slots, full, free, used)
            _fill(v_desc, b, h, start, slots, full, free, used + 1)
            used += 2
            start -= BLOCK_N
        _fill(v_desc, b, h, start, slots, full, free, used)
        used += 1
        rounds += 1
        index = 2 * rounds * gl.num_programs(0) - 1 - index


@gluon.jit
def _fa3_kernel(
    q_desc, k_desc, v_desc, o_desc, lse_ptr, H, Sq, Sk, scale, num_tiles,
    CONSUMERS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    # TODO(kata): slots and barriers, first block of keys, issue both products, softmax under a
    # product, last values and the store (about 120 lines with helpers)
    pass


def fa3_wgmma_fwd(
    q: Float[Tensor, "b h sq d"],
    k: Float[Tensor, "b h sk d"],
    v: Float[Tensor, "b h sk d"],
    causal: bool = False,
) -> tuple[Float[Tensor, "b h sq d"], Float32[Tensor, "b h sq"]]:
    """
    softmax(q kᵀ / √d) v, contiguous, and the natural logarithm of the softmax's denominator.

    Scores, sums and `lse` are float32; the weights are rounded to float16 for the second product.
    Rows, heads and batches may lie apart in memory, and are read where they are.

    Args:
        q: Queries, float16, d = 128.
        k: Keys.
        v: Values.
        causal: Query i sees the keys up to i; as many keys as queries.

    Raises:
        ValueError: an argument is not as said, or TMA cannot address it.

    Source: Shah et al. 2024 (FlashAttention-3), algorithm 2.
    """
    raise NotImplementedError  # TODO(kata): check (about 35 lines with helpers)


def _launch(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, config: Config
) -> None:
    B, H, Sq, D = q.shape
    tiles = B * H * triton.cdiv(Sq, config.m)
    rows, keys = [1, 1, config.m // CONSUMERS, D], [1, 1, config.n, D]
    _fa3_kernel[(min(tiles, _programs(q)),)](
        descriptor(q, rows), descriptor(k, keys), descriptor(v, keys), descriptor(o, rows), lse,
        H, Sq, k.shape[2], D**-0.5 * LOG2E, tiles,
        CONSUMERS=CONSUMERS, STAGES=config.stages, CAUSAL=causal, num_warps=4,
    )  # fmt: skip


def _programs(q: Tensor) -> int:
    """One for each multiprocessor."""
    return torch.cuda.get_device_properties(q.device).multi_processor_count if q.is_cuda else 3
