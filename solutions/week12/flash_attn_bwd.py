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
    num_m = tl.cdiv(Sq, BLOCK)
    start = tl.program_id(0) % num_m * BLOCK
    head = tl.program_id(0) // num_m
    b, h = head // Hq, head % Hq
    rows = start + tl.arange(0, BLOCK)

    # lse and D of each row
    do_tile = _load_tile(do, b, h, start, Sq, do_strides, BLOCK, D)
    o_tile = _load_tile(o, b, h, start, Sq, o_strides, BLOCK, D)
    lse_ptrs = lse + b.to(tl.int64) * lse_strides[0] + h.to(tl.int64) * lse_strides[1]
    lse_tile = tl.load(lse_ptrs + rows.to(tl.int64) * lse_strides[2], mask=rows < Sq)

    to = head.to(tl.int64) * Sq + rows
    tl.store(lse2_ptr + to, lse_tile * LOG2E, mask=rows < Sq)
    tl.store(delta_ptr + to, tl.sum(do_tile.to(tl.float32) * o_tile, axis=1), mask=rows < Sq)


@triton.jit
def _dk_dv_kernel(
    do, q, k, v, lse2_ptr, delta_ptr, dk_ptr, dv_ptr, do_strides, q_strides, k_strides, v_strides,
    Hq, Hkv, Sq, Sk, sm_scale,
    CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    num_n = tl.cdiv(Sk, BLOCK_N)
    first_key = tl.program_id(0) % num_n * BLOCK_N
    kv_head = tl.program_id(0) // num_n
    b, kv_h = kv_head // Hkv, kv_head % Hkv
    group = Hq // Hkv
    cols = first_key + tl.arange(0, BLOCK_N)

    # queries from `first` on see a key of the tile, from `full` on all of them
    first, full = 0, 0
    if CAUSAL:
        first = max(first_key + Sq - Sk, 0) // BLOCK_M * BLOCK_M
        full = first_key + BLOCK_N - 1 + Sq - Sk

    k_tile = _load_tile(k, b, kv_h, first_key, Sk, k_strides, BLOCK_N, D)
    v_tile = _load_tile(v, b, kv_h, first_key, Sk, v_strides, BLOCK_N, D)
    dk = tl.zeros([BLOCK_N, D], tl.float32)
    dv = tl.zeros([BLOCK_N, D], tl.float32)
    # recompute P
    for h in range(kv_h * group, (kv_h + 1) * group):
        row_start = (b * Hq + h).to(tl.int64) * Sq
        for start in range(first, Sq, BLOCK_M):
            rows = start + tl.arange(0, BLOCK_M)
            q_tile = _load_tile(q, b, h, start, Sq, q_strides, BLOCK_M, D)
            do_tile = _load_tile(do, b, h, start, Sq, do_strides, BLOCK_M, D)
            # past the end do is 0, so whatever p is there enters no sum
            lse2 = tl.load(lse2_ptr + row_start + rows, mask=rows < Sq, other=0.0)
            delta = tl.load(delta_ptr + row_start + rows, mask=rows < Sq, other=0.0)
            s_t = tl.dot(k_tile, q_tile.T, input_precision="ieee")  # [BLOCK_N, BLOCK_M] fp32
            p_t = tl.exp2(s_t * (sm_scale * LOG2E) - lse2[None, :])
            # not the score but p is hidden: -inf - -inf of a row without keys would be NaN
            if start < full:
                p_t = tl.where(cols[:, None] <= rows[None, :] + (Sk - Sq), p_t, 0.0)
            # gradients of the tile
            dv = tl.dot(p_t.to(do_tile.dtype), do_tile, dv, input_precision="ieee")
            dp_t = tl.dot(v_tile, do_tile.T, input_precision="ieee")  # [BLOCK_N, BLOCK_M] fp32
            ds_t = p_t * (dp_t - delta[None, :])  # [BLOCK_N, BLOCK_M] fp32
            dk = tl.dot(ds_t.to(q_tile.dtype), q_tile, dk, input_precision="ieee")

    # scale and store
    to = (kv_head.to(tl.int64) * Sk + cols)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(dk_ptr + to, dk * sm_scale, mask=cols[:, None] < Sk)
    tl.store(dv_ptr + to, dv, mask=cols[:, None] < Sk)


@triton.jit
def _dq_kernel(
    do, q, k, v, lse2_ptr, delta_ptr, dq_ptr, do_strides, q_strides, k_strides, v_strides,
    Hq, Hkv, Sq, Sk, sm_scale,
    CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    num_m = tl.cdiv(Sq, BLOCK_M)
    tile = tl.program_id(0) % num_m
    head = tl.program_id(0) // num_m
    b, h = head // Hq, head % Hq
    kv_h = h // (Hq // Hkv)
    if CAUSAL:
        # the last queries see most keys: start with them, so that no long program ends the run
        tile = num_m - 1 - tile
    first_query = tile * BLOCK_M
    rows = first_query + tl.arange(0, BLOCK_M)

    # the tile's rows all see keys 0 .. full; keys full .. last need a mask
    full, last = Sk, Sk
    if CAUSAL:
        full = first_query + Sk - Sq + 1
        last = min(Sk, first_query + BLOCK_M + Sk - Sq)

    do_tile = _load_tile(do, b, h, first_query, Sq, do_strides, BLOCK_M, D)
    q_tile = _load_tile(q, b, h, first_query, Sq, q_strides, BLOCK_M, D)
    row_start = head.to(tl.int64) * Sq
    lse2 = tl.load(lse2_ptr + row_start + rows, mask=rows < Sq)
    delta = tl.load(delta_ptr + row_start + rows, mask=rows < Sq)
    dq = tl.zeros([BLOCK_M, D], tl.float32)
    # recompute P
    for start in range(0, last, BLOCK_N):
        k_tile = _load_tile(k, b, kv_h, start, Sk, k_strides, BLOCK_N, D)
        v_tile = _load_tile(v, b, kv_h, start, Sk, v_strides, BLOCK_N, D)
        s = tl.dot(q_tile, k_tile.T, input_precision="ieee")  # [BLOCK_M, BLOCK_N] fp32
        dp = tl.dot(do_tile, v_tile.T, input_precision="ieee")  # [BLOCK_M, BLOCK_N] fp32
        p = tl.exp2(s * (sm_scale * LOG2E) - lse2[:, None])
        if start + BLOCK_N > full:
            cols = start + tl.arange(0, BLOCK_N)
            # row 0 of the tile sees keys below full, each further row one more
            limit = tl.arange(0, BLOCK_M) * CAUSAL + full
            p = tl.where(cols[None, :] < limit[:, None], p, 0.0)
        # gradients of the tile
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k_tile.dtype), k_tile, dq, input_precision="ieee")

    # scale and store
    to = (row_start + rows)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(dq_ptr + to, dq * sm_scale, mask=rows[:, None] < Sq)


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
    # check
    _check(do, q, k, v, o, lse, sm_scale)
    # allocate and launch
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    _launch(do, q, k, v, o, lse, dq, dk, dv, causal, sm_scale or q.shape[-1] ** -0.5)
    return dq, dk, dv


def _check(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, sm_scale: float | None
) -> None:
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
    for name, x, shape, dtype in (
        ("do", do, q.shape, q.dtype),
        ("k", k, k.shape, q.dtype),
        ("v", v, k.shape, q.dtype),
        ("o", o, q.shape, q.dtype),
        ("lse", lse, q.shape[:3], torch.float32),
    ):
        found = (x.shape, x.dtype, x.device)
        if found != (shape, dtype, q.device):
            raise ValueError(f"{name}: expected {(shape, dtype, q.device)}, found {found}")
    if sm_scale is not None and not sm_scale > 0:
        raise ValueError(f"sm_scale: expected a positive number, found {sm_scale}")


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
