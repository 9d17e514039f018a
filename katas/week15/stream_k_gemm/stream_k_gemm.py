"""Kata week15/stream_k_gemm: tiles that fill no wave are cut along K, and shared out evenly."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float16
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor


class Unit(NamedTuple):
    """Iterations k0 to k1 - 1 along K of one tile."""

    tile: int
    k0: int
    k1: int


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
def _grouped_pid(pid, num_m, num_n, GROUP_M: tl.constexpr):
    """Row and column of tile `pid`: bands of GROUP_M tile rows, each walked column by column."""
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


def stream_k_plan(
    m: int, n: int, k: int, bm: int, bn: int, bk: int, programs: int
) -> list[list[Unit]]:
    """
    What each program computes of [m, k] @ [k, n] in tiles of bm x bn, bk of K at a time.

    As long as there is one for each program, program p takes tiles p, p + programs, … whole. The
    iterations of the tiles left over, in the order of the tiles and along K, are shared out evenly
    to the first programs, as many as there are iterations at most; shares that are one longer come
    first. No unit is empty.

    Raises:
        ValueError: a size is below 0, or an extent of a tile or `programs` below 1.

    Source: Osama et al. 2023, Stream-K, section 5.
    """
    # TODO(kata): check, whole tiles, even shares of the rest (about 20 lines)
    raise NotImplementedError


def stream_k_gemm(
    a: Float16[Tensor, "m k"], b: Float16[Tensor, "k n"], programs: int | None = None
) -> Float16[Tensor, "m n"]:
    """
    a @ b in float16, contiguous, by `programs` programs that have as much to do as each other.

    They follow `stream_k_plan`. Sums are float32 and rounded once, at the end; parts of a tile are
    added in their order along K, so that a call repeated gives the same bits. Strides are free.

    Args:
        a: Left operand.
        b: Right operand.
        programs: Of the first kernel; None is one for each multiprocessor, 4 without a GPU.

    Raises:
        ValueError: `a` or `b` is not 2-D or not float16, their inner sizes or devices differ, or
            `programs` is below 1.
    """
    # TODO(kata): check, whole tiles, even shares of the rest, sums of a range of iterations, add up
    # the parts, allocate and launch (about 105 lines with helpers)
    raise NotImplementedError


def _check(a: Tensor, b: Tensor, programs: int) -> None:
    raise NotImplementedError  # TODO(kata): check (about 9 lines)


def _config(a: Tensor) -> Config:
    if not a.is_cuda:
        return CPU
    return HOPPER if _arch() == 90 else TENSOR_CORES


def _arch() -> int:
    return triton.runtime.driver.active.get_current_target().arch


def _programs(a: Tensor) -> int:
    return torch.cuda.get_device_properties(a.device).multi_processor_count if a.is_cuda else 4


def _is_describable(x: Tensor) -> bool:
    """Whether the chip's tensor memory accelerator takes `x`, or the interpreter in its place."""
    if x.stride(1) != 1 or x.data_ptr() % 16 or x.stride(0) <= 0 or x.stride(0) % 8:
        return False
    return not x.is_cuda or _arch() >= 90
