"""Kata week09/matmul: tl.dot on tensor cores, programs ordered for L2, a fused epilogue.

Each program makes one [BLOCK_M, BLOCK_N] tile of the result. Where the chip has a tensor memory
accelerator and the strides suit it, tiles travel by descriptor; otherwise by pointers and masks.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import triton
import triton.language as tl
from jaxtyping import Float
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
POINTER = Config(m=128, n=128, k=32, stages=4)
POINTER_FP32 = Config(m=64, n=64, k=16, warps=4)
DESCRIPTOR = Config(m=128, n=256, k=64)
DESCRIPTOR_SMALL = Config(m=64, n=128, k=64, stages=4, warps=4)  # for fewer tiles than processors


@triton.jit
def grouped_pid(pid, num_m, num_n, GROUP_M: tl.constexpr):
    """Tile (m, n) of program `pid`: bands of GROUP_M tile rows, each walked column by column."""
    width = GROUP_M * num_n
    first_m = pid // width * GROUP_M
    # the last band may be lower
    height = min(num_m - first_m, GROUP_M)
    return first_m + pid % width % height, pid % width // height


@triton.jit
def _epilogue(acc, bias_ptr, bias_stride, cols, N, ACTIVATION: tl.constexpr):
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + cols.to(tl.int64) * bias_stride, mask=cols < N)
        acc += bias[None, :]
    if ACTIVATION == "silu":
        acc = acc / (1.0 + tl.exp(-acc))
    elif ACTIVATION == "relu":
        # not tl.maximum, which drops NaN
        acc = tl.where(acc < 0.0, 0.0, acc)
    return acc


@triton.jit
def _matmul_kernel(
    a_ptr, b_ptr, c_ptr, bias_ptr, M, N, K,
    a_m_stride, a_k_stride, b_k_stride, b_n_stride, c_m_stride, bias_stride,
    ACTIVATION: tl.constexpr, GROUP_M: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # order of programs
    m, n = grouped_pid(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    rows = m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = n * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    # strides are free, and a row of b may lie 2**31 elements past the one before
    wide_ks = ks.to(tl.int64)
    a_ptrs = a_ptr + rows.to(tl.int64)[:, None] * a_m_stride + wide_ks[None, :] * a_k_stride
    b_ptrs = b_ptr + wide_ks[:, None] * b_k_stride + cols.to(tl.int64)[None, :] * b_n_stride
    step = tl.full((), BLOCK_K, tl.int64)

    # multiply and add
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in range(0, K, BLOCK_K):
        left = K - k
        a = tl.load(a_ptrs, mask=(rows[:, None] < M) & (ks[None, :] < left), other=0.0)
        b = tl.load(b_ptrs, mask=(ks[:, None] < left) & (cols[None, :] < N), other=0.0)
        # "ieee": float32 operands are multiplied in float32, not rounded to tf32
        acc = tl.dot(a, b, acc, input_precision="ieee")
        a_ptrs += step * a_k_stride
        b_ptrs += step * b_k_stride

    # epilogue
    acc = _epilogue(acc, bias_ptr, bias_stride, cols, N, ACTIVATION)
    # store
    c_ptrs = c_ptr + rows.to(tl.int64)[:, None] * c_m_stride + cols[None, :]
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _matmul_descriptor_kernel(
    a_desc, b_desc, c_desc, bias_ptr, M, N, K, bias_stride,
    A_TRANSPOSED: tl.constexpr, B_TRANSPOSED: tl.constexpr,
    ACTIVATION: tl.constexpr, GROUP_M: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    num_m, num_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    # flattened into one loop with the one over K, so that the next tile's loads start early
    for tile in tl.range(tl.program_id(0), num_m * num_n, tl.num_programs(0), flatten=True):
        m, n = grouped_pid(tile, num_m, num_n, GROUP_M)
        # what lies outside a matrix arrives as zero and is not stored
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for k in range(0, K, BLOCK_K):
            a = a_desc.load([k, m * BLOCK_M]).T if A_TRANSPOSED else a_desc.load([m * BLOCK_M, k])
            b = b_desc.load([n * BLOCK_N, k]).T if B_TRANSPOSED else b_desc.load([k, n * BLOCK_N])
            acc = tl.dot(a, b, acc)

        cols = n * BLOCK_N + tl.arange(0, BLOCK_N)
        acc = _epilogue(acc, bias_ptr, bias_stride, cols, N, ACTIVATION)
        c_desc.store([m * BLOCK_M, n * BLOCK_N], acc.to(c_desc.dtype))


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
    # check
    _check(a, b, bias, activation)
    # launch
    c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    if c.numel():
        by_descriptor = _has_descriptors(a) and None not in map(_row_major, (a, b, c))
        launch = _launch_by_descriptor if by_descriptor else _launch
        launch(a, b, c, bias, activation)
    return c


def _check(a: Tensor, b: Tensor, bias: Tensor | None, activation: str | None) -> None:
    for name, x in (("a", a), ("b", b)):
        if x.ndim != 2 or not x.is_floating_point():
            raise ValueError(f"{name}: expected a 2-D float tensor, found {x.dtype} {x.shape}")
    if b.shape[0] != a.shape[1]:
        raise ValueError(f"b: expected {a.shape[1]} rows, one per column of a, found {b.shape[0]}")
    for name, x in (("b", b), ("bias", bias)):
        if x is not None and (x.dtype != a.dtype or x.device != a.device):
            raise ValueError(
                f"{name}: expected {a.dtype} on {a.device} as a has, found {x.dtype} on {x.device}"
            )
    if bias is not None and bias.shape != b.shape[1:]:
        raise ValueError(f"bias: expected shape {tuple(b.shape[1:])}, found {tuple(bias.shape)}")
    if activation not in (None, "silu", "relu"):
        raise ValueError(f"activation: expected None, 'silu' or 'relu', found {activation!r}")


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


def _launch_by_descriptor(
    a: Tensor, b: Tensor, c: Tensor, bias: Tensor | None, activation: str | None
) -> None:
    M, N = c.shape
    a_rows, b_rows = _row_major(a), _row_major(b)
    config, programs = (DESCRIPTOR if a.is_cuda else CPU), _programs(a)
    if a.is_cuda and _tiles(c, config) < 0.75 * programs:
        config = DESCRIPTOR_SMALL
    _matmul_descriptor_kernel[(min(_tiles(c, config), programs),)](
        _describe(a_rows, (config.m, config.k), a_rows is not a),
        _describe(b_rows, (config.k, config.n), b_rows is not b),
        TensorDescriptor.from_tensor(c, [config.m, config.n]),
        bias, M, N, a.shape[1],
        bias_stride=0 if bias is None else bias.stride(0),
        A_TRANSPOSED=a_rows is not a, B_TRANSPOSED=b_rows is not b,
        ACTIVATION=activation, GROUP_M=config.group_m,
        BLOCK_M=config.m, BLOCK_N=config.n, BLOCK_K=config.k,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip


def _tiles(c: Tensor, config: Config) -> int:
    return triton.cdiv(c.shape[0], config.m) * triton.cdiv(c.shape[1], config.n)


def _programs(a: Tensor) -> int:
    """One program for each multiprocessor, each working through several tiles."""
    return torch.cuda.get_device_properties(a.device).multi_processor_count if a.is_cuda else 4


def _has_descriptors(a: Tensor) -> bool:
    """16-bit operands on a chip with a tensor memory accelerator, or in the interpreter."""
    if a.itemsize != 2:
        return False
    if not a.is_cuda:
        return True
    target = triton.runtime.driver.active.get_current_target()
    return target.backend == "cuda" and target.arch >= 90


def _row_major(x: Tensor) -> Tensor | None:
    """`x` or its transpose, whichever a descriptor can describe; None where neither will do."""
    for view in (x, x.T):
        aligned = view.stride(0) % 8 == 0 and x.data_ptr() % 16 == 0  # 16-bit elements
        if x.numel() and view.stride(1) == 1 and view.stride(0) > 0 and aligned:
            return view
    return None


def _describe(x: Tensor, block: tuple[int, int], transposed: bool) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(x, list(block[::-1] if transposed else block))
