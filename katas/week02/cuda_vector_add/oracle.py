"""What is right, what to feed and what it costs: NumPy's sum."""

import numpy as np

from harness.hardware import Cost

# long vectors repeat random values with a prime period: an index that is off by a block, a grid
# or any other power of two lands on another value
PERIOD = 1_000_003


def make_inputs(*, n, dtype, device, seed, special=False, into=False):
    """Two vectors; `special` puts NaN and infinities first, `into` adds an array for the sum."""
    generator = np.random.default_rng(seed)
    a, b = (np.resize(_values(generator, min(n, PERIOD), dtype), n) for _ in range(2))
    if special:
        a[:3] = (np.nan, np.inf, -np.inf)[:n]  # n may be drawn below 3
    inputs = {"a": a, "b": b}
    return inputs | {"out": np.zeros_like(a)} if into else inputs


def _values(generator, n, dtype):
    if dtype.kind == "i":
        # past what a float64 holds exactly, with room for the sum
        return generator.integers(-(2**61), 2**61, n, dtype=dtype)
    return generator.standard_normal(n, dtype=np.float32).astype(dtype)


def reference(*, a, b, out=None):
    """One addition is rounded once: in the working precision already, this is the truth."""
    return a + b


def cost(*, a, b, out=None):
    return Cost(flops=a.size, bytes=3 * a.nbytes)
