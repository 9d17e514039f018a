"""Kata week12/batch_invariant_matmul: the bits of a row do not depend on what shares its batch.

Every product is computed by the same tiles in the same order, whatever the number of rows. Where
the chip has a tensor memory accelerator and the strides suit it, tiles travel by descriptor.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


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


# M is 1 for one caller, 16 for the next: Triton would build a kernel for each
@triton.jit(do_not_specialize=["M"])
def _matmul_kernel(
    a, b, c_ptr, M, N, K, a_strides, b_strides, B_TRANSPOSED: tl.constexpr, GROUP_M: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    num_m, num_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    # tile of the result
    # flattened into one loop with the one over K, so that the next tile's loads start early
    for tile in tl.range(tl.program_id(0), num_m * num_n, tl.num_programs(0), flatten=True):
        m, n = _grouped_pid(tile, num_m, num_n, GROUP_M)
        row, col = m * BLOCK_M, n * BLOCK_N
        # sum over K
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for k in range(0, K, BLOCK_K):
            a_tile = _load_tile(a, row, k, M, K, a_strides, BLOCK_M, BLOCK_K)
            if B_TRANSPOSED:
                b_tile = _load_tile(b, col, k, N, K, b_strides, BLOCK_N, BLOCK_K).T
            else:
                b_tile = _load_tile(b, k, col, K, N, b_strides, BLOCK_K, BLOCK_N)
            acc = tl.dot(a_tile, b_tile, acc, input_precision="ieee")

        # round and store
        rows = (row + tl.arange(0, BLOCK_M))[:, None]
        cols = (col + tl.arange(0, BLOCK_N))[None, :]
        c_ptrs = c_ptr + rows.to(tl.int64) * N + cols
        tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=(rows < M) & (cols < N))


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
    # check
    _check(a, b)
    # allocate and launch
    c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    if c.numel():
        _launch(a, b, c)
    return c


def _check(a: Tensor, b: Tensor) -> None:
    # check
    if a.ndim != 2 or a.dtype not in DTYPES:
        raise ValueError(f"a: expected 2-D, one of {DTYPES}, found {tuple(a.shape)}, {a.dtype}")
    if b.ndim != 2 or b.shape[0] != a.shape[1]:
        raise ValueError(f"b: expected [{a.shape[1]}, n] to match a, found {tuple(b.shape)}")
    if b.dtype != a.dtype or b.device != a.device:
        raise ValueError(
            f"b: expected {a.dtype} on {a.device} as a has, found {b.dtype} on {b.device}"
        )


def _launch(a: Tensor, b: Tensor, c: Tensor) -> None:
    # allocate and launch
    (M, K), N = a.shape, b.shape[1]
    config = _config(a)
    transposed = b.stride(1) != 1
    b_rows = b.T if transposed else b
    operands, strides = [a, b_rows], [a.stride(), b_rows.stride()]
    if _is_describable(a) and _is_describable(b_rows):
        b_block = [config.n, config.k] if transposed else [config.k, config.n]
        blocks = ([config.m, config.k], b_block)
        operands = [TensorDescriptor.from_tensor(*x) for x in zip(operands, blocks, strict=True)]
        strides = [None, None]
    tiles = triton.cdiv(M, config.m) * triton.cdiv(N, config.n)
    _matmul_kernel[(min(tiles, _programs(a)),)](
        *operands, c, M, N, K, *strides, B_TRANSPOSED=transposed, GROUP_M=config.group_m,
        BLOCK_M=config.m, BLOCK_N=config.n, BLOCK_K=config.k,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip


def _config(a: Tensor) -> Config:
    """One for each chip and dtype: the number of rows does not matter."""
    if not a.is_cuda:
        return CPU
    if a.itemsize > 2:
        return FP32
    return HOPPER if _arch() == 90 else TENSOR_CORES


def _arch() -> int:
    return triton.runtime.driver.active.get_current_target().arch


def _programs(a: Tensor) -> int:
    """One program for each multiprocessor, each working through several tiles."""
    return torch.cuda.get_device_properties(a.device).multi_processor_count if a.is_cuda else 4


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
    # check
    batch_sizes = list(batch_sizes)
    for batch in batch_sizes:
        if batch < 1:
            raise ValueError(f"batch_sizes: expected sizes of at least 1, found {batch}")
    # compare bits
    whole = _bits(fn(a, b)).clone()
    for batch in batch_sizes:
        for start in range(0, a.shape[0], batch):
            part = _bits(fn(a[start : start + batch], b))
            differs = (part != whole[start : start + batch]).any(dim=1)
            if differs.any():
                return start + int(differs.nonzero()[0]), batch
    return None


def _bits(x: Tensor) -> Tensor:
    return x.view(BITS[x.itemsize])
