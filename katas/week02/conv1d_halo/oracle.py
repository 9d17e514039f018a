"""What is right, what to feed and what it costs: NumPy's correlation; and torch's, to beat."""

import numpy as np

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


def torch_conv1d(*, x, w, out=None):
    """The library's; its padding is this kata's for an odd number of weights."""
    import torch
    from torch.nn.functional import conv1d

    device = "cuda" if hasattr(x, "__cuda_array_interface__") else "cpu"
    signal, weights = (torch.as_tensor(one, device=device)[None, None] for one in (x, w))
    return conv1d(signal, weights, padding=(w.size - 1) // 2)[0, 0]
