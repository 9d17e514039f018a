"""What is right, what to feed and what it costs: softmax over the last axis."""

import torch

from harness.hardware import Cost


def make_inputs(*, rows, cols, dtype, device, seed, spread=1.0, masked=False, **options):
    """
    N(0, spread²), and with `masked` -inf in the first half of each row: whole shares of nothing.

    `options` (`cluster`) go to the function as they are.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, cols, generator=generator) * spread
    if masked:
        x[:, : cols // 2] = float("-inf")
    return {"x": x.to(dtype).to(device), **options}


def reference(*, x, **_):
    return x.double().softmax(dim=1)


def same_precision(*, x, **_):
    return x.float().softmax(dim=1).to(x.dtype)


def cost(*, x, **_):
    """One read and one write."""
    moved = 2 * x.numel() * x.element_size()
    return Cost(flops=4 * x.numel(), bytes=moved, special=x.numel())


def library(*, x, **_):
    return torch.softmax(x, dim=1)
