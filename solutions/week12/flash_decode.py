"""Kata week12/flash_decode: attention of one new query per sequence, its keys split over programs.

A first kernel attends from all query heads of a group to one split of their keys; a second merges
the splits. HBM: the keys and values that exist once, and a small float32 result for each split.
"""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int32
from torch import Tensor

HEAD_SIZES = (16, 32, 64, 128)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LOG2E = math.log2(math.e)
MIN_DOT_ROWS = 16  # fewer rows than this no tensor core multiplies


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Keys per tile of the first kernel, and how its programs are built."""

    n: int
    warps: int = 4
    stages: int = 3


CPU = Config(n=32)
GPU = Config(n=64)
FP32 = Config(n=32, stages=2)
MERGED_AT_ONCE = 16  # splits per tile of the second kernel


@triton.jit
def _split_kernel(
    q_ptr, k_ptr, v_ptr, seq_lens_ptr, part_ptr, lse_ptr,
    q_strides, k_strides, v_strides, seq_lens_stride,
    Hkv, num_splits, split_size, scale,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(0) % num_splits
    kv_head = (tl.program_id(0) // num_splits).to(tl.int64)  # of all sequences
    b, h = kv_head // Hkv, kv_head % Hkv
    # keys of the split
    first = split * split_size
    last = min(first + split_size, tl.load(seq_lens_ptr + b * seq_lens_stride))
    if first < last:
        rows = tl.arange(0, BLOCK_G)
        dims = tl.arange(0, D)
        in_group = rows < GROUP
        q_rows = q_ptr + b * q_strides[0] + (h * GROUP + rows)[:, None] * q_strides[1]
        q_tile = tl.load(q_rows + dims[None, :] * q_strides[2], mask=in_group[:, None], other=0.0)
        k_head = k_ptr + b * k_strides[0] + h * k_strides[1] + dims[None, :] * k_strides[3]
        v_head = v_ptr + b * v_strides[0] + h * v_strides[1] + dims[None, :] * v_strides[3]

        acc = tl.zeros([BLOCK_G, D], tl.float32)
        row_max = tl.full([BLOCK_G], -float("inf"), tl.float32)  # of scale * scores
        row_sum = tl.zeros([BLOCK_G], tl.float32)
        # scores of the tile
        for start in range(first, last, BLOCK_N):
            keys = start + tl.arange(0, BLOCK_N)
            exists = keys < last
            offsets = keys.to(tl.int64)[:, None]
            k_tile = tl.load(k_head + offsets * k_strides[2], mask=exists[:, None], other=0.0)
            s = tl.dot(q_tile, k_tile.T, input_precision="ieee") * scale  # [BLOCK_G, BLOCK_N] fp32
            s = tl.where(exists[None, :], s, -float("inf"))
            # rescale the old sums
            new_max = tl.maximum(row_max, tl.max(s, axis=1))  # [BLOCK_G] fp32
            p = tl.exp2(s - new_max[:, None])
            alpha = tl.exp2(row_max - new_max)
            row_max = new_max
            row_sum = row_sum * alpha + tl.sum(p, axis=1)
            # what lies past the end may be NaN, and 0 · NaN is NaN: it is not loaded either
            v_tile = tl.load(v_head + offsets * v_strides[2], mask=exists[:, None], other=0.0)
            acc = acc * alpha[:, None]
            acc = tl.dot(p.to(v_tile.dtype), v_tile, acc, input_precision="ieee")

        slots = (kv_head * GROUP + rows) * num_splits + split
        tl.store(lse_ptr + slots, row_max + tl.log2(row_sum), mask=in_group)
        part_ptrs = part_ptr + slots[:, None] * D + dims[None, :]
        tl.store(part_ptrs, acc / row_sum[:, None], mask=in_group[:, None])


@triton.jit
def _merge_kernel(
    part_ptr, lse_ptr, seq_lens_ptr, o_ptr, seq_lens_stride, Hq, num_splits, split_size,
    D: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)  # one query head of one sequence
    # merge the splits
    used = tl.cdiv(tl.load(seq_lens_ptr + row // Hq * seq_lens_stride), split_size)
    dims = tl.arange(0, D)
    acc = tl.zeros([D], tl.float32)
    row_max = tl.full([1], -float("inf"), tl.float32)
    row_sum = tl.zeros([1], tl.float32)
    # tiles of a fixed size, so that the order of the sums is the same however many splits there are
    for start in range(0, used, BLOCK_S):
        splits = start + tl.arange(0, BLOCK_S)
        slots = row * num_splits + splits
        lse = tl.load(lse_ptr + slots, mask=splits < used, other=-float("inf"))  # [BLOCK_S] fp32
        part_ptrs = part_ptr + slots[:, None] * D + dims[None, :]
        part = tl.load(part_ptrs, mask=splits[:, None] < used, other=0.0)  # [BLOCK_S, D] fp32
        new_max = tl.maximum(row_max, tl.max(lse))
        weights = tl.exp2(lse - new_max)
        alpha = tl.exp2(row_max - new_max)
        row_max = new_max
        row_sum = row_sum * alpha + tl.sum(weights)
        acc = acc * alpha + tl.sum(weights[:, None] * part, axis=0)
    # the largest lse weighs 1, so the sum is below 1 for a sequence without keys only: 0 / 1
    tl.store(o_ptr + row * D + dims, acc / tl.maximum(row_sum, 1.0))


def flash_decode(
    q: Float[Tensor, "b hq d"],
    k: Float[Tensor, "b hkv s d"],
    v: Float[Tensor, "b hkv s d"],
    seq_lens: Int32[Tensor, " b"],
    split_size: int = 256,
) -> Float[Tensor, "b hq d"]:
    """
    softmax(q kᵀ / sqrt(d)) v over the first seq_lens[i] keys of each sequence i.

    Strides are free. Scores, sums and what a split leaves are float32; the result is contiguous, in
    the dtype of `q`. Query head i reads key head i // (hq / hkv). What lies past a sequence's end
    is not read. A sequence without keys gets 0. The bits of a sequence's result depend on its own
    queries, keys, values and length and on `split_size`, on nothing else.

    Args:
        q: One query for each head; d is 16, 32, 64 or 128.
        k: Keys, with room for s of them.
        v: Values.
        seq_lens: How many keys each sequence has, 0 to s; not checked on a GPU.
        split_size: Keys that one program attends to.

    Raises:
        ValueError: an argument is not as said above, dtypes or devices differ, or bfloat16 tensors
            are on the CPU, where the interpreter cannot compute with them.

    Source: Dao et al. 2023, Flash-Decoding.
    """
    # check
    _check(q, k, v, seq_lens, split_size)
    (B, Hq, D), (_, Hkv, S, _) = q.shape, k.shape
    # allocate and launch
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    # from the room for keys alone: a number that followed the batch would change the sums
    split_size = min(split_size, max(S, 1))  # sums with it stay below 2³¹
    num_splits = triton.cdiv(S, split_size)
    part = torch.empty((B, Hq, num_splits, D), dtype=torch.float32, device=q.device)
    lse = torch.empty((B, Hq, num_splits), dtype=torch.float32, device=q.device)
    group = Hq // Hkv
    config = CPU if not q.is_cuda else FP32 if q.itemsize > 2 else GPU
    _split_kernel[(B * Hkv * num_splits,)](
        q, k, v, seq_lens, part, lse,
        q.stride(), k.stride(), v.stride(), seq_lens.stride(0),
        Hkv, num_splits, split_size, D**-0.5 * LOG2E,
        GROUP=group, D=D, BLOCK_G=max(MIN_DOT_ROWS, triton.next_power_of_2(group)),
        BLOCK_N=config.n, num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    _merge_kernel[(B * Hq,)](
        part, lse, seq_lens, o, seq_lens.stride(0), Hq, num_splits, split_size,
        D=D, BLOCK_S=MERGED_AT_ONCE,
    )  # fmt: skip
    return o


def _check(q: Tensor, k: Tensor, v: Tensor, seq_lens: Tensor, split_size: int) -> None:
    # check
    if q.ndim != 3 or q.shape[-1] not in HEAD_SIZES:
        raise ValueError(f"q: expected [b, hq, d], d in {HEAD_SIZES}, found {tuple(q.shape)}")
    if q.dtype not in DTYPES or (q.dtype == torch.bfloat16 and not q.is_cuda):
        raise ValueError(f"q: expected one of {DTYPES}, bfloat16 on a GPU only, found {q.dtype}")
    b, hq, d = q.shape
    if k.ndim != 4 or (k.shape[0], k.shape[3]) != (b, d):
        raise ValueError(f"k: expected [{b}, hkv, s, {d}] as q has, found {tuple(k.shape)}")
    if k.shape[1] == 0 or hq % k.shape[1]:
        raise ValueError(f"k: expected a number of heads that divides {hq}, found {k.shape[1]}")
    if v.shape != k.shape:
        raise ValueError(f"v: expected the shape of k, {tuple(k.shape)}, found {tuple(v.shape)}")
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype or x.device != q.device:
            raise ValueError(
                f"{name}: expected {q.dtype} on {q.device} as q has, found {x.dtype} on {x.device}"
            )
    if seq_lens.shape != (b,) or seq_lens.dtype != torch.int32 or seq_lens.device != q.device:
        raise ValueError(
            f"seq_lens: expected [{b}] int32 on {q.device}, found {tuple(seq_lens.shape)} "
            f"{seq_lens.dtype} on {seq_lens.device}"
        )
    # on a GPU a look at the lengths would wait for all work before it
    if not q.is_cuda and b and (seq_lens.min() < 0 or seq_lens.max() > k.shape[2]):
        raise ValueError(f"seq_lens: expected 0 to {k.shape[2]}, found {seq_lens.tolist()}")
    if split_size < 1:
        raise ValueError(f"split_size: expected at least 1, found {split_size}")
