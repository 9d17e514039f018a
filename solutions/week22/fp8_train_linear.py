"""Kata week22/fp8_train_linear: three products of a linear layer in e4m3, with scales for blocks.

Each product sums over another axis, and scales follow it: what is summed over has blocks of 128.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from jaxtyping import Float, Float32
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

BLOCK = 128  # numbers that share a scale along the summed axis; of weights along both
LARGEST = 448.0  # of e4m3
DTYPES = (torch.float16, torch.bfloat16, torch.float32)  # of x and w, and of results
TINY = torch.finfo(torch.float32).tiny  # the smallest normal number: no scale is below it


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A tile is m x 2n, n a divisor of BLOCK; tile rows that share a band; how it is built."""

    m: int
    n: int
    group_m: int = 8
    warps: int = 8
    stages: int = 4


CPU = Config(m=64, n=128)
BY_BLOCK = Config(m=128, n=128)
BY_ROW = Config(m=64, n=64, warps=4)


def to_e4m3(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`x` as torch.float8_e4m3fn, whose numbers end at ±448; a cast alone may make NaN of more."""
    return x.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)


def quant_1x128(
    x: Float[Tensor, "rows k"],
) -> tuple[Float[Tensor, "rows k"], Float32[Tensor, "rows blocks"]]:
    """
    `x` in e4m3, contiguous, with a float32 scale for each `BLOCK` numbers of a row.

    A scale puts the largest magnitude of its numbers at 448, and is never below `TINY`.

    Raises:
        ValueError: k is 0 or no multiple of `BLOCK`, or a number is not finite; the message
            begins with `x: `.

    Source: DeepSeek-V3 (arXiv 2412.19437), section 3.3.2.
    """
    # quantize
    return _quantize("x", x, rows=1)


def quant_128x128(
    w: Float[Tensor, "n k"],
) -> tuple[Float[Tensor, "n k"], Float32[Tensor, "n_blocks k_blocks"]]:
    """
    `w` in e4m3, contiguous, with a float32 scale for each block of `BLOCK` rows and columns.

    The last blocks of rows may have fewer. Scales are as in `quant_1x128`.

    Raises:
        ValueError: as `quant_1x128`; the message begins with `w: `.
    """
    # quantize
    return _quantize("w", w, rows=BLOCK)


def _quantize(name: str, x: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    # check
    height, k = x.shape
    if k == 0 or k % BLOCK:
        raise ValueError(f"{name}: expected columns in multiples of {BLOCK}, found {k}")
    x = x.float().contiguous()
    if not x.isfinite().all():
        raise ValueError(f"{name}: expected finite float32, found {x[~x.isfinite()][0].item()}")
    # quantize
    tiles = F.pad(x, (0, 0, 0, -height % rows)).unflatten(1, (-1, BLOCK)).unflatten(0, (-1, rows))
    scale = (tiles.abs().amax(dim=(1, 3)) / LARGEST).clamp_min(TINY)
    wide = scale.repeat_interleave(rows, dim=0)[:height].repeat_interleave(BLOCK, dim=1)
    return to_e4m3(x / wide), scale


@triton.jit
def _grouped_pid(pid, num_m, num_n, GROUP_M: tl.constexpr):
    """Row and column of tile `pid`: bands of GROUP_M tile rows, each walked column by column."""
    first_m = pid // (GROUP_M * num_n) * GROUP_M
    height = min(num_m - first_m, GROUP_M)
    return first_m + pid % (GROUP_M * num_n) % height, pid % (GROUP_M * num_n) // height


@triton.jit
def _store(c_ptr, acc, row, col, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """acc [BLOCK_M, BLOCK_N] to row, col of c [M, N], in c's dtype, without what lies outside."""
    rows = (row + tl.arange(0, BLOCK_M))[:, None]
    cols = (col + tl.arange(0, BLOCK_N))[None, :]
    mask = (rows < M) & (cols < N)
    tl.store(c_ptr + rows.to(tl.int64) * N + cols, acc.to(c_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _promote(acc, part, scale, IN_ORDER: tl.constexpr):
    """
    acc + part * scale in float32.

    IN_ORDER has it stay where it is written. The compiler would put off the first half's until
    both products are there, which together with both sums are more than the registers hold.
    """
    if IN_ORDER:
        acc = tl.inline_asm_elementwise(
            "fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", [part, scale, acc],
            dtype=tl.float32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        acc += part * scale
    return acc


@triton.jit
def _fp8_gemm_nt_kernel(
    a_desc, b_desc, a_scale_ptr, b_scale_ptr, c_ptr, M, N, K,
    a_row, a_block, b_row, b_block, B_ROWS: tl.constexpr,
    IN_ORDER: tl.constexpr, BLOCK: tl.constexpr, GROUP_M: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # sum the products
    num_m, num_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, 2 * BLOCK_N)
    m, n = _grouped_pid(tl.program_id(0), num_m, num_n, GROUP_M)
    row, left, right = m * BLOCK_M, 2 * n * BLOCK_N, (2 * n + 1) * BLOCK_N
    rows = row + tl.arange(0, BLOCK_M)
    blocks = K // BLOCK
    a_scales = a_scale_ptr + rows * a_row
    if B_ROWS == 1:
        cols = tl.arange(0, BLOCK_N)[None, :]
        left_cols, right_cols = left + cols, right + cols
    else:
        # one scale for a half, which the tile's last may not have
        left_cols, right_cols = left, right
    left_scales = b_scale_ptr + left_cols // B_ROWS * b_row
    right_scales = b_scale_ptr + right_cols // B_ROWS * b_row

    left_acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    right_acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for block in range(blocks):
        a_scale = tl.load(a_scales + block * a_block, mask=rows < M)[:, None]
        at = block * b_block
        left_scale = a_scale * tl.load(left_scales + at, mask=left_cols < N)
        right_scale = a_scale * tl.load(right_scales + at, mask=right_cols < N)
        a = a_desc.load([row, block * BLOCK])
        left_part = tl.dot(a, b_desc.load([left, block * BLOCK]).T)
        left_acc = _promote(left_acc, left_part, left_scale, IN_ORDER)
        right_part = tl.dot(a, b_desc.load([right, block * BLOCK]).T)
        right_acc = _promote(right_acc, right_part, right_scale, IN_ORDER)

    _store(c_ptr, left_acc, row, left, M, N, BLOCK_M, BLOCK_N)
    _store(c_ptr, right_acc, row, right, M, N, BLOCK_M, BLOCK_N)


def fp8_gemm_nt(
    a: Float[Tensor, "m k"],
    a_scale: Float32[Tensor, "m k_blocks"],
    b: Float[Tensor, "n k"],
    b_scale: Float32[Tensor, "b_blocks k_blocks"],
    out_dtype: torch.dtype,
) -> Float[Tensor, "m n"]:
    """
    a @ b.T of e4m3 numbers with a scale for each block, in `out_dtype`, contiguous.

    Products of `BLOCK` columns are summed on tensor cores; these sums are scaled and added up in
    float32, and rounded once.

    Args:
        a: torch.float8_e4m3fn, as of `quant_1x128`. All tensors are contiguous.
        a_scale: One for each `BLOCK` numbers of a row.
        b: torch.float8_e4m3fn, as of either quantizer.
        b_scale: n rows, as of `quant_1x128`, or one for each `BLOCK` of them.
        out_dtype: torch.float16, torch.bfloat16 or torch.float32.

    Raises:
        ValueError: an argument is not as said above, or k is 0 or no multiple of `BLOCK`. The
            message begins with the argument's name.

    Source: DeepSeek-V3 (arXiv 2412.19437), section 3.3.2.
    """
    # check
    _check(a, a_scale, b, b_scale, out_dtype)
    # launch
    c = torch.empty(a.shape[0], b.shape[0], dtype=out_dtype, device=a.device)
    if c.numel():
        _launch(a, a_scale, b, b_scale, c)
    return c


class FP8Linear(torch.autograd.Function):
    """
    y = x @ w.T and its gradients, all three in e4m3 by `fp8_gemm_nt`.

    For the backward pass it keeps e4m3 alone: w as it is, and x quantized along tokens.
    """

    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor) -> Tensor:
        """Quantize x along k and, for the gradient of w, along tokens; w by blocks."""
        # forward
        x8, x_scale = quant_1x128(x)
        w8, w_scale = quant_128x128(w)
        ctx.save_for_backward(*quant_1x128(_filled(x.T)), w8, w_scale)
        ctx.x_dtype, ctx.w_dtype = x.dtype, w.dtype
        return fp8_gemm_nt(x8, x_scale, w8, w_scale, x.dtype)

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of x, summed over n, and of w, summed over tokens, where they are needed."""
        # gradients
        x8_by_token, x_scale, w8, w_scale = ctx.saved_tensors
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = fp8_gemm_nt(
                *_quantize("dy", dy, rows=1), w8.T.contiguous(), w_scale.T.contiguous(), ctx.x_dtype
            )
        if ctx.needs_input_grad[1]:
            by_token = _quantize("dy", _filled(dy.T), rows=1)
            dw = fp8_gemm_nt(*by_token, x8_by_token, x_scale, ctx.w_dtype)
        return dx, dw


def fp8_train_linear(
    x: Float[Tensor, "tokens k"], w: Float[Tensor, "n k"]
) -> Float[Tensor, "tokens n"]:
    """
    x @ w.T in the dtype of `x`, differentiable in both, by `FP8Linear`.

    x and dy have a scale for each `BLOCK` numbers of the axis that is summed over: k for y, n for
    dx, tokens for dw. w has one for each block, in y and dx the same.

    Args:
        x: float16, bfloat16 or float32, in any layout, with at least one token.
        w: Of the same dtype; k and n are multiples of `BLOCK`.

    Raises:
        ValueError: an argument is not as said above, or not finite; in the backward pass dy is
            not finite (`dy: `). The message begins with the argument's name.
    """
    # check
    if x.ndim != 2 or x.dtype not in DTYPES or not len(x):
        raise ValueError(f"x: expected [tokens, k], found {x.dtype} {tuple(x.shape)}")
    if w.ndim != 2 or w.shape[1] != x.shape[1] or w.shape[0] == 0 or w.shape[0] % BLOCK:
        raise ValueError(
            f"w: expected [n, {x.shape[1]}], n a multiple of {BLOCK}, found {tuple(w.shape)}"
        )
    if w.dtype != x.dtype or w.device != x.device:
        raise ValueError(f"w: expected {x.dtype} on {x.device}, found {w.dtype} on {w.device}")
    # forward
    return FP8Linear.apply(x, w)


def _filled(x: Tensor) -> Tensor:
    """`x` with zeros behind its columns, up to a multiple of BLOCK."""
    return F.pad(x, (0, -x.shape[1] % BLOCK))


def _check(a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, out_dtype: torch.dtype) -> None:
    # check
    if a.ndim != 2 or a.shape[1] == 0 or a.shape[1] % BLOCK:
        raise ValueError(f"a: expected [m, k], k a multiple of {BLOCK}, found {tuple(a.shape)}")
    if b.ndim != 2:
        raise ValueError(f"b: expected [n, k], found {tuple(b.shape)}")
    (m, k), n = a.shape, b.shape[0]
    b_blocks = n if b_scale.shape[:1] == (n,) else triton.cdiv(n, BLOCK)
    for name, x, shape, dtype in (
        ("a", a, (m, k), torch.float8_e4m3fn),
        ("a_scale", a_scale, (m, k // BLOCK), torch.float32),
        ("b", b, (n, k), torch.float8_e4m3fn),
        ("b_scale", b_scale, (b_blocks, k // BLOCK), torch.float32),
    ):
        if x.shape != shape or x.dtype != dtype or x.device != a.device:
            raise ValueError(
                f"{name}: expected {shape}, {dtype} on {a.device}, "
                f"found {tuple(x.shape)}, {x.dtype} on {x.device}"
            )
        if not x.is_contiguous():
            raise ValueError(f"{name}: expected it contiguous, found strides {x.stride()}")
    if out_dtype not in DTYPES:
        raise ValueError(f"out_dtype: expected float16, bfloat16 or float32, found {out_dtype}")


def _launch(
    a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, c: Tensor,
    config: Config | None = None,
) -> None:  # fmt: skip
    (m, k), n = a.shape, b.shape[0]
    by_row = len(b_scale) == n
    config = config or (CPU if not a.is_cuda else BY_ROW if by_row else BY_BLOCK)
    tiles = triton.cdiv(m, config.m) * triton.cdiv(n, 2 * config.n)
    if by_row:  # those of a tile's rows and columns, a load each, side by side
        a_scale, b_scale = a_scale.T.contiguous().T, b_scale.T.contiguous().T
    _fp8_gemm_nt_kernel[(tiles,)](
        TensorDescriptor.from_tensor(a, [config.m, BLOCK]),
        TensorDescriptor.from_tensor(b, [config.n, BLOCK]),
        a_scale, b_scale, c, m, n, k, *a_scale.stride(), *b_scale.stride(),
        B_ROWS=1 if by_row else BLOCK, IN_ORDER=a.is_cuda and not by_row,
        BLOCK=BLOCK, GROUP_M=config.group_m, BLOCK_M=config.m, BLOCK_N=config.n,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
