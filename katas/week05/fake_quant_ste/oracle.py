"""What is right: PyTorch's own fake quantization; inputs that keep their distance from ties."""

import torch
import torch.nn.functional as F


def make_inputs(
    *, shape, bits, dtype, device, seed, axis=None, unsigned=False, transposed=False
):  # fmt: skip
    """
    Elements at codes up to half a range beyond either end, at most 0.45 of a step off a code.

    So whether x is divided by the scale, or multiplied by its reciprocal, no code depends on it.
    """
    generator = torch.Generator().manual_seed(seed)
    qmin, qmax = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    sizes = () if axis is None else (shape[axis],)
    scale = 0.01 + torch.rand(sizes, generator=generator)
    zero_point = torch.randint(qmin, qmax + 1, sizes, generator=generator, dtype=torch.int32)
    reach = 2 ** (bits - 1)
    laid_out = tuple(reversed(shape)) if transposed else tuple(shape)
    code = torch.randint(qmin - reach, qmax + reach + 1, laid_out, generator=generator)
    code = (code + 0.9 * (torch.rand(laid_out, generator=generator) - 0.5)).to(device)
    if transposed:
        code = code.mT
    scale, zero_point = scale.to(device), zero_point.to(device)
    along = [1] * len(shape)
    if axis is not None:
        along[axis] = -1
    x = (code - zero_point.view(along)) * scale.view(along)
    kept = {"scale": scale, "zero_point": zero_point, "qmin": qmin, "qmax": qmax, "axis": axis}
    return {"x": x.to(dtype), **kept}


def reference(*, x, scale, zero_point, qmin, qmax, axis=None):
    return torch_fake_quantize(x.float(), scale, zero_point, qmin, qmax, axis).double()


def same_precision(*, x, scale, zero_point, qmin, qmax, axis=None):
    return torch_fake_quantize(x.float(), scale, zero_point, qmin, qmax, axis).to(x.dtype)


def torch_fake_quantize(x, scale, zero_point, qmin, qmax, axis=None):
    """The library's, differentiable; NaN and infinities aside it is the definition."""
    if not scale.numel():
        return x.clone()  # the library looks for the smallest of no zero points
    if axis is None:
        return torch.fake_quantize_per_tensor_affine(x, scale, zero_point, qmin, qmax)
    return torch.fake_quantize_per_channel_affine(x, scale, zero_point, axis % x.dim(), qmin, qmax)


def weights_and_data(seed):
    """
    A network [64, 32] and [4, 64], and what it makes of inputs that have four degrees of freedom.

    Returns the two weights, 256 inputs with their outputs to learn from, and 256 others.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    w1, w2, mixing = draw(64, 32) / 32**0.5, draw(4, 64) / 8, draw(4, 32) / 2
    learn, hold_out = (draw(256, 4) @ mixing + 0.1 * draw(256, 32) for _ in range(2))
    teach = [(x, F.relu(x @ w1.T) @ w2.T) for x in (learn, hold_out)]
    return w1, w2, *teach


@torch.no_grad()
def rounded_loss(w1, w2, x, y, bits):
    """The loss once each row of the weights is rounded to symmetric codes: after training."""
    for_x = F.relu(x @ rounded(w1, bits).T) @ rounded(w2, bits).T
    return F.mse_loss(for_x, y).item()


def rounded(w, bits):
    """Each row at the nearest of its symmetric codes, differentiable."""
    qmax = 2 ** (bits - 1) - 1
    scale, zero = w.detach().abs().amax(1) / qmax, torch.zeros(len(w), dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(w, scale, zero, 0, -qmax, qmax)


def trained(w1, w2, x, y, steps, bits):
    """The weights after `steps` steps through rounded weights, Adam written out."""
    weights = [w.clone().requires_grad_() for w in (w1, w2)]
    means = [[torch.zeros_like(w), torch.zeros_like(w)] for w in weights]
    for step in range(steps):
        a, b = (rounded(w, bits) for w in weights)
        loss = (F.relu(x @ a.T) @ b.T - y).square().mean()
        for w, mean, g in zip(weights, means, torch.autograd.grad(loss, weights), strict=True):
            mean[0] = 0.9 * mean[0] + 0.1 * g
            mean[1] = 0.999 * mean[1] + 0.001 * g.square()
            first, second = mean[0] / (1 - 0.9 ** (step + 1)), mean[1] / (1 - 0.999 ** (step + 1))
            w.data -= 0.01 * (1 - step / steps) * first / (second.sqrt() + 1e-8)
    return [w.detach() for w in weights]
