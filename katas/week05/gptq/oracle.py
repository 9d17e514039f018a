"""What is right: one column eliminated after the other, each time with the inverse made anew."""

import torch

from harness.simulators.tinylm import load_tinylm, periodic_tokens

SPARE = 12  # rows drawn for each that is kept


def make_inputs(
    *, n, k, s, bits, group_size, dtype, device, seed, block=64, damp=0.01, dead=(), zeros=(),
    transposed=False,
):  # fmt: skip
    """
    Correlated inputs, and rows of weights that keep their distance from every tie.

    One tie decided the other way changes all that comes after it. So of the rows drawn, those are
    kept whose nearest tie, in codes or zero points, is the furthest. Columns `dead` of x are
    zeros, as are columns `zeros` of w. Transposed ones lie in memory column by column.
    """
    generator = torch.Generator().manual_seed(seed)
    x = correlated(s, k, generator)
    x[:, list(dead)] = 0.0
    w = torch.randn(SPARE * n, k, generator=generator)
    w[:, list(zeros)] = 0.0
    x, w = x.to(dtype), w.to(dtype)
    w = settled(w, x, bits, group_size, damp, n)
    if transposed:
        x, w = x.mT.contiguous().mT, w.mT.contiguous().mT
    sizes = {"bits": bits, "group_size": group_size, "block": block, "damp": damp}
    return {"w": w.to(device), "x": x.to(device), **sizes}


def settled(w, x, bits, group_size, damp, n):
    """The `n` rows of `w` whose nearest tie is the furthest."""
    _, margins = eliminate(w.double(), x.double(), bits, group_size, damp)
    return w[margins.argsort(descending=True)[:n]]


def correlated(s, k, generator):
    """N(0, 1) mixed from k / 4 sources, and a tenth of noise."""
    sources = max(k // 4, 1)
    mixing = torch.randn(sources, k, generator=generator) / sources**0.5
    noise = torch.randn(s, k, generator=generator)
    return torch.randn(s, sources, generator=generator) @ mixing + 0.1 * noise


def reference(*, w, x, bits=4, group_size=128, block=64, damp=0.01):
    quantized, _ = eliminate(w.double(), x.double(), bits, group_size, damp)
    return quantized


def same_precision(*, w, x, bits=4, group_size=128, block=64, damp=0.01):
    """
    In float32, with H off by k units of rounding, as inverting it may leave it; the worst of 8.

    So the tolerance grows with how much is made of a rounding, whoever inverts H, and how.
    """
    (codes, truth, zero), _ = eliminate(w.double(), x.double(), bits, group_size, damp)
    furthest, k = truth.float(), x.shape[1]
    for seed in range(8):
        noise = torch.randn(k, k, generator=torch.Generator().manual_seed(seed)).to(x.device)
        disturb = 1 + k * torch.finfo(torch.float32).eps * (noise + noise.mT)
        (_, scale, _), _ = eliminate(w.float(), x.float(), bits, group_size, damp, disturb)
        furthest = torch.where((scale - truth).abs() > (furthest - truth).abs(), scale, furthest)
    return codes, furthest, zero


def obq(*, w, x, bits=4, group_size=128, block=64, damp=0.01):
    """Optimal Brain Quantization in a fixed order: an inverse for each column, in float32."""
    quantized, _ = eliminate(w.float(), x.float(), bits, group_size, damp)
    return quantized


def eliminate(w, x, bits, group_size, damp, disturb=1.0):
    """
    Return (codes, scale, zero), and for each row how near it came to a tie, in steps.

    The columns left after column j make up for its error δ by δ · H⁻¹[0, 1:] / H⁻¹[0, 0], where
    H is that of the columns from j on.
    """
    top = 2**bits - 1
    h = x.mT @ x * disturb
    used = h.diagonal() > 0
    h = h + damp * h.diagonal().mean() * torch.eye(len(h), dtype=h.dtype, device=h.device)
    h = h + torch.diag((~used).to(h.dtype))
    w = torch.where(used, w, 0.0)
    margins = torch.full_like(w[:, 0], 0.5)
    codes, scales, zeros = [], [], []
    for j in range(w.shape[1]):
        if j % group_size == 0:
            group = torch.nn.functional.pad(w[:, j : j + group_size], (0, 1))  # and a 0
            low, high = group.aminmax(dim=1)
            scale = (high - low) / top
            scale = torch.where(scale == 0, torch.ones_like(scale), scale)
            zero = (-low / scale).round()
            margins = torch.minimum(margins, from_a_tie(low / scale))
            scales.append(scale)
            zeros.append(zero.to(torch.uint8))
        steps = w[:, j] / scale
        margins = torch.minimum(margins, from_a_tie(steps))
        code = (steps.round() + zero).clamp(0, top)
        codes.append(code.to(torch.uint8))
        error = w[:, j] - (code - zero) * scale
        inverse = torch.linalg.inv(h[j:, j:])
        w = w.clone()
        w[:, j:] -= error[:, None] * (inverse[0] / inverse[0, 0])
    return tuple(torch.stack(parts, dim=1) for parts in (codes, scales, zeros)), margins


def from_a_tie(steps):
    return (steps - steps.floor() - 0.5).abs()


# ---- a trained model -----------------------------------------------------------------------


def tinylm_layers(seed):
    """Of each linear layer of the tiny language model: its weight, and inputs of two drawings."""
    model = load_tinylm()
    linear = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    calibration, held_out = (layer_inputs(model, linear, 2 * seed + at) for at in range(2))
    return [
        (layer.weight.detach().float(), calibration[name], held_out[name])
        for name, layer in linear.items()
    ]


@torch.no_grad()
def layer_inputs(model, linear, seed):
    """What each of the layers `linear` is fed, on 16 sequences of 64 tokens."""
    seen = {}
    hooks = [
        layer.register_forward_pre_hook(
            lambda _, args, name=name: seen.__setitem__(name, args[0].flatten(0, 1))
        )
        for name, layer in linear.items()
    ]
    model(periodic_tokens(16, 64, seed))
    for hook in hooks:
        hook.remove()
    return seen


def output_error(w, other, x):
    """‖x (w - other)ᵀ‖, in float64."""
    return float((x.double() @ (w.double() - other.double()).mT).norm())
