"""Kata week27/packed_varlen_attn: attention within each document of a packed batch, in one launch.

A list has the tiles of queries, none of which has rows of two documents; a tile reads the keys of
its own document and no others. So the work is the sum of squared lengths, and there is no mask.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32, Int32
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

MAX_HEAD_SIZE = 128
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LOG2E = math.log2(math.e)
LN2 = tl.constexpr(math.log(2.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Queries and keys per tile, and how a program is built."""

    m: int
    n: int
    warps: int = 4
    stages: int = 2
    maxnreg: int | None = None


CPU = Config(m=32, n=32)
FP32 = Config(m=64, n=32, warps=8)
POINTER = Config(m=128, n=64, warps=8)
DESCRIPTOR = Config(m=128, n=64, warps=8, maxnreg=128)  # two programs on an SM
SHORT = Config(m=64, n=64)  # where no document has more queries than that


def tile_map(
    cu_seqlens: Int32[Tensor, " ends"], tokens: int, block_m: int
) -> tuple[Int32[Tensor, " tiles"], Int32[Tensor, " tiles"]]:
    """
    Tiles of `block_m` queries, none of which has queries of two documents.

    The host does not wait for the device: the list is as long as it could have to be, which is
    tokens // block_m + documents, and -1 where there are no more tiles.

    Args:
        cu_seqlens: Document i has tokens cu_seqlens[i] to cu_seqlens[i + 1] - 1.
        tokens: cu_seqlens[-1], which is on the device.
        block_m: Queries of a tile.

    Returns:
        For each tile its document and its first row, counted from the document's start; in the
        order of tokens.
    """
    tiles = -(-cu_seqlens.diff() // block_m)
    ends = tiles.cumsum(0, dtype=torch.int32)
    most = tokens // block_m + len(tiles)
    at = torch.arange(most, dtype=torch.int32, device=cu_seqlens.device)
    seq = torch.searchsorted(ends, at, right=True, out_int32=True)
    there = seq < len(tiles)
    first = torch.cat([ends - tiles, ends[-1:]])[seq]
    return torch.where(there, seq, -1), torch.where(there, (at - first) * block_m, -1)


@triton.jit
def _load_tile(
    x, h, start, end, strides, D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr
):
    """
    Tokens start .. start + BLOCK of head h of x; no strides: `x` is a descriptor.

    Tokens from `end` on are zero by pointer, and those of the next document by descriptor.
    """
    if strides is None:
        tile = x.load([h, start, 0]).reshape(BLOCK, BLOCK_D)
    else:
        rows = (start + tl.arange(0, BLOCK))[:, None]
        cols = tl.arange(0, BLOCK_D)[None, :]
        ptrs = x + rows.to(tl.int64) * strides[0] + h.to(tl.int64) * strides[1] + cols * strides[2]
        tile = tl.load(ptrs, mask=(rows < end) & (cols < D), other=0.0)
    return tile


@triton.jit
def _hide(s, start, full, CAUSAL: tl.constexpr):
    """Scores of keys from `start` on without those that a row of the tile does not see."""
    cols = start + tl.arange(0, s.shape[1])
    # row 0 of the tile sees keys below full, each further row one more
    limit = tl.arange(0, s.shape[0]) * CAUSAL + full
    return tl.where(cols[None, :] < limit[:, None], s, -float("inf"))


@triton.jit
def _weigh(s, acc, row_max, row_sum, scale):
    """Weights of scores s by the online softmax, and what there is so far on the same footing."""
    new_max = tl.maximum(row_max, tl.max(s, axis=1) * scale)  # [BLOCK_M] fp32
    p = tl.exp2(s * scale - new_max[:, None])  # [BLOCK_M, BLOCK_N] fp32
    alpha = tl.exp2(row_max - new_max)  # [BLOCK_M] fp32
    row_sum = row_sum * alpha + tl.sum(p, axis=1)
    return p, acc * alpha[:, None], new_max, row_sum


@triton.jit
def _packed_varlen_attn_kernel(
    q, k, v, out_ptr, lse_ptr, cu_seqlens_ptr, seq_ptr, row_ptr,
    q_strides, k_strides, v_strides, N, H, Hkv, scale,
    CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # find the document
    # the heads of a tile are neighbours, and share the document's keys and values in L2
    tile, h = tl.program_id(0) // H, tl.program_id(0) % H
    seq, row = tl.load(seq_ptr + tile), tl.load(row_ptr + tile)
    if seq < 0:
        return
    begin, end = tl.load(cu_seqlens_ptr + seq), tl.load(cu_seqlens_ptr + seq + 1)
    kv_h = h // (H // Hkv)

    # of the document the tile's rows all see the keys below `full`, its last row those below `last`
    length = end - begin
    full, last = length, length
    if CAUSAL:
        full, last = row + 1, min(length, row + BLOCK_M)
    whole = length // BLOCK_N * BLOCK_N

    # whole tiles of keys
    q_tile = _load_tile(q, h, begin + row, end, q_strides, D, BLOCK_M, BLOCK_D)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    row_max = tl.full([BLOCK_M], -float("inf"), tl.float32)  # of scale * scores
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    for start in range(0, min(last, whole), BLOCK_N):
        k_tile = _load_tile(k, kv_h, begin + start, end, k_strides, D, BLOCK_N, BLOCK_D)
        s = tl.dot(q_tile, k_tile.T, input_precision="ieee")  # [BLOCK_M, BLOCK_N] fp32
        if start + BLOCK_N > full:
            s = _hide(s, start, full, CAUSAL)
        p, acc, row_max, row_sum = _weigh(s, acc, row_max, row_sum, scale)
        v_tile = _load_tile(v, kv_h, begin + start, end, v_strides, D, BLOCK_N, BLOCK_D)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc, input_precision="ieee")
    # the document's last keys
    # less than a tile, and apart, so that values pass through registers once
    if last > whole:
        k_tile = _load_tile(k, kv_h, begin + whole, end, k_strides, D, BLOCK_N, BLOCK_D)
        s = _hide(tl.dot(q_tile, k_tile.T, input_precision="ieee"), whole, full, CAUSAL)
        p, acc, row_max, row_sum = _weigh(s, acc, row_max, row_sum, scale)
        v_tile = _load_tile(v, kv_h, begin + whole, end, v_strides, D, BLOCK_N, BLOCK_D)
        # a weight of 0 does not hide a NaN of the next document
        inside = whole + tl.arange(0, BLOCK_N) < length
        v_tile = tl.where(inside[:, None], v_tile, 0.0)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc, input_precision="ieee")

    # normalise and store
    tokens = begin + row + tl.arange(0, BLOCK_M)
    lse = (row_max + tl.log2(row_sum)) * LN2
    tl.store(lse_ptr + h.to(tl.int64) * N + tokens, lse, mask=tokens < end)
    rows = tokens.to(tl.int64) * H + h
    cols = tl.arange(0, BLOCK_D)
    out = (acc * (1.0 / row_sum)[:, None]).to(out_ptr.dtype.element_ty)
    mask = (tokens < end)[:, None] & (cols < D)[None, :]
    tl.store(out_ptr + rows[:, None] * D + cols[None, :], out, mask=mask)


