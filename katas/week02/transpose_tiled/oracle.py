"""What is right, what to feed and what it costs: NumPy's transpose; and the kernel to beat."""

import numpy as np
from numba import cuda

from harness.hardware import Cost

# large matrices repeat random values with a prime period: an index that is off by a row, a tile
# or any other power of two lands on another value
PERIOD = 1_000_003


def make_inputs(*, rows, cols, dtype, device, seed, into=False):
    """A matrix; `into` adds an array for its transpose."""
    generator = np.random.default_rng(seed)
    values = _values(generator, min(rows * cols, PERIOD), dtype)
    inputs = {"a": np.resize(values, (rows, cols))}
    return inputs | {"out": np.zeros((cols, rows), dtype)} if into else inputs


def _values(generator, n, dtype):
    if dtype.kind == "i":
        return generator.integers(-(2**62), 2**62, n, dtype=dtype)  # more than a float64 holds
    return generator.standard_normal(n, dtype=np.float32).astype(dtype)


def reference(*, a, out=None):
    """Nothing is rounded: in the working precision already, this is the truth."""
    return a.T


def cost(*, a, out=None):
    return Cost(bytes=2 * a.nbytes)


@cuda.jit
def _naive_kernel(a, out):
    col, row = cuda.grid(2)
    if row < a.shape[0] and col < a.shape[1]:
        out[col, row] = a[row, col]


def naive(*, a, out):
    """One thread an element, no shared memory."""
    rows, cols = a.shape
    _naive_kernel[(-(-cols // 32), -(-rows // 8)), (32, 8)](a, out)
    return out
