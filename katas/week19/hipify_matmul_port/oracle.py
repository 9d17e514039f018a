"""What is right, what to feed and what it costs: a @ b; and CUDA C++ to port."""

import torch

from harness.hardware import Cost


def make_inputs(*, m, n, k, dtype, device, seed):
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(shape, generator=generator) for shape in ((m, k), (k, n)))
    return {"a": a.to(dtype).to(device), "b": b.to(dtype).to(device)}


def reference(*, a, b):
    return a.double() @ b.double()


def same_precision(*, a, b):
    return (a.float() @ b.float()).to(a.dtype)


def cost(*, a, b):
    (m, k), n = a.shape, b.shape[1]
    return Cost(flops=2 * m * n * k, bytes=(m * k + k * n + m * n) * a.element_size())


def library(*, a, b):
    return torch.matmul(a, b)


# ---- CUDA C++ ----------------------------------------------------------------------------------

REDUCE = """\
#include <cuda_runtime.h>

__device__ float warp_sum(float v) {
    for (int apart = 16; apart > 0; apart >>= 1)  // 16, 8, 4, 2, 1
        v += __shfl_down_sync(0xffffffff, v, apart);
    return v;
}

__global__ void row_sum(const float* x, float* sums, int cols) {
    __shared__ float room[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float v = 0;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) v += x[blockIdx.x * cols + col];
    v = warp_sum(v);
    if (lane == 0) room[warp] = v;
    __syncthreads();
    if (warp == 0) {
        v = warp_sum(lane < blockDim.x / 32 ? room[lane] : 0);
        if (lane == 0) sums[blockIdx.x] = v;
    }
}

cudaError_t launch(const float* x, float* sums, int rows, int cols, cudaStream_t stream) {
    row_sum<<<dim3(rows, 1), 256, 0, stream>>>(x, sums, cols);
    return cudaGetLastError();
}
"""

COMPACT = """\
#include "cuda_runtime.h"
/* keep what is above t: cudaMalloc'd by the caller, <<<blocks, 32 * k>>> */
__global__ void compact(const float* x, float t, float* out, int* count, int n) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    bool keep = at < n && x[at] > t;
    unsigned votes = __ballot_sync(0xFFFFFFFFu, keep);
    int below = __popc(votes & ((1u << (threadIdx.x % 32)) - 1));
    int place = 0;
    if (threadIdx.x % 32 == 0) place = atomicAdd(count, __popc(votes));
    place = __shfl_sync(0xFFFFFFFFu, place, 0);
    if (keep) out[place + below] = x[at];
}
"""

LIBRARIES = """\
#include <cublas_v2.h>
#include <cub/cub.cuh>
#include <vector>

template <typename T, int N>
__global__ void __launch_bounds__(256) scaled(T* x, T factor) {
    x[blockIdx.x * N + threadIdx.x] *= factor;
}

void run(cublasHandle_t handle, float* a, float* b, float* c, int n, cudaStream_t s) {
    const float one = 1, zero = 0;
    cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_T, n, n, n, &one, a, n, b, n, &zero, c, n);
    size_t bytes = 0;
    cub::DeviceReduce::Sum(nullptr, bytes, c, a, n * n, s);
    scaled<float, (256 > 128 ? 256 : 128)><<<dim3(n, max(n / 256, 1)), 256, 0, s>>>(c, 2.0f);
    printf("cudaSuccess is %d, %s<<<1, 2>>>\\n", cudaSuccess, "k");
}
"""

ASSEMBLY = """\
__device__ unsigned lane_id() {
    unsigned lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}
__device__ int lanes_that_agree(bool vote) { return __popc(__ballot_sync(0xffffffff, vote)); }
__device__ int waves() { return (blockDim.x + warpSize - 1) / warpSize; }
"""

SNIPPETS = {
    "reduce": REDUCE,
    "compact": COMPACT,
    "libraries": LIBRARIES,
    "assembly": ASSEMBLY,
}
