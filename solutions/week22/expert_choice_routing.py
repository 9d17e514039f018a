"""Kata week22/expert_choice_routing: experts choose their tokens, not tokens their experts."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import silu


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
    # check
    tokens, experts = logits.shape
    capacity = int(capacity_factor * tokens / experts)
    if not 1 <= capacity <= tokens:
        raise ValueError(f"capacity_factor: expected 1 to {tokens} tokens each, found {capacity}")
    # scores
    scores = torch.softmax(logits, dim=1).T
    # choice
    # topk would break ties as it likes
    gates, idx = torch.sort(scores, dim=1, descending=True, stable=True)
    return gates[:, :capacity], idx[:, :capacity]


def expert_choice_ffn(
    x: Float[Tensor, "t d"],
    gates: Float[Tensor, "e c"],
    idx: Int[Tensor, "e c"],
    w1: Float[Tensor, "e d f"],
    w2: Float[Tensor, "e f d"],
) -> Float[Tensor, "t d"]:
    """Each token's sum, over the experts that took it, of its gate times `silu(x @ w1) @ w2`."""
    # expert FFN
    taken = idx.flatten()
    hidden = silu(torch.bmm(x[taken].view(*idx.shape, -1), w1))
    # combine
    out = gates[:, :, None] * torch.bmm(hidden, w2)
    return torch.zeros_like(x).index_add(0, taken, out.flatten(0, 1))


def experts_per_token(idx: Int[Tensor, "e c"], tokens: int) -> Int[Tensor, " t"]:
    """How many experts took each of `tokens` tokens."""
    return torch.bincount(idx.flatten(), minlength=tokens)