def packed_varlen_attn(
    q: Float[Tensor, "n h d"],
    k: Float[Tensor, "n hkv d"],
    v: Float[Tensor, "n hkv d"],
    cu_seqlens: Int32[Tensor, " ends"],
    max_seqlen: int,
    causal: bool = True,
    scale: float | None = None,
) -> tuple[Float[Tensor, "n h d"], Float32[Tensor, "h n"]]:
    """
    softmax(q kᵀ scale) v within each document, and the logarithm of the softmax's denominator.

    Strides are free. Scores, sums and the logarithm, a natural one, are float32; the first result
    is contiguous, in the dtype of `q`. Query head i reads key head i // (h / hkv). The host waits
    for nothing.

    Args:
        q: Queries of all documents, one after another; d is 1 to 128.
        k: Keys.
        v: Values.
        cu_seqlens: Where each document begins, and where the last one ends; rises from 0 to n;
            contiguous.
        max_seqlen: No document is longer.
        causal: Hide the later keys of a document.
        scale: Positive factor of the scores; default 1 / sqrt(d).

    Raises:
        ValueError: an argument is not as said above, dtypes or devices differ, or bfloat16 tensors
            are on the CPU, where the interpreter cannot compute with them. Values of `cu_seqlens`
            are looked at on the CPU only. The message begins with the argument's name.

    Source: Dao 2023 (FlashAttention-2), algorithm 1; torch.nn.attention.varlen.
    """
    # check
    _check(q, k, v, scale)
    _check_documents(cu_seqlens, max_seqlen, q)
    n, h, d = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(h, n, dtype=torch.float32, device=q.device)
    if out.numel():
        _launch(q, k, v, cu_seqlens, max_seqlen, out, lse, causal, scale or d**-0.5)
    return out, lse


