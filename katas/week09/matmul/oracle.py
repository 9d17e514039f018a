"""What is right, what to feed and what it costs: activation(a @ b + bias)."""

import torch
import torch.nn.functional as F

from harness.hardware import Cost


def make_inputs(
    *, m, n, k, dtype, device, seed, a_layout="rows", b_layout="rows", bias=False, activation=None
):
    """
    N(0, 1) operands.

    Layouts: "rows" is contiguous, "cols" the transpose of such a matrix, "gaps" every second
    column of one; with "gaps" the bias is strided too.
    """
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows, cols, layout):
        if layout == "cols":
            return matrix(cols, rows, "rows").T
        step = 2 if layout == "gaps" else 1
        wide = torch.randn(rows, step * cols, generator=generator)
        return wide.to(dtype).to(device)[:, ::step]

    return {
        "a": matrix(m, k, a_layout),
        "b": matrix(k, n, b_layout),
        "bias": matrix(1, n, b_layout)[0] if bias else None,
        "activation": activation,
    }


def reference(*, a, b, bias=None, activation=None):
    c = a.double() @ b.double()
    if bias is not None:
        c = c + bias.double()
    if activation == "silu":
        c = c / (1 + torch.exp(-c))
    elif activation == "relu":
        c = torch.where(c < 0, 0.0, c)
    return c


def same_precision(*, a, b, bias=None, activation=None):
    c = a.float() @ b.float()
    if bias is not None:
        c = c + bias.float()
    functions = {"silu": F.silu, "relu": F.relu, None: lambda x: x}
    return functions[activation](c).to(a.dtype)


def cost(*, a, b, **_):
    """Each matrix once; the bias and the activation are lost in the rounding."""
    (m, k), n = a.shape, b.shape[1]
    return Cost(flops=2 * m * n * k, bytes=(m * k + k * n + m * n) * a.element_size())


def library(*, a, b, **_):
    return torch.matmul(a, b)


def unfused(*, a, b, bias, **_):
    """Three kernels: the product, the bias, SiLU."""
    return F.silu(torch.mm(a, b) + bias)
