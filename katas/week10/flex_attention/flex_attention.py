"""Kata week10/flex_attention: somebody else's scores and masks inside one attention kernel.

Which tiles of the score matrix hold anything is worked out once. HBM: q and o once, k and v once
for each tile that is listed; a hidden tile costs nothing, a full one no mask.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int32
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

HEAD_SIZES = (16, 32, 64, 128)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LOG2E = tl.constexpr(math.log2(math.e))


class BlockMask(NamedTuple):
    """
    The tiles of `block` x `block` scores that are not hidden, row of tiles by row of tiles.

    A row has `num` column indices in `idx`, ascending; what follows them means nothing. The first
    two axes are batch and head, or 1 where all share one table.
    """

    kv_num: Int32[Tensor, "mb mh rows"]  # partial tiles
    kv_idx: Int32[Tensor, "mb mh rows cols"]
    full_num: Int32[Tensor, "mb mh rows"]
    full_idx: Int32[Tensor, "mb mh rows cols"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Queries and keys that a program takes at a time, and how it is built."""

    m: int
    n: int
    warps: int = 4
    stages: int = 2


CPU = Config(m=32, n=32)
FP32 = Config(m=64, n=32, warps=8)
POINTER = Config(m=128, n=64, warps=8)
DESCRIPTOR = Config(m=128, n=64)
WIDE = Config(m=128, n=64, warps=8)  # heads of 128: 4 warps would spill


@triton.jit
def _load_tile(x, b, h, start, size, strides, BLOCK: tl.constexpr, D: tl.constexpr):
    """Rows start .. start + BLOCK of x[b, h], zero past `size`; no strides: `x` is a descriptor."""
    if strides is None:
        tile = x.load([b, h, start, 0]).reshape(BLOCK, D)
    else:
        rows = (start + tl.arange(0, BLOCK))[:, None]
        head = x + b.to(tl.int64) * strides[0] + h.to(tl.int64) * strides[1]
        ptrs = head + rows.to(tl.int64) * strides[2] + tl.arange(0, D)[None, :] * strides[3]
        tile = tl.load(ptrs, mask=rows < size, other=0.0)
    return tile


@triton.jit
def _flex_attention_kernel(
    q, k, v, o_ptr, kv_num_ptr, kv_idx_ptr, full_num_ptr, full_idx_ptr,
    q_strides, k_strides, v_strides, H, Sq, Sk, mask_b, mask_h, num_rows, num_cols, scale,
    MASK_MOD: tl.constexpr, SCORE_MOD: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # TODO(kata): scores and masks, rescale the old sums, normalise and store (about 40 lines)
    pass


def flex_attention(
    q: Float[Tensor, "b h sq d"],
    k: Float[Tensor, "b h sk d"],
    v: Float[Tensor, "b h sk d"],
    kv_num: Int32[Tensor, "mb mh rows"],
    kv_idx: Int32[Tensor, "mb mh rows cols"],
    full_num: Int32[Tensor, "mb mh rows"],
    full_idx: Int32[Tensor, "mb mh rows cols"],
    block: int,
    mask_mod: Callable,
    score_mod: Callable | None = None,
    scale: float | None = None,
) -> Float[Tensor, "b h sq d"]:
    """
    softmax(score_mod(q kᵀ scale)) v over the pairs that are visible.

    Strides of q, k and v are free, the tables are contiguous. Scores and sums are float32; `o` is
    contiguous, in the dtype of `q`. A query that sees no key gets 0.

    Args:
        q: Queries; d is 16, 32, 64 or 128.
        k: Keys.
        v: Values.
        kv_num: The tables of a `BlockMask`: how many partial tiles each row of tiles has,
        kv_idx: and which;
        full_num: how many full ones,
        full_idx: and which. Hidden tiles are in neither list.
        block: Side of a tile: a power of two, at least 16.
        mask_mod: A jit function (b, h, qi, ki) -> whether query qi sees key ki; for partial tiles.
        score_mod: A jit function (s, b, h, qi, ki) -> the scores in place of `s`.
        scale: Any finite factor of the scores; default 1 / sqrt(d).

    Raises:
        ValueError: an argument is not as said above, dtypes or devices differ, or bfloat16 tensors
            are on the CPU, where the interpreter cannot compute with them.

    Source: Dong et al. 2024 (FlexAttention).
    """
    raise NotImplementedError  # TODO(kata): check, launch (about 7 lines)


def create_block_mask(
    mask_fn: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    b: int,
    h: int,
    sq: int,
    sk: int,
    block: int,
    device: torch.device | str = "cpu",
) -> BlockMask:
    """
    Sort the tiles of a mask into partial, full and hidden ones.

    A tile is full when each of its block x block pairs exists and is visible, hidden when none is.

    Args:
        mask_fn: Takes integer tensors b, h, qi, ki that broadcast against each other; its bools
            broadcast to [b, h, sq, sk].
        b: Batch, 1 for a mask that is the same for all.
        h: Heads, likewise.
        sq: Queries.
        sk: Keys.
        block: Side of a tile: a power of two, at least 16.
        device: Where the tables and the tensors for `mask_fn` are made.

    Raises:
        ValueError: `block` is not as said above.
    """
    raise NotImplementedError  # TODO(kata): check, sort the tiles (about 10 lines with helpers)


def _tiles(size: int, block: int) -> int:
    return -(-size // block)


def _check_block(block: int) -> None:
    if block < 16 or block & (block - 1):
        raise ValueError(f"block: expected a power of two, at least 16, found {block}")


def _check(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, block: int) -> None:
    raise NotImplementedError  # TODO(kata): check (about 30 lines)


def _launch(q, k, v, o, mask, block, mask_mod, score_mod, scale, config: Config | None = None):
    B, H, Sq, D = q.shape
    by_descriptor = all(_is_describable(x) for x in (q, k, v))
    if config is None:
        if not q.is_cuda:
            config = CPU
        elif q.itemsize > 2:
            config = FP32
        else:
            by_size = WIDE if D == 128 else DESCRIPTOR
            config = by_size if by_descriptor else POINTER
    block_m, block_n = min(config.m, block), min(config.n, block)
    tiles, strides = [q, k, v], [q.stride(), k.stride(), v.stride()]
    if by_descriptor:
        blocks = ([1, 1, size, D] for size in (block_m, block_n, block_n))
        tiles = [TensorDescriptor.from_tensor(*x) for x in zip(tiles, blocks, strict=True)]
        strides = [None] * 3
    grid = (B * H * triton.cdiv(Sq, block_m),)
    _flex_attention_kernel[grid](
        *tiles, o, *mask, *strides, H, Sq, k.shape[2], *mask.kv_idx.shape, scale,
        MASK_MOD=mask_mod, SCORE_MOD=score_mod, D=D, BLOCK=block, BLOCK_M=block_m, BLOCK_N=block_n,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip


def _is_describable(x: Tensor) -> bool:
    """Whether the chip's tensor memory accelerator takes `x`, or the interpreter in its place."""
    if x.itemsize != 2 or x.numel() == 0 or x.stride(-1) != 1 or x.data_ptr() % 16:
        return False
    if any(stride <= 0 or stride * x.itemsize % 16 for stride in x.stride()[:-1]):
        return False
    return not x.is_cuda or triton.runtime.driver.active.get_current_target().arch >= 90
