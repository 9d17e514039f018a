"""What is right, what to feed and what it costs: NumPy's correlation; and the kernel to beat."""

import numpy as np
from numba import cuda

from harness.hardware import Cost

# long signals repeat random values with a prime period: an index that is off by a block or any
# other power of two lands on another value
PERIOD = 1_000_003


def make_inputs(*, n, k, dtype, device, seed, into=False):
    """A signal and weights; `into` adds an array for the result."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(min(n, PERIOD), dtype=dtype)
    inputs = {"x": np.resize(values, n), "w": generator.standard_normal(k, dtype=dtype)}
    return inputs | {"out": np.zeros(n, dtype)} if into else inputs


def reference(*, x, w, out=None):
    return _correlation(x.astype(np.float64), w.astype(np.float64))


def same_precision(*, x, w, out=None):
    return _correlation(x, w)


def _correlation(x, w):
    if not x.size:
        return x
    left = (w.size - 1) // 2
    return np.correlate(np.pad(x, (left, w.size - 1 - left)), w, "valid")


def cost(*, x, w, out=None):
    return Cost(flops=2 * w.size * x.size, bytes=2 * x.nbytes + w.nbytes)


@cuda.jit
def _naive_kernel(x, w, out):
    at = cuda.grid(1)
    if at < x.size:
        total = np.float32(0)
        first = at - (w.size - 1) // 2
        for j in range(w.size):
            if 0 <= first + j < x.size:
                total += x[first + j] * w[j]
        out[at] = total


def naive(*, x, w, out):
    """One thread an output, each input read once for every weight."""
    _naive_kernel[-(-x.size // 256), 256](x, w, out)
    return out
