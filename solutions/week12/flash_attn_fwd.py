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
    # neighbouring programs share a head, and with it the keys and values in L2
    num_m = tl.cdiv(Sq, BLOCK_M)
    tile = tl.program_id(0) % num_m
    head = tl.program_id(0) // num_m
    b, h = head // Hq, head % Hq
    kv_h = h // (Hq // Hkv)
    if CAUSAL:
        # the last queries see most keys: start with them, so that no long program ends the run
        tile = num_m - 1 - tile
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)

    # keys the tile sees
    # the tile's rows all see keys 0 .. full; keys full .. last need a mask
    full, last = Sk, Sk
    if CAUSAL:
        full = tile * BLOCK_M + Sk - Sq + 1
        last = min(Sk, (tile + 1) * BLOCK_M + Sk - Sq)

    q_tile = _load_tile(q, b, h, tile * BLOCK_M, Sq, q_strides, D, BLOCK_M, BLOCK_D)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    row_max = tl.full([BLOCK_M], -float("inf"), tl.float32)  # of scale * scores
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    # scores of the tile
    for start in range(0, last, BLOCK_N):
        k_tile = _load_tile(k, b, kv_h, start, Sk, k_strides, D, BLOCK_N, BLOCK_D)
        s = tl.dot(q_tile, k_tile.T, input_precision="ieee")  # [BLOCK_M, BLOCK_N] fp32
        if start + BLOCK_N > full:
            cols = start + tl.arange(0, BLOCK_N)
            # row 0 of the tile sees keys below full, each further row one more
            limit = tl.arange(0, BLOCK_M) * CAUSAL + full
            s = tl.where(cols[None, :] < limit[:, None], s, -float("inf"))

        # rescale the old sums
        new_max = tl.maximum(row_max, tl.max(s, axis=1) * scale)  # [BLOCK_M] fp32
        # a row that has seen no key yet would compute -inf - -inf
        base = tl.where(new_max == -float("inf"), 0.0, new_max)
        p = tl.exp2(s * scale - base[:, None])  # [BLOCK_M, BLOCK_N] fp32
        alpha = tl.exp2(row_max - base)  # [BLOCK_M] fp32
        row_max = new_max
        row_sum = row_sum * alpha + tl.sum(p, axis=1)
        acc = acc * alpha[:, None]
        v_tile = _load_tile(v, b, kv_h, start, Sk, v_strides, D, BLOCK_N, BLOCK_D)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc, input_precision="ieee")

    # normalise and store
    # a row that saw no key: o = 0, lse = -inf
    row_sum = tl.where(row_sum == 0.0, 1.0, row_sum)
    lse = (row_max + tl.log2(row_sum)) * LN2
    row_start = head.to(tl.int64) * Sq
    tl.store(lse_ptr + row_start + rows, lse, mask=rows < Sq)
    o = acc * (1.0 / row_sum)[:, None]
    cols = tl.arange(0, BLOCK_D)
    o_ptrs = o_ptr + (row_start + rows)[:, None] * D + cols[None, :]
    mask = (rows < Sq)[:, None] & (cols < D)[None, :]
    tl.store(o_ptrs, o.to(o_ptr.dtype.element_ty), mask=mask)


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
    # check
    _check(q, k, v, sm_scale)
    # allocate and launch
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    if o.numel():
        _launch(q, k, v, o, lse, causal, sm_scale or q.shape[-1] ** -0.5)
    return o, lse


def _check(q: Tensor, k: Tensor, v: Tensor, sm_scale: float | None) -> None:
    # check
    if q.ndim != 4 or q.shape[-1] not in HEAD_SIZES:
        raise ValueError(f"q: expected [b, hq, sq, d], d in {HEAD_SIZES}, found {tuple(q.shape)}")
    if q.dtype not in DTYPES or (q.dtype == torch.bfloat16 and not q.is_cuda):
        raise ValueError(f"q: expected one of {DTYPES}, bfloat16 on a GPU only, found {q.dtype}")
    b, hq, _, d = q.shape
    if k.ndim != 4 or (k.shape[0], k.shape[3]) != (b, d):
        raise ValueError(f"k: expected [{b}, hkv, sk, {d}] as q has, found {tuple(k.shape)}")
    if k.shape[1] == 0 or hq % k.shape[1]:
        raise ValueError(f"k: expected a number of heads that divides {hq}, found {k.shape[1]}")
    if v.shape != k.shape:
        raise ValueError(f"v: expected the shape of k, {tuple(k.shape)}, found {tuple(v.shape)}")
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype or x.device != q.device:
            raise ValueError(
                f"{name}: expected {q.dtype} on {q.device} as q has, found {x.dtype} on {x.device}"
            )
    if sm_scale is not None and not sm_scale > 0:
        raise ValueError(f"sm_scale: expected a positive number, found {sm_scale}")


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
