"""Kata week17/fp8_flash_attn_fwd: fused attention with both products in e4m3, scales for blocks.

One program keeps a tile of queries on chip. HBM: q once, k and v once per tile of queries.
"""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float16, Float32
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

HEAD_SIZES = (64, 128)
BLOCK = 128  # queries, keys or values that share a scale
LOG2E = math.log2(math.e)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Queries and keys per tile, each a divisor of BLOCK, and how a program is built."""

    m: int
    n: int
    warps: int = 8
    stages: int = 3


CPU = Config(m=64, n=64)
POINTER = Config(m=128, n=64, stages=2)
DESCRIPTOR = Config(m=128, n=128)


@triton.jit
def _load_rows(
    x, head, start, size, D: tl.constexpr, ROWS: tl.constexpr, BY_DESCRIPTOR: tl.constexpr
):  # fmt: skip
    """Rows start .. start + ROWS of head `head` of x [heads, size, D], zero past the end."""
    if BY_DESCRIPTOR:
        tile = x.load([head, start, 0]).reshape(ROWS, D)
    else:
        rows = (start + tl.arange(0, ROWS))[:, None]
        ptrs = x + (head.to(tl.int64) * size + rows) * D + tl.arange(0, D)[None, :]
        tile = tl.load(ptrs, mask=rows < size, other=0.0)
    return tile


@triton.jit
def _load_columns(
    x, head, start, size, D: tl.constexpr, COLS: tl.constexpr, BY_DESCRIPTOR: tl.constexpr
):  # fmt: skip
    """Columns start .. start + COLS of head `head` of x [heads, D, size], zero past the end."""
    if BY_DESCRIPTOR:
        tile = x.load([head, 0, start]).reshape(D, COLS)
    else:
        cols = (start + tl.arange(0, COLS))[None, :]
        ptrs = x + (head.to(tl.int64) * D + tl.arange(0, D)[:, None]) * size + cols
        tile = tl.load(ptrs, mask=cols < size, other=0.0)
    return tile


@triton.jit
def _fp8_flash_attn_kernel(
    q, k, vt, q_scale_ptr, k_scale_ptr, v_scale_ptr, o_ptr, S, scale,
    D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BY_DESCRIPTOR: tl.constexpr,
):  # fmt: skip
    # TODO(kata): scores of the tile, online softmax, weigh the values, normalize and store (about
    # 30 lines with helpers)
    pass


def fp8_flash_attn(
    q8: Float[Tensor, "b h s d"],
    k8: Float[Tensor, "b h s d"],
    v8t: Float[Tensor, "b h d s"],
    q_scale: Float32[Tensor, "b h blocks"],
    k_scale: Float32[Tensor, "b h blocks"],
    v_scale: Float32[Tensor, "b h blocks"],
    sm_scale: float,
) -> Float16[Tensor, "b h s d"]:
    """
    softmax(q kᵀ sm_scale) v of e4m3 numbers and their scales, both products in e4m3.

    Queries, keys and values have a scale for each `BLOCK` of a head's rows. Scores and softmax are
    float32. The weights p = exp(score - largest score so far) are cast as e4m3 of 256 p; a row's
    sum is that of p before the cast.

    Args:
        q8: Queries, torch.float8_e4m3fn like all three; d is 64 or 128. All are contiguous.
        k8: Keys.
        v8t: Values, transposed: the numbers of a channel lie side by side.
        q_scale: Contiguous, like all scales.
        k_scale: One for each block of keys.
        v_scale: One for each block of values.
        sm_scale: Positive factor of the scores.

    Raises:
        ValueError: an argument is not as said above; the message begins with its name.

    Source: Shah et al. 2024 (FlashAttention-3), section 3.3.
    """
    raise NotImplementedError  # TODO(kata): check, allocate and launch (about 5 lines)


def _check(
    q8: Tensor, k8: Tensor, v8t: Tensor,
    q_scale: Tensor, k_scale: Tensor, v_scale: Tensor, sm_scale: float,
) -> None:  # fmt: skip
    raise NotImplementedError  # TODO(kata): check (about 20 lines)


def _launch(q8, k8, v8t, q_scale, k_scale, v_scale, o, sm_scale, config=None) -> None:
    b, h, s, d = q8.shape
    by_descriptor = all(_is_describable(x) for x in (q8, k8, v8t))
    if config is None:
        config = (DESCRIPTOR if by_descriptor else POINTER) if q8.is_cuda else CPU
    tensors = [q8, k8, v8t]
    if by_descriptor:
        blocks = [1, config.m, d], [1, config.n, d], [1, d, config.n]
        tensors = [
            TensorDescriptor.from_tensor(x.flatten(0, 1), block)
            for x, block in zip(tensors, blocks, strict=True)
        ]
    _fp8_flash_attn_kernel[(b * h * triton.cdiv(s, config.m),)](
        *tensors, q_scale, k_scale, v_scale, o, s, sm_scale * LOG2E,
        D=d, BLOCK=BLOCK, BLOCK_M=config.m, BLOCK_N=config.n, BY_DESCRIPTOR=by_descriptor,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip


def _is_describable(x: Tensor) -> bool:
    """Whether the chip's tensor memory accelerator takes `x`, or the interpreter in its place."""
    if x.shape[-1] % 16 or x.data_ptr() % 16:
        return False
    return not x.is_cuda or triton.runtime.driver.active.get_current_target().arch >= 90
