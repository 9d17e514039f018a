"""Kata week12/flash_attn_fwd: attention without the S x S matrix (FlashAttention-2, algorithm 1).

One program keeps a tile of queries on chip and streams the keys and values past it. HBM: q once,
k and v once per query tile, o and lse once.
"""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

HEAD_SIZES = (16, 32, 64, 80, 96, 128)
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
DESCRIPTOR = Config(m=128, n=64)


@triton.jit
def _load_tile(
    x, b, h, start, size, strides, D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr
):
    """
    Rows start .. start + BLOCK of x[b, h]; no strides: `x` is a descriptor.

    Rows from `size` on and columns from D on are zero.
    """
    if strides is None:
        tile = x.load([b, h, start, 0]).reshape(BLOCK, BLOCK_D)
    else:
        rows = (start + tl.arange(0, BLOCK))[:, None]
        cols = tl.arange(0, BLOCK_D)[None, :]
        head = x + b.to(tl.int64) * strides[0] + h.to(tl.int64) * strides[1]
        ptrs = head + rows.to(tl.int64) * strides[2] + cols * strides[3]
        tile = tl.load(ptrs, mask=(rows < size) & (cols < D), other=0.0)
    return tile


@triton.jit
def _flash_attn_fwd_kernel(
    q, k, v, o_ptr, lse_ptr, q_strides, k_strides, v_strides, Hq, Hkv, Sq, Sk, scale,
    CAUSAL: tl.constexpr, D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    # TODO(kata): keys the tile sees, scores of the tile, rescale the old sums, normalise and store
    # (about 40 lines)
    pass


def flash_attn_fwd(
    q: Float[Tensor, "b hq sq d"],
    k: Float[Tensor, "b hkv sk d"],
    v: Float[Tensor, "b hkv sk d"],
    causal: bool = False,
    sm_scale: float | None = None,
) -> tuple[Float[Tensor, "b hq sq d"], Float32[Tensor, "b hq sq"]]:
    """
    softmax(q kᵀ sm_scale) v and the natural logarithm of the softmax's denominator.

    Strides are free. Scores, sums and `lse` are float32; `o` is contiguous, in the dtype of `q`.
    Query head i reads key head i // (hq / hkv). Causal masks are aligned bottom right: query i
    sees keys up to i + sk - sq. A query that sees no key gets o = 0 and lse = -inf.

    Args:
        q: Queries; d is 16, 32, 64, 80, 96 or 128.
        k: Keys.
        v: Values.
        causal: Hide later keys.
        sm_scale: Positive factor of the scores; default 1 / sqrt(d).

    Raises:
        ValueError: an argument is not as said above, dtypes or devices differ, or bfloat16 tensors
            are on the CPU, where the interpreter cannot compute with them.

    Source: Dao 2023 (FlashAttention-2), algorithm 1.
    """
    raise NotImplementedError  # TODO(kata): check, allocate and launch (about 6 lines)


def _check(q: Tensor, k: Tensor, v: Tensor, sm_scale: float | None) -> None:
    raise NotImplementedError  # TODO(kata): check (about 20 lines)


def _launch(q, k, v, o, lse, causal, sm_scale, config: Config | None = None) -> None:
    B, Hq, Sq, D = q.shape
    _, Hkv, Sk, _ = k.shape
    by_descriptor = all(_is_describable(x) for x in (q, k, v))
    if config is None:
        if not q.is_cuda:
            config = CPU
        elif q.itemsize > 2:
            config = FP32
        else:
            config = DESCRIPTOR if by_descriptor else POINTER
    BLOCK_D = triton.next_power_of_2(D)
    tiles, strides = [q, k, v], [q.stride(), k.stride(), v.stride()]
    if by_descriptor:
        blocks = ([1, 1, size, BLOCK_D] for size in (config.m, config.n, config.n))
        tiles = [TensorDescriptor.from_tensor(*x) for x in zip(tiles, blocks, strict=True)]
        strides = [None] * 3
    grid = (B * Hq * triton.cdiv(Sq, config.m),)
    _flash_attn_fwd_kernel[grid](
        *tiles, o, lse, *strides, Hq, Hkv, Sq, Sk, sm_scale * LOG2E,
        CAUSAL=causal, D=D, BLOCK_M=config.m, BLOCK_N=config.n, BLOCK_D=BLOCK_D,
        num_warps=config.warps, num_stages=config.stages, maxnreg=config.maxnreg,
    )  # fmt: skip


def _is_describable(x: Tensor) -> bool:
    """Whether the chip's tensor memory accelerator takes `x`, or the interpreter in its place."""
    if x.itemsize != 2 or x.numel() == 0 or x.stride(-1) != 1 or x.data_ptr() % 16:
        return False
    if any(stride <= 0 or stride * x.itemsize % 16 for stride in x.stride()[:-1]):
        return False
    return not x.is_cuda or triton.runtime.driver.active.get_current_target().arch >= 90
