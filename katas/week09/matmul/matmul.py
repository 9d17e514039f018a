"""Kata week09/matmul: tl.dot on tensor cores, programs ordered for L2, a fused epilogue.

Each program makes one [BLOCK_M, BLOCK_N] tile of the result.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Tile shape, tile rows that share a band, and how a program is built."""

    m: int
    n: int
    k: int
    group_m: int = 8
    stages: int = 3
    warps: int = 8


CPU = Config(m=16, n=16, k=16)
POINTER = Config(m=128, n=128, k=32, stages=4)
POINTER_FP32 = Config(m=64, n=64, k=16, warps=4)


@triton.jit
def grouped_pid(pid, num_m, num_n, GROUP_M: tl.constexpr):
    """Tile (m, n) of program `pid`: bands of GROUP_M tile rows, each walked column by column."""
    raise NotImplementedError  # TODO(kata): order of programs (about 4 lines)


@triton.jit
def _matmul_kernel(
    a_ptr, b_ptr, c_ptr, bias_ptr, M, N, K,
    a_m_stride, a_k_stride, b_k_stride, b_n_stride, c_m_stride, bias_stride,
    ACTIVATION: tl.constexpr, GROUP_M: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # TODO(kata): order of programs, multiply and add, epilogue, store (about 30 lines with helpers)
    pass


def matmul(
    a: Float[Tensor, "m k"],
    b: Float[Tensor, "k n"],
    bias: Float[Tensor, " n"] | None = None,
    activation: Literal["silu", "relu"] | None = None,
) -> Float[Tensor, "m n"]:
    """
    activation(a @ b + bias) in one kernel, contiguous, in the dtype of the operands.

    Sums, bias and activation are float32 and rounded once, at the end. The operands may have any
    strides. float32 operands are multiplied in full precision.

    Raises:
        ValueError: `a` or `b` is not 2-D, their inner sizes, dtypes or devices differ, `bias`
            does not fit, or `activation` is unknown.
    """
    raise NotImplementedError  # TODO(kata): check, launch (about 80 lines with helpers)


def _launch(a: Tensor, b: Tensor, c: Tensor, bias: Tensor | None, activation: str | None) -> None:
    (M, K), N = a.shape, b.shape[1]
    on_gpu = POINTER if a.itemsize == 2 else POINTER_FP32
    config = on_gpu if a.is_cuda else CPU
    tiles = triton.cdiv(M, config.m) * triton.cdiv(N, config.n)
    _matmul_kernel[(tiles,)](
        a, b, c, bias, M, N, K,
        a_m_stride=a.stride(0), a_k_stride=a.stride(1),
        b_k_stride=b.stride(0), b_n_stride=b.stride(1), c_m_stride=c.stride(0),
        bias_stride=0 if bias is None else bias.stride(0),
        ACTIVATION=activation, GROUP_M=config.group_m,
        BLOCK_M=config.m, BLOCK_N=config.n, BLOCK_K=config.k,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
