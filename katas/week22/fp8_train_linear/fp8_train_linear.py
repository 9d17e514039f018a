"""Kata week22/fp8_train_linear: three products of a linear layer in e4m3, with scales for blocks.

Each product sums over another axis, and scales follow it: what is summed over has blocks of 128.
"""

from dataclasses import dataclass

import torch
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
    raise NotImplementedError  # TODO(kata): check, quantize (about 10 lines with helpers)


def quant_128x128(
    w: Float[Tensor, "n k"],
) -> tuple[Float[Tensor, "n k"], Float32[Tensor, "n_blocks k_blocks"]]:
    """
    `w` in e4m3, contiguous, with a float32 scale for each block of `BLOCK` rows and columns.

    The last blocks of rows may have fewer. Scales are as in `quant_1x128`.

    Raises:
        ValueError: as `quant_1x128`; the message begins with `w: `.
    """
    raise NotImplementedError  # TODO(kata): quantize (1 line)


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
    # TODO(kata): sum the products (about 25 lines)
    pass


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
    raise NotImplementedError  # TODO(kata): check, launch (about 5 lines)


class FP8Linear(torch.autograd.Function):
    """
    y = x @ w.T and its gradients, all three in e4m3 by `fp8_gemm_nt`.

    For the backward pass it keeps e4m3 alone: w as it is, and x quantized along tokens.
    """

    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor) -> Tensor:
        """Quantize x along k and, for the gradient of w, along tokens; w by blocks."""
        raise NotImplementedError  # TODO(kata): forward (about 7 lines with helpers)

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of x, summed over n, and of w, summed over tokens, where they are needed."""
        raise NotImplementedError  # TODO(kata): gradients (about 10 lines)


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
    raise NotImplementedError  # TODO(kata): check, forward (about 9 lines)


def _check(a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, out_dtype: torch.dtype) -> None:
    raise NotImplementedError  # TODO(kata): check (about 20 lines)


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
