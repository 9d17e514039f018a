"""What is right, what to feed and what it costs: silu(e) * g and its gradients by autograd."""

import torch
import torch.nn.functional as F

from harness.hardware import Cost


def make_inputs(*, rows, cols, dtype, device, seed, layout="rows"):
    """
    Two tensors, N(0, 4) and N(0, 1).

    With the layout "halves" they are columns of one buffer, side by side; with "column" each is
    the first column of something wider.
    """
    generator = torch.Generator().manual_seed(seed)
    e = (2 * torch.randn(rows, cols, generator=generator)).to(dtype).to(device)
    g = torch.randn(rows, cols, generator=generator).to(dtype).to(device)
    if layout == "halves":
        both = torch.cat([e, g], dim=1)
        e, g = both[:, :cols], both[:, cols:]
    if layout == "column":
        e, g = e[:, ::cols], g[:, ::cols]
    return {"e": e, "g": g}


def reference(*, e, g):
    e, g = e.double(), g.double()
    return e / (1 + torch.exp(-e)) * g


def same_precision(*, e, g):
    return (F.silu(e.float()) * g.float()).to(e.dtype)


def backward(dh, e, g, dtype=torch.float64):
    """(h, dg, de) by autograd, computed in `dtype`."""
    e, g = (x.detach().to(dtype).requires_grad_() for x in (e, g))
    h = F.silu(e) * g
    de, dg = torch.autograd.grad(h, (e, g), dh.to(dtype))
    return h.detach(), dg, de


def cost(*, e, g):
    nbytes = e.numel() * e.element_size()
    return Cost(flops=5 * e.numel(), bytes=3 * nbytes, special=2 * e.numel())


def two_op(*, e, g):
    """The unfused version: silu to memory, then multiply."""
    return F.silu(e) * g
