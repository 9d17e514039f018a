"""The kernel that was profiled: right, and slow. It stays as it is."""

from dataclasses import dataclass

import torch
import triton
from jaxtyping import Float
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from harness.gluon import descriptor, tma_load


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Tile shape, columns of one product, warps."""

    m: int
    n: int
    k: int
    product_n: int
    warps: int


CONFIG = Config(m=128, n=256, k=64, product_n=32, warps=8)
SIMULATED = Config(m=64, n=128, k=32, product_n=32, warps=4)


@gluon.jit
def _slow_kernel(a_desc, b_desc, c_ptr, M, N, K, BLOCK_N: gl.constexpr, PRODUCT_N: gl.constexpr):
    BLOCK_M: gl.constexpr = a_desc.block_type.shape[0]
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    wgmma: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [gl.num_warps(), 1], [16, PRODUCT_N, 16]
    )
    a_slot = gl.allocate_shared_memory(a_desc.dtype, [BLOCK_M, BLOCK_K], a_desc.layout)
    b_slot = gl.allocate_shared_memory(b_desc.dtype, [BLOCK_K, BLOCK_N], b_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)

    num_n = gl.cdiv(N, BLOCK_N)
    m, n = gl.program_id(0) // num_n * BLOCK_M, gl.program_id(0) % num_n * BLOCK_N
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, wgmma)
    for step in range(gl.cdiv(K, BLOCK_K)):
        mbarrier.expect(full, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        tma_load(a_desc, [m, step * BLOCK_K], full, a_slot)
        tma_load(b_desc, [step * BLOCK_K, n], full, b_slot)
        mbarrier.wait(full, step & 1)
        acc = warpgroup_mma(a_slot, b_slot, acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))

    rows = m + gl.arange(0, BLOCK_M, gl.SliceLayout(1, wgmma))
    cols = n + gl.arange(0, BLOCK_N, gl.SliceLayout(0, wgmma))
    places = c_ptr + rows.to(gl.int64)[:, None] * N + cols[None, :]
    mask = (rows < M)[:, None] & (cols < N)[None, :]
    gl.store(places, acc.to(a_desc.dtype), mask=mask)


def slow_gemm(a: Float[Tensor, "m k"], b: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
    """a @ b, contiguous, of float16 matrices that TMA can address and that are not empty."""
    config = CONFIG if a.is_cuda else SIMULATED
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty(M, N, dtype=a.dtype, device=a.device)
    tiles = triton.cdiv(M, config.m) * triton.cdiv(N, config.n)
    _slow_kernel[(tiles,)](
        descriptor(a, [config.m, config.k]),
        descriptor(b, [config.k, config.n]),
        c, M, N, K,
        BLOCK_N=config.n, PRODUCT_N=config.product_n, num_warps=config.warps,
    )  # fmt: skip
    return c
