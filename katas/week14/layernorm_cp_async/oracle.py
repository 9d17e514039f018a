"""What is right, what to feed, what it costs, and the kernel that waits for each row."""

import torch

from harness.cuda import launch
from harness.hardware import Cost

# one row at a time, by ordinary loads: nothing of the next row is on its way meanwhile
SYNC_SOURCE = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using T = ELEMENT;
struct alignas(16) Piece { T held[8]; };

__device__ float block_sum(float value, float* place) {
    for (int apart = 16; apart > 0; apart /= 2) value += __shfl_xor_sync(~0u, value, apart);
    if (threadIdx.x % 32 == 0) place[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
    for (int warp = 0; warp < blockDim.x / 32; warp++) value += place[warp];
    return value;
}

extern "C" __global__ void __launch_bounds__(256, 4) layernorm_sync(
    const T* x, const T* gamma, const T* beta, T* y, int rows, int cols, long long x_stride,
    float eps) {
    extern __shared__ Piece held[];
    __shared__ float scratch[16];
    const int pieces = cols / 8, step = blockDim.x;
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        float sum = 0;
        for (int at = threadIdx.x; at < pieces; at += step) {
            const Piece piece = ((const Piece*)(x + row * x_stride))[at];
            for (int k = 0; k < 8; k++) sum += (float)piece.held[k];
            held[at] = piece;
        }
        const float mean = block_sum(sum, scratch) / cols;
        sum = 0;
        for (int at = threadIdx.x; at < pieces; at += step) {
            const Piece piece = held[at];
            for (int k = 0; k < 8; k++) {
                const float apart = (float)piece.held[k] - mean;
                sum += apart * apart;
            }
        }
        const float rstd = rsqrtf(block_sum(sum, scratch + 8) / cols + eps);
        for (int at = threadIdx.x; at < pieces; at += step) {
            Piece piece = held[at];
            const Piece scale = ((const Piece*)gamma)[at], shift = ((const Piece*)beta)[at];
            for (int k = 0; k < 8; k++) {
                const float unit = ((float)piece.held[k] - mean) * rstd;
                piece.held[k] = T(unit * (float)scale.held[k] + (float)shift.held[k]);
            }
            ((Piece*)(y + row * cols))[at] = piece;
        }
    }
}
"""


def make_inputs(
    *, rows, cols, dtype, device, seed, mean=1.0, spread=1.0, block_per_sm=False, **options
):
    """
    A [rows, cols] tensor, N(mean, spread²), with gamma near 1 and beta near 0.

    With `block_per_sm` the grid has one block for each multiprocessor of the GPU; `options` (`eps`,
    `grid`, `stages`) go to the function as they are.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, cols, generator=generator) * spread + mean
    gamma = 1 + torch.randn(cols, generator=generator) / 4
    beta = torch.randn(cols, generator=generator) / 4
    x, gamma, beta = (one.to(dtype).to(device) for one in (x, gamma, beta))
    if block_per_sm:
        options["grid"] = torch.cuda.get_device_properties(x.device).multi_processor_count
    return {"x": x, "gamma": gamma, "beta": beta, **options}


def reference(*, x, gamma, beta, eps=1e-5, **_):
    x, gamma, beta = x.double(), gamma.double(), beta.double()
    centred = x - x.mean(dim=1, keepdim=True)
    variance = (centred * centred).mean(dim=1, keepdim=True)
    return centred / torch.sqrt(variance + eps) * gamma + beta


def same_precision(*, x, gamma, beta, eps=1e-5, **_):
    y = torch.nn.functional.layer_norm(x.float(), gamma.shape, gamma.float(), beta.float(), eps)
    return y.to(x.dtype)


def cost(*, x, gamma, **_):
    """One read and one write of the rows, one read of gamma and beta."""
    elements = 2 * x.numel() + 2 * gamma.numel()
    return Cost(flops=8 * x.numel(), bytes=elements * x.element_size())


def synchronous(*, x, gamma, beta, eps=1e-5, grid, **_):
    (rows, cols), y = x.shape, torch.empty_like(x)
    kind = "__half" if x.dtype == torch.float16 else "__nv_bfloat16"
    launch(
        SYNC_SOURCE,
        "layernorm_sync",
        (x, gamma, beta, y, rows, cols, x.stride(0), eps),
        grid=(grid,),
        block=(256,),
        shared_bytes=cols * x.itemsize,
        options=(f"-DELEMENT={kind}",),
    )
    return y
