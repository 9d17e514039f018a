"""What is right, what to feed and what it costs: NumPy's boolean index, and torch's, to beat."""

import numpy as np

from harness.hardware import Cost

PERIOD = 1_000_003  # long arrays repeat random values with a prime period


def make_inputs(*, n, dtype, device, seed, share=0.5, block=None, into=False):
    """Zeros, NaN and negative numbers, and one positive number many times: its order is free."""
    generator = np.random.default_rng(seed)
    size = min(n, PERIOD)
    low = generator.choice(np.array([-1.5, -1e-3, -0.0, 0.0, np.nan, -np.inf], dtype), size)
    values = np.where(generator.random(size) < share, generator.uniform(0.5, 1.5), low)
    inputs = {"x": np.resize(values.astype(dtype), n), "threshold": 0.0}
    if block is not None:
        inputs["block"] = block
    if into:
        inputs["out"] = np.zeros(n, dtype)
    return inputs


def reference(*, x, threshold, out=None, block=None):
    with np.errstate(over="ignore"):
        return x[x > np.float32(threshold)].astype(np.float64)


def cost(*, x, threshold, out=None, block=None):
    kept = len(reference(x=x, threshold=threshold))
    return Cost(flops=x.size, bytes=x.nbytes + 4 * kept)


def torch_index(*, x, threshold, out=None, block=None):
    """The usual way: a mask, then an index of it."""
    import torch

    device = "cuda" if hasattr(x, "__cuda_array_interface__") else "cpu"
    values = torch.as_tensor(x, device=device)
    return values[values > threshold]
