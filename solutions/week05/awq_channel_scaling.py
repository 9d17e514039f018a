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
    # check
    _check(w, x, bits, group_size, grid)
    # statistics of the inputs
    w, x = w.float(), x.float()
    h = x.mT @ x
    magnitude = x.abs().mean(dim=0)  # NaN where there are no tokens
    # scales of a candidate
    best = None
    for step in range(grid):
        s = _scales(magnitude, step / grid)
        # error of a candidate
        error = _squared_error(w - round_groups(w * s, bits, group_size) / s, h)
        # keep the best
        if best is None or error < best[2]:
            best = s, step / grid, error
    # keep the best
    s, alpha, error = best
    size = _squared_error(w, h)
    return s, alpha, torch.where(size > 0, error / size, 0.0).sqrt()


def fold_norm(
    norm_w: Float[Tensor, " k"], w: Float[Tensor, "n k"], s: Float[Tensor, " channels"]
) -> tuple[Float[Tensor, " k"], Float[Tensor, "n k"]]:
    """
    Scale the inputs of `w` by `s`, and take that back in the weight of the norm before it.

    Returns the weight of the norm and `w`, each in its dtype.

    Raises:
        ValueError: `s` has another length than k; the message begins with its name.
    """
    # check
    _check_scales(s, w)
    # fold the scales away
    return (norm_w / s).to(norm_w.dtype), (w * s).to(w.dtype)


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
    # check
    _check_scales(s, w)
    # fold the scales away
    bias = None if b_prev is None else (b_prev / s).to(b_prev.dtype)
    return (w_prev / s[:, None]).to(w_prev.dtype), bias, (w * s).to(w.dtype)


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
    # fold the scales away
    w_up, _, w_down = fold_linear(w_up, None, w_down, s)
    return w_up, w_down


def _scales(magnitude: Float[Tensor, " k"], alpha: float) -> Float[Tensor, " k"]:
    # scales of a candidate
    used = magnitude > 0  # not those of NaN
    if not used.any():
        return torch.ones_like(magnitude)
    s = magnitude**alpha
    s = s / (s[used].max() * s[used].min()).sqrt()
    return torch.where(used, s, 1.0)


def _squared_error(delta: Float[Tensor, "n k"], h: Float[Tensor, "k k"]) -> Float[Tensor, ""]:
    """‖x deltaᵀ‖², for h = xᵀx."""
    return (delta @ h * delta).sum().clamp(min=0)


def _check(w: Tensor, x: Tensor, bits: int, group_size: int, grid: int) -> None:
    # check
    k = w.shape[1]
    if x.shape[1] != k:
        raise ValueError(f"x: expected {k} columns, as w has, found {x.shape[1]}")
    if not 2 <= bits <= 8:
        raise ValueError(f"bits: expected 2 to 8, found {bits}")
    if group_size < 1 or k % group_size:
        raise ValueError(f"group_size: expected a divisor of the {k} columns, found {group_size}")
    if grid < 1:
        raise ValueError(f"grid: expected at least 1, found {grid}")


def _check_scales(s: Tensor, w: Tensor) -> None:
    # check
    if len(s) != w.shape[1]:
        raise ValueError(f"s: expected {w.shape[1]} scales, one for each column, found {len(s)}")
