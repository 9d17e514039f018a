"""Kata week03/rope: pairs of channels rotated by their position's angle.

Pairs are taken apart by views and joined by the one write of the result.
"""

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

LAYOUTS = ("half", "interleaved")


def rotate_by_matrices(
    x: Float[Tensor, "b h s d"],
    cos: Float32[Tensor, "s half_d"],
    sin: Float32[Tensor, "s half_d"],
    layout: str = "half",
) -> Float[Tensor, "b h s d"]:
    """Rotate as the definition says, right and slow: one d x d matrix for each position."""
    half = cos.shape[1]
    i = torch.arange(half, device=x.device)
    first, second = (i, i + half) if layout == "half" else (2 * i, 2 * i + 1)
    matrices = cos.new_zeros(len(cos), 2 * half, 2 * half)
    matrices[:, first, first] = matrices[:, second, second] = cos
    matrices[:, first, second] = -sin
    matrices[:, second, first] = sin
    return torch.einsum("sij,bhsj->bhsi", matrices, x.float()).to(x.dtype)


def rope_table(
    positions: Int64[Tensor, " s"], d: int, base: float = 10_000.0
) -> tuple[Float32[Tensor, "s half_d"], Float32[Tensor, "s half_d"]]:
    """
    Return cos and sin of position * base ** (-2 i / d) for each pair i of d channels.

    Right to float32 rounding wherever |position| < 2 ** 24, on the device of `positions`.

    Raises:
        ValueError: `d` is odd or below 2.
    """
    # check
    if d < 2 or d % 2:
        raise ValueError(f"d: expected an even number of channels, found {d}.")
    # angles
    # float32 has 24 bits: at position 131071, 17 of them are spent on whole radians
    pair = torch.arange(d // 2, dtype=torch.float64, device=positions.device)
    angles = positions[:, None] * base ** (-2 * pair / d)  # [s, d / 2] float64
    # cos and sin
    return angles.cos().float(), angles.sin().float()


def apply_rope(
    x: Float[Tensor, "b h s d"],
    cos: Float32[Tensor, "s half_d"],
    sin: Float32[Tensor, "s half_d"],
    layout: str = "half",
) -> Float[Tensor, "b h s d"]:
    """
    Rotate each pair of channels of `x` by its position's angle, for all batches and heads alike.

    A pair is channels (i, i + d / 2) in layout "half", (2 i, 2 i + 1) in layout "interleaved".
    Computed in float32 and rounded once, to the dtype of `x`; differentiable in `x`, which may
    have any strides.

    Raises:
        ValueError: `layout` is neither, `cos` is not [s, d / 2], `sin` is not shaped like `cos`.
    """
    # check
    if layout not in LAYOUTS:
        raise ValueError(f"layout: expected one of {', '.join(LAYOUTS)}, found {layout!r}.")
    if cos.dim() != 2 or (cos.shape[0], 2 * cos.shape[1]) != x.shape[2:]:
        expected = f"[s, d / 2] for x with s, d = {list(x.shape[2:])}"
        raise ValueError(f"cos: expected {expected}, found {list(cos.shape)}.")
    if sin.shape != cos.shape:
        raise ValueError(f"sin: expected {list(cos.shape)} like cos, found {list(sin.shape)}.")
    # pairs
    half = x.shape[-1] // 2
    if layout == "half":
        first, second = x[..., :half], x[..., half:]
    else:
        first, second = x[..., ::2], x[..., 1::2]
    # rotate
    # the table is float32, so 16-bit channels are turned in float32 and rounded once
    turned = (
        (first * cos - second * sin).to(x.dtype),
        (second * cos + first * sin).to(x.dtype),
    )
    return torch.cat(turned, -1) if layout == "half" else torch.stack(turned, -1).flatten(-2)


def rope(
    x: Float[Tensor, "b h s d"],
    positions: Int64[Tensor, " s"],
    base: float = 10_000.0,
    layout: str = "half",
) -> Float[Tensor, "b h s d"]:
    """Rotate `x`, whose rows stand at `positions`; a model makes the table once for all layers."""
    cos, sin = rope_table(positions, x.shape[-1], base)
    return apply_rope(x, cos, sin, layout)
