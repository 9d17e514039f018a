"""What is right, what to feed and what it costs: each vector times each row of weights."""

import torch

from harness.hardware import Cost


def make_inputs(*, n, k, b, dtype, device, seed, w_layout="rows", x_layout="rows", **sms):
    """
    Everything N(0, 1).

    The rows of `w` are contiguous, or with the layout "gaps" 13 elements apart, NaN between; with
    "column" a row of one element is followed by four of NaN. `x` is contiguous, or with the layout
    "cols" its vectors are columns in memory. `sms` goes to the function as it is.
    """
    generator = torch.Generator().manual_seed(seed)
    stride = 5 if w_layout == "column" and k == 1 else 1
    room = stride * k + (13 if w_layout == "gaps" else 0)
    w = torch.randn(n, room, generator=generator)
    w[:, k:] = torch.nan
    x = torch.randn((k, b) if x_layout == "cols" else (b, k), generator=generator)
    w, x = w.to(dtype).to(device), x.to(dtype).to(device)
    w = w[:, ::stride][:, :k]
    return {"w": w, "x": x.T if x_layout == "cols" else x, **sms}


def reference(*, w, x, **_):
    return x.double() @ w.double().T


def same_precision(*, w, x, **_):
    """Float32 products and sums, rounded once."""
    return (x.float() @ w.float().T).to(w.dtype)


def cost(*, w, x, **_):
    """Each weight and each vector read once."""
    results = x.shape[0] * w.shape[0]
    numbers = w.numel() + x.numel() + results
    return Cost(flops=2 * x.shape[0] * w.numel(), bytes=numbers * w.element_size())


def library(*, w, x, **_):
    return torch.mv(w, x[0])[None]
