"""Kata week12/flash_decode: attention of one new query per sequence, its keys split over programs.

A first kernel attends from all query heads of a group to one split of their keys; a second merges
the splits. HBM: the keys and values that exist once, and a small float32 result for each split.
"""

import math

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int32
from torch import Tensor

HEAD_SIZES = (16, 32, 64, 128)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LOG2E = math.log2(math.e)
MIN_DOT_ROWS = 16  # fewer rows than this no tensor core multiplies


@triton.jit
def _split_kernel(
    q_ptr, k_ptr, v_ptr, seq_lens_ptr, part_ptr, lse_ptr,
    q_strides, k_strides, v_strides, seq_lens_stride,
    Hkv, num_splits, split_size, scale,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # TODO(kata): keys of the split, scores of the tile, rescale the old sums (about 35 lines)
    pass


@triton.jit
def _merge_kernel(
    part_ptr, lse_ptr, seq_lens_ptr, o_ptr, seq_lens_stride, Hq, num_splits, split_size,
    D: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    # TODO(kata): merge the splits (about 20 lines)
    pass


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
    # TODO(kata): check, allocate and launch (about 30 lines with helpers)
    raise NotImplementedError


def _check(q: Tensor, k: Tensor, v: Tensor, seq_lens: Tensor, split_size: int) -> None:
    raise NotImplementedError  # TODO(kata): check (about 25 lines)
