"""Kata week16/cluster_dsmem_softmax: softmax of rows too wide for one SM, by a cluster of blocks.

HBM: each row is read once and written once: every block of the cluster keeps its share of the row
in shared memory. (max, sum) of the shares go through distributed shared memory, in one exchange.
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
    extern __shared__ __align__(16) unsigned char memory[];  // SCRATCH_BYTES, then the share
    float* scratch = (float*)memory;
    float2* pair = (float2*)(scratch + 32);  // of the block, read by the cluster
    float2* whole = pair + 1;                // of the row, read by the block
    Piece* held = (Piece*)(memory + 512);

    const int rank = cluster_rank(), size = cluster_size();
    const long long row = blockIdx.x / size;
    const int pieces = cols / WIDTH, share = (pieces + size - 1) / size;
    const int first = rank * share, mine = min(share, pieces - first);  // may be none
    const Piece* from = (const Piece*)(x + row * x_stride) + first;
    Piece* to = (Piece*)(y + row * cols) + first;

    // keep the share
    // copies that need no registers: the whole share is under way at once
    for (int at = threadIdx.x; at < mine; at += blockDim.x) fetch(held + at, from + at);
    asm volatile("cp.async.wait_all;" ::: "memory");
    // reduce
    float most = NEGATIVE_INFINITY;  // of pieces that the thread has copied itself: no barrier
    for (int at = threadIdx.x; at < mine; at += blockDim.x)
        for (int k = 0; k < WIDTH; k++) most = fmaxf(most, (float)held[at].held[k]);
    most = block_max(most, scratch);
    // a share of which nothing is above -inf has a sum of 0, not of NaN
    float base = most == NEGATIVE_INFINITY ? 0.0f : most;
    float sum = 0;
    for (int at = threadIdx.x; at < mine; at += blockDim.x)
        for (int k = 0; k < WIDTH; k++) sum += exponential((float)held[at].held[k] - base);
    sum = block_sum(sum, scratch + 16);
    // exchange and merge
    if (threadIdx.x == 0) *pair = make_float2(most, sum);
    cluster_arrive();
    cluster_wait();

    if (threadIdx.x < 32) {  // lane r merges what block r has
        const bool has_block = threadIdx.x < size;
        const float2 other =
            has_block ? remote(pair, threadIdx.x) : make_float2(NEGATIVE_INFINITY, 0);
        most = warp_max(other.x);
        base = most == NEGATIVE_INFINITY ? 0.0f : most;
        sum = warp_sum(other.y * exponential(other.x - base));
        if (threadIdx.x == 0) *whole = make_float2(base, 1 / sum);
    }
    cluster_arrive();  // has read: who has been read may leave
    __syncthreads();
    // write the share
    const float2 row_pair = *whole;
    for (int at = threadIdx.x; at < mine; at += blockDim.x) {
        Piece piece = held[at];
        for (int k = 0; k < WIDTH; k++)
            piece.held[k] = T(exponential((float)piece.held[k] - row_pair.x) * row_pair.y);
        to[at] = piece;
    }
    cluster_wait();
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
    # check
    if cols < 1:
        raise ValueError(f"cols: expected at least 1, found {cols}")
    sizes = [1, 2, 4, 8, 16]
    if cluster is not None and cluster not in sizes:
        raise ValueError(f"cluster: expected one of {sizes}, found {cluster}")

    # plan and launch
    def shared_bytes(size: int) -> int:
        share_bytes = -(-cols // size) * itemsize
        return SCRATCH_BYTES + -(-share_bytes // PIECE_BYTES) * PIECE_BYTES

    fits = [size for size in sizes if shared_bytes(size) <= gpu.smem_per_block_bytes]
    if cluster is not None:
        fits = [size for size in fits if size == cluster]
    if not fits:
        raise ValueError(f"cols: expected a row that fits into {cluster or LARGEST} blocks")
    pairs = [
        size
        for size in fits
        if size <= PORTABLE and 2 * (shared_bytes(size) + RESERVED_BYTES) <= gpu.smem_per_sm_bytes
    ]
    size = min(pairs or fits)
    share_bytes = shared_bytes(size) - SCRATCH_BYTES
    threads = min(-(-share_bytes // (PIECE_BYTES * 32)) * 32, MAX_THREADS)
    return Plan(size, threads, shared_bytes(size), size <= PORTABLE)


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
    # check
    if x.ndim != 2 or x.dtype not in NAMES:
        raise ValueError(f"x: expected 2-D floats of 16 or 32 bits, found {x.ndim}-D {x.dtype}")
    rows, cols = x.shape
    if cols > 1 and x.stride(1) != 1:
        raise ValueError(f"x: expected a contiguous last axis, found strides {x.stride()}")
    # plan and launch
    plan = cluster_plan(cols, x.itemsize, this_gpu(), cluster)

    y = torch.empty(rows, cols, dtype=x.dtype, device=x.device)
    if rows:
        places = x.data_ptr(), x.stride(0) * x.itemsize, cols * x.itemsize
        aligned = not any(place % PIECE_BYTES for place in places)
        launch(
            SOURCE,
            "cluster_dsmem_softmax",
            (x, y, cols, x.stride(0)),
            grid=(rows * plan.cluster,),
            block=(plan.threads,),
            shared_bytes=plan.shared_bytes,
            cluster=plan.cluster,
            options=(
                f"-DELEMENT={NAMES[x.dtype]}",
                f"-DWIDTH={PIECE_BYTES // x.itemsize if aligned else 1}",
            ),
        )
    return y
