"""What is right, what to feed and what it costs: NumPy's sum in float64."""

import numpy as np

from harness.hardware import Cost

MAX_BLOCKS = 4096  # what the kata says of `partial`
# long vectors repeat random values with a prime period: a step that is off by a block, a grid or
# any other power of two lands on another value
PERIOD = 1_000_003


def make_inputs(*, n, dtype, device, seed, block=None, into=False):
    """Positive values, so that errors show; `into` adds arrays for what the passes write."""
    values = np.random.default_rng(seed).uniform(0.5, 1.5, min(n, PERIOD)).astype(dtype)
    inputs = {"x": np.resize(values, n)}
    if block is not None:
        inputs["block"] = block
    if into:
        inputs |= {"out": np.zeros(1, dtype), "partial": np.zeros(MAX_BLOCKS, dtype)}
    return inputs


def reference(*, x, block=None, out=None, partial=None):
    return np.sum(x, dtype=np.float64, keepdims=True)


def same_precision(*, x, block=None, out=None, partial=None):
    """NumPy's own tree of pairs."""
    return np.sum(x, dtype=x.dtype, keepdims=True)


def cost(*, x, block=None, out=None, partial=None):
    return Cost(flops=x.size, bytes=x.nbytes)
