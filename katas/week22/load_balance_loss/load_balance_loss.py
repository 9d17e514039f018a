"""Kata week22/load_balance_loss: what keeps a router from always choosing the same experts.

The load of an expert is counted, over one rank's tokens or over everybody's; its probability is
averaged, and alone has a gradient.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from harness.meters.collectives import Collectives


def load_balance_loss(
    logits: Float[Tensor, "t e"],
    idx: Int[Tensor, "t k"],
    mask: Bool[Tensor, " t"] | None = None,
    dp: Collectives | None = None,
) -> Float[Tensor, ""]:
    """
    E · Σ fᵢ Pᵢ: each expert's share of the choices, times its mean probability.

    Args:
        logits: Of the router.
        idx: The experts chosen for each token.
        mask: True for the tokens that count; all of them if not given. What the others' rows hold
            does not matter.
        dp: The ranks over which loads and tokens are counted; this batch alone if not given. The
            mean of the ranks' losses is then the loss of all their tokens together.

    Raises:
        ValueError: `logits` or `idx` is not 2-D, `idx` has another number of rows, holds none or
            more than E choices, or one that counts and is not from 0 to E - 1, or `mask` is not
            one bool for each token. Nothing has been sent then.
    """
    # TODO(kata): check, count the choices, sum over the ranks, loss (about 30 lines with helpers)
    raise NotImplementedError


def router_z_loss(
    logits: Float[Tensor, "t e"], mask: Bool[Tensor, " t"] | None = None
) -> Float[Tensor, ""]:
    """
    Average the squared logsumexp of the tokens that count: large logits cost something.

    Raises:
        ValueError: `logits` is not 2-D, or `mask` is not one bool for each token.
    """
    raise NotImplementedError  # TODO(kata): check, z-loss (2 lines)
