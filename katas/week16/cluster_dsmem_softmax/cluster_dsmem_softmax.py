"""Kata week16/cluster_dsmem_softmax: softmax of rows too wide for one SM, by a cluster of blocks.

HBM: each row is read once and written once.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from harness.cuda import launch

PIECE_BYTES = 16  # what a thread loads at once, where rows are aligned
MAX_THREADS = 512
PORTABLE, LARGEST = 8, 16  # blocks of a cluster: on any GPU that has clusters, and on a Hopper
SCRATCH_BYTES = 512  # before the share: 16 floats for each of two reductions, and what is exchanged
RESERVED_BYTES = 1024  # of shared memory, set aside for each block
NAMES = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}

SOURCE = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using T = ELEMENT;  // -DELEMENT=float, __half or __nv_bfloat16
// -DWIDTH=… elements that are loaded at once
struct alignas(WIDTH * sizeof(T)) Piece { T held[WIDTH]; };

#define NEGATIVE_INFINITY __int_as_float(0xff800000)

__device__ int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ int cluster_size() {
    int size;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}

// a barrier of all threads of the cluster in two halves: what one thread does before arrive is seen
// by all others behind wait
__device__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
__device__ void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// what block `rank` of the cluster has in its shared memory where this one has `here`
__device__ float2 remote(const float2* here, int rank) {
    unsigned there;
    float2 pair;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(there) : "r"((unsigned)__cvta_generic_to_shared(here)), "r"(rank));
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
        : "=f"(pair.x), "=f"(pair.y) : "r"(there) : "memory");
    return pair;
}

// a piece from global to shared memory; one of 16 bytes is on its way when this returns
__device__ void fetch(Piece* to, const Piece* from) {
    if constexpr (sizeof(Piece) == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
            :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from) : "memory");
    else
        *to = *from;
}

__device__ float exponential(float x) { return exp2f(1.44269504f * x); }  // e to the x

__device__ float warp_max(float value) {
    for (int apart = 16; apart > 0; apart /= 2)
        value = fmaxf(value, __shfl_xor_sync(~0u, value, apart));
    return value;
}

__device__ float warp_sum(float value) {
    for (int apart = 16; apart > 0; apart /= 2) value += __shfl_xor_sync(~0u, value, apart);
    return value;
}

// over the block, for every thread, with 16 floats of shared memory at `place`; one barrier
__device__ float block_max(float value, float* place) {
    value = warp_max(value);
    if (threadIdx.x % 32 == 0) place[threadIdx.x / 32] = value;
    __syncthreads();
    for (int warp = 0; warp < blockDim.x / 32; warp++) value = fmaxf(value, place[warp]);
    return value;
}

__device__ float block_sum(float value, float* place) {
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) place[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
    for (int warp = 0; warp < blockDim.x / 32; warp++) value += place[warp];
    return value;
}

extern "C" __global__ void __launch_bounds__(512, 2) cluster_dsmem_softmax(
    const T* x, T* y, int cols, long long x_stride) {
    // TODO(kata): keep the share, reduce, exchange and merge, write the share (about 44 lines)
}
"""


class Gpu(NamedTuple):
    """What a plan has to know of a GPU."""

    smem_per_sm_bytes: int
    smem_per_block_bytes: int


class Plan(NamedTuple):
    """Blocks of a cluster, threads of each, its dynamic shared memory; whether any GPU takes it."""

    cluster: int
    threads: int
    shared_bytes: int
    portable: bool


HOPPER = Gpu(smem_per_sm_bytes=233_472, smem_per_block_bytes=232_448)


def this_gpu() -> Gpu:
    """The current GPU; without one, a Hopper."""
    if not torch.cuda.is_available():
        return HOPPER
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Gpu(
        smem_per_sm_bytes=device.shared_memory_per_multiprocessor,
        smem_per_block_bytes=device.shared_memory_per_block_optin,
    )


def cluster_plan(cols: int, itemsize: int, gpu: Gpu, cluster: int | None = None) -> Plan:
    """
    The smallest portable cluster of which two blocks fit into a multiprocessor, or else one.

    Of two blocks one can load while the other computes. Where no portable cluster holds the row,
    it is the largest.

    Args:
        cols: Elements of a row.
        itemsize: Bytes of each.
        gpu: Where it is to run.
        cluster: Blocks, if they are not to be chosen.

    Raises:
        ValueError: `cols` is below 1 or does not fit; `cluster` is no power of two up to LARGEST.
    """
    raise NotImplementedError  # TODO(kata): check, plan and launch (about 20 lines)


def cluster_dsmem_softmax(
    x: Float[Tensor, "rows cols"], cluster: int | None = None
) -> Float[Tensor, "rows cols"]:
    """
    The softmax of each row, contiguous, in the dtype of `x`; a cluster of blocks for each row.

    float32, float16 or bfloat16, with all arithmetic in float32. Rows may lie any stride apart and
    are read in place, 16 bytes at a time where they are aligned.

    Args:
        x: The rows.
        cluster: Blocks for each row; without it as `cluster_plan` says.

    Raises:
        ValueError: `x` has another dtype, is not 2-D, or has gaps between the elements of a row;
            what `cluster_plan` refuses.
    """
    raise NotImplementedError  # TODO(kata): check, plan and launch (about 25 lines)
