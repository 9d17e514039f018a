"""What is right, what to feed and what it costs: a @ b of float16 matrices, in float32."""

import torch

from harness.cuda import launch
from harness.hardware import Cost

CUDA_CORES = r"""
#include <cuda_fp16.h>
extern "C" __global__ void cuda_cores(
    const half* a, const half* b, float* c, int M, int N, int K) {
    __shared__ float left[16][16], right[16][17];
    const int x = threadIdx.x, y = threadIdx.y;
    const long long row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
    float sum = 0;
    for (int k = 0; k < K; k += 16) {
        left[y][x] = __half2float(a[row * K + k + x]);
        right[y][x] = __half2float(b[(long long)(k + y) * N + column]);
        __syncthreads();
        for (int i = 0; i < 16; i++) sum += left[y][i] * right[i][x];
        __syncthreads();
    }
    c[row * N + column] = sum;
}
"""


def make_inputs(*, m, n, k, dtype, device, seed, integers=False):
    """N(0, 1) operands, or integers from -4 to 4, whose sums are exact in any order."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(*size):
        if integers:
            made = torch.randint(-4, 5, size, generator=generator)
        else:
            made = torch.randn(size, generator=generator)
        return made.to(dtype).to(device)

    return {"a": matrix(m, k), "b": matrix(k, n)}


def reference(*, a, b):
    return a.double() @ b.double()


def same_precision(*, a, b):
    """Sixteen columns of `a` at a time; each sum is cut to float32, as tensor cores do."""
    total = torch.zeros(len(a), b.shape[1], dtype=torch.float32, device=a.device)
    for k in range(0, len(b), 16):
        exact = total.double() + a[:, k : k + 16].double() @ b[k : k + 16].double()
        total = exact.float()
        too_far = total.double().abs() > exact.abs()
        total = torch.where(too_far, torch.nextafter(total, torch.zeros_like(total)), total)
    return total


def cost(*, a, b):
    (m, k), n = a.shape, b.shape[1]
    return Cost(flops=2 * m * n * k, bytes=2 * (m * k + k * n) + 4 * m * n)


def cuda_cores(*, a, b):
    """The tiled kernel that knows no tensor cores: one element of c for each thread."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n, dtype=torch.float32, device=a.device)
    arguments = (a, b, c, m, n, k)
    launch(CUDA_CORES, "cuda_cores", arguments, grid=(n // 16, m // 16), block=(16, 16))
    return c
