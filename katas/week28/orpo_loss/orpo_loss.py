"""Kata week28/orpo_loss: learning to answer and to prefer at once, with one model.

What is contrasted are the odds of two responses. They need log(1 - p) where p is close to 1.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn


def orpo_loss(
    logp_w: Float[Tensor, "b t"],
    mask_w: Bool[Tensor, "b t"],
    logp_l: Float[Tensor, "b u"],
    mask_l: Bool[Tensor, "b u"],
    lam: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, " b"]]:
    """
    Average over pairs the loss of the chosen response and that of the log-odds ratio.

    Args:
        logp_w: The log-probability of each token of the chosen responses. Half precision is
            widened to float32.
        mask_w: True for the tokens that count.
        logp_l: Of the rejected ones.
        mask_l: True for the tokens of the rejected that count.
        lam: Weight of the odds.

    Returns:
        The loss; and without gradients its first summand, the negative mean log-probability of
        the chosen, and the log-odds ratio of each pair.

    Raises:
        ValueError: `lam` is negative, `mask_w` or `mask_l` has a row with nothing in it, or
            `logp_w` or `logp_l` is above 0 where it counts.

    Source: Hong et al. (arXiv 2403.07691), equations 6 and 7.
    """
    # TODO(kata): check, mean of each answer, log-odds, sum of both losses (about 20 lines with
    # helpers)
    raise NotImplementedError


def log1mexp(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """
    Compute log(1 - exp(x)) to the last digits, with a gradient that is finite below 0.

    Raises:
        ValueError: `x` is above 0 somewhere.

    Source: Mächler (2012).
    """
    # TODO(kata): check, one formula on each side of -log 2 (about 5 lines)
    raise NotImplementedError


def orpo_step(
    policy: nn.Module, tokens: Int64[Tensor, "n t"], mask: Bool[Tensor, "n t"], lam: float
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, " b"]]:
    """
    Run the policy once, and return the `orpo_loss`: the first half of the rows are the chosen.

    Raises:
        ValueError: `tokens` have an odd number of rows, or none.
    """
    raise NotImplementedError  # TODO(kata): check, one forward pass (about 4 lines)
