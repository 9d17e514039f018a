"""What is right, what to feed and what it costs: NumPy's product; and the kernel to beat."""

import numpy as np
from numba import cuda

from harness.hardware import Cost


def make_inputs(*, m, k, n, dtype, device, seed, into=False, whole=False):
    """
    Two matrices; `into` adds an array for their product.

    With `whole` they hold small whole numbers, whose products and sums are exact in any order: a
    long sum of others is off by more in one order than in another.
    """
    generator = np.random.default_rng(seed)
    shapes = ((m, k), (k, n))
    if whole:
        a, b = (generator.integers(-8, 9, shape).astype(dtype) for shape in shapes)
    else:
        a, b = (generator.standard_normal(shape, dtype=dtype) for shape in shapes)
    inputs = {"a": a, "b": b}
    return inputs | {"out": np.zeros((m, n), dtype)} if into else inputs


def reference(*, a, b, out=None):
    return a.astype(np.float64) @ b.astype(np.float64)


def same_precision(*, a, b, out=None):
    return a @ b


def cost(*, a, b, out=None):
    """Both operands read once, the product written once."""
    (m, k), n = a.shape, b.shape[1]
    return Cost(flops=2 * m * k * n, bytes=a.itemsize * (m * k + k * n + m * n))


@cuda.jit
def _naive_kernel(a, b, c):
    row, col = cuda.grid(2)
    if row < c.shape[0] and col < c.shape[1]:
        total = np.float32(0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, col]
        c[row, col] = total


def naive(*, a, b, out):
    """One thread an element, no shared memory, x down the rows."""
    m, n = out.shape
    _naive_kernel[(-(-m // 16), -(-n // 16)), (16, 16)](a, b, out)
    return out
