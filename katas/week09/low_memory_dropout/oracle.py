"""What is right, what to feed and what it costs: dropout by Philox4x32-10, written in NumPy."""

import numpy as np
import torch
import torch.nn.functional as F

from harness.hardware import Cost

LOW = np.uint64(0xFFFF_FFFF)
HALF = np.uint64(32)


def philox(counters, seed):
    """The four 32-bit words of each 64-bit counter, [len(counters), 4] (Salmon et al. 2011)."""
    counters = np.asarray(counters, dtype=np.uint64)
    zero = np.zeros_like(counters)
    c0, c1, c2, c3 = counters & LOW, counters >> HALF, zero, zero
    k0, k1 = seed & 0xFFFF_FFFF, seed >> 32 & 0xFFFF_FFFF
    for _ in range(10):
        left, right = np.uint64(0xD251_1F53) * c0, np.uint64(0xCD9E_8D57) * c2
        c0, c1, c2, c3 = (
            (right >> HALF) ^ c1 ^ np.uint64(k0),
            right & LOW,
            (left >> HALF) ^ c3 ^ np.uint64(k1),
            left & LOW,
        )
        k0, k1 = (k0 + 0x9E37_79B9) % 2**32, (k1 + 0xBB67_AE85) % 2**32
    return np.stack([c0, c1, c2, c3], axis=1)


def kept(n, p, seed, offset=0):
    """Whether elements offset … offset + n - 1 are kept."""
    words = philox(np.arange(offset // 4, (offset + n + 3) // 4), seed).reshape(-1)[:n]
    return torch.from_numpy(words >= np.uint64(int(p * 2**32)))


def make_inputs(*, n, p, dtype, device, seed, offset=0, wide=False):
    """N(0, 1) of length `n`, and the seed of a mask, of more than 32 bits with `wide`."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=generator).to(dtype).to(device)
    most = 2**62 if wide else 2**31
    key = int(torch.randint(most // 2, most, (1,), generator=generator))
    return {"x": x, "p": p, "seed": key, "offset": offset}


def reference(*, x, p, seed, offset=0):
    mask = kept(x.numel(), p, seed, offset).to(x.device).reshape(x.shape)
    return torch.where(mask, x.double() / (1 - p), 0.0)


def same_precision(*, x, p, seed, offset=0):
    mask = kept(x.numel(), p, seed, offset).to(x.device).reshape(x.shape)
    return torch.where(mask, x.float() * (1 / (1 - p)), 0.0).to(x.dtype)


def cost(*, x, **_):
    return Cost(flops=x.numel(), bytes=2 * x.numel() * x.element_size())


def library(*, x, p, **_):
    return F.dropout(x, p)
