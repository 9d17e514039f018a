"""What is right, what to feed and what it costs: softmax over the last axis."""

import torch

from harness.hardware import Cost


def make_inputs(
    *,
    rows,
    cols,
    dtype,
    device,
    seed,
    row_stride=None,
    spread=1.0,
    mean=0.0,
    masked=False,
    layout="rows",
    **pieces,
):
    """
    A [rows, cols] tensor, N(mean, spread²); with `row_stride` the rows lie that far apart.

    With the layout "column" all but the first column is left out, but stays in memory. With
    `masked`, -inf takes the first third of each row, and all of row 0. `pieces` (`max_block`,
    `block`) go to the function as they are.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, row_stride or cols, generator=generator) * spread + mean
    if masked:
        x[:, : cols // 3] = x[0] = -float("inf")
    x = x.to(dtype).to(device)[:, :cols]
    return {"x": x[:, ::cols] if layout == "column" else x, **pieces}


def reference(*, x, **_):
    x = x.double()
    weights = torch.exp(x - x.amax(dim=1, keepdim=True))
    return weights / weights.sum(dim=1, keepdim=True)


def same_precision(*, x, **_):
    return torch.softmax(x.float(), dim=1).to(x.dtype)


def cost(*, x, max_block=16384, **_):
    """One read and one write; two reads of a row that does not stay on chip."""
    reads = 1 if x.shape[1] <= max_block else 2
    nbytes = x.numel() * x.element_size()
    return Cost(flops=5 * x.numel(), bytes=(reads + 1) * nbytes, special=x.numel())


def library(*, x, **_):
    return torch.softmax(x, dim=1)
