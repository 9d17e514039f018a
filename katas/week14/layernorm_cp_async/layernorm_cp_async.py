"""Kata week14/layernorm_cp_async: LayerNorm whose next rows are on their way while it reduces one.

HBM: each row is copied once, into shared memory, and written once.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from harness.cuda import launch

PIECE_BYTES = 16  # what a thread copies at once
MIN_THREADS, MAX_THREADS = 32, 128
MAX_STAGES = 8
SCRATCH_BYTES = 64  # behind the stages: 8 floats for each of two sums
REGISTERS = 128  # of a thread, at most: the kernel's __launch_bounds__ see to it
LATENCY_S = 1e-6  # of memory that is busy

SOURCE = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using T = ELEMENT;  // -DELEMENT=__half or __nv_bfloat16
struct alignas(16) Piece { T held[8]; };

// 16 bytes from global to shared memory; they are on their way when this returns
__device__ void copy_piece(Piece* to, const Piece* from) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(address), "l"(from) : "memory");
}

// the thread's copies since its last commit are a group, even if there are none
__device__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// until all of the thread's groups have landed, but for the newest LEFT
template <int LEFT> __device__ void wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
}

// for the thread's pieces, the k-th of which is piece `at` of the row; at most -DPIECES=…
#define EACH_PIECE \
    _Pragma("unroll 4") for (int k = 0, at = threadIdx.x; k < PIECES; k++, at += step) \
        if (at < pieces)

// the sum over the threads of the block; every thread gets it. One barrier: who needs two sums in a
// row gives them two places, as warps may still read the first when others write the second
__device__ float block_sum(float value, float* place) {
    for (int apart = 16; apart > 0; apart /= 2) value += __shfl_xor_sync(~0u, value, apart);
    if (threadIdx.x % 32 == 0) place[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
    for (int warp = 0; warp < blockDim.x / 32; warp++) value += place[warp];
    return value;
}

extern "C" __global__ void __launch_bounds__(128, 4) layernorm_cp_async(
    const T* x, const T* gamma, const T* beta, T* y, int rows, int cols, long long x_stride,
    float eps) {
    // TODO(kata): first rows on their way, fetch and wait, reduce, store (about 48 lines)
}
"""


class Gpu(NamedTuple):
    """What a launch has to know of a GPU; bandwidth in bytes per second."""

    sms: int
    smem_per_sm_bytes: int
    smem_per_block_bytes: int
    bandwidth: float


class Config(NamedTuple):
    """Blocks, threads of each, its dynamic shared memory, and the rows that this has room for."""

    grid: int
    threads: int
    shared_bytes: int
    stages: int


H200 = Gpu(sms=132, smem_per_sm_bytes=233_472, smem_per_block_bytes=232_448, bandwidth=4.8e12)


def this_gpu() -> Gpu:
    """The current GPU; without one, an H200."""
    if not torch.cuda.is_available():
        return H200
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Gpu(
        sms=device.multi_processor_count,
        smem_per_sm_bytes=device.shared_memory_per_multiprocessor,
        smem_per_block_bytes=device.shared_memory_per_block_optin,
        bandwidth=2 * device.memory_clock_rate * 1e3 * device.memory_bus_width / 8,
    )


def resident_blocks(threads: int, shared_bytes: int, gpu: Gpu) -> int:
    """Blocks that a multiprocessor holds at once; each has 1 KiB of shared memory set aside."""
    by_registers = 65_536 // (REGISTERS * threads)
    return min(by_registers, gpu.smem_per_sm_bytes // (shared_bytes + 1024))


def launch_config(rows: int, cols: int, itemsize: int, gpu: Gpu) -> Config:
    """
    The launch that keeps enough bytes on their way, and all its blocks on the GPU at once.

    Raises:
        ValueError: `rows` or `cols` is below 1, a row is not a whole number of pieces, or two rows
            and the scratch do not fit into a block's shared memory.
    """
    raise NotImplementedError  # TODO(kata): check, stages by Little's law (about 20 lines)


def layernorm_cp_async(
    x: Float[Tensor, "rows cols"],
    gamma: Float[Tensor, " cols"],
    beta: Float[Tensor, " cols"],
    eps: float = 1e-5,
    grid: int | None = None,
    stages: int | None = None,
) -> Float[Tensor, "rows cols"]:
    """
    (x - mean) / sqrt(variance + eps) * gamma + beta for each row, contiguous, in the dtype of `x`.

    float16 or bfloat16, with all arithmetic in float32. Rows may lie apart in memory, by a multiple
    of 16 bytes, and are read in place.

    Args:
        x: The rows.
        gamma: One number a column, in the dtype of `x`, contiguous.
        beta: Likewise.
        eps: Added to the (biased) variance; positive.
        grid: Blocks; without it as `launch_config` says.
        stages: Rows that a block has room for, 2 to MAX_STAGES; without it as `launch_config` says.

    Raises:
        ValueError: A dtype, shape or alignment, `eps`, `grid` or `stages` is none of these, or what
            `launch_config` refuses.
    """
    raise NotImplementedError  # TODO(kata): check, store (about 35 lines)
