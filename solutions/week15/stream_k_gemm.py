"""Kata week15/stream_k_gemm: tiles that fill no wave are cut along K, and shared out evenly.

While there is a tile for every program, each takes a whole one. What is left over is cut into even
shares of iterations along K; a second kernel adds up the parts, in their order along K.
"""

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
FIX_UP_ROWS = 8  # of a tile that one program of the second kernel adds up
FIX_UP_AT_ONCE = 4  # parts on their way to it


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


@triton.jit
def _accumulate(
    a, b, row, col, k0, k1, M, N, K, a_strides, b_strides, B_TRANSPOSED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # sums of a range of iterations
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for step in range(k0, k1):
        k = step * BLOCK_K
        a_tile = _load_tile(a, row, k, M, K, a_strides, BLOCK_M, BLOCK_K)
        if B_TRANSPOSED:
            b_tile = _load_tile(b, col, k, N, K, b_strides, BLOCK_N, BLOCK_K).T
        else:
            b_tile = _load_tile(b, k, col, K, N, b_strides, BLOCK_K, BLOCK_N)
        acc = tl.dot(a_tile, b_tile, acc)
    return acc


@triton.jit
def _cut(p, rest, sharers):
    """First iteration of the share of program `p`; the first ones have one more than the others."""
    p = min(p, sharers)
    return p * (rest // sharers) + min(p, rest % sharers)


@triton.jit
def _owner(step, rest, sharers):
    """Program that has iteration `step` of the rest."""
    return max(step // (rest // sharers + 1), (step - rest % sharers) // (rest // sharers))


@triton.jit
def _stream_k_kernel(
    a, b, c_ptr, parts_ptr, M, N, K, a_strides, b_strides, whole, rest, sharers,
    B_TRANSPOSED: tl.constexpr, GROUP_M: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # whole tiles
    p = tl.program_id(0)
    num_m, num_n, num_k = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), tl.cdiv(K, BLOCK_K)
    # flattened into one loop with the one over K, so that the next tile's loads start early
    for tile in tl.range(p, whole, tl.num_programs(0), flatten=True):
        m, n = _grouped_pid(tile, num_m, num_n, GROUP_M)
        acc = _accumulate(
            a, b, m * BLOCK_M, n * BLOCK_N, 0, num_k, M, N, K, a_strides, b_strides,
            B_TRANSPOSED, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        rows = (m * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
        cols = (n * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
        c_ptrs = c_ptr + rows.to(tl.int64) * N + cols
        tl.store(c_ptrs, acc.to(tl.float16), mask=(rows < M) & (cols < N))

    # even shares of the rest
    if parts_ptr is not None:
        first, end = _cut(p, rest, sharers), _cut(p + 1, rest, sharers)
        in_tile = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        for cut in range(first // num_k, tl.cdiv(end, num_k)):
            m, n = _grouped_pid(whole + cut, num_m, num_n, GROUP_M)
            k0, k1 = max(first - cut * num_k, 0), min(end - cut * num_k, num_k)
            acc = _accumulate(
                a, b, m * BLOCK_M, n * BLOCK_N, k0, k1, M, N, K, a_strides, b_strides,
                B_TRANSPOSED, BLOCK_M, BLOCK_N, BLOCK_K,
            )  # fmt: skip
            # from one part to the next either the program or the tile is another: the sum tells all
            part = (p + cut).to(tl.int64)
            tl.store(parts_ptr + part * (BLOCK_M * BLOCK_N) + in_tile, acc)


@triton.jit
def _fix_up_kernel(
    c_ptr, parts_ptr, M, N, num_k, whole, rest, sharers,
    GROUP_M: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ROWS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    # add up the parts
    cut, slab = tl.program_id(0) // (BLOCK_M // ROWS), tl.program_id(0) % (BLOCK_M // ROWS)
    m, n = _grouped_pid(whole + cut, tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    row = (slab * ROWS + tl.arange(0, ROWS))[:, None]
    col = tl.arange(0, BLOCK_N)[None, :]
    first = _owner(cut * num_k, rest, sharers)
    last = _owner((cut + 1) * num_k - 1, rest, sharers)
    acc = tl.zeros([ROWS, BLOCK_N], tl.float32)
    for p in tl.range(first, last + 1, loop_unroll_factor=AT_ONCE):
        part = (p + cut).to(tl.int64)
        acc += tl.load(parts_ptr + part * (BLOCK_M * BLOCK_N) + row * BLOCK_N + col)
    rows, cols = m * BLOCK_M + row, n * BLOCK_N + col
    c_ptrs = c_ptr + rows.to(tl.int64) * N + cols
    tl.store(c_ptrs, acc.to(tl.float16), mask=(rows < M) & (cols < N))


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
    # check
    for name, value, least in (
        ("m", m, 0), ("n", n, 0), ("k", k, 0),
        ("bm", bm, 1), ("bn", bn, 1), ("bk", bk, 1), ("programs", programs, 1),
    ):  # fmt: skip
        if value < least:
            raise ValueError(f"{name}: expected at least {least}, found {value}")
    # whole tiles
    tiles, num_k = -(-m // bm) * -(-n // bn), -(-k // bk)
    whole = tiles - tiles % programs
    left = (tiles - whole) * num_k
    first = whole * num_k
    plan = []
    for p in range(programs):
        units = [Unit(tile, 0, num_k) for tile in range(p, whole, programs) if num_k]
        # even shares of the rest
        # an even share of what those before have left
        end = first + -(-left // (programs - p))
        left -= end - first
        while first < end:
            tile, k0 = divmod(first, num_k)
            k1 = min(k0 + end - first, num_k)
            units.append(Unit(tile, k0, k1))
            first += k1 - k0
        plan.append(units)
    return plan


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
    # check
    programs = _programs(a) if programs is None else programs
    _check(a, b, programs)
    # allocate and launch
    (m, k), n = a.shape, b.shape[1]
    if m * n * k == 0:
        return torch.zeros(m, n, dtype=a.dtype, device=a.device)
    c = torch.empty(m, n, dtype=a.dtype, device=a.device)
    _launch(a, b, c, programs)
    return c


def _check(a: Tensor, b: Tensor, programs: int) -> None:
    # check
    for name, x in (("a", a), ("b", b)):
        if x.ndim != 2 or x.dtype != torch.float16:
            raise ValueError(f"{name}: expected 2-D float16, found {tuple(x.shape)}, {x.dtype}")
    if b.shape[0] != a.shape[1]:
        raise ValueError(f"b: expected [{a.shape[1]}, n] to match a, found {tuple(b.shape)}")
    if b.device != a.device:
        raise ValueError(f"b: expected to be on {a.device} as a is, found {b.device}")
    if programs < 1:
        raise ValueError(f"programs: expected at least 1, found {programs}")


def _launch(a: Tensor, b: Tensor, c: Tensor, programs: int) -> None:
    # allocate and launch
    (M, K), N = a.shape, b.shape[1]
    config = _config(a)
    blocks = {"GROUP_M": config.group_m, "BLOCK_M": config.m, "BLOCK_N": config.n}
    tiles, num_k = triton.cdiv(M, config.m) * triton.cdiv(N, config.n), triton.cdiv(K, config.k)
    # a tile of one iteration stays whole: its program makes it like those of full waves
    cut = tiles % programs if num_k > 1 else 0
    rest = cut * num_k
    sharers = min(programs, rest)
    shares = (tiles - cut, rest, sharers)
    parts = None
    if cut:
        parts = c.new_empty((sharers + cut - 1, config.m, config.n), dtype=torch.float32)

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
    _stream_k_kernel[(programs,)](
        *operands, c, parts, M, N, K, *strides, *shares, B_TRANSPOSED=transposed,
        **blocks, BLOCK_K=config.k, num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    if cut:
        _fix_up_kernel[(cut * (config.m // FIX_UP_ROWS),)](
            c, parts, M, N, num_k, *shares, **blocks, ROWS=FIX_UP_ROWS, AT_ONCE=FIX_UP_AT_ONCE
        )


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
