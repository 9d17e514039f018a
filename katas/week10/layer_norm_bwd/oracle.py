"""What is right, what to feed and what it costs: the gradients of layer normalisation."""

import torch

from harness.hardware import Cost


def make_inputs(*, rows, cols, dtype, device, seed, row_stride=None, mean=1.0, eps=1e-5, **options):
    """
    A gradient N(0.5, 1), rows N(mean, 1), weights near 1, and the statistics of these rows.

    The gradient's mean is not 0, or the sums over few rows have few digits. With `row_stride` the
    rows lie that far apart. `options` (`groups`) go to the function as they are.
    """
    generator = torch.Generator().manual_seed(seed)
    dy = torch.randn(rows, row_stride or cols, generator=generator) + 0.5
    x = torch.randn(rows, row_stride or cols, generator=generator) + mean
    w = 1 + torch.randn(cols, generator=generator) / 4
    dy, x, w = (one.to(dtype).to(device) for one in (dy, x, w))
    dy, x = dy[:, :cols], x[:, :cols]
    exact = x.double()
    mean = exact.mean(dim=1)
    rstd = 1 / torch.sqrt(((exact - mean[:, None]) ** 2).mean(dim=1) + eps)
    return {"dy": dy, "x": x, "w": w, "mean": mean.float(), "rstd": rstd.float(), **options}


def reference(*, dy, x, w, mean, rstd, **_):
    """
    Automatic differentiation in float64.

    Mean and variance have the values that were given and change with x as its mean and its variance
    do.
    """
    dy, x, w, mean, rstd = (one.detach().double() for one in (dy, x, w, mean, rstd))
    b = torch.zeros_like(w).requires_grad_()
    x, w = x.requires_grad_(), w.requires_grad_()
    with torch.enable_grad():
        moment = x.mean(dim=1)
        spread = ((x - mean[:, None]) ** 2).mean(dim=1)
        mean = mean + moment - moment.detach()
        variance = rstd**-2 + spread - spread.detach()
        y = (x - mean[:, None]) / variance.sqrt()[:, None] * w + b
        return torch.autograd.grad(y, (x, w, b), dy)


def same_precision(*, dy, x, w, mean, rstd, **_):
    found = library(dy=dy.float(), x=x.float(), w=w.float(), mean=mean.float(), rstd=rstd.float())
    return tuple(one.to(x.dtype) for one in found)


def cost(*, x, w, **_):
    """dy, x and dx once; the weights and the two sums once; two statistics a row."""
    elements = 3 * x.numel() + 3 * w.numel()
    return Cost(flops=13 * x.numel(), bytes=elements * x.element_size() + 2 * 4 * x.shape[0])


def library(*, dy, x, w, mean, rstd, **_):
    return torch.ops.aten.native_layer_norm_backward(
        dy, x, w.shape, mean[:, None], rstd[:, None], w, w, [True, True, True]
    )
