"""What is right, what to feed and what it costs: a @ b."""

import torch

from harness.hardware import Cost


def make_inputs(*, m, n, k, dtype, device, seed, layout="rows"):
    """N(0, 1) operands; layout "gaps": past each row up to 23 more elements, all NaN."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows, cols):
        values = torch.randn(rows, cols, generator=generator).to(dtype).to(device)
        if layout == "rows":
            return values
        pitch = (cols // 8 + 3) * 8
        wide = torch.full((rows, pitch), float("nan"), dtype=dtype, device=device)
        return wide[:, :cols].copy_(values)

    return {"a": matrix(m, k), "b": matrix(k, n)}


def reference(*, a, b):
    return a.double() @ b.double()


def same_precision(*, a, b):
    return (a.float() @ b.float()).to(a.dtype)


def cost(*, a, b):
    (m, k), n = a.shape, b.shape[1]
    return Cost(flops=2 * m * n * k, bytes=(m * k + k * n + m * n) * a.element_size())


def library(*, a, b):
    return torch.matmul(a, b)
