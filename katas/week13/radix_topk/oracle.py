"""What is right, what to feed and what it costs: NumPy's sort; and torch's topk, to beat."""

import numpy as np

from harness.hardware import Cost

PERIOD = 1_000_003  # long arrays repeat random values with a prime period
RARE = (np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40)


def make_inputs(
    *, rows, vocab, k, dtype, device, seed, spread=3.0, masked=0.1, block=None, into=False
):
    """Logits of which many are equal, some are masked, and a few are not finite."""
    generator = np.random.default_rng(seed)
    size = min(rows * vocab, PERIOD)
    logits = spread * generator.standard_normal(size)
    logits = np.where(generator.random(size) < 0.3, np.round(logits), logits)
    logits[generator.random(size) < masked] = -np.inf
    rare = np.flatnonzero(generator.random(size) < 0.02)
    logits[rare] = generator.choice(RARE, rare.size) * (spread > 0)
    inputs = {"x": np.resize(logits.astype(dtype), (rows, vocab)), "k": min(k, vocab)}
    if block is not None:
        inputs["block"] = block
    if into:
        inputs["values"] = np.zeros((rows, k), dtype)
        inputs["indices"] = np.zeros((rows, k), np.int32)
    return inputs


def reference(*, x, k, values=None, indices=None, block=None):
    is_number = ~np.isnan(x)
    order = np.lexsort((-np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=1e300), is_number))
    kept = np.sort(order[:, :k], axis=1)
    return np.take_along_axis(x, kept, axis=1).astype(np.float64), kept.astype(np.int32)


def cost(*, x, k, values=None, indices=None, block=None):
    return Cost(flops=x.size, bytes=x.nbytes + 8 * k * len(x))


def torch_topk(*, x, k, values=None, indices=None, block=None):
    import torch

    device = "cuda" if hasattr(x, "__cuda_array_interface__") else "cpu"
    return torch.topk(torch.as_tensor(x, device=device), k, dim=1, sorted=False)
