"""Wrong on purpose: one thread an element and no tile, so stores touch 32 sectors a request."""

import numpy as np
from numba import cuda

TILE = 32


@cuda.jit
def transpose(a, out):
    rows, cols = a.shape
    col = cuda.blockIdx.x * TILE + cuda.threadIdx.x
    first_row = cuda.blockIdx.y * TILE + cuda.threadIdx.y
    for step in range(0, TILE, cuda.blockDim.y):
        if first_row + step < rows and col < cols:
            out[col, first_row + step] = a[first_row + step, col]


def transpose_tiled(a, out=None):
    rows, cols = a.shape
    if out is None:
        host = isinstance(a, np.ndarray)
        out = np.empty((cols, rows), a.dtype) if host else cuda.device_array((cols, rows), a.dtype)
    transpose[(max(1, -(-cols // TILE)), max(1, -(-rows // TILE))), (TILE, 8)](a, out)
    return out
