"""What is right, what to feed and what it costs; and a tuned product whose bits depend on M."""

import torch

from harness.hardware import Cost

SMALL_M = 16  # below, `tuned` splits K


def make_inputs(*, m, n, k, dtype, device, seed, a_layout="rows", b_layout="rows"):
    """
    N(0, 1) operands.

    Layouts: "rows" is contiguous, "cols" the transpose of such a matrix, "gaps" every second
    column of one.
    """
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows, cols, layout):
        if layout == "cols":
            return matrix(cols, rows, "rows").T
        step = 2 if layout == "gaps" else 1
        wide = torch.randn(rows, step * cols, generator=generator)
        return wide.to(dtype).to(device)[:, ::step]

    return {"a": matrix(m, k, a_layout), "b": matrix(k, n, b_layout)}


def reference(*, a, b):
    return a.double() @ b.double()


def same_precision(*, a, b):
    return (a.float() @ b.float()).to(a.dtype)


def cost(*, a, b):
    (m, k), n = a.shape, b.shape[1]
    return Cost(flops=2 * m * n * k, bytes=(m * k + k * n + m * n) * a.element_size())


def tuned(a, b):
    """A product as libraries tune it: fewer than SMALL_M rows are summed in four parts of K."""
    if a.shape[0] >= SMALL_M:
        return in_order(a, b).to(a.dtype)
    parts = [in_order(x, y) for x, y in zip(a.chunk(4, 1), b.chunk(4, 0), strict=True)]
    return torch.stack(parts).sum(0).to(a.dtype)


def in_order(a, b):
    """The float32 sum over K, term by term from the first: the same bits on every machine."""
    c = torch.zeros(a.shape[0], b.shape[1], device=a.device)
    for k in range(a.shape[1]):
        c += a[:, k, None].float() * b[k].float()
    return c


def library(*, a, b):
    return torch.matmul(a, b)
