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
    # check
    if lam < 0:
        raise ValueError(f"lam: expected 0 or more, found {lam}")
    # mean of each answer
    chosen, rejected = _mean(logp_w, mask_w, "w"), _mean(logp_l, mask_l, "l")
    # log-odds
    log_odds = _logit(chosen) - _logit(rejected)
    # sum of both losses
    loss = (lam * F.softplus(-log_odds) - chosen).mean()
    return loss, -chosen.detach().mean(), log_odds.detach()


def log1mexp(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """
    Compute log(1 - exp(x)) to the last digits, with a gradient that is finite below 0.

    Raises:
        ValueError: `x` is above 0 somewhere.

    Source: Mächler (2012).
    """
    # check
    if (x > 0).any():
        raise ValueError(f"x: expected 0 or less, found {x.max().item()}")
    # one formula on each side of -log 2
    near = x > -math.log(2)
    # each side gets an x that is harmless where the other is wanted
    small = torch.log(-torch.expm1(torch.where(near, x, -1.0)))
    return torch.where(near, small, torch.log1p(-torch.exp(torch.where(near, -1.0, x))))


def orpo_step(
    policy: nn.Module, tokens: Int64[Tensor, "n t"], mask: Bool[Tensor, "n t"], lam: float
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, " b"]]:
    """
    Run the policy once, and return the `orpo_loss`: the first half of the rows are the chosen.

    Raises:
        ValueError: `tokens` have an odd number of rows, or none.
    """
    # check
    if len(tokens) % 2 or len(tokens) == 0:
        raise ValueError(f"tokens: expected two rows for each pair, found {len(tokens)}")
    # one forward pass
    (logp_w, logp_l), (mask_w, mask_l) = policy(tokens).chunk(2), mask.chunk(2)
    return orpo_loss(logp_w, mask_w, logp_l, mask_l, lam)


def _mean(logp: Tensor, mask: Tensor, which: str) -> Tensor:
    """Average the tokens that count, row by row."""
    # mean of each answer
    count = mask.sum(dim=1)
    if (count == 0).any():
        raise ValueError(f"mask_{which}: expected at least one token in each row, found none")
    logp = logp.masked_fill(~mask, 0)
    if (logp > 0).any():
        raise ValueError(f"logp_{which}: expected 0 or less, found {logp.max().item()}")
    wide = torch.float64 if logp.dtype == torch.float64 else torch.float32
    return logp.sum(dim=1, dtype=wide) / count


def _logit(x: Tensor) -> Tensor:
    """Compute the log-odds of a log-probability; one of 0 counts as just below."""
    x = x.clamp(max=-torch.finfo(x.dtype).tiny)
    return x - log1mexp(x)
