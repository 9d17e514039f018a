"""Kata week13/mma_sync_fragments: which lane holds what in mma.sync, and a product made with it."""

import torch
from jaxtyping import Float
from torch import Tensor

from harness.cuda import launch

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
    // TODO(kata): stage tiles, load fragments, multiply, store (about 56 lines)
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
    raise NotImplementedError  # TODO(kata): check and launch (about 20 lines with helpers)


def a_coord(lane: int, i: int) -> tuple[int, int]:
    """
    Row and column, in 16 x 16 of a, of element `i` of a lane's fragment: two in each register.

    Raises:
        ValueError: there is no such lane, or no such element.
    """
    raise NotImplementedError  # TODO(kata): fragment maps (about 7 lines with helpers)


def b_coord(lane: int, i: int) -> tuple[int, int]:
    """
    Row and column, in 16 x 8 of b, of element `i` of a lane's fragment: two in each register.

    Raises:
        ValueError: there is no such lane, or no such element.
    """
    raise NotImplementedError  # TODO(kata): fragment maps (3 lines)


def c_coord(lane: int, i: int) -> tuple[int, int]:
    """
    Row and column, in 16 x 8 of c, of register `i` of a lane's fragment: one float32 each.

    Raises:
        ValueError: there is no such lane, or no such register.
    """
    raise NotImplementedError  # TODO(kata): fragment maps (3 lines)


def ldmatrix_row(lane: int) -> tuple[int, int]:
    """
    Row and first column, in 16 x 16 elements by rows, of the eight whose address a lane gives.

    With these addresses ldmatrix.x4 loads a fragment of a, and ldmatrix.x4.trans two fragments of
    b, columns 0 to 7 in registers 0 and 1.

    Raises:
        ValueError: there is no such lane.
    """
    raise NotImplementedError  # TODO(kata): fragment maps (2 lines)
