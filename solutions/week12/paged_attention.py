"""Kata week12/paged_attention: attention of one new query per sequence over a paged cache.

A program has one key head of one sequence. It looks up where each of its tokens lies, and reads
keys and values there: nothing is gathered first. HBM: each key and value in use once.
"""

import math

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int32, Int64
from torch import Tensor

HEAD_SIZES = (16, 32, 64, 128)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LOG2E = math.log2(math.e)
MIN_DOT_ROWS = 16  # fewer rows than this no tensor core multiplies
TILE = 32  # tokens
STAGES = 5  # table entries are asked for two tiles before keys and values, and these two ahead


@triton.jit
def _paged_attention_kernel(
    q_ptr, k_ptr, v_ptr, tables_ptr, seq_lens_ptr, o_ptr,
    q_strides, k_strides, v_strides, table_strides, seq_lens_stride, Hkv, scale,
    GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr, D: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(0).to(tl.int64)  # of all sequences
    b, h = kv_head // Hkv, kv_head % Hkv
    length = tl.load(seq_lens_ptr + b * seq_lens_stride)
    table = tables_ptr + b * table_strides[0]

    rows = tl.arange(0, BLOCK_G)
    dims = tl.arange(0, D)
    in_group = rows < GROUP
    q_rows = q_ptr + b * q_strides[0] + (h * GROUP + rows)[:, None] * q_strides[1]
    q_tile = tl.load(q_rows + dims[None, :] * q_strides[2], mask=in_group[:, None], other=0.0)
    k_head = k_ptr + h * k_strides[2] + dims[None, :] * k_strides[3]
    v_head = v_ptr + h * v_strides[2] + dims[None, :] * v_strides[3]

    acc = tl.zeros([BLOCK_G, D], tl.float32)
    row_max = tl.full([BLOCK_G], -float("inf"), tl.float32)  # of scale * scores
    row_sum = tl.zeros([BLOCK_G], tl.float32)
    # look up the blocks
    for start in range(0, length, BLOCK_N):
        tokens = start + tl.arange(0, BLOCK_N)
        exists = tokens < length
        entries = table + (tokens // BLOCK_SIZE) * table_strides[1]
        blocks = tl.load(entries, mask=exists, other=0).to(tl.int64)[:, None]  # [BLOCK_N, 1]
        slots = (tokens % BLOCK_SIZE)[:, None]
        # scores of the tile
        k_rows = k_head + blocks * k_strides[0] + slots * k_strides[1]
        k_tile = tl.load(k_rows, mask=exists[:, None], other=0.0)  # [BLOCK_N, D]
        s = tl.dot(q_tile, k_tile.T, input_precision="ieee") * scale  # [BLOCK_G, BLOCK_N] fp32
        s = tl.where(exists[None, :], s, -float("inf"))
        # rescale the old sums
        new_max = tl.maximum(row_max, tl.max(s, axis=1))  # [BLOCK_G] fp32
        p = tl.exp2(s - new_max[:, None])
        alpha = tl.exp2(row_max - new_max)
        row_max = new_max
        row_sum = row_sum * alpha + tl.sum(p, axis=1)
        # what lies past the end may be NaN, and 0 · NaN is NaN: it is not loaded either
        v_rows = v_head + blocks * v_strides[0] + slots * v_strides[1]
        v_tile = tl.load(v_rows, mask=exists[:, None], other=0.0)
        acc = acc * alpha[:, None]
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc, input_precision="ieee")

    # store
    o = acc / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]  # a sequence without tokens: 0
    o_ptrs = o_ptr + (kv_head * GROUP + rows)[:, None] * D + dims[None, :]
    tl.store(o_ptrs, o.to(o_ptr.dtype.element_ty), mask=in_group[:, None])


