"""What is right: one product for each expert, in float64; groups to feed, and what they replace."""

from itertools import pairwise

import torch

from harness.hardware import Cost

STRUCTURED = ("offsets",)


def make_inputs(*, rows, experts, k, n, dtype, device, seed, skew=0.0, sizes=None, layout="rows"):
    """
    N(0, 1) operands, groups drawn at random.

    Args:
        rows: Of x.
        experts: How many.
        k: Columns of x.
        n: Columns of the result.
        dtype: Of the operands.
        device: Where they are.
        seed: Of the draw.
        skew: An expert's share is 1 / rank^skew, ranks drawn at random: 0 is balanced to the row,
            1 is Zipf's law.
        sizes: Rows of each expert instead.
        layout: "cols" has both operands transposed in memory, as the weights of nn.Linear are.
    """
    generator = torch.Generator().manual_seed(seed)
    counts = torch.tensor(sizes) if sizes else _counts(rows, experts, skew, generator)
    x = _normal((rows, k), layout, generator).to(dtype)
    w = _normal((experts, k, n), layout, generator).to(dtype)
    return {"x": x.to(device), "w": w.to(device), "offsets": _offsets(counts).to(device)}


def make_inputs_grouped_gemm_dw(
    *, rows, experts, k, n, dtype, device, seed, skew=0.0, sizes=None, layout="rows"
):
    """Likewise, with gradients of the result."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.tensor(sizes) if sizes else _counts(rows, experts, skew, generator)
    x = _normal((rows, k), layout, generator).to(dtype)
    dy = _normal((rows, n), layout, generator).to(dtype)
    return {"x": x.to(device), "dy": dy.to(device), "offsets": _offsets(counts).to(device)}


def _counts(rows, experts, skew, generator):
    shares = 1 / (1 + torch.randperm(experts, generator=generator)).double() ** skew
    ends = (shares.cumsum(0) / shares.sum() * rows).round().long()
    return ends.diff(prepend=ends.new_zeros(1))


def _offsets(counts):
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(torch.int32)


def _normal(shape, layout, generator):
    if layout == "cols":
        return _normal((*shape[:-2], shape[-1], shape[-2]), "rows", generator).mT
    return torch.randn(shape, generator=generator)


def _groups(offsets):
    ends = offsets.tolist()
    return [slice(a, b) for a, b in pairwise(ends)]


def reference(*, x, w, offsets):
    parts = [x[rows].double() @ w[e].double() for e, rows in enumerate(_groups(offsets))]
    return torch.cat(parts)


def same_precision(*, x, w, offsets):
    parts = [x[rows].float() @ w[e].float() for e, rows in enumerate(_groups(offsets))]
    return torch.cat(parts).to(x.dtype)


def reference_grouped_gemm_dw(*, x, dy, offsets):
    return torch.stack([x[rows].double().T @ dy[rows].double() for rows in _groups(offsets)])


def same_precision_grouped_gemm_dw(*, x, dy, offsets):
    parts = [x[rows].float().T @ dy[rows].float() for rows in _groups(offsets)]
    return torch.stack(parts).to(x.dtype)


def cost(*, x, w, offsets):
    """Rows once, the weights of each expert that has any, the result once."""
    (rows, k), n = x.shape, w.shape[2]
    used = int((offsets.diff() > 0).sum())
    return Cost(flops=2 * rows * k * n, bytes=2 * (rows * k + used * k * n + rows * n))


def cost_grouped_gemm_dw(*, x, dy, offsets):
    """Rows of both once, the result once."""
    (rows, k), n = x.shape, dy.shape[1]
    written = (len(offsets) - 1) * k * n
    return Cost(flops=2 * rows * k * n, bytes=2 * (rows * k + rows * n + written))


def dense(*, x, w, offsets):
    """A product of as many operations by the library: all rows times the weights of one expert."""
    return torch.matmul(x, w[0])


def padded_bmm(*, x, w, offsets):
    """A batched product, each group filled up to the largest: what capacity pads to."""
    counts = offsets.diff()
    padded = x.new_zeros(len(w), int(counts.max()), x.shape[1])
    parts = []
    for e, rows in enumerate(_groups(offsets)):
        padded[e, : rows.stop - rows.start] = x[rows]
    y = torch.bmm(padded, w)
    for e, rows in enumerate(_groups(offsets)):
        parts.append(y[e, : rows.stop - rows.start])
    return torch.cat(parts)
