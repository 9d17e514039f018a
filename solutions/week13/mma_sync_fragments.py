"""Kata week13/mma_sync_fragments: which lane holds what in mma.sync, and a product made with it."""

import torch
from jaxtyping import Float
from torch import Tensor

from harness.cuda import launch

LANES = 32
FRAGMENT = 16  # the sizes of matrices are multiples of it
PIECE_BYTES = 16  # a row of an 8 x 8 matrix, and what a thread copies at once
SOURCE = r"""
#include <cuda_fp16.h>

// eight neighbouring elements of a matrix, zeros where there are none
__device__ uint4 piece(const half* matrix, int rows, int columns, int row, int column) {
    if (row >= rows || column >= columns) return make_uint4(0, 0, 0, 0);
    return *(const uint4*)(matrix + (long long)row * columns + column);
}

// a warp's 16 x 8 of c += 16 x 16 of a times 16 x 8 of b
__device__ void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

extern "C" __global__ void mma_gemm(
    const half* a, const half* b, float* c, int M, int N, int K) {
    // a warp has 64 x 64 of c, in fragments of 16 x 8; a block 2 x 2 warps
    constexpr int TILE = 128, DEPTH = 64, DOWN = 4, ACROSS = 8;
    __shared__ __align__(128) half a_tile[TILE * DEPTH];
    __shared__ __align__(128) half b_tile[DEPTH * TILE];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = warp / 2 * 16 * DOWN, column = warp % 2 * 8 * ACROSS;
    const int first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;
    // where ldmatrix.x4 finds the lane's row in 16 x 16 elements
    const int lane_row = lane % 16, lane_piece = lane / 16;

    float sums[DOWN][ACROSS][4] = {};
    // stage tiles
    for (int first = 0; first < K; first += DEPTH) {
        // pieces of a row change places, so that a column of eight lies in all groups of banks
        for (int at = threadIdx.x; at < TILE * DEPTH / 8; at += blockDim.x) {
            const int i = at / (DEPTH / 8), k = at % (DEPTH / 8);
            *(uint4*)&a_tile[i * DEPTH + 8 * (k ^ i % 8)] =
                piece(a, M, K, first_row + i, first + 8 * k);
        }
        for (int at = threadIdx.x; at < DEPTH * TILE / 8; at += blockDim.x) {
            const int k = at / (TILE / 8), j = at % (TILE / 8);
            *(uint4*)&b_tile[k * TILE + 8 * (j ^ k % 8)] =
                piece(b, K, N, first + k, first_column + 8 * j);
        }
        __syncthreads();
        // load fragments
        for (int k = 0; k < DEPTH; k += 16) {
            unsigned left[DOWN][4], right[4];
            for (int i = 0; i < DOWN; i++) {
                const int at = row + 16 * i + lane_row, one = k / 8 + lane_piece;
                const void* from = &a_tile[at * DEPTH + 8 * (one ^ at % 8)];
                asm volatile(
                    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                    : "=r"(left[i][0]), "=r"(left[i][1]), "=r"(left[i][2]), "=r"(left[i][3])
                    : "r"((unsigned)__cvta_generic_to_shared(from))
                    : "memory");
            }
            for (int j = 0; j < ACROSS; j += 2) {
                const int at = k + lane_row, one = column / 8 + j + lane_piece;
                const void* from = &b_tile[at * TILE + 8 * (one ^ at % 8)];
                asm volatile(
                    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                    : "=r"(right[0]), "=r"(right[1]), "=r"(right[2]), "=r"(right[3])
                    : "r"((unsigned)__cvta_generic_to_shared(from))
                    : "memory");
                // multiply
                for (int i = 0; i < DOWN; i++) {
                    multiply(sums[i][j], left[i], right[0], right[1]);
                    multiply(sums[i][j + 1], left[i], right[2], right[3]);
                }
            }
        }
        // whoever is ahead may not overwrite what others still load
        __syncthreads();
    }

    // store
    for (int i = 0; i < DOWN; i++)
        for (int j = 0; j < ACROSS; j++)
            for (int half_of = 0; half_of < 2; half_of++) {
                const int at_row = first_row + row + 16 * i + lane / 4 + 8 * half_of;
                const int at_column = first_column + column + 8 * j + lane % 4 * 2;
                if (at_row < M && at_column < N)
                    *(float2*)&c[(long long)at_row * N + at_column] =
                        make_float2(sums[i][j][2 * half_of], sums[i][j][2 * half_of + 1]);
            }
}
"""