@triton.jit
def _write_kv_kernel(
    k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, slots_ptr,
    k_strides, v_strides, k_cache_strides, v_cache_strides, slots_stride, Hkv,
    BLOCK_SIZE: tl.constexpr, D: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    # look up the blocks
    slot = tl.load(slots_ptr + token * slots_stride)
    if slot >= 0:
        block, place = slot // BLOCK_SIZE, slot % BLOCK_SIZE
        heads = tl.arange(0, BLOCK_H).to(tl.int64)[:, None]
        dims = tl.arange(0, D)[None, :]
        exists = heads < Hkv
        k_ptrs = k_ptr + token * k_strides[0] + heads * k_strides[1] + dims * k_strides[2]
        v_ptrs = v_ptr + token * v_strides[0] + heads * v_strides[1] + dims * v_strides[2]
        k_slot = k_cache_ptr + block * k_cache_strides[0] + place * k_cache_strides[1]
        v_slot = v_cache_ptr + block * v_cache_strides[0] + place * v_cache_strides[1]
        k_slots = k_slot + heads * k_cache_strides[2] + dims * k_cache_strides[3]
        v_slots = v_slot + heads * v_cache_strides[2] + dims * v_cache_strides[3]
        # store
        tl.store(k_slots, tl.load(k_ptrs, mask=exists), mask=exists)
        tl.store(v_slots, tl.load(v_ptrs, mask=exists), mask=exists)


def paged_attention(
    q: Float[Tensor, "b hq d"],
    k_cache: Float[Tensor, "nb bs hkv d"],
    v_cache: Float[Tensor, "nb bs hkv d"],
    block_tables: Int32[Tensor, "b maxb"],
    seq_lens: Int32[Tensor, " b"],
    scale: float,
) -> Float[Tensor, "b hq d"]:
    """
    softmax(scale · q kᵀ) v over the first seq_lens[i] tokens of each sequence i, where they lie.

    Token t of sequence i is in block block_tables[i, t // bs] of the caches, at place t % bs. Only
    what these tokens need is read: neither table entries nor places past the end. Strides are free,
    offsets int64, scores and sums float32; the result is contiguous, in the dtype of `q`. Query
    head j reads key head j // (hq / hkv). A sequence without tokens gets 0.

    Args:
        q: One query for each head; d is 16, 32, 64 or 128.
        k_cache: Keys, in blocks of a power of two tokens.
        v_cache: Values.
        block_tables: Which blocks hold each sequence; entries past its end may be anything.
        seq_lens: How many tokens each sequence has, 0 to maxb · bs; not checked on a GPU.
        scale: What scores are multiplied by.

    Raises:
        ValueError: an argument is not as said above, dtypes or devices differ, or bfloat16 tensors
            are on the CPU, where the interpreter cannot compute with them.

    Source: Kwon et al. 2023, PagedAttention.
    """
    # check
    _check(q, k_cache, v_cache, block_tables, seq_lens)
    # launch
    (B, Hq, D), (_, block_size, Hkv, _) = q.shape, k_cache.shape
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    group = Hq // Hkv
    _paged_attention_kernel[(B * Hkv,)](
        q, k_cache, v_cache, block_tables, seq_lens, o,
        q.stride(), k_cache.stride(), v_cache.stride(), block_tables.stride(), *seq_lens.stride(),
        Hkv, scale * LOG2E,
        GROUP=group, BLOCK_SIZE=block_size, D=D,
        BLOCK_G=max(MIN_DOT_ROWS, triton.next_power_of_2(group)),
        BLOCK_N=TILE, num_warps=4, num_stages=STAGES,
    )  # fmt: skip
    return o


def write_kv(
    k: Float[Tensor, "t hkv d"],
    v: Float[Tensor, "t hkv d"],
    k_cache: Float[Tensor, "nb bs hkv d"],
    v_cache: Float[Tensor, "nb bs hkv d"],
    slot_mapping: Int64[Tensor, " t"],
) -> None:
    """
    Write the keys and values of t tokens to their slots: slot s is place s % bs of block s // bs.

    Tokens whose slot is negative are skipped. Nothing else in the caches is touched. Strides are
    free, offsets int64.

    Args:
        k: Keys, in the dtype of the caches; d is 16, 32, 64 or 128.
        v: Values.
        k_cache: Where keys go.
        v_cache: Where values go.
        slot_mapping: The slot of each token, no two equal except negative ones.

    Raises:
        ValueError: an argument is not as said above, dtypes or devices differ, a slot lies past the
            caches (not checked on a GPU), or bfloat16 tensors are on the CPU.
    """
    # check
    _check_tokens(k, v, k_cache, v_cache, slot_mapping)
    # launch
    T, Hkv, D = k.shape
    _write_kv_kernel[(T,)](
        k, v, k_cache, v_cache, slot_mapping,
        k.stride(), v.stride(), k_cache.stride(), v_cache.stride(), *slot_mapping.stride(),
        Hkv, BLOCK_SIZE=k_cache.shape[1], D=D, BLOCK_H=triton.next_power_of_2(Hkv),
    )  # fmt: skip


def _check(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, seq_lens: Tensor
) -> None:
    if q.ndim != 3 or q.shape[-1] not in HEAD_SIZES:
        raise ValueError(f"q: expected [b, hq, d], d in {HEAD_SIZES}, found {tuple(q.shape)}")
    _check_dtype("q", q)
    _check_caches(k_cache, v_cache, "q", q)
    b, hq, _ = q.shape
    block_size, hkv = k_cache.shape[1:3]
    if hkv == 0 or hq % hkv:
        raise ValueError(f"k_cache: expected a number of heads that divides {hq}, found {hkv}")
    if block_tables.ndim != 2 or block_tables.shape[0] != b:
        raise ValueError(f"block_tables: expected [{b}, maxb], found {tuple(block_tables.shape)}")
    if seq_lens.shape != (b,):
        raise ValueError(f"seq_lens: expected [{b}], found {tuple(seq_lens.shape)}")
    for name, x in (("block_tables", block_tables), ("seq_lens", seq_lens)):
        if x.dtype != torch.int32 or x.device != q.device:
            raise ValueError(f"{name}: expected int32 on {q.device}, found {x.dtype} on {x.device}")
    room = block_tables.shape[1] * block_size
    # on a GPU a look at the lengths would wait for all work before it
    if not q.is_cuda and not all(0 <= length <= room for length in seq_lens.tolist()):
        raise ValueError(f"seq_lens: expected 0 to {room}, found {seq_lens.tolist()}")


def _check_tokens(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor
) -> None:
    if k.ndim != 3 or k.shape[-1] not in HEAD_SIZES:
        raise ValueError(f"k: expected [t, hkv, d], d in {HEAD_SIZES}, found {tuple(k.shape)}")
    _check_dtype("k", k)
    if v.shape != k.shape:
        raise ValueError(f"v: expected the shape of k, {tuple(k.shape)}, found {tuple(v.shape)}")
    _check_like("v", v, "k", k)
    _check_caches(k_cache, v_cache, "k", k)
    if k_cache.shape[2] != k.shape[1]:
        raise ValueError(f"k_cache: expected {k.shape[1]} heads, found {k_cache.shape[2]}")
    slots = slot_mapping
    if slots.shape != k.shape[:1] or slots.dtype != torch.int64 or slots.device != k.device:
        raise ValueError(
            f"slot_mapping: expected [{len(k)}] int64 on {k.device}, found {tuple(slots.shape)} "
            f"{slots.dtype} on {slots.device}"
        )
    room = k_cache.shape[0] * k_cache.shape[1]
    if not k.is_cuda and any(slot >= room for slot in slots.tolist()):
        raise ValueError(f"slot_mapping: expected slots below {room}, found {slots.tolist()}")


def _check_caches(k_cache: Tensor, v_cache: Tensor, name: str, x: Tensor) -> None:
    if k_cache.ndim != 4 or k_cache.shape[3] != x.shape[2]:
        raise ValueError(
            f"k_cache: expected [nb, bs, hkv, {x.shape[2]}], found {tuple(k_cache.shape)}"
        )
    if k_cache.shape[1].bit_count() != 1:
        raise ValueError(
            f"k_cache: expected blocks of a power of two tokens, found {k_cache.shape[1]}"
        )
    if v_cache.shape != k_cache.shape:
        raise ValueError(
            f"v_cache: expected the shape of k_cache, {tuple(k_cache.shape)}, "
            f"found {tuple(v_cache.shape)}"
        )
    _check_like("k_cache", k_cache, name, x)
    _check_like("v_cache", v_cache, name, x)


def _check_dtype(name: str, x: Tensor) -> None:
    if x.dtype not in DTYPES or (x.dtype == torch.bfloat16 and not x.is_cuda):
        raise ValueError(f"{name}: expected one of {DTYPES}, bfloat16 on a GPU, found {x.dtype}")


def _check_like(name: str, x: Tensor, other_name: str, other: Tensor) -> None:
    if x.dtype != other.dtype or x.device != other.device:
        raise ValueError(
            f"{name}: expected {other.dtype} on {other.device} as {other_name} has, "
            f"found {x.dtype} on {x.device}"
        )
