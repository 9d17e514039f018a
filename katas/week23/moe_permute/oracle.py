"""What is right: rows by index, their sum in float64; where choices go, one by one."""

import torch

from harness.hardware import Cost

STRUCTURED = ("pos",)


def make_inputs(*, tokens, h, k, dtype, device, seed, experts=5, layout="rows"):
    """
    N(0, 1), and places of choices of random experts.

    Args:
        tokens: Rows.
        h: Columns.
        k: Choices of each token.
        dtype: Of the rows.
        device: Where the tensors are.
        seed: Of the draw.
        experts: Among which a token chooses, one perhaps twice.
        layout: "rows" is contiguous, "cols" the transpose of such a matrix.
    """
    generator = torch.Generator().manual_seed(seed)
    idx = torch.randint(experts, (tokens, k), generator=generator)
    return {
        "x": _matrix(tokens, h, dtype, device, layout, generator),
        "pos": places(idx).to(device),
    }


def make_inputs_moe_unpermute(*, tokens, h, k, dtype, device, seed, experts=5, layout="rows"):
    """Likewise, with positive gates that add up to 1."""
    generator = torch.Generator().manual_seed(seed)
    idx = torch.randint(experts, (tokens, k), generator=generator)
    y = _matrix(tokens * k, h, dtype, device, layout, generator)
    gates = torch.randn(tokens, k, generator=generator).softmax(dim=1)
    return {"y": y, "pos": places(idx).to(device), "gates": gates.to(device)}


def _matrix(rows, cols, dtype, device, layout, generator):
    if layout == "cols":
        return _matrix(cols, rows, dtype, device, "rows", generator).T
    return torch.randn(rows, cols, generator=generator).to(dtype).to(device)


def places(idx):
    """The row of each choice, by a stable sort of all choices."""
    order = sorted(range(idx.numel()), key=idx.flatten().tolist().__getitem__)
    pos = torch.empty(idx.numel(), dtype=torch.int32)
    pos[torch.tensor(order, dtype=torch.int64)] = torch.arange(idx.numel(), dtype=torch.int32)
    return pos.view(idx.shape)


def reference(*, x, pos):
    out = x.new_zeros(pos.numel(), x.shape[1], dtype=torch.float64)
    out[pos.flatten().long()] = x.double().repeat_interleave(pos.shape[1], dim=0)
    return out


def reference_moe_unpermute(*, y, pos, gates):
    rows = y.double()[pos.flatten().long()].unflatten(0, pos.shape)
    return (rows * gates.double()[..., None]).sum(dim=1)


def same_precision_moe_unpermute(*, y, pos, gates):
    rows = y.float()[pos.flatten().long()].unflatten(0, pos.shape)
    return (rows * gates[..., None]).sum(dim=1).to(y.dtype)


def cost(*, x, pos):
    """Rows read once and written k times."""
    return Cost(flops=0, bytes=x.nbytes * (1 + pos.shape[1]) + pos.nbytes)


def cost_moe_unpermute(*, y, pos, gates):
    """Rows read once, one of k written."""
    written = len(pos) * y.shape[1] * y.element_size()
    return Cost(flops=2 * y.numel(), bytes=y.nbytes + written + pos.nbytes + gates.nbytes)


def index_select(*, x, pos):
    """PyTorch's way: the inverse of `pos`, then a gather."""
    source = torch.empty_like(pos.flatten())
    rows = torch.arange(pos.numel(), dtype=torch.int32, device=pos.device)
    source.scatter_(0, pos.flatten().long(), rows // pos.shape[1])
    return x.index_select(0, source)
