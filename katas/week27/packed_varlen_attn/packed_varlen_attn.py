"""Kata week27/packed_varlen_attn: attention within each document of a packed batch, in one launch.

A list has the tiles of queries, none of which has rows of two documents.
"""

import math
from dataclasses import dataclass

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
    raise NotImplementedError  # TODO(kata): list the tiles (about 8 lines)


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
def _packed_varlen_attn_kernel(
    q, k, v, out_ptr, lse_ptr, cu_seqlens_ptr, seq_ptr, row_ptr,
    q_strides, k_strides, v_strides, N, H, Hkv, scale,
    CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # TODO(kata): find the document, whole tiles of keys, the document's last keys, normalise and
    # store (about 50 lines with helpers)
    pass


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
    raise NotImplementedError  # TODO(kata): check (about 8 lines)


def _check(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> None:
    raise NotImplementedError  # TODO(kata): check (about 20 lines)


def _check_documents(cu_seqlens: Tensor, max_seqlen: int, q: Tensor) -> None:
    raise NotImplementedError  # TODO(kata): check (about 20 lines)


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
