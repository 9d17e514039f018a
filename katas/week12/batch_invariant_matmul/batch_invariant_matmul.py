"""Kata week12/batch_invariant_matmul: the bits of a row do not depend on what shares its batch."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


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
FP32 = Config(m=64, n=64, k=16, warps=4)
TENSOR_CORES = Config(m=128, n=128, k=32, stages=4)
HOPPER = Config(m=128, n=256, k=64)


@triton.jit
def _grouped_pid(pid, num_m, num_n, GROUP_M: tl.constexpr):
    """Tile (m, n) of program `pid`: bands of GROUP_M tile rows, each walked column by column."""
    first_m = pid // (GROUP_M * num_n) * GROUP_M
    height = min(num_m - first_m, GROUP_M)
    return first_m + pid % (GROUP_M * num_n) % height, pid % (GROUP_M * num_n) // height


@triton.jit
def _load_tile(x, row, col, rows, cols, strides, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """x[row : row + HEIGHT, col : col + WIDTH], zero outside; no strides: `x` is a descriptor."""
    if strides is None:
        tile = x.load([row, col])
    else:
        i = (row + tl.arange(0, HEIGHT))[:, None]
        j = (col + tl.arange(0, WIDTH))[None, :]
        ptrs = x + i.to(tl.int64) * strides[0] + j.to(tl.int64) * strides[1]
        tile = tl.load(ptrs, mask=(i < rows) & (j < cols), other=0.0)
    return tile


def batch_invariant_matmul(
    a: Float[Tensor, "m k"], b: Float[Tensor, "k n"]
) -> Float[Tensor, "m n"]:
    """
    a @ b, contiguous, in the dtype of the operands; each row has the same bits in every batch.

    The bits of a row depend on that row of `a` and on `b`, not on the number of rows, on where
    the row is, or on the others. Sums are float32 and rounded once, at the end; float32
    operands are multiplied in full precision. Strides are free, and nothing is copied.

    Raises:
        ValueError: `a` or `b` is not 2-D, their inner sizes, dtypes or devices differ, or the
            dtype is not one of `DTYPES`.

    Source: He et al. 2025, Defeating Nondeterminism in LLM Inference.
    """
    # TODO(kata): check, allocate and launch, tile of the result, sum over K, round and store (about
    # 50 lines with helpers)
    raise NotImplementedError


def _check(a: Tensor, b: Tensor) -> None:
    raise NotImplementedError  # TODO(kata): check (about 8 lines)


def _arch() -> int:
    return triton.runtime.driver.active.get_current_target().arch


def _is_describable(x: Tensor) -> bool:
    """Whether the chip's tensor memory accelerator takes `x`, or the interpreter in its place."""
    if x.itemsize != 2 or x.numel() == 0 or x.stride(1) != 1 or x.data_ptr() % 16:
        return False
    if x.stride(0) <= 0 or x.stride(0) % 8:
        return False
    return not x.is_cuda or _arch() >= 90


def first_divergence(
    fn: Callable[[Tensor, Tensor], Tensor],
    a: Float[Tensor, "m k"],
    b: Float[Tensor, "k n"],
    batch_sizes: Iterable[int],
) -> tuple[int, int] | None:
    """
    (row, batch size) where a row of `fn` first has other bits than in `fn(a, b)`, or None.

    For each batch size, in the order given, `a` is cut into batches of that many rows, the last
    of which may have fewer. The row is the lowest that differs at the first size where any does.
    Bits are compared: a NaN equals itself, 0.0 is not -0.0.

    Raises:
        ValueError: a batch size is below 1.
    """
    raise NotImplementedError  # TODO(kata): check, compare bits (about 15 lines with helpers)
