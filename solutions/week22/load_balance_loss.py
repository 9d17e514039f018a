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
    # check
    logits, mask = _checked(logits, mask)
    if idx.ndim != 2 or len(idx) != len(mask):
        raise ValueError(f"idx: expected {len(mask)} rows of choices, found {tuple(idx.shape)}")
    experts, k = logits.shape[1], idx.shape[1]
    if not 1 <= k <= experts:
        raise ValueError(f"idx: expected 1 to {experts} choices for each token, found {k}")
    chosen = idx[mask]
    if ((chosen < 0) | (chosen >= experts)).any():
        raise ValueError(f"idx: expected experts from 0 to {experts - 1}, found others")

    # count the choices
    counts = torch.bincount(chosen.flatten(), minlength=experts)
    # the tokens go with the loads: one all-reduce, of whole numbers in 4 bytes each
    counts = torch.cat([counts, counts.new_tensor([len(chosen)])]).int()
    # sum over the ranks
    pending = None if dp is None else dp.all_reduce(counts)
    p = torch.softmax(logits, dim=1)  # while the counts travel
    if pending is not None:
        pending.wait()

    # loss
    tokens = counts[-1].clamp(min=1).float()  # tokens * k may pass 31 bits
    load = counts[:-1] / (tokens * k)
    ranks = 1 if dp is None else dp.world
    return experts * ranks * (load * (p.sum(dim=0) / tokens)).sum()


def router_z_loss(
    logits: Float[Tensor, "t e"], mask: Bool[Tensor, " t"] | None = None
) -> Float[Tensor, ""]:
    """
    Average the squared logsumexp of the tokens that count: large logits cost something.

    Raises:
        ValueError: `logits` is not 2-D, or `mask` is not one bool for each token.
    """
    # check
    logits, _ = _checked(logits, mask)
    # z-loss
    return torch.logsumexp(logits, dim=1).square().sum() / max(len(logits), 1)


def _checked(logits: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the rows that count, in float32, and a mask of them."""
    # check
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise ValueError(f"logits: expected [tokens, experts], found {tuple(logits.shape)}")
    if mask is None:
        mask = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
    if mask.dtype != torch.bool or mask.shape != logits.shape[:1]:
        found = f"{mask.dtype} of shape {tuple(mask.shape)}"
        raise ValueError(f"mask: expected {len(logits)} bools, found {found}")
    return logits[mask].float(), mask
