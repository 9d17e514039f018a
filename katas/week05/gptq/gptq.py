"""Kata week05/gptq: round column by column, and let the columns that are left make up for it.

One factorization for all rows of the weight. Inside a block of columns each one is corrected at
once; the columns after the block are corrected by one product when it is done.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor


class Quantized(NamedTuple):
    """
    A weight on a grid for each row and group of columns: (codes - zero) · scale.

    `codes` and `zero` are uint8, `scale` is float32.
    """

    codes: UInt8[Tensor, "n k"]
    scale: Float[Tensor, "n groups"]
    zero: UInt8[Tensor, "n groups"]


def minmax_grid(
    w: Float[Tensor, "n g"], bits: int
) -> tuple[Float[Tensor, " n"], UInt8[Tensor, " n"]]:
    """
    Scale and zero of each row: 2^bits codes from its minimum to its maximum, 0 always between.

    A row of zeros has the scale 1.
    """
    low, high = w.amin(1).clamp(max=0), w.amax(1).clamp(min=0)
    scale = (high - low) / (2**bits - 1)
    scale = torch.where(scale > 0, scale, 1.0)
    return scale, torch.round(-low / scale).to(torch.uint8)


def nearest_codes(
    w: Float[Tensor, "n ..."],
    scale: Float[Tensor, "n ..."],
    zero: UInt8[Tensor, "n ..."],
    bits: int,
) -> UInt8[Tensor, "n ..."]:
    """Return the code of the grid's point next to each weight; `scale` and `zero` broadcast."""
    return (torch.round(w / scale) + zero).clamp(0, 2**bits - 1).to(torch.uint8)


def rtn(w: Float[Tensor, "n k"], bits: int = 4, group_size: int = 128) -> Quantized:
    """Round each weight to the nearest point of its group's grid: the baseline."""
    groups = w.float().unflatten(1, (-1, group_size))
    scale, zero = minmax_grid(groups.flatten(0, 1), bits)
    codes = nearest_codes(groups.flatten(0, 1), scale[:, None], zero[:, None], bits)
    return Quantized(codes.view(w.shape), scale.view(len(w), -1), zero.view(len(w), -1))


@torch.no_grad()
def gptq(
    w: Float[Tensor, "n k"],
    x: Float[Tensor, "s k"],
    bits: int = 4,
    group_size: int = 128,
    block: int = 64,
    damp: float = 0.01,
) -> Quantized:
    """
    Quantize `w` so that x wᵀ changes little: column by column, each error passed on.

    Columns are rounded in order, each to the nearest code, and after each the columns to
    its right are moved to make up for its error as well as they can, in the least squares of
    H = xᵀx + damp · mean(diagonal of xᵀx) · I. A group's grid is that of its weights as they are
    when the first of them is to be rounded. Columns that `x` never uses become 0 first. Computed
    in float32; the codes do not depend on `block`, and nothing returned has a gradient.

    Raises:
        ValueError: `x` has another k than `w`; `bits` is not within 2 to 8; `group_size` is below
            1 or does not divide k; `block` is below 1; `damp` is below 0. The message begins with
            the argument's name.

    Source: Frantar et al. 2022, algorithm 1.
    """
    # TODO(kata): check, factor of the inverse Hessian, grid of a group, round a column, correct the
    # block, correct the rest (about 45 lines with helpers)
    raise NotImplementedError


def dequantize(q: Quantized) -> Float[Tensor, "n k"]:
    """Return the weights that `q` stands for, float32; its groups are equally wide."""
    raise NotImplementedError  # TODO(kata): each group with its own scale and zero (2 lines)
