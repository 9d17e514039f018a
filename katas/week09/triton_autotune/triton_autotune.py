"""Kata week09/triton_autotune: which configurations are worth timing, and when to time again.

On a laptop, for GPUs that are not there: what the compiler made of the kernel is in data/.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32
from torch import Tensor
from triton import Config

MOST = 12  # configurations that are timed for one bucket
ITEMSIZE = 2  # of the operands: float16, bfloat16


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """A GPU. What a multiprocessor does in a microsecond are peaks: the truth is slower."""

    arch: str
    sms: int
    shared_bytes: int  # the most that one program may have
    products_per_us: float  # multiply-adds of a multiprocessor's tensor cores
    bytes_per_us: float  # from the L2 cache to a multiprocessor


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What the compiler made of a configuration, read from its code."""

    registers: int  # of a thread
    spills: int  # bytes that a thread moves to memory and back for want of registers
    shared_bytes: int  # of a program


LIMITS = {
    "a100": Limits(
        arch="sm_80", sms=108, shared_bytes=166_912, products_per_us=1.44e6, bytes_per_us=42e3
    ),
    "rtx_4090": Limits(
        arch="sm_89", sms=128, shared_bytes=101_376, products_per_us=0.65e6, bytes_per_us=39e3
    ),
    "l40s": Limits(
        arch="sm_89", sms=142, shared_bytes=101_376, products_per_us=1.27e6, bytes_per_us=39e3
    ),
    "h100": Limits(
        arch="sm_90", sms=132, shared_bytes=232_448, products_per_us=3.75e6, bytes_per_us=42e3
    ),
}
# BLOCK_M, BLOCK_N, BLOCK_K, stages, warps
TILES = [
    (32, 64, 32, 4, 4), (32, 64, 64, 3, 4), (32, 64, 128, 3, 4), (32, 128, 32, 5, 8),
    (32, 128, 64, 4, 4), (32, 128, 128, 3, 4), (32, 128, 128, 3, 8), (64, 32, 64, 4, 4),
    (64, 64, 32, 4, 4), (64, 64, 32, 5, 4), (64, 64, 64, 3, 4), (64, 64, 128, 2, 4),
    (64, 64, 128, 2, 8), (64, 128, 32, 4, 4), (64, 128, 64, 3, 4), (64, 128, 64, 4, 4),
    (64, 128, 128, 2, 4), (64, 128, 128, 3, 8), (64, 256, 32, 4, 8), (64, 256, 32, 5, 4),
    (64, 256, 64, 3, 8), (64, 256, 128, 2, 8), (64, 256, 128, 3, 8), (128, 32, 64, 3, 8),
    (128, 64, 32, 4, 4), (128, 64, 32, 5, 8), (128, 64, 64, 4, 4), (128, 64, 128, 2, 8),
    (128, 64, 128, 3, 8), (128, 128, 32, 4, 8), (128, 128, 32, 5, 4), (128, 128, 64, 2, 8),
    (128, 128, 64, 4, 4), (128, 128, 128, 3, 8), (128, 256, 128, 3, 8), (256, 64, 32, 4, 4),
    (256, 64, 64, 3, 8), (256, 128, 64, 3, 4), (256, 128, 64, 4, 8), (256, 128, 128, 2, 8),
]  # fmt: skip
CONFIGS = [
    Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}, num_stages=stages, num_warps=warps)
    for m, n, k, stages, warps in TILES
]


