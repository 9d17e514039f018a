"""Kata week10/flex_attention: somebody else's scores and masks inside one attention kernel.

Which tiles of the score matrix hold anything is worked out once. HBM: q and o once, k and v once
for each tile that is listed; a hidden tile costs nothing, a full one no mask.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
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
    # neighbouring programs share a head; under most masks the last queries see most keys, and
    # start first
    num_m = tl.cdiv(Sq, BLOCK_M)
    tile = num_m - 1 - tl.program_id(0) % num_m
    head = tl.program_id(0) // num_m
    b, h = head // H, head % H
    rows = (tile * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    at = (b % mask_b * mask_h + h % mask_h) * num_rows + tile * BLOCK_M // BLOCK

    q_tile = _load_tile(q, b, h, tile * BLOCK_M, Sq, q_strides, BLOCK_M, D)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    row_max = tl.full([BLOCK_M], -float("inf"), tl.float32)  # of scores in bits
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    num_full = tl.load(full_num_ptr + at)
    num_listed = num_full + tl.load(kv_num_ptr + at)
    full_idx_ptr += at * num_cols
    kv_idx_ptr += at * num_cols
    steps: tl.constexpr = BLOCK // BLOCK_N  # to a tile
    # scores and masks
    for step in range(num_listed * steps):
        listed = step // steps
        # the full tiles, then the partial ones
        idx_ptr = full_idx_ptr + listed if listed < num_full else kv_idx_ptr + listed - num_full
        start = tl.load(idx_ptr) * BLOCK + step % steps * BLOCK_N
        cols = (start + tl.arange(0, BLOCK_N))[None, :]
        k_tile = _load_tile(k, b, h, start, Sk, k_strides, BLOCK_N, D)
        s = tl.dot(q_tile, k_tile.T, input_precision="ieee") * scale  # [BLOCK_M, BLOCK_N] fp32
        if SCORE_MOD is not None:
            s = SCORE_MOD(s, b, h, rows, cols)
        if listed >= num_full:
            s = tl.where(MASK_MOD(b, h, rows, cols) & (cols < Sk), s, -float("inf"))
        s = s * LOG2E

        # rescale the old sums
        new_max = tl.maximum(row_max, tl.max(s, axis=1))  # [BLOCK_M] fp32
        # a row that has seen no key yet would compute -inf - -inf
        base = tl.where(new_max == -float("inf"), 0.0, new_max)
        p = tl.exp2(s - base[:, None])  # [BLOCK_M, BLOCK_N] fp32
        alpha = tl.exp2(row_max - base)  # [BLOCK_M] fp32
        row_max = new_max
        row_sum = row_sum * alpha + tl.sum(p, axis=1)
        acc = acc * alpha[:, None]
        v_tile = _load_tile(v, b, h, start, Sk, v_strides, BLOCK_N, D)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc, input_precision="ieee")

    # normalise and store
    # a row that saw no key has the sum 0, and the output 0
    o = acc / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]
    o_ptrs = o_ptr + (head.to(tl.int64) * Sq + rows) * D + tl.arange(0, D)[None, :]
    tl.store(o_ptrs, o.to(o_ptr.dtype.element_ty), mask=rows < Sq)


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
    mask = BlockMask(kv_num, kv_idx, full_num, full_idx)
    # check
    _check(q, k, v, mask, block)
    # launch
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if o.numel():
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        _launch(q, k, v, o, mask, block, mask_mod, score_mod, scale)
    return o


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
    # check
    _check_block(block)
    # sort the tiles
    sizes = (b, h, sq, sk)
    at = torch.meshgrid(*(torch.arange(n, device=device) for n in sizes), indexing="ij")
    visible = mask_fn(*at).expand(sizes)
    rows, cols = _tiles(sq, block), _tiles(sk, block)
    padded = F.pad(visible, (0, cols * block - sk, 0, rows * block - sq))
    seen = padded.reshape(b, h, rows, block, cols, block).sum(dim=(3, 5))
    full = seen == block * block
    return BlockMask(*_listed((seen > 0) & ~full), *_listed(full))


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """How many columns of each row are chosen, and which, rising."""
    # stable: what is chosen comes first, each side in its order
    order = torch.argsort(chosen.int(), descending=True, stable=True)
    return chosen.sum(dim=-1, dtype=torch.int32), order.int()


def _tiles(size: int, block: int) -> int:
    return -(-size // block)


def _check_block(block: int) -> None:
    if block < 16 or block & (block - 1):
        raise ValueError(f"block: expected a power of two, at least 16, found {block}")


def _check(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, block: int) -> None:
    # check
    if q.ndim != 4 or q.shape[-1] not in HEAD_SIZES:
        raise ValueError(f"q: expected [b, h, sq, d], d in {HEAD_SIZES}, found {tuple(q.shape)}")
    if q.dtype not in DTYPES or (q.dtype == torch.bfloat16 and not q.is_cuda):
        raise ValueError(f"q: expected one of {DTYPES}, bfloat16 on a GPU only, found {q.dtype}")
    b, h, sq, d = q.shape
    if k.ndim != 4 or (*k.shape[:2], k.shape[3]) != (b, h, d):
        raise ValueError(f"k: expected [{b}, {h}, sk, {d}] as q has, found {tuple(k.shape)}")
    if v.shape != k.shape:
        raise ValueError(f"v: expected the shape of k, {tuple(k.shape)}, found {tuple(v.shape)}")
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype or x.device != q.device:
            raise ValueError(
                f"{name}: expected {q.dtype} on {q.device} as q has, found {x.dtype} on {x.device}"
            )
    _check_block(block)
    shared = mask.kv_num.shape[:2]
    if len(shared) < 2 or shared[0] not in (1, b) or shared[1] not in (1, h):
        raise ValueError(f"kv_num: expected [{b} or 1, {h} or 1, rows], found {tuple(shared)} …")
    of_rows = (*shared, _tiles(sq, block))
    shapes = (of_rows, (*of_rows, _tiles(k.shape[2], block))) * 2
    for name, table, shape in zip(mask._fields, mask, shapes, strict=True):
        if table.shape != shape:
            raise ValueError(f"{name}: expected {shape}, found {tuple(table.shape)}")
        if table.dtype != torch.int32 or table.device != q.device or not table.is_contiguous():
            raise ValueError(
                f"{name}: expected contiguous int32 on {q.device}, "
                f"found {table.dtype} on {table.device}, strides {table.stride()}"
            )


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
