"""What is right, what to feed and what it costs: a loop over the words; and torch's, to beat."""

import numpy as np

from harness.hardware import Cost

MODULUS = 65521
# long arrays repeat random values with a prime period: an index that is off by a block or any
# other power of two lands on another value
PERIOD = 1_000_003


def make_inputs(*, n, dtype, device, seed, op="add", block=None, into=False):
    """Random words, or random maps; `into` adds arrays for what is written."""
    generator = np.random.default_rng(seed)
    top = 2**32 if op == "add" else MODULUS
    a, b = generator.integers(0, top, (2, min(n, PERIOD)), dtype=dtype)
    inputs = {"x": np.resize(a if op == "add" else a << 16 | b, n), "op": op}
    if block is not None:
        inputs["block"] = block
    if into:
        inputs |= {"out": np.zeros(n, dtype), "scratch": np.zeros(n // 64 + 64, dtype)}
    return inputs


def reference(*, x, op="add", out=None, scratch=None, block=None):
    if op == "add":
        return np.cumsum(x, dtype=np.uint32) - x
    a, b, before = 1, 0, []
    for word in x.tolist():
        before.append(a << 16 | b)
        a, b = a * (word >> 16) % MODULUS, (b * (word >> 16) + (word & 0xFFFF)) % MODULUS
    return np.array(before, dtype=np.uint32)


def cost(*, x, op="add", out=None, scratch=None, block=None):
    return Cost(flops=x.size, bytes=2 * x.nbytes)


def torch_cumsum(*, x, op="add", out=None, scratch=None, block=None):
    """The library's inclusive sum, of the same bits."""
    import torch

    device = "cuda" if hasattr(x, "__cuda_array_interface__") else "cpu"
    words = torch.as_tensor(x, device=device).view(torch.int32)
    return torch.cumsum(words, 0, dtype=torch.int32)
