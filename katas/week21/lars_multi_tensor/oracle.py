"""What is right, what to feed and what it costs: LARS, tensor by tensor in float64."""

from itertools import pairwise

import torch

from harness.hardware import Cost

STRUCTURED = ("offsets", "segment", "first_block", "adapt")


def make_inputs(
    *, dtype, device, seed,
    sizes=None, n=0, tensors=1, before=0, after=0, spread=False, block=256, **options,
):  # fmt: skip
    """
    Tensors of `sizes` elements, as in "10 0 3", or `tensors` of n / 4 to 7 n / 4, one of them n.

    `before` and `after` elements belong to none. With `spread` the scales of weights and gradients
    differ from tensor to tensor by powers of 16. Every third tensor is not adapted, from the second
    on.
    """
    generator = torch.Generator().manual_seed(seed)
    if sizes is None:
        lengths = [n * (1 + i % 7) // 4 for i in range(tensors)] if tensors > 1 else [n]
    else:
        lengths = [int(one) for one in sizes.split()]
    offsets = torch.tensor([before, *lengths]).cumsum(0)
    count = int(offsets[-1]) + after
    w, g, v = (
        torch.randn(count, generator=generator, dtype=dtype) * scale for scale in (0.2, 2**-6, 1e-3)
    )
    if spread:
        for i, (first, last) in enumerate(pairwise(offsets.tolist())):
            w[first:last] *= 16.0 ** (i % 5 - 2)
            g[first:last] *= 16.0 ** (2 - i * 3 % 5)
    blocks = torch.tensor(
        [-(-b // block) - a // block if a < b else 0 for a, b in pairwise(offsets.tolist())],
        dtype=torch.int64,
    )
    segment = torch.arange(len(lengths), dtype=torch.int32).repeat_interleave(blocks)
    first_block = torch.cat([torch.zeros(1, dtype=torch.int64), blocks.cumsum(0)])
    tensors = {
        "w": w, "g": g, "v": v, "offsets": offsets, "segment": segment,
        "first_block": first_block, "adapt": torch.arange(len(lengths)) % 3 != 1,
    }  # fmt: skip
    given = {name: one.to(device) for name, one in tensors.items()}
    return given | {"block": block, "lr": 0.1} | options


def _step(w, g, v, offsets, adapt, lr, momentum=0.9, wd=1e-4, eta=1e-3):
    w, v = w.clone(), v.clone()
    at = offsets.tolist()
    for i, one in enumerate(adapt.tolist()):
        tensor = slice(at[i], at[i + 1])
        ratio = 1.0
        w_norm, g_norm = w[tensor].square().sum().sqrt(), g[tensor].square().sum().sqrt()
        if one and w_norm > 0 and g_norm > 0:
            ratio = eta * w_norm / (g_norm + wd * w_norm)
        v[tensor] = momentum * v[tensor] + lr * ratio * (g[tensor] + wd * w[tensor])
        w[tensor] -= v[tensor]
    return w, v


def reference(*, w, g, v, offsets, adapt, segment, first_block, block, **numbers):
    return _step(w.double(), g.double(), v.double(), offsets, adapt, **numbers)


def same_precision(*, w, g, v, offsets, adapt, segment, first_block, block, **numbers):
    return _step(w, g, v, offsets, adapt, **numbers)


def cost(*, w, g, v, offsets, **_):
    """w and g for the norms; then w, g and v, and w and v back: 28 bytes an element."""
    count = int(offsets[-1] - offsets[0])
    return Cost(flops=11 * count, bytes=28 * count)


def eager(*, w, g, v, offsets, adapt, lr, momentum=0.9, wd=1e-4, eta=1e-3, **_):
    """Tensor by tensor, as an optimizer without multi-tensor kernels does; one wait for the GPU."""
    at = offsets.tolist()
    for i in range(len(adapt)):
        own = slice(at[i], at[i + 1])
        w_norm, g_norm = w[own].norm(), g[own].norm()
        ratio = eta * w_norm / (g_norm + wd * w_norm)
        usable = adapt[i] & (w_norm > 0) & (g_norm > 0)
        ratio = torch.where(usable, ratio, 1.0)
        v[own].mul_(momentum).add_((g[own] + wd * w[own]) * (lr * ratio))
        w[own].sub_(v[own])
    return w, v
