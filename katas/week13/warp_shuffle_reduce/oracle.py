"""What is right, what to feed and what it costs: NumPy's sum, max and argmax."""

import numpy as np

from harness.hardware import Cost

# long arrays repeat random values with a prime period: a step that is off by a block, a row or
# any other power of two lands on another value
PERIOD = 1_000_003


def make_inputs(*, rows, cols, dtype, device, seed, block=None, into=False):
    """Multiples of 1/64, whose sums are exact in any order, and which are often equal."""
    generator = np.random.default_rng(seed)
    values = generator.integers(-150, 101, min(rows * cols, PERIOD)) / 64
    inputs = {"x": np.resize(values.astype(dtype), (rows, cols))}
    if block is not None:
        inputs["block"] = block
    if into:
        inputs |= {"sums": np.zeros(rows, dtype), "maxima": np.zeros(rows, dtype)}
        inputs["indices"] = np.zeros(rows, np.int32)
    return inputs


def reference(*, x, sums=None, maxima=None, indices=None, block=None):
    return (
        np.sum(x, axis=1, dtype=np.float64),
        np.max(x, axis=1).astype(np.float64),
        np.argmax(x, axis=1).astype(np.int32),
    )


def cost(*, x, sums=None, maxima=None, indices=None, block=None):
    return Cost(flops=x.size, bytes=x.nbytes + 12 * len(x))
