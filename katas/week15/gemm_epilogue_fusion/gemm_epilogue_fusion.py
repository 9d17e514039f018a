"""Kata week15/gemm_epilogue_fusion: what follows a product is a function of its accumulator."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from jaxtyping import Float16
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor


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
TENSOR_CORES = Config(m=128, n=128, k=32, stages=4)
HOPPER = Config(m=128, n=256, k=64)


@triton.jit
def plain(acc, bias, aux):
    """The sums as they are."""
    return acc


@triton.jit
def bias_relu(acc, bias, aux):
    """max(acc + bias, 0), where a NaN stays one."""
    raise NotImplementedError  # TODO(kata): a tile of float32 in, a tile of float32 out (2 lines)


@triton.jit
def bias_gelu_aux(acc, bias, aux):
    """GELU of x = acc + bias, in its tanh form; x itself goes to aux, for the backward pass."""
    # TODO(kata): x into aux where there is one, GELU of x back (about 5 lines)
    raise NotImplementedError


@triton.jit
def scale_only(acc, bias, aux):
    """acc times the bias: a scale for each column."""
    raise NotImplementedError  # TODO(kata): the bias as a scale (1 line)


EPILOGUES = {
    "plain": plain,
    "bias_relu": bias_relu,
    "bias_gelu_aux": bias_gelu_aux,
    "scale_only": scale_only,
}


@triton.jit
def _grouped_pid(pid, num_m, num_n, GROUP_M: tl.constexpr):
    """Row and column of tile `pid`: bands of GROUP_M tile rows, each walked column by column."""
    first_m = pid // (GROUP_M * num_n) * GROUP_M
    height = min(num_m - first_m, GROUP_M)
    return first_m + pid % (GROUP_M * num_n) % height, pid % (GROUP_M * num_n) // height


@triton.jit
def _place(row, col, rows, cols, strides, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Offsets of a tile's elements in a matrix [rows, cols], and which of them exist."""
    i = (row + tl.arange(0, HEIGHT))[:, None]
    j = (col + tl.arange(0, WIDTH))[None, :]
    return i.to(tl.int64) * strides[0] + j.to(tl.int64) * strides[1], (i < rows) & (j < cols)


@triton.jit
def _load_tile(x, row, col, rows, cols, strides, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """x[row : row + HEIGHT, col : col + WIDTH], zero outside; no strides: `x` is a descriptor."""
    if strides is None:
        tile = x.load([row, col])
    else:
        offsets, exists = _place(row, col, rows, cols, strides, HEIGHT, WIDTH)
        tile = tl.load(x + offsets, mask=exists, other=0.0)
    return tile


@triton.jit
def _gemm_kernel(
    a, b, c_ptr, bias_ptr, aux_ptr, M, N, K, a_strides, b_strides, bias_stride, aux_strides,
    EPILOGUE: tl.constexpr, B_TRANSPOSED: tl.constexpr, GROUP_M: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # TODO(kata): sums of the tile, bias and aux of the tile, apply the visitor, store the tile
    # (about 25 lines)
    pass


def gemm_epilogue_fusion(
    a: Float16[Tensor, "m k"],
    b: Float16[Tensor, "k n"],
    epilogue: str | triton.KernelInterface = "plain",
    bias: Float16[Tensor, " n"] | None = None,
    aux: Float16[Tensor, "m n"] | None = None,
) -> Float16[Tensor, "m n"]:
    """
    epilogue(a @ b, bias, aux) in one kernel, float16, contiguous.

    Sums and the epilogue are float32 and rounded once, at the end. Strides are free; operands
    are read in place.

    Args:
        a: Left operand.
        b: Right operand.
        epilogue: A name of `EPILOGUES`, or a function of Triton's like those.
        bias: A number for each column, which the epilogue gets as float32.
        aux: A second matrix of the result's shape, for the epilogue to write to or read.

    Raises:
        ValueError: `a` or `b` is not 2-D or their inner sizes differ, `bias` or `aux` does not fit,
            dtypes are not float16, devices differ, or `epilogue` is neither of the two.
    """
    raise NotImplementedError  # TODO(kata): check, allocate and launch (about 8 lines)


def _check(a: Tensor, b: Tensor, bias: Tensor | None, aux: Tensor | None) -> None:
    raise NotImplementedError  # TODO(kata): check (about 10 lines)


def _launch(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    visitor: triton.KernelInterface,
    bias: Tensor | None,
    aux: Tensor | None,
) -> None:
    (M, K), N = a.shape, b.shape[1]
    config = _config(a)
    transposed = b.stride(1) != 1
    b_rows = b.T if transposed else b
    operands, strides = [a, b_rows], [a.stride(), b_rows.stride()]
    if _is_describable(a) and _is_describable(b_rows):
        b_block = [config.n, config.k] if transposed else [config.k, config.n]
        operands = [
            TensorDescriptor.from_tensor(a, [config.m, config.k]),
            TensorDescriptor.from_tensor(b_rows, b_block),
        ]
        strides = [None, None]
    tiles = triton.cdiv(M, config.m) * triton.cdiv(N, config.n)
    _gemm_kernel[(min(tiles, _programs(a)),)](
        *operands, c, bias, aux, M, N, K, *strides,
        bias_stride=0 if bias is None else bias.stride(0),
        aux_strides=None if aux is None else aux.stride(),
        EPILOGUE=visitor, B_TRANSPOSED=transposed, GROUP_M=config.group_m,
        BLOCK_M=config.m, BLOCK_N=config.n, BLOCK_K=config.k,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip


def _config(a: Tensor) -> Config:
    if not a.is_cuda:
        return CPU
    return HOPPER if _arch() == 90 else TENSOR_CORES


def _arch() -> int:
    return triton.runtime.driver.active.get_current_target().arch


def _programs(a: Tensor) -> int:
    """One program for each multiprocessor, each working through several tiles."""
    return torch.cuda.get_device_properties(a.device).multi_processor_count if a.is_cuda else 4


def _is_describable(x: Tensor) -> bool:
    """Whether the chip's tensor memory accelerator takes `x`, or the interpreter in its place."""
    if x.numel() == 0 or x.stride(1) != 1 or x.data_ptr() % 16:
        return False
    if x.stride(0) <= 0 or x.stride(0) % 8:
        return False
    return not x.is_cuda or _arch() >= 90
