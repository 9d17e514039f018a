"""What is right, what to feed and what it costs: NumPy's sum and boolean index."""

import numpy as np

from harness.hardware import Cost

# long arrays repeat random values with a prime period: a step that is off by a block, a row or
# any other power of two lands on another value
PERIOD = 1_000_003


def make_inputs(*, rows, cols, dtype, device, seed, warp=32, block=None, into=False):
    """Multiples of 1/64, whose sums are exact in any order."""
    generator = np.random.default_rng(seed)
    values = generator.integers(-150, 101, min(rows * cols, PERIOD)) / 64
    inputs = {"x": np.resize(values.astype(dtype), (rows, cols)), "warp": warp}
    if block is not None:
        inputs["block"] = block
    if into:
        inputs["sums"] = np.zeros(rows, dtype)
    return inputs


def reference(*, x, warp, block=None, sums=None):
    return np.sum(x, axis=1, dtype=np.float64)


def cost(*, x, warp, block=None, sums=None):
    return Cost(flops=x.size, bytes=x.nbytes + 4 * len(x))


def make_inputs_compact(*, n, dtype, device, seed, warp=32, block=None):
    """Zeros, NaN and negative numbers, and one positive number many times: its order is free."""
    generator = np.random.default_rng(seed)
    low = generator.choice(np.array([-1.5, -1e-3, -0.0, 0.0, np.nan, -np.inf], dtype), n)
    x = np.where(generator.random(n) < 0.5, generator.uniform(0.5, 1.5), low).astype(dtype)
    inputs = {"x": x, "threshold": 0.0, "warp": warp}
    return inputs if block is None else {**inputs, "block": block}


def reference_compact(*, x, threshold, warp, block=None):
    return x[x > np.float32(threshold)].astype(np.float64)


def cost_compact(*, x, threshold, warp, block=None):
    return Cost(flops=x.size, bytes=x.nbytes + 4 * int((x > np.float32(threshold)).sum()))
