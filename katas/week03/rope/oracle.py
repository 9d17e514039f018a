"""What is right and what to feed: pairs of channels as complex numbers, turned."""

import torch


def make_inputs(
    *, b, h, s, d, dtype, device, seed,
    start=0, step=1, base=10_000.0, layout="half", memory="bhsd",
):  # fmt: skip
    """
    N(0, 1) at positions start, start + step, …

    `memory` "bshd" is how a projection leaves x: heads next to each other, a transposed view.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (b, s, h, d) if memory == "bshd" else (b, h, s, d)
    x = torch.randn(shape, generator=generator).to(dtype).to(device)
    return {
        "x": x.transpose(1, 2) if memory == "bshd" else x,
        "positions": torch.arange(start, start + s * step, step, device=device),
        "base": base,
        "layout": layout,
    }


def reference(*, x, positions, base, layout):
    """(x1 + i x2) · exp(i · position · theta), in complex128."""
    first, second = split(x.double(), layout)
    turned = torch.complex(first, second) * torch.exp(1j * angles(positions, x.shape[-1], base))
    return join(turned.real, turned.imag, layout)


def same_precision(*, x, positions, base, layout):
    """In float32 from the best float32 table there is, rounded to the dtype of x."""
    turn = angles(positions, x.shape[-1], base)
    return turned(x.float(), turn.cos().float(), turn.sin().float(), layout).to(x.dtype)


def turned(x, cos, sin, layout):
    """Each pair turned by the angle that a table has for it."""
    first, second = split(x, layout)
    return join(first * cos - second * sin, first * sin + second * cos, layout)


def angles(positions, d, base):
    pairs = torch.arange(0, d, 2, dtype=torch.float64, device=positions.device)
    return positions.double()[:, None] / torch.pow(torch.full_like(pairs, base), pairs / d)


def split(x, layout):
    """The first and the second channel of each pair."""
    paired = x.unflatten(-1, (2, -1) if layout == "half" else (-1, 2))
    return paired.unbind(-2 if layout == "half" else -1)


def join(first, second, layout):
    return torch.stack((first, second), dim=-2 if layout == "half" else -1).flatten(-2)


def naive(*, x, positions, base, layout):
    """A matrix for each position, as in the paper's equation 15."""
    turn = angles(positions, x.shape[-1], base).float()
    return by_matrices(x, turn.cos(), turn.sin(), layout)


def by_matrices(x, cos, sin, layout):
    half = cos.shape[1]
    i = torch.arange(half, device=x.device)
    first, second = (i, i + half) if layout == "half" else (2 * i, 2 * i + 1)
    matrices = cos.new_zeros(len(cos), 2 * half, 2 * half)
    matrices[:, first, first] = matrices[:, second, second] = cos
    matrices[:, first, second] = -sin
    matrices[:, second, first] = sin
    return torch.einsum("sij,bhsj->bhsi", matrices, x.float()).to(x.dtype)
