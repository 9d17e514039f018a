"""What is right, what to feed and what it costs: a product, and what its epilogue makes of it."""

import torch
import torch.nn.functional as F

from harness.hardware import Cost


def make_inputs(
    *, m, n, k, dtype, device, seed, epilogue="plain", bias=False, aux="none", layout="rows"
):
    """
    N(0, 1) operands, and an aux full of NaN where one is "given".

    Layouts: "rows" is contiguous; with "cols" `b` is the transpose of such a matrix, with "gaps"
    each matrix and the bias are every second column of one.
    """
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows, cols):
        step = 2 if layout == "gaps" else 1
        wide = torch.randn(rows, step * cols, generator=generator)
        return wide.to(dtype).to(device)[:, ::step]

    return {
        "a": matrix(m, k),
        "b": matrix(n, k).T if layout == "cols" else matrix(k, n),
        "epilogue": epilogue,
        "bias": matrix(1, n)[0] if bias else None,
        "aux": matrix(m, n).fill_(torch.nan) if aux == "given" else None,
    }


def epilogue_of(x, epilogue, bias):
    """What `epilogue` makes of the sums `x`, in their dtype; and what it leaves in aux, or None."""
    if epilogue == "scale_only":
        return (x if bias is None else x * bias.to(x.dtype)), None
    if epilogue == "plain":
        return x, None
    x = x if bias is None else x + bias.to(x.dtype)
    if epilogue == "bias_relu":
        return torch.where(x < 0, 0.0, x), None
    return F.gelu(x, approximate="tanh"), x


def reference(*, a, b, epilogue, bias=None, **_):
    return epilogue_of(a.double() @ b.double(), epilogue, bias)[0]


def same_precision(*, a, b, epilogue, bias=None, **_):
    return epilogue_of(a.float() @ b.float(), epilogue, bias)[0].to(a.dtype)


def cost(*, a, b, bias=None, aux=None, **_):
    """Each matrix once."""
    (m, k), n = a.shape, b.shape[1]
    elements = m * k + k * n + m * n + (n if bias is not None else 0)
    return Cost(flops=2 * m * n * k, bytes=elements * a.element_size())


def library(*, a, b, **_):
    return torch.matmul(a, b)


def unfused(*, a, b, bias, **_):
    """Three kernels: the product, the bias, ReLU."""
    return torch.relu(torch.matmul(a, b) + bias)
