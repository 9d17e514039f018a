"""What is right, what to feed and what it costs: the sum of two vectors."""

import torch

from harness.hardware import Cost


def make_inputs(*, n, dtype, device, seed, x_step=1, y_step=1):
    """Every `step`-th element of two buffers, n each: N(0, 1), or integers of the whole range."""
    generator = torch.Generator().manual_seed(seed)
    x = _draw(n * x_step, dtype, generator).to(device)[::x_step]
    y = _draw(n * y_step, dtype, generator).to(device)[::y_step]
    return {"x": x, "y": y}


def _draw(n, dtype, generator):
    if dtype.is_floating_point:
        return torch.randn(n, generator=generator).to(dtype)
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, (n,), generator=generator, dtype=dtype)


def reference(*, x, y):
    """The sum in float64; of integers the sum modulo their range."""
    return x.double() + y.double() if x.is_floating_point() else x + y


def cost(*, x, y):
    return Cost(flops=x.numel(), bytes=3 * x.numel() * x.element_size())