def _check(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> None:
    if q.ndim != 3 or not 1 <= q.shape[2] <= MAX_HEAD_SIZE:
        raise ValueError(f"q: expected [n, h, 1 to {MAX_HEAD_SIZE}], found {tuple(q.shape)}")
    if q.dtype not in DTYPES or (q.dtype == torch.bfloat16 and not q.is_cuda):
        raise ValueError(f"q: expected one of {DTYPES}, bfloat16 on a GPU only, found {q.dtype}")
    n, h, d = q.shape
    if k.ndim != 3 or (k.shape[0], k.shape[2]) != (n, d):
        raise ValueError(f"k: expected [{n}, hkv, {d}] as q has, found {tuple(k.shape)}")
    if k.shape[1] == 0 or h % k.shape[1]:
        raise ValueError(f"k: expected a number of heads that divides {h}, found {k.shape[1]}")
    if v.shape != k.shape:
        raise ValueError(f"v: expected the shape of k, {tuple(k.shape)}, found {tuple(v.shape)}")
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype or x.device != q.device:
            raise ValueError(
                f"{name}: expected {q.dtype} on {q.device} as q has, found {x.dtype} on {x.device}"
            )
    if scale is not None and not scale > 0:
        raise ValueError(f"scale: expected a positive number, found {scale}")


def _check_documents(cu_seqlens: Tensor, max_seqlen: int, q: Tensor) -> None:
    if cu_seqlens.ndim != 1 or len(cu_seqlens) == 0 or cu_seqlens.dtype != torch.int32:
        raise ValueError(
            f"cu_seqlens: expected 1-D int32, at least 1, found {cu_seqlens.dtype} "
            f"{tuple(cu_seqlens.shape)}"
        )
    if cu_seqlens.device != q.device or not cu_seqlens.is_contiguous():
        raise ValueError(
            f"cu_seqlens: expected it contiguous on {q.device}, found strides "
            f"{cu_seqlens.stride()} on {cu_seqlens.device}"
        )
    if q.is_cuda:  # to look at values the host would have to wait
        return
    ends = cu_seqlens.tolist()
    if ends[0] != 0 or ends[-1] != len(q) or ends != sorted(ends):
        raise ValueError(f"cu_seqlens: expected it to rise from 0 to {len(q)}, found {ends}")
    longest = max((end - begin for begin, end in pairwise(ends)), default=0)
    if max_seqlen < longest:
        raise ValueError(f"max_seqlen: expected at least {longest}, found {max_seqlen}")


def _launch(
    q, k, v, cu_seqlens, max_seqlen, out, lse, causal, scale, config: Config | None = None
) -> None:
    N, H, D = q.shape
    by_descriptor = all(_is_describable(x) for x in (q, k, v))
    if config is None:
        config = _config(q, max_seqlen, by_descriptor)
    seq, row = tile_map(cu_seqlens, N, config.m)
    BLOCK_D = max(16, triton.next_power_of_2(D))
    tiles, strides = [q, k, v], [q.stride(), k.stride(), v.stride()]
    if by_descriptor:
        sizes = (config.m, config.n, config.n)
        tiles = [
            TensorDescriptor.from_tensor(x.transpose(0, 1), [1, size, D])
            for x, size in zip(tiles, sizes, strict=True)
        ]
        strides = [None] * 3
    # a document's last queries see most keys: the list is worked off from its end
    _packed_varlen_attn_kernel[(len(seq) * H,)](
        *tiles, out, lse, cu_seqlens, seq.flip(0), row.flip(0), *strides,
        N, H, k.shape[1], scale * LOG2E,
        CAUSAL=causal, D=D, BLOCK_D=BLOCK_D, BLOCK_M=config.m, BLOCK_N=config.n,
        num_warps=config.warps, num_stages=config.stages, maxnreg=config.maxnreg,
    )  # fmt: skip


def _config(q: Tensor, max_seqlen: int, by_descriptor: bool) -> Config:
    if not q.is_cuda:
        return CPU
    if q.itemsize > 2:
        return FP32
    if not by_descriptor:
        return POINTER
    return SHORT if max_seqlen <= SHORT.m else DESCRIPTOR


def _is_describable(x: Tensor) -> bool:
    """Whether the chip's tensor memory accelerator takes `x`, or the interpreter in its place."""
    if x.itemsize != 2 or x.stride(-1) != 1 or x.data_ptr() % 16:
        return False
    if x.shape[-1] not in (16, 32, 64, 128):
        return False
    if any(stride <= 0 or stride * x.itemsize % 16 for stride in x.stride()[:-1]):
        return False
    return not x.is_cuda or triton.runtime.driver.active.get_current_target().arch >= 90
