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
P_SCALE = tl.constexpr(256.0)  # weights reach 1: this far up e4m3 has those of 2⁻¹⁴ in full


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
    # scores of the tile
    num_m = tl.cdiv(S, BLOCK_M)
    tile = tl.program_id(0) % num_m
    head = tl.program_id(0) // num_m
    first_scale = head.to(tl.int64) * tl.cdiv(S, BLOCK)
    scale *= tl.load(q_scale_ptr + first_scale + tile * BLOCK_M // BLOCK)

    q_tile = _load_rows(q, head, tile * BLOCK_M, S, D, BLOCK_M, BY_DESCRIPTOR)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    row_max = tl.full([BLOCK_M], -float("inf"), tl.float32)  # of scores, as exponents of 2
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    for start in range(0, S, BLOCK_N):
        block = first_scale + start // BLOCK
        to_exponent = scale * tl.load(k_scale_ptr + block)
        k_tile = _load_rows(k, head, start, S, D, BLOCK_N, BY_DESCRIPTOR)
        s = tl.dot(q_tile, k_tile.T) * to_exponent  # [BLOCK_M, BLOCK_N] fp32
        if start + BLOCK_N > S:
            s = tl.where((start + tl.arange(0, BLOCK_N) < S)[None, :], s, -float("inf"))

        # online softmax
        new_max = tl.maximum(row_max, tl.max(s, axis=1))
        p = tl.exp2(s - new_max[:, None])  # [BLOCK_M, BLOCK_N] fp32
        alpha = tl.exp2(row_max - new_max)
        row_max = new_max
        row_sum = row_sum * alpha + tl.sum(p, axis=1)
        # weigh the values
        vt_tile = _load_columns(vt, head, start, S, D, BLOCK_N, BY_DESCRIPTOR)
        # a product of its own: the scale is the block's, and short sums end here
        part = tl.dot((p * P_SCALE).to(tl.float8e4nv), vt_tile.T)  # [BLOCK_M, D] fp32
        acc = acc * alpha[:, None] + part * tl.load(v_scale_ptr + block)

    # normalize and store
    o = acc / (row_sum * P_SCALE)[:, None]
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    o_ptrs = o_ptr + (head.to(tl.int64) * S + rows)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(o_ptrs, o.to(tl.float16), mask=rows[:, None] < S)


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
    # check
    _check(q8, k8, v8t, q_scale, k_scale, v_scale, sm_scale)
    # allocate and launch
    o = torch.empty(q8.shape, dtype=torch.float16, device=q8.device)
    if o.numel():
        _launch(q8, k8, v8t, q_scale, k_scale, v_scale, o, sm_scale)
    return o


def _check(
    q8: Tensor, k8: Tensor, v8t: Tensor,
    q_scale: Tensor, k_scale: Tensor, v_scale: Tensor, sm_scale: float,
) -> None:  # fmt: skip
    # check
    if q8.ndim != 4 or q8.shape[3] not in HEAD_SIZES:
        raise ValueError(f"q8: expected [b, h, s, d], d in {HEAD_SIZES}, found {tuple(q8.shape)}")
    b, h, s, d = q8.shape
    scales = (b, h, triton.cdiv(s, BLOCK))
    for name, x, shape, dtype in (
        ("q8", q8, (b, h, s, d), torch.float8_e4m3fn),
        ("k8", k8, (b, h, s, d), torch.float8_e4m3fn),
        ("v8t", v8t, (b, h, d, s), torch.float8_e4m3fn),
        ("q_scale", q_scale, scales, torch.float32),
        ("k_scale", k_scale, scales, torch.float32),
        ("v_scale", v_scale, scales, torch.float32),
    ):
        if x.shape != shape or x.dtype != dtype or x.device != q8.device:
            raise ValueError(
                f"{name}: expected {shape}, {dtype} on {q8.device}, "
                f"found {tuple(x.shape)}, {x.dtype} on {x.device}"
            )
        if not x.is_contiguous():
            raise ValueError(f"{name}: expected it contiguous, found strides {x.stride()}")
    if not sm_scale > 0:
        raise ValueError(f"sm_scale: expected a positive number, found {sm_scale}")


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