def mma_gemm(a: Float[Tensor, "m k"], b: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
    """
    a @ b in float32, of contiguous float16 matrices whose sizes are multiples of 16.

    Products are summed in float32.

    Raises:
        ValueError: `a` or `b` is not float16, has a size that is no multiple of 16, has gaps, or
            does not begin at a multiple of 16 bytes; `b` has other rows than `a` has columns.
    """
    # check and launch
    for name, x in (("a", a), ("b", b)):
        _check(name, x)
    (M, K), N = a.shape, b.shape[1]
    if len(b) != K:
        raise ValueError(f"b: expected {K} rows, one per column of a, found {len(b)}")
    c = torch.empty(M, N, dtype=torch.float32, device=a.device)
    if c.numel():
        grid = (-(-N // 128), -(-M // 128))
        launch(SOURCE, "mma_gemm", (a, b, c, M, N, K), grid=grid, block=(128,))
    return c


def a_coord(lane: int, i: int) -> tuple[int, int]:
    """
    Row and column, in 16 x 16 of a, of element `i` of a lane's fragment: two in each register.

    Raises:
        ValueError: there is no such lane, or no such element.
    """
    _within("lane", lane, LANES)
    _within("i", i, 8)
    return lane // 4 + i // 2 % 2 * 8, lane % 4 * 2 + i % 2 + i // 4 * 8


def b_coord(lane: int, i: int) -> tuple[int, int]:
    """
    Row and column, in 16 x 8 of b, of element `i` of a lane's fragment: two in each register.

    Raises:
        ValueError: there is no such lane, or no such element.
    """
    _within("lane", lane, LANES)
    _within("i", i, 4)
    return lane % 4 * 2 + i % 2 + i // 2 * 8, lane // 4


def c_coord(lane: int, i: int) -> tuple[int, int]:
    """
    Row and column, in 16 x 8 of c, of register `i` of a lane's fragment: one float32 each.

    Raises:
        ValueError: there is no such lane, or no such register.
    """
    _within("lane", lane, LANES)
    _within("i", i, 4)
    return lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2


def ldmatrix_row(lane: int) -> tuple[int, int]:
    """
    Row and first column, in 16 x 16 elements by rows, of the eight whose address a lane gives.

    With these addresses ldmatrix.x4 loads a fragment of a, and ldmatrix.x4.trans two fragments of
    b, columns 0 to 7 in registers 0 and 1.

    Raises:
        ValueError: there is no such lane.
    """
    _within("lane", lane, LANES)
    return lane % 16, lane // 16 * 8


def _within(name: str, value: int, end: int) -> None:
    if not 0 <= value < end:
        raise ValueError(f"{name}: expected 0 to {end - 1}, found {value}")


def _check(name: str, x: Tensor) -> None:
    # check and launch
    if x.ndim != 2 or x.dtype != torch.float16:
        raise ValueError(f"{name}: expected a float16 matrix, found {x.ndim}-D {x.dtype}")
    if any(size % FRAGMENT for size in x.shape):
        raise ValueError(f"{name}: expected multiples of {FRAGMENT}, found {tuple(x.shape)}")
    if not x.is_contiguous():
        raise ValueError(f"{name}: expected it contiguous, found strides {x.stride()}")
    if x.data_ptr() % PIECE_BYTES:
        raise ValueError(f"{name}: expected it to begin at a multiple of {PIECE_BYTES} bytes")