@triton.jit
def accumulate_kernel(
    c_ptr, a_ptr, b_ptr, M, N, K, c_row_stride, a_row_stride, b_row_stride,
    M_BUCKET: tl.constexpr, N_BUCKET: tl.constexpr, K_BUCKET: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """c += a @ b. The buckets change nothing here: a tuner may tell calls apart by them."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows.to(tl.int64)[:, None] * a_row_stride + ks[None, :]
    b_ptrs = b_ptr + ks.to(tl.int64)[:, None] * b_row_stride + cols[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in range(0, K, BLOCK_K):
        left = K - k
        a = tl.load(a_ptrs, mask=(rows[:, None] < M) & (ks[None, :] < left), other=0.0)
        b = tl.load(b_ptrs, mask=(ks[:, None] < left) & (cols[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BLOCK_K
        b_ptrs += tl.cast(BLOCK_K, tl.int64) * b_row_stride
    c_ptrs = c_ptr + rows.to(tl.int64)[:, None] * c_row_stride + cols[None, :]
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(c_ptrs, tl.load(c_ptrs, mask=mask) + acc, mask=mask)


def predicted_us(config: Config, m: int, n: int, k: int, limits: Limits) -> float:
    """
    Microseconds that `accumulate_kernel` takes at least: those of the busiest multiprocessor.

    It works through its tiles one after the other, and at each step of K either the products or
    the loads of a tile take longer.
    """
    block_m, block_n, block_k = (config.kwargs[f"BLOCK_{axis}"] for axis in "MNK")
    tiles = triton.cdiv(m, block_m) * triton.cdiv(n, block_n)
    rounds, steps = triton.cdiv(tiles, limits.sms), triton.cdiv(k, block_k)
    products_us = block_m * block_n * block_k / limits.products_per_us
    loads_us = (block_m + block_n) * block_k * ITEMSIZE / limits.bytes_per_us
    return rounds * steps * max(products_us, loads_us)


def shared_bytes(config: Config, itemsize: int, arch: str) -> int:
    """
    Shared memory of a program of `accumulate_kernel`: what its software pipeline keeps of a and b.

    A stage is a tile of a and one of b. `wgmma` reads its operands from shared memory, where all
    stages are. `mma.sync` reads them from registers, where one of the stages is, so that shared
    memory has one less; but always one, through which the tiles pass.

    Args:
        config: Block sizes, stages and warps.
        itemsize: Bytes of an element of a and b.
        arch: "sm_80", "sm_89" or "sm_90", which alone has `wgmma`, for tiles of at least 64 rows
            and programs of whole warpgroups.
    """
    raise NotImplementedError  # TODO(kata): count the stages (about 4 lines)


def prune(
    configs: Sequence[Config],
    m: int,
    n: int,
    k: int,
    limits: Limits,
    read: Callable[[Config], Build],
) -> list[Config]:
    """
    The configurations worth timing, at most `MOST`, those predicted to be fastest first.

    Those that need more shared memory than a program may have cannot be launched. Of the others,
    in the order of `predicted_us` (and of `configs`, where that is equal), the first `MOST` whose
    code spills nothing are kept. Where all of them spill, the first is kept.

    Args:
        configs: What there is to choose from; stays as it is.
        m, n, k: Sizes of the product, or of a bucket of products.
        limits: Of the GPU, which need not be there.
        read: Compiles a configuration for that GPU, which takes a second. Asked no more often
            than it takes to find `MOST`.

    Raises:
        ValueError: nothing can be launched; the message names `configs`, the bytes of shared memory
            that the smallest of them needs, and the bytes that there are.
    """
    # TODO(kata): leave out what cannot run, rank and compile (about 15 lines)
    raise NotImplementedError


def triton_autotune(
    kernel: triton.KernelInterface,
    configs: Sequence[Config],
    limits: Limits,
    read: Callable[[Config], Build],
    bench: Callable[..., list[float]] | None = None,
) -> triton.KernelInterface:
    """
    Let Triton's autotuner choose among `configs`, anew for each bucket of sizes.

    Only what `prune` keeps for the sizes of the bucket is timed. However often a configuration is
    launched while it is timed, c is as it was before, until the call that was asked for.

    Args:
        kernel: With the arguments of `accumulate_kernel`, called as `add_matmul_` does.
        configs: What there is to choose from, two or more.
        limits: Of the GPU.
        read: Compiles a configuration. Asked once for each, however many buckets there are.
        bench: What times a call, as `do_bench` of `triton.autotune`; None is Triton's own.
    """
    raise NotImplementedError  # TODO(kata): tune each bucket (about 15 lines)


def add_matmul_(
    c: Float32[Tensor, "m n"],
    a: Float[Tensor, "m k"],
    b: Float[Tensor, "k n"],
    tuned: triton.KernelInterface,
) -> Float32[Tensor, "m n"]:
    """
    c += a @ b in place, by a kernel from `triton_autotune`; return c.

    Sizes with the same next power of two share a bucket: M_BUCKET, N_BUCKET and K_BUCKET. Where
    there is nothing to add nothing is launched, and nothing tuned.

    Args:
        c: The sum so far, in float32, its last axis contiguous.
        a: In float16 or bfloat16, its last axis contiguous.
        b: In the dtype of `a`, its last axis contiguous.
        tuned: The kernel, tuned.

    Raises:
        ValueError: `a` is not float16 or bfloat16 of two axes; `b` has another dtype or does not
            have a row for each column of `a`; `c` is not float32, or not of the product's shape;
            or the last axis of one is not contiguous.
    """
    raise NotImplementedError  # TODO(kata): check, launch (about 20 lines with helpers)
