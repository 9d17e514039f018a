"""What is right: a @ b; CuTe's layouts of the fragments; and the instructions themselves."""

import torch

from harness.cuda import launch
from harness.hardware import Cost

# Shapes and strides of (lane, element) as CuTe prints them; a place is row + rows * column, of b
# column + columns * row.
LAYOUTS = {
    "a": ((4, 8, 2, 2, 2), (32, 1, 16, 8, 128)),
    "b": ((4, 8, 2, 2), (16, 1, 8, 64)),
    "c": ((4, 8, 2, 2), (32, 1, 16, 8)),
}

INSTRUCTIONS = r"""
#include <cuda_fp16.h>

extern "C" __global__ void multiply(const unsigned* a, const unsigned* b, float* c) {
    const unsigned* left = a + 4 * threadIdx.x;
    const unsigned* right = b + 2 * threadIdx.x;
    float* sum = c + 4 * threadIdx.x;
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
}

extern "C" __global__ void load(
    const half* matrix, const int* places, unsigned* plain, unsigned* turned) {
    __shared__ __align__(16) half tile[256];
    for (int at = threadIdx.x; at < 256; at += 32) tile[at] = matrix[at];
    __syncwarp();
    const unsigned from = (unsigned)__cvta_generic_to_shared(&tile[places[threadIdx.x]]);
    unsigned* to = plain + 4 * threadIdx.x;
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
    to = turned + 4 * threadIdx.x;
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}
"""

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


def elements(operand):
    """How many elements of an operand a lane holds."""
    return {"a": 8, "b": 4, "c": 4}[operand]


def coord(operand, lane, i):
    """Row and column of an element of a fragment, by CuTe's layout."""
    shape, strides = LAYOUTS[operand]
    place, rest = 0, lane + 32 * i
    for size, stride in zip(shape, strides, strict=True):
        place += rest % size * stride
        rest //= size
    return (place // 8, place % 8) if operand == "b" else (place % 16, place // 16)


def handed_out(matrix, at):
    """A lane's elements of a matrix, [32, elements], by its map."""
    rows, columns = torch.tensor(at, device=matrix.device).reshape(32, -1, 2).unbind(-1)
    return matrix[rows, columns].contiguous()


def multiplied(a, b):
    """What one mma.sync makes of fragments: [32, 4] float32 from [32, 8] and [32, 4] float16."""
    c = torch.zeros(32, 4, dtype=torch.float32, device=a.device)
    arguments = (a.view(torch.int32), b.view(torch.int32), c)
    launch(INSTRUCTIONS, "multiply", arguments, grid=(1,), block=(32,))
    return c


def loaded(matrix, rows):
    """
    What ldmatrix.x4, and ldmatrix.x4.trans, loads of 16 x 16 elements: [32, 8] float16 each.

    Args:
        matrix: In shared memory by rows.
        rows: Row and column at which each lane's address points.
    """
    places = [16 * row + column for row, column in rows]
    places = torch.tensor(places, dtype=torch.int32, device=matrix.device)
    plain, turned = (torch.zeros(32, 4, dtype=torch.int32, device=matrix.device) for _ in range(2))
    launch(INSTRUCTIONS, "load", (matrix, places, plain, turned), grid=(1,), block=(32,))
    return plain.view(torch.float16), turned.view(torch.float16)
