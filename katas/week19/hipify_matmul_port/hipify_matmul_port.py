"""Kata week19/hipify_matmul_port: CUDA C++ rewritten for HIP, a Triton matmul fitted to gfx942.

Names and launches are text. Widths of 32, and tiles that fit only NVIDIA's shared memory, are not.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

# ---- CUDA C++ ----------------------------------------------------------------------------------

NAMES = {
    "cudaMalloc": "hipMalloc",
    "cudaFree": "hipFree",
    "cudaMemcpy": "hipMemcpy",
    "cudaMemcpyAsync": "hipMemcpyAsync",
    "cudaMemcpyHostToDevice": "hipMemcpyHostToDevice",
    "cudaMemcpyDeviceToHost": "hipMemcpyDeviceToHost",
    "cudaStream_t": "hipStream_t",
    "cudaStreamCreate": "hipStreamCreate",
    "cudaStreamSynchronize": "hipStreamSynchronize",
    "cudaStreamDestroy": "hipStreamDestroy",
    "cudaEvent_t": "hipEvent_t",
    "cudaEventRecord": "hipEventRecord",
    "cudaEventElapsedTime": "hipEventElapsedTime",
    "cudaDeviceSynchronize": "hipDeviceSynchronize",
    "cudaDeviceProp": "hipDeviceProp_t",
    "cudaGetDeviceProperties": "hipGetDeviceProperties",
    "cudaGetLastError": "hipGetLastError",
    "cudaGetErrorString": "hipGetErrorString",
    "cudaError_t": "hipError_t",
    "cudaSuccess": "hipSuccess",
    "cudaFuncSetAttribute": "hipFuncSetAttribute",
    "cublasHandle_t": "hipblasHandle_t",
    "cublasCreate": "hipblasCreate",
    "cublasDestroy": "hipblasDestroy",
    "cublasSgemm": "hipblasSgemm",
    "CUBLAS_OP_N": "HIPBLAS_OP_N",
    "CUBLAS_OP_T": "HIPBLAS_OP_T",
}
HEADERS = {
    "cuda_runtime.h": "hip/hip_runtime.h",
    "cuda_fp16.h": "hip/hip_fp16.h",
    "cublas_v2.h": "hipblas/hipblas.h",
    "cub/cub.cuh": "hipcub/hipcub.hpp",
}
TOKEN = re.compile(
    r"""
    (?P<include> \#[ \t]*include[ \t]*(?:<[^>\n]*>|"[^"\n]*") )
  | (?P<comment> //[^\n]* | /\*.*?(?:\*/|\Z) )
  | (?P<string> "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' )
  | (?P<number> \.?\d(?:'?[\w.])* )
  | (?P<name> [A-Za-z_]\w* )
  | (?P<space> \s+ )
  | (?P<punct> <<< | :: | . )
    """,
    re.VERBOSE | re.DOTALL,
)
BALLOTS = {"__ballot", "__ballot_sync", "__activemask"}
BIT_COUNTS = {"__popc", "__ffs", "__clz", "__brev"}
OF_32_BITS = {"const", "unsigned", "int", "uint32_t"}


class Token(NamedTuple):
    """
    A piece of source.

    Attributes:
        kind: "include", "comment", "string", "number", "name", "space", "punct".
        text: As it stands there; of punctuation a single character, "::" or "<<<".
        line: Where it begins, from 1.
    """

    kind: str
    text: str
    line: int


class Finding(NamedTuple):
    """A line, from 1, and what is wrong there: "mask", "width", "steps", "ballot", "asm"."""

    line: int
    kind: str


def tokens(src: str) -> Iterator[Token]:
    """Split C++ into tokens, whose texts together are `src`."""
    line = 1
    for found in TOKEN.finditer(src):
        yield Token(str(found.lastgroup), found[0], line)
        line += found[0].count("\n")


def integer(token: Token) -> int | None:
    """The value of a decimal, hexadecimal or binary literal with any suffix; None for the rest."""
    found = re.fullmatch(r"(0[xX][\da-fA-F']+|0[bB][01']+|[1-9][\d']*|0)[uUlLzZ]*", token.text)
    return int(found[1].replace("'", ""), 0) if found else None


def hipify(src: str) -> str:
    """
    Rewrite CUDA C++ for HIP: names, headers, the namespace cub, and kernel launches.

    `k<<<g, b, s, t>>>(x)` becomes `hipLaunchKernelGGL(k, dim3(g), dim3(b), s, t, x)`.

    Raises:
        ValueError: A launch that is not well formed; the message begins with its line.
    """
    # TODO(kata): rewrite names, rewrite launches (about 75 lines with helpers)
    raise NotImplementedError


def wave_lint(src: str) -> list[Finding]:
    """Find, in CUDA or HIP, what counts on warps of 32 lanes or on NVIDIA's instructions."""
    # TODO(kata): findings by neighbouring tokens (about 35 lines with helpers)
    raise NotImplementedError


# ---- Triton ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Tile shape, warps (wavefronts) of a program, stages of its pipeline."""

    m: int
    n: int
    k: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """
    What of a GPU decides.

    Attributes:
        shared_bytes: Shared memory (LDS) that a program can have.
        units: Multiprocessors (compute units).
        unbuffered: Stages of a pipeline that need no buffer in shared memory: one where the last
            step's tiles are in registers by then, none where wgmma still reads them.
    """

    shared_bytes: int
    units: int
    unbuffered: int


TARGETS = {
    "sm_75": Target(shared_bytes=65_536, units=40, unbuffered=1),
    "sm_80": Target(shared_bytes=166_912, units=108, unbuffered=1),
    "sm_89": Target(shared_bytes=101_376, units=128, unbuffered=1),
    "sm_90": Target(shared_bytes=232_448, units=132, unbuffered=0),
    "gfx942": Target(shared_bytes=65_536, units=304, unbuffered=1),
}
CANDIDATES = (  # best first, where they fit
    Config(m=128, n=256, k=64, warps=8, stages=3),
    Config(m=128, n=256, k=64, warps=8, stages=2),
    Config(m=128, n=128, k=64, warps=4, stages=3),
    Config(m=128, n=128, k=64, warps=4, stages=2),
    Config(m=64, n=64, k=64, warps=4, stages=2),
    Config(m=32, n=32, k=32, warps=4, stages=2),
)
WARPS = 8  # that a unit needs: two for each of its four schedulers (SIMDs)
CPU = Config(m=16, n=32, k=16, warps=4, stages=2)
GROUP_M = 8


def _config(m: int, n: int, x: Tensor) -> Config:
    if not x.is_cuda:
        return CPU
    now = triton.runtime.driver.active.get_current_target()
    known = {86: "sm_89", 100: "sm_90", 103: "sm_90", 120: "sm_89"}
    target = now.arch if now.backend == "hip" else known.get(now.arch, f"sm_{now.arch}")
    return pick_config(m, n, x.itemsize, target)


def buffer_bytes(config: Config, itemsize: int, target: str) -> int:
    """
    Shared memory of a program: a tile of a and one of b for each stage that needs a buffer.

    Raises:
        ValueError: `target` is not one of TARGETS.
    """
    raise NotImplementedError  # TODO(kata): buffers and tiles (about 4 lines)


def pick_config(m: int, n: int, itemsize: int, target: str) -> Config:
    """
    Choose from CANDIDATES what suits an [m, n] result on `target`.

    Raises:
        ValueError: `target` is not one of TARGETS, or `itemsize` neither 2 nor 4.
    """
    raise NotImplementedError  # TODO(kata): buffers and tiles (about 10 lines)


@triton.jit
def _matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, a_stride, b_stride, GROUP_M: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    num_m, num_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    # bands of GROUP_M tile rows, each walked column by column
    pid, width = tl.program_id(0), GROUP_M * num_n
    first_m = pid // width * GROUP_M
    height = min(num_m - first_m, GROUP_M)
    rows = (first_m + pid % width % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = pid % width // height * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows.to(tl.int64)[:, None] * a_stride + ks[None, :]
    b_ptrs = b_ptr + ks.to(tl.int64)[:, None] * b_stride + cols[None, :]

    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in range(0, K, BLOCK_K):
        left = K - k
        a = tl.load(a_ptrs, mask=(rows[:, None] < M) & (ks[None, :] < left), other=0.0)
        b = tl.load(b_ptrs, mask=(ks[:, None] < left) & (cols[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
        a_ptrs += BLOCK_K
        b_ptrs += tl.full((), BLOCK_K, tl.int64) * b_stride

    c_ptrs = c_ptr + rows.to(tl.int64)[:, None] * N + cols[None, :]
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=mask)


def hipify_matmul_port(a: Float[Tensor, "m k"], b: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
    """
    a @ b, contiguous, summed in float32: the same kernel on either vendor's GPU.

    Rows may lie apart in memory, their elements may not.

    Raises:
        ValueError: `a` or `b` is not 2-D, not of 2 or 4 bytes in floating point, or has gaps in
            its rows; `b` has another number of rows than `a` has columns, or another dtype.
    """
    raise NotImplementedError  # TODO(kata): check and launch (about 20 lines)


# ---- what came of it ---------------------------------------------------------------------------

# bytes that a lane loads, by the word behind `_load_`
LOADS = {"ubyte": 1, "sbyte": 1, "ushort": 2, "sshort": 2, "short": 2}
LOADS |= {"dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16}
LDS_BYTES, VGPRS, VGPR_UNIT, SIMDS, MOST_WAVES = 65_536, 512, 8, 4, 8  # of a CDNA 3 unit


class Report(NamedTuple):
    """
    What a kernel for CDNA 3 takes.

    Attributes:
        mma: The matrix instructions, each name once, sorted.
        vgprs: Vector registers of a lane.
        spills: Vector registers spilled.
        wave: Lanes of a wavefront.
        load_bytes: Of the narrowest load from global memory, for each lane; 0 without any.
        waves_per_simd: Wavefronts that a SIMD can hold.
    """

    mma: tuple[str, ...]
    vgprs: int
    spills: int
    wave: int
    load_bytes: int
    waves_per_simd: int


def port_report(isa: str, lds_bytes: int, warps: int) -> Report:
    """
    Report what a kernel for gfx942 takes, from its assembly.

    Args:
        isa: Assembly, with LLVM's metadata at its end.
        lds_bytes: Shared memory of a program, which a launch asks for.
        warps: Wavefronts of a program.

    Raises:
        ValueError: `isa` lacks the metadata, or `lds_bytes` is more than a unit has.
    """
    raise NotImplementedError  # TODO(kata): read the assembly (about 20 lines)
