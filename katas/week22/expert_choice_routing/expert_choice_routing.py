"""Kata week22/expert_choice_routing: experts choose their tokens, not tokens their experts."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def expert_choice(
    logits: Float[Tensor, "t e"], capacity_factor: float
) -> tuple[Float[Tensor, "e c"], Int[Tensor, "e c"]]:
    """
    The tokens that each expert takes, best first, and the router's probabilities for them.

    Each expert takes `int(capacity_factor * t / e)` tokens; of equal ones, the earlier.

    Raises:
        ValueError: that is less than one token, or more than there are.

    Source: Zhou et al. 2022, section 3.2.
    """
    raise NotImplementedError  # TODO(kata): check, scores, choice (about 7 lines)


def expert_choice_ffn(
    x: Float[Tensor, "t d"],
    gates: Float[Tensor, "e c"],
    idx: Int[Tensor, "e c"],
    w1: Float[Tensor, "e d f"],
    w2: Float[Tensor, "e f d"],
) -> Float[Tensor, "t d"]:
    """Each token's sum, over the experts that took it, of its gate times `silu(x @ w1) @ w2`."""
    raise NotImplementedError  # TODO(kata): expert FFN, combine (about 4 lines)


def experts_per_token(idx: Int[Tensor, "e c"], tokens: int) -> Int[Tensor, " t"]:
    """How many experts took each of `tokens` tokens."""
    raise NotImplementedError  # TODO(kata): (1 line)
