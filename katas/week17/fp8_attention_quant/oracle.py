"""What is right: float64 attention, and Hadamard matrices written out; outliers to feed it."""

import math

import torch

from harness.hardware import Cost
from harness.judge import Yardstick
from harness.simulators.block_scaled import E4M3, dequantised, quantised

SIGNS = 6  # draws of signs for the yardstick
SCALES = (0.5, 1 / 128)  # scores grow with the square of the inputs, and so do their errors


def make_inputs(*, sq, sk, d, dtype, device, seed, block=64, outliers=0.0, q_size=0.25):
    """
    N(0, 1), to which a share `outliers` of the elements has N(0, 100) added.

    Queries are smaller, so that errors of scores, which depend on the signs drawn, stay below
    those of weights and values, which do not.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        rare = torch.rand(shape, generator=generator) < outliers
        x = torch.randn(shape, generator=generator)
        return (x + 10 * rare * torch.randn(shape, generator=generator)).to(dtype).to(device)

    return {"q": q_size * draw(sq, d), "k": draw(sk, d), "v": draw(sk, d), "block": block}


def reference(*, q, k, v, block=64, seed=0):
    return _weights(q, k) @ v.double()


def same_precision(*, q, k, v, block=64, seed=0):
    """
    The same roundings, by a dense transform, and signs of the oracle's own.

    How far a score with outliers is off depends on the signs: of a few draws the furthest counts.
    """
    truth, size = reference(q=q, k=k, v=v), _weights(q, k) @ v.abs().double()
    draws = [quantized_attention(q, k, v, block, signs=signs).float() for signs in range(SIGNS)]
    if truth.numel():
        draws.sort(key=lambda found: float(((found - truth).abs() / size).max()))
    return Yardstick(draws[-1], size)


def quantized_attention(q, k, v, block, rotated=True, signs=0):
    """Attention in e4m3 with a scale for each block, in float64 but for what is cast."""
    q, k, v = q.double(), k.double(), v.double()
    d = q.shape[1]
    if rotated:
        generator = torch.Generator().manual_seed(SIGNS * d + signs)
        rotation = torch.rand(d, 1, generator=generator, dtype=torch.float64).sub(0.5).sign()
        rotation = (rotation * sylvester(d)).to(q.device)
        q, k = q @ rotation, k @ rotation
    q, k, v = (dequantised(*quantised(x, E4M3, (block, d)), (block, d)) for x in (q, k, v))
    scores = q @ k.T / math.sqrt(d)
    p = torch.exp(scores - scores.amax(dim=1, keepdim=True))
    return E4M3.round(256 * p) / 256 @ v / p.sum(dim=1, keepdim=True)


def per_tensor_attention(q, k, v):
    """The baseline: one scale for each of q, k and v, no transform."""
    return quantized_attention(q, k, v, max(len(q), len(k)), rotated=False)


def _weights(q, k):
    return torch.softmax(q.double() @ k.double().T / math.sqrt(q.shape[1]), dim=1)


def cost(*, q, k, v, block=64, seed=0):
    """Two products; each input read and the result written once."""
    scores = len(q) * len(k)
    return Cost(flops=4 * q.shape[1] * scores, bytes=4 * (2 * q.numel() + 2 * k.numel()))


def sylvester(d):
    """H(2n) = [[H(n), H(n)], [H(n), -H(n)]], over sqrt(d)."""
    h = torch.ones(1, 1, dtype=torch.float64)
    while len(h) < d:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return h / math.sqrt(d)


def make_inputs_fwht(*, shape, dtype, device, seed):
    x = torch.randn(shape[::-1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return {"x": x.to(dtype).to(device).permute(*range(len(shape) - 1, -1, -1))}


def reference_fwht(*, x):
    return x.double() @ sylvester(x.shape[-1]).to(x.device)


def same_precision_fwht(*, x):
    return x @ sylvester(x.shape[-1]).to(x)


def cost_fwht(*, x):
    return Cost(flops=x.numel() * math.log2(x.shape[-1]), bytes=2 * x.nbytes)
