"""Kata week13/wmma_gemm: a product of matrices on tensor cores, by fragments of nvcuda::wmma."""

import torch
from jaxtyping import Float
from torch import Tensor

from harness.cuda import launch

FRAGMENT = 16  # rows, columns and depth of a product
PIECE_BYTES = 16  # what a thread copies at once
SOURCE = r"""
#include <mma.h>
using namespace nvcuda;

// eight neighbouring elements of a matrix, zeros where there are none
__device__ uint4 piece(
    const half* matrix, long long stride, int rows, int columns, int row, int column) {
    if (row >= rows || column >= columns) return make_uint4(0, 0, 0, 0);
    return *(const uint4*)(matrix + row * stride + column);
}

extern "C" __global__ void wmma_gemm(
    const half* a, const half* b, float* c, int M, int N, int K,
    long long a_stride, long long b_stride) {
    // a warp has DOWN x ACROSS fragments of c, a block 2 x 4 warps
    constexpr int DOWN = 4, ACROSS = 2, TILE = 128, DEPTH = 64, THREADS = 256;
    // an odd number of 16-byte pieces: eight rows of a fragment lie in eight groups of banks
    constexpr int A_PITCH = DEPTH + 8, B_PITCH = TILE + 8;
    __shared__ __align__(32) half a_tile[TILE * A_PITCH];
    __shared__ __align__(32) half b_tile[DEPTH * B_PITCH];
    const int warp = threadIdx.x / 32;
    const int row = warp / 4 * 16 * DOWN, column = warp % 4 * 16 * ACROSS;
    const int first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;

    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[DOWN][ACROSS];
    for (int i = 0; i < DOWN; i++)
        for (int j = 0; j < ACROSS; j++) wmma::fill_fragment(sums[i][j], 0.0f);

    // fetch pieces
    // a thread's pieces of the next two tiles, loaded while the current ones are multiplied
    constexpr int EACH = TILE * DEPTH / 8 / THREADS;
    uint4 next_a[EACH], next_b[EACH];
    auto fetch = [&](int first) {
        for (int n = 0; n < EACH; n++) {
            const int at = 8 * (threadIdx.x + n * THREADS);
            next_a[n] = piece(a, a_stride, M, K, first_row + at / DEPTH, first + at % DEPTH);
            next_b[n] = piece(b, b_stride, K, N, first + at / TILE, first_column + at % TILE);
        }
    };
    fetch(0);
    // stage tiles
    for (int first = 0; first < K; first += DEPTH) {
        for (int n = 0; n < EACH; n++) {
            const int at = 8 * (threadIdx.x + n * THREADS);
            *(uint4*)&a_tile[at / DEPTH * A_PITCH + at % DEPTH] = next_a[n];
            *(uint4*)&b_tile[at / TILE * B_PITCH + at % TILE] = next_b[n];
        }
        __syncthreads();
        fetch(first + DEPTH);  // behind the last there is nothing, and nothing is loaded
        // multiply fragments
        for (int k = 0; k < DEPTH; k += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left[DOWN];
            wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> right;
            for (int i = 0; i < DOWN; i++)
                wmma::load_matrix_sync(left[i], &a_tile[(row + 16 * i) * A_PITCH + k], A_PITCH);
            for (int j = 0; j < ACROSS; j++) {
                wmma::load_matrix_sync(right, &b_tile[k * B_PITCH + column + 16 * j], B_PITCH);
                for (int i = 0; i < DOWN; i++)
                    wmma::mma_sync(sums[i][j], left[i], right, sums[i][j]);
            }
        }
        // whoever is ahead may not overwrite what others still multiply
        __syncthreads();
    }

    // store
    for (int i = 0; i < DOWN; i++)
        for (int j = 0; j < ACROSS; j++) {
            const int at_row = first_row + row + 16 * i, at_column = first_column + column + 16 * j;
            if (at_row < M && at_column < N)
                wmma::store_matrix_sync(
                    c + (long long)at_row * N + at_column, sums[i][j], N, wmma::mem_row_major);
        }
}
"""


def wmma_gemm(a: Float[Tensor, "m k"], b: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
    """
    a @ b in float32, contiguous, of float16 matrices whose sizes are multiples of 16.

    Products are summed in float32. Rows may lie apart in memory, by a multiple of eight elements;
    elements of a row may not.

    Raises:
        ValueError: `a` or `b` is not float16, has a size that is no multiple of 16, or lies in
            memory in a way that 16 bytes cannot be copied at once; `b` has other rows than `a`
            has columns.
    """
    # check
    for name, x in (("a", a), ("b", b)):
        _check(name, x)
    (M, K), N = a.shape, b.shape[1]
    if len(b) != K:
        raise ValueError(f"b: expected {K} rows, one per column of a, found {len(b)}")
    # allocate and launch
    c = torch.empty(M, N, dtype=torch.float32, device=a.device)
    if c.numel():
        arguments = (a, b, c, M, N, K, a.stride(0), b.stride(0))
        launch(SOURCE, "wmma_gemm", arguments, grid=(-(-N // 128), -(-M // 128)), block=(256,))
    return c


def _check(name: str, x: Tensor) -> None:
    # check
    if x.ndim != 2 or x.dtype != torch.float16:
        raise ValueError(f"{name}: expected a float16 matrix, found {x.ndim}-D {x.dtype}")
    if any(size % FRAGMENT for size in x.shape):
        raise ValueError(f"{name}: expected multiples of {FRAGMENT}, found {tuple(x.shape)}")
    if not x.numel():
        return
    places = x.data_ptr(), x.stride(0) * x.itemsize
    if x.stride(1) != 1 or any(place % PIECE_BYTES for place in places):
        raise ValueError(
            f"{name}: expected rows of neighbouring elements that begin at multiples of "
            f"{PIECE_BYTES} bytes, found strides {x.stride()}"
        )
