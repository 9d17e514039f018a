"""What is right, what to feed and what it costs: RMSNorm of a sum, and its gradients."""

import torch

from harness.hardware import Cost


def make_inputs(
    *, rows, cols, dtype, device, seed, add=True, row_stride=None, spread=1.0, **options
):
    """
    Rows N(0, spread²) to add to others like them, and weights near 1, or near 0 where they are
    Gemma's.

    Without `add` there is no residual. With `row_stride` the rows lie that far apart. `options`
    (`eps`, `gemma`) go to the function as they are.
    """
    generator = torch.Generator().manual_seed(seed)
    x, residual = spread * torch.randn(2, rows, row_stride or cols, generator=generator)
    w = (0 if options.get("gemma") else 1) + torch.randn(cols, generator=generator) / 4
    # each has storage of its own
    x, residual, w = (one.to(dtype).clone().to(device) for one in (x, residual, w))
    return {"x": x[:, :cols], "residual": residual[:, :cols] if add else None, "w": w, **options}


def summed(x, residual):
    """h: the sum in float64, rounded to the dtype of `x`."""
    return x if residual is None else (x.double() + residual.double()).to(x.dtype)


def reference(*, x, residual, w, eps=1e-6, gemma=False):
    h, w = summed(x, residual).double(), w.double()
    rstd = 1 / torch.sqrt((h * h).mean(dim=1) + eps)
    return h * rstd[:, None] * (w + 1 if gemma else w), rstd


def same_precision(*, x, residual, w, eps=1e-6, gemma=False):
    """As in Hugging Face's LlamaRMSNorm and GemmaRMSNorm."""
    h = summed(x, residual).float()
    rstd = torch.rsqrt((h * h).mean(dim=1) + eps)
    x_hat = h * rstd[:, None]
    y = (x_hat * (w.float() + 1)).to(x.dtype) if gemma else x_hat.to(x.dtype) * w
    return y, rstd


def backward(*, dy, h, w, rstd, gemma=False, groups=None, dtype=torch.float64):
    """
    (dh, dw) by automatic differentiation in `dtype`.

    1 / sqrt(mean square + eps) has the value that was given, and changes with h as it does.
    """
    dy, h, w, rstd = (one.detach().to(dtype) for one in (dy, h, w, rstd))
    h, w = h.requires_grad_(), w.requires_grad_()
    with torch.enable_grad():
        square = (h * h).mean(dim=1)
        rstd = (rstd**-2 + square - square.detach()) ** -0.5
        y = h * rstd[:, None] * (w + 1 if gemma else w)
        return torch.autograd.grad(y, (h, w), dy)


def backward_same_precision(**given):
    dtype = given["h"].dtype
    return tuple(one.to(dtype) for one in backward(**given, dtype=torch.float32))


def cost(*, x, residual, w, **_):
    """x once, the residual once and back, y once; the weights once; a statistic a row."""
    passes = 2 if residual is None else 4
    nbytes = (passes * x.numel() + w.numel()) * x.element_size() + 4 * x.shape[0]
    return Cost(flops=6 * x.numel(), bytes=nbytes)


def add_then_norm(*, x, residual, w, eps=1e-6, **_):
    """Two kernels: the sum to memory, then PyTorch's RMSNorm."""
    return torch.nn.functional.rms_norm(x + residual, w.shape, w, eps)
