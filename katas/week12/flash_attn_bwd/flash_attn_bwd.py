"""Kata week12/flash_attn_bwd: the gradients of attention, in O(S) memory and without atomics.

P is computed again from q, k and lse, once where a tile of keys stays on chip and gathers dk and
dv, and once where a tile of queries does and gathers dq. Nothing else crosses memory but the
inputs, the gradients and two numbers per query.
"""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

HEAD_SIZES = (16, 32, 64, 128)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LOG2E = tl.constexpr(math.log2(math.e))


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Queries and keys per tile of one pass, and how its programs are built."""

    m: int
    n: int
    warps: int = 4
    stages: int = 2
    maxnreg: int | None = None


# of the pass for dk and dv, and of the pass for dq
CPU = (Config(m=32, n=32), Config(m=32, n=32))
FP32 = (Config(m=32, n=32), Config(m=32, n=32))
POINTER = (Config(m=64, n=64, warps=8), Config(m=64, n=64, warps=8))
DESCRIPTOR = (Config(m=64, n=64), Config(m=64, n=64))
DESCRIPTOR_64 = (Config(m=64, n=64), Config(m=64, n=64))


@triton.jit
def _load_tile(x, b, h, start, size, strides, BLOCK: tl.constexpr, D: tl.constexpr):
    """Rows start .. start + BLOCK of x[b, h], zero past `size`; no strides: `x` is a descriptor."""
    if strides is None:
        tile = x.load([b, h, start, 0]).reshape(BLOCK, D)
    else:
        rows = (start + tl.arange(0, BLOCK))[:, None]
        head = x + tl.cast(b, tl.int64) * strides[0] + tl.cast(h, tl.int64) * strides[1]
        ptrs = head + rows.to(tl.int64) * strides[2] + tl.arange(0, D)[None, :] * strides[3]
        tile = tl.load(ptrs, mask=rows < size, other=0.0)
    return tile


@triton.jit
def _rows_kernel(
    do, o, lse, lse2_ptr, delta_ptr, do_strides, o_strides, lse_strides, Hq, Sq,
    D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # TODO(kata): lse and D of each row (about 10 lines)
    pass


@triton.jit
def _dk_dv_kernel(
    do, q, k, v, lse2_ptr, delta_ptr, dk_ptr, dv_ptr, do_strides, q_strides, k_strides, v_strides,
    Hq, Hkv, Sq, Sk, sm_scale,
    CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # TODO(kata): recompute P, gradients of the tile, scale and store (about 35 lines)
    pass


@triton.jit
def _dq_kernel(
    do, q, k, v, lse2_ptr, delta_ptr, dq_ptr, do_strides, q_strides, k_strides, v_strides,
    Hq, Hkv, Sq, Sk, sm_scale,
    CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # TODO(kata): recompute P, gradients of the tile, scale and store (about 35 lines)
    pass


def flash_attn_bwd(
    do: Float[Tensor, "b hq sq d"],
    q: Float[Tensor, "b hq sq d"],
    k: Float[Tensor, "b hkv sk d"],
    v: Float[Tensor, "b hkv sk d"],
    o: Float[Tensor, "b hq sq d"],
    lse: Float32[Tensor, "b hq sq"],
    causal: bool = False,
    sm_scale: float | None = None,
) -> tuple[Float[Tensor, "b hq sq d"], Float[Tensor, "b hkv sk d"], Float[Tensor, "b hkv sk d"]]:
    """
    From the gradient of o = softmax(q kᵀ sm_scale) v, those of `q`, `k` and `v`.

    Strides are free; the gradients are contiguous, in the dtype of `q`. Scores, sums and what is
    summed over tiles are float32. Query head i reads key head i // (hq / hkv), and `dk` and `dv`
    are sums over the query heads that do. Causal masks are aligned bottom right: query i sees
    keys up to i + sk - sq. The same call gives the same bits.

    Args:
        do: The gradient of `o`.
        q: Queries; d is 16, 32, 64 or 128.
        k: Keys.
        v: Values.
        o: What the forward pass returned.
        lse: The natural logarithm of the softmax's denominator, -inf where no key is seen.
        causal: Hide later keys.
        sm_scale: Positive factor of the scores; default 1 / sqrt(d).

    Returns:
        `dq`, `dk` and `dv`.

    Raises:
        ValueError: an argument is not as said above, shapes, dtypes or devices differ, or bfloat16
            tensors are on the CPU, where the interpreter cannot compute with them.

    Source: Dao 2023 (FlashAttention-2), algorithm 2.
    """
    raise NotImplementedError  # TODO(kata): check, allocate and launch (about 4 lines)


def _check(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, sm_scale: float | None
) -> None:
    raise NotImplementedError  # TODO(kata): check (about 20 lines)


def _launch(do, q, k, v, o, lse, dq, dk, dv, causal, sm_scale, configs=None) -> None:
    B, Hq, Sq, D = q.shape
    _, Hkv, Sk, _ = k.shape
    tensors = (do, q, k, v)
    by_descriptor = all(_is_describable(x) for x in tensors)
    if configs is None:
        configs = _configs(q, by_descriptor)
    lse2, delta = torch.empty(2, B, Hq, Sq, dtype=torch.float32, device=q.device)
    if q.numel():
        _rows_kernel[(B * Hq * triton.cdiv(Sq, 32),)](
            do, o, lse, lse2, delta, do.stride(), o.stride(), lse.stride(), Hq, Sq, D=D, BLOCK=32
        )  # fmt: skip
    for kernel, config, results, size in (
        (_dk_dv_kernel, configs[0], (dk, dv), B * Hkv * triton.cdiv(Sk, configs[0].n)),
        (_dq_kernel, configs[1], (dq,), B * Hq * triton.cdiv(Sq, configs[1].m)),
    ):
        tiles, strides = tensors, [x.stride() for x in tensors]
        if by_descriptor:
            blocks = ([1, 1, rows, D] for rows in (config.m, config.m, config.n, config.n))
            pairs = zip(tensors, blocks, strict=True)
            tiles, strides = [TensorDescriptor.from_tensor(*pair) for pair in pairs], [None] * 4
        if size:
            kernel[(size,)](
                *tiles, lse2, delta, *results, *strides, Hq, Hkv, Sq, Sk, sm_scale,
                CAUSAL=causal, D=D, BLOCK_M=config.m, BLOCK_N=config.n,
                num_warps=config.warps, num_stages=config.stages, maxnreg=config.maxnreg,
            )  # fmt: skip


def _configs(q: Tensor, by_descriptor: bool) -> tuple[Config, Config]:
    """Tiles for the pass that ends in dk and dv, and for the one that ends in dq."""
    if not q.is_cuda:
        return CPU
    if q.itemsize > 2:
        return FP32
    if not by_descriptor:
        return POINTER
    return DESCRIPTOR if q.shape[-1] > 64 else DESCRIPTOR_64


def _is_describable(x: Tensor) -> bool:
    """Whether the chip's tensor memory accelerator takes `x`, or the interpreter in its place."""
    if x.itemsize != 2 or x.numel() == 0 or x.stride(-1) != 1 or x.data_ptr() % 16:
        return False
    if any(stride <= 0 or stride * x.itemsize % 16 for stride in x.stride()[:-1]):
        return False
    return not x.is_cuda or triton.runtime.driver.active.get_current_target().arch >= 90
