"""Kata week20/fp8_block_gemm: a product of e4m3 numbers with a scale for each block of 128.

Tensor cores sum 128 products at a time; their scale, and the rest of the sum, are float32.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

BLOCK = 128  # numbers along k that share a scale; of weights also along n
LARGEST = 448.0  # of e4m3
TINY = torch.finfo(torch.float32).tiny  # the smallest normal number: no scale is below it


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A tile is m x 2n, n a divisor of BLOCK; tile rows that share a band; how it is built."""

    m: int
    n: int
    group_m: int = 8
    warps: int = 8
    stages: int = 4


CPU = Config(m=32, n=128)
GPU = Config(m=128, n=128)


def to_e4m3(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`x` as torch.float8_e4m3fn, whose numbers end at ±448; a cast alone may make NaN of more."""
    return x.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)


def quant_tensor(x: Float[Tensor, "rows k"]) -> tuple[Float[Tensor, "rows k"], Float32[Tensor, ""]]:
    """`x` in e4m3 with one scale for all of it, to compare with."""
    scale = (x.float().abs().max() / LARGEST).clamp_min(TINY)
    return to_e4m3(x / scale), scale


def quant_act(
    x: Float[Tensor, "m k"],
) -> tuple[Float[Tensor, "m k"], Float32[Tensor, "m blocks"]]:
    """
    `x` in e4m3, contiguous, with a float32 scale for each `BLOCK` numbers of a row.

    A scale puts the largest magnitude of its numbers at 448, and is never below `TINY`.

    Raises:
        ValueError: k is 0 or no multiple of `BLOCK`, or a number is not finite; the message
            begins with `x: `.

    Source: DeepSeek-V3 (arXiv 2412.19437), section 3.3.2.
    """
    # TODO(kata): check, scale of each block (about 10 lines with helpers)
    raise NotImplementedError


def quant_weight(
    w: Float[Tensor, "n k"],
) -> tuple[Float[Tensor, "n k"], Float32[Tensor, "n_blocks k_blocks"]]:
    """
    `w` in e4m3, contiguous, with a float32 scale for each block of `BLOCK` rows and columns.

    The last blocks of rows may have fewer. Scales are as in `quant_act`.

    Raises:
        ValueError: as `quant_act`; the message begins with `w: `.
    """
    raise NotImplementedError  # TODO(kata): (1 line)


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
def _fp8_block_gemm_kernel(
    a_desc, w_desc, a_scale_ptr, w_scale_ptr, c_ptr, M, N, K, IN_ORDER: tl.constexpr,
    BLOCK: tl.constexpr, GROUP_M: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # TODO(kata): tile and its scales, promote each product, store (about 20 lines)
    pass


def fp8_block_gemm(
    aq: Float[Tensor, "m k"],
    a_scale: Float32[Tensor, "m k_blocks"],
    wq: Float[Tensor, "n k"],
    w_scale: Float32[Tensor, "n_blocks k_blocks"],
    out_dtype: torch.dtype,
) -> Float[Tensor, "m n"]:
    """
    a @ w.T of e4m3 numbers with a scale for each block, in `out_dtype`, contiguous.

    Tensor cores sum the products of `BLOCK` columns; these sums are scaled and added up in
    float32, and rounded once.

    Args:
        aq: torch.float8_e4m3fn, as of `quant_act`. All tensors are contiguous.
        a_scale: One for each `BLOCK` numbers of a row.
        wq: torch.float8_e4m3fn, as of `quant_weight`.
        w_scale: One for each block of `BLOCK` rows and columns, the last rows' block may be short.
        out_dtype: torch.float16, torch.bfloat16 or torch.float32.

    Raises:
        ValueError: an argument is not as said above, k is 0 or no multiple of `BLOCK`, or `aq` or
            `wq` does not begin at a multiple of 16 bytes, as TMA asks for. The message begins with
            the argument's name.

    Source: DeepSeek-V3 (arXiv 2412.19437), section 3.3.2.
    """
    raise NotImplementedError  # TODO(kata): check (about 5 lines)


def _check(
    aq: Tensor, a_scale: Tensor, wq: Tensor, w_scale: Tensor, out_dtype: torch.dtype
) -> None:
    raise NotImplementedError  # TODO(kata): check (about 25 lines)


def _launch(
    aq: Tensor, a_scale: Tensor, wq: Tensor, w_scale: Tensor, c: Tensor,
    config: Config | None = None,
) -> None:  # fmt: skip
    (m, k), n = aq.shape, wq.shape[0]
    config = config or (GPU if aq.is_cuda else CPU)
    tiles = triton.cdiv(m, config.m) * triton.cdiv(n, 2 * config.n)
    _fp8_block_gemm_kernel[(tiles,)](
        TensorDescriptor.from_tensor(aq, [config.m, BLOCK]),
        TensorDescriptor.from_tensor(wq, [config.n, BLOCK]),
        a_scale, w_scale, c, m, n, k, IN_ORDER=aq.is_cuda,
        BLOCK=BLOCK, GROUP_M=config.group_m, BLOCK_M=config.m, BLOCK_N=config.n,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
