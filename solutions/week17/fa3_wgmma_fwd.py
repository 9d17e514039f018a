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
def _consume(
    which: gl.constexpr, o_desc, lse_ptr, q_slots, q_full, q_free, slots, full, free, turn,
    H, Sq, Sk, scale, num_tiles, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Attention of one consumer's rows of each tile, from the last keys to the first."""
    # slots and barriers
    STAGES: gl.constexpr = slots.shape[0]
    CONSUMERS: gl.constexpr = q_slots.shape[0]
    ROWS: gl.constexpr = q_slots.shape[3]
    BLOCK_M: gl.constexpr = CONSUMERS * ROWS
    BLOCK_N: gl.constexpr = slots.shape[3]
    D: gl.constexpr = slots.shape[4]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [gl.num_warps(), 1], [16, BLOCK_N, 16]
    )
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    o_slot = gl.allocate_shared_memory(o_desc.dtype, [1, 1, ROWS, D], o_desc.layout)
    no_scores = gl.zeros([ROWS, BLOCK_N], gl.float32, s_layout)
    q = q_slots.index(which).reshape([ROWS, D])
    num_m = gl.cdiv(Sq, BLOCK_M)
    index, rounds = gl.program_id(0), 0
    used, turns = 0, 0
    while index < num_tiles:
        tile, head = _tile_of(index, num_m, num_tiles // num_m, CAUSAL)
        b, h = head // H, head % H
        blocks = gl.cdiv(Sk, BLOCK_N)
        if CAUSAL:
            blocks = gl.minimum(blocks, gl.cdiv((tile + 1) * BLOCK_M, BLOCK_N))
        rows = tile * BLOCK_M + which * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, s_layout))

        # first block of keys
        # the last keys, the only ones that a mask may hide
        mbarrier.wait(q_full.index(which), rounds & 1)
        slot = used % STAGES
        mbarrier.wait(full.index(slot), used // STAGES & 1)
        k = slots.index(slot).reshape([BLOCK_N, D]).permute([1, 0])
        s = warpgroup_mma(q, k, no_scores, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(0, deps=(s,))
        mbarrier.arrive(free.index(slot))
        mbarrier.arrive(q_free.index(which), pred=blocks == 1)
        used += 1
        cols = (blocks - 1) * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, s_layout))
        seen = gl.full([ROWS], 0, gl.int32, gl.SliceLayout(1, s_layout)) + Sk
        if CAUSAL:
            seen = gl.minimum(seen, rows + 1)
        s = gl.where(cols[None, :] < seen[:, None], s, -float("inf"))
        row_max = gl.full([ROWS], -float("inf"), gl.float32, gl.SliceLayout(1, s_layout))
        row_sum = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, s_layout))
        p, row_max, row_sum, alpha = _softmax_step(s, row_max, row_sum, scale)
        p = gl.convert_layout(p.to(o_desc.dtype), p_layout)
        acc = gl.zeros([ROWS, D], gl.float32, o_layout)
        # issue both products
        for left in range(blocks - 1, 0, -1):
            k_slot, v_slot = used % STAGES, (used + 1) % STAGES
            mbarrier.wait(full.index(k_slot), used // STAGES & 1)
            # the tensor cores are this warpgroup's until it has issued both products
            mbarrier.wait(turn.index(which), turns & 1 ^ 1 - which)
            k = slots.index(k_slot).reshape([BLOCK_N, D]).permute([1, 0])
            s = warpgroup_mma(q, k, no_scores, use_acc=False, is_async=True)
            mbarrier.wait(full.index(v_slot), (used + 1) // STAGES & 1)
            acc = warpgroup_mma(p, slots.index(v_slot).reshape([BLOCK_N, D]), acc, is_async=True)
            mbarrier.arrive(turn.index(1 - which))
            # softmax under a product
            s = warpgroup_mma_wait(1, deps=(s,))
            mbarrier.arrive(free.index(k_slot))
            mbarrier.arrive(q_free.index(which), pred=left == 1)
            weights, row_max, row_sum, alpha = _softmax_step(s, row_max, row_sum, scale)
            acc = warpgroup_mma_wait(0, deps=(acc,))
            mbarrier.arrive(free.index(v_slot))
            acc = acc * gl.convert_layout(alpha, gl.SliceLayout(1, o_layout))[:, None]
            p = gl.convert_layout(weights.to(o_desc.dtype), p_layout)
            used += 2
            turns += 1

        # last values and the store
        slot = used % STAGES
        mbarrier.wait(full.index(slot), used // STAGES & 1)
        acc = warpgroup_mma(p, slots.index(slot).reshape([BLOCK_N, D]), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(free.index(slot))
        used += 1

        inverse = gl.convert_layout(1.0 / row_sum, gl.SliceLayout(1, o_layout))
        tma.store_wait(pendings=0)  # the tile before has left the slot
        o_slot.reshape([ROWS, D]).store((acc * inverse[:, None]).to(o_desc.dtype))
        fence_async_shared()
        tma_store(o_desc, [b, h, tile * BLOCK_M + which * ROWS, 0], o_slot)
        lse = (row_max * scale + gl.log2(row_sum)) * LN2
        gl.store(lse_ptr + head.to(gl.int64) * Sq + rows, lse, mask=rows < Sq)
        rounds += 1
        index = 2 * rounds * gl.num_programs(0) - 1 - index
    tma.store_wait(pendings=0)


@gluon.jit
def _fa3_kernel(
    q_desc, k_desc, v_desc, o_desc, lse_ptr, H, Sq, Sk, scale, num_tiles,
    CONSUMERS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    # slots and barriers
    q_slots = gl.allocate_shared_memory(
        q_desc.dtype, [CONSUMERS] + q_desc.block_type.shape, q_desc.layout
    )
    slots = gl.allocate_shared_memory(
        k_desc.dtype, [STAGES] + k_desc.block_type.shape, k_desc.layout
    )
    q_full = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    q_free = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    turn = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(CONSUMERS):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_free.index(i), count=1)
        mbarrier.init(turn.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(free.index(i), count=CONSUMERS)
    gl.warp_specialize(
        [
            (_consume, (
                0, o_desc, lse_ptr, q_slots, q_full, q_free, slots, full, free, turn,
                H, Sq, Sk, scale, num_tiles, CAUSAL,
            )),
            (_consume, (
                1, o_desc, lse_ptr, q_slots, q_full, q_free, slots, full, free, turn,
                H, Sq, Sk, scale, num_tiles, CAUSAL,
            )),
            (_produce, (
                q_desc, k_desc, v_desc, q_slots, q_full, q_free, slots, full, free,
                H, Sq, Sk, num_tiles, CAUSAL,
            )),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


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
    # check
    _check(q, k, v, causal)
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    if not o.numel():
        return o, lse
    if not k.numel():
        return o.zero_(), lse.fill_(-torch.inf)
    _launch(q, k, v, o, lse, causal, CONFIG)
    return o, lse


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


def _check(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> None:
    # check
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4 or x.shape[3] != HEAD_SIZE or x.dtype != torch.float16:
            raise ValueError(
                f"{name}: expected float16 [b, h, s, {HEAD_SIZE}], found {x.dtype} {list(x.shape)}"
            )
        if x.device != q.device:
            raise ValueError(f"{name}: expected it on {q.device} as q is, found {x.device}")
    if k.shape[:2] != q.shape[:2]:
        raise ValueError(
            f"k: expected batches and heads {list(q.shape[:2])}, found {list(k.shape[:2])}"
        )
    if v.shape != k.shape:
        raise ValueError(f"v: expected the shape of k, {list(k.shape)}, found {list(v.shape)}")
    if causal and k.shape[2] != q.shape[2]:
        raise ValueError(f"k: expected {q.shape[2]} keys for causal, found {k.shape[2]}")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not x.numel():
            continue  # of nothing TMA loads nothing
        if x.stride(3) != 1:
            raise ValueError(f"{name}: expected rows without gaps, found a stride of {x.stride(3)}")
        pitches = [stride * x.element_size() for stride in x.stride()[:3]]
        if any(one % ALIGNMENT for one in (x.data_ptr(), *pitches)):
            raise ValueError(
                f"{name}: expected an address and strides of whole {ALIGNMENT} bytes, "
                f"found {x.data_ptr():#x} and {pitches}"
            )
