"""Kata week05/awq_channel_scaling: scale up what matters before rounding, and fold it away after.

The inputs are read once, for xᵀx and the mean magnitude of each channel; no step of the search
touches them again.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def round_groups(w: Float[Tensor, "n k"], bits: int, group_size: int) -> Float[Tensor, "n k"]:
    """
    Round to the nearest of 2^bits codes, from minimum to maximum of each row's group; float32.

    0 is always one of the codes; a group of zeros stays zeros.
    """
    groups = w.float().unflatten(1, (-1, group_size))
    low, high = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True)
    scale = (high.clamp(min=0) - low) / (2**bits - 1)
    scale = torch.where(scale > 0, scale, 1.0)
    zero = torch.round(-low / scale)
    codes = (torch.round(groups / scale) + zero).clamp(0, 2**bits - 1)
    return ((codes - zero) * scale).flatten(1)


@torch.no_grad()
def awq_channel_scaling(
    w: Float[Tensor, "n k"],
    x: Float[Tensor, "s k"],
    bits: int = 4,
    group_size: int = 128,
    grid: int = 20,
) -> tuple[Float[Tensor, " k"], float, Float[Tensor, ""]]:
    """
    Search the scales s of the input channels with which w · s rounds best.

    Candidates are s = mean|x|^alpha for alpha = 0, 1 / grid … (grid - 1) / grid, over
    sqrt(max · min); channels that are always 0 have s = 1 and no part in maximum and minimum.
    Returns those of the least error ‖x (w - ŵ)ᵀ‖ with ŵ = round_groups(w · s) / s, among equals
    the first, their alpha, and the error over ‖x wᵀ‖, 0 where only zero weights meet an input.
    Computed in float32, without gradients.

    Raises:
        ValueError: `x` has another k than `w`; `bits` is not within 2 to 8; `group_size` is below
            1 or does not divide k; `grid` is below 1. The message begins with the argument's name.

    Source: Lin et al. 2023, section 3.2.
    """
    # TODO(kata): check, statistics of the inputs, scales of a candidate, error of a candidate, keep
    # the best (about 30 lines with helpers)
    raise NotImplementedError


def fold_norm(
    norm_w: Float[Tensor, " k"], w: Float[Tensor, "n k"], s: Float[Tensor, " channels"]
) -> tuple[Float[Tensor, " k"], Float[Tensor, "n k"]]:
    """
    Scale the inputs of `w` by `s`, and take that back in the weight of the norm before it.

    Returns the weight of the norm and `w`, each in its dtype.

    Raises:
        ValueError: `s` has another length than k; the message begins with its name.
    """
    # TODO(kata): check, fold the scales away (about 5 lines with helpers)
    raise NotImplementedError


def fold_linear(
    w_prev: Float[Tensor, "k j"],
    b_prev: Float[Tensor, " k"] | None,
    w: Float[Tensor, "n k"],
    s: Float[Tensor, " channels"],
) -> tuple[Float[Tensor, "k j"], Float[Tensor, " k"] | None, Float[Tensor, "n k"]]:
    """
    Scale the inputs of `w` by `s`, and take that back in the linear layer before it.

    Returns its weight, its bias (None if it has none) and `w`, each in its dtype.

    Raises:
        ValueError: `s` has another length than k; the message begins with its name.
    """
    raise NotImplementedError  # TODO(kata): check, fold the scales away (3 lines)


def fold_swiglu(
    w_up: Float[Tensor, "k j"], w_down: Float[Tensor, "n k"], s: Float[Tensor, " channels"]
) -> tuple[Float[Tensor, "k j"], Float[Tensor, "n k"]]:
    """
    Scale the inputs of `w_down` by `s`, and take that back where SwiGLU lets it through.

    Of (silu(y w_gateᵀ) · y w_upᵀ) w_downᵀ these are `w_up` and `w_down`, and the gate stays as it
    is. Returns both, each in its dtype.

    Raises:
        ValueError: `s` has another length than k; the message begins with its name.
    """
    raise NotImplementedError  # TODO(kata): fold the scales away (2 lines)
