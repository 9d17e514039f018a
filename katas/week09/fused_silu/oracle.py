"""What is right, what to feed and what it costs: SiLU, x / (1 + exp(-x))."""

import torch
import torch.nn.functional as F

from harness.hardware import Cost


def make_inputs(
    *, rows, cols, dtype, device, seed, row_stride=None, spread=1.0, layout="rows"
):  # fmt: skip
    """
    A [rows, cols] tensor, N(0, spread²); with `row_stride` the rows lie that far apart.

    With the layout "column" all but the first column is left out, but stays in memory.
    """
    generator = torch.Generator().manual_seed(seed)
    wide = torch.randn(rows, row_stride or cols, generator=generator) * spread
    x = wide.to(dtype).to(device)[:, :cols]
    return {"x": x[:, ::cols] if layout == "column" else x}


def reference(*, x):
    x = x.double()
    return x / (1 + torch.exp(-x))


def same_precision(*, x):
    return F.silu(x.float()).to(x.dtype)


def cost(*, x):
    nbytes = x.numel() * x.element_size()
    return Cost(flops=4 * x.numel(), bytes=2 * nbytes, special=2 * x.numel())


def two_op(*, x):
    """The unfused version: sigmoid to memory, then multiply."""
    return x * torch.sigmoid(x)


def library(*, x):
    return F.silu(x)
