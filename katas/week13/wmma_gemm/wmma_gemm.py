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
    // TODO(kata): fetch pieces, stage tiles, multiply fragments, store (about 48 lines)
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
    # TODO(kata): check, allocate and launch (about 25 lines with helpers)
    raise NotImplementedError
