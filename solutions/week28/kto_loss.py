"""Kata week28/kto_loss: learning from thumbs up and down, which nobody had to pair.

Whether an answer is a gain or a loss depends on where one stands: a reference point that all ranks
share.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from harness.meters.collectives import Collectives

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt, an answer, and whether it was liked."""

    prompt: Tokens
    response: Tokens
    desirable: bool


def padded(
    examples: Sequence[Example], device: torch.device
) -> tuple[Int64[Tensor, "b t"], Bool[Tensor, "b t"]]:
    """Return prompts and answers as rows, padded on the right, and a mask of the answers."""
    texts = [(*one.prompt, *one.response) for one in examples]
    longest = max(len(text) for text in texts)
    tokens = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
    at = torch.arange(longest)
    starts = torch.tensor([[len(one.prompt)] for one in examples])
    ends = torch.tensor([[len(text)] for text in texts])
    return tokens.to(device), ((at >= starts) & (at < ends)).to(device)


def kto_loss(
    p: Float[Tensor, " b"],
    r: Float[Tensor, " b"],
    desirable: Bool[Tensor, " b"],
    z0: Float[Tensor, ""],
    beta: float,
    w_d: float = 1.0,
    w_u: float = 1.0,
) -> Float[Tensor, ""]:
    """
    Average over answers how far the value of each is from its maximum.

    Args:
        p: Log-probability of each answer under the policy; the only one with a gradient.
        r: Under the reference.
        desirable: Whether it was liked.
        z0: The reference point.
        beta: How quickly gains and losses saturate.
        w_d: Weight of those that were liked.
        w_u: Weight of the others.

    Raises:
        ValueError: `beta` is not above 0 and finite, `w_d` or `w_u` not above 0, or there are no
            answers (`p`).

    Source: Ethayarajh et al. (arXiv 2402.01306), equation 8.
    """
    # check
    _check(beta, w_d, w_u)
    if len(p) == 0:
        raise ValueError("p: expected at least one answer, found none")
    # value of each answer
    gain = beta * (p - r.detach() - z0.detach())
    losses = torch.where(desirable, w_d * torch.sigmoid(-gain), w_u * torch.sigmoid(gain))
    return losses.mean()


def mismatch(examples: Sequence[Example]) -> list[Example]:
    """
    Give each prompt the answer of the next example, and the last that of the first.

    Raises:
        ValueError: there are fewer than two `examples`.
    """
    # check
    if len(examples) < 2:
        raise ValueError(f"examples: expected at least two, found {len(examples)}")
    # mismatched pairs
    following = [*examples[1:], examples[0]]
    return [
        replace(one, response=other.response)
        for one, other in zip(examples, following, strict=True)
    ]


def kl_anchor(
    p_kl: Float[Tensor, " b"], r_kl: Float[Tensor, " b"], dp: Collectives | None = None
) -> Float[Tensor, ""]:
    """
    Average `p_kl` - `r_kl` over the answers of all ranks, clamped at 0 and without a gradient.

    One all-reduce of two numbers, in which a rank without answers takes part too.
    """
    # reference point of all ranks
    total = torch.stack([(p_kl - r_kl).detach().sum(), p_kl.new_tensor(len(p_kl))]).float()
    if dp is not None:
        dp.all_reduce(total).wait()
    mean = total[0] / total[1].clamp(min=1)
    return mean.clamp(min=0).to(p_kl.dtype)


def class_weights(n_d: int, n_u: int) -> tuple[float, float]:
    """
    Weigh the two kinds so that w_d n_d / (w_u n_u) is from 1 to 4/3.

    At most one of the two weights is above 1, by no more than is needed.

    Raises:
        ValueError: `n_d` or `n_u` is below 1.
    """
    # check
    for name, value in (("n_d", n_d), ("n_u", n_u)):
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, found {value}")
    # balance the kinds
    return max(1.0, n_u / n_d), max(1.0, 3 * n_d / (4 * n_u))


def kto_step(
    policy: nn.Module,
    examples: Sequence[Example],
    cache: Mapping[tuple[Tokens, Tokens], float],
    beta: float,
    w_d: float = 1.0,
    w_u: float = 1.0,
    dp: Collectives | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, " b"], Float[Tensor, ""]]:
    """
    Run the policy on a batch, and without a graph on the mismatched one.

    Args:
        policy: Maps tokens [n, t] to the log-probability of each.
        examples: This rank's batch.
        cache: The reference's log-probability of each answer to each prompt, mismatched ones too.
        beta: As in `kto_loss`; so are `w_d` and `w_u`.
        w_d: Weight of those that were liked.
        w_u: Weight of the others.
        dp: The ranks that share a reference point; this one alone if not given.

    Returns:
        The loss of this rank's examples, their rewards, beta times p - r, without a graph, and
        the reference point.

    Raises:
        ValueError: what `kto_loss` and `mismatch` raise. Nothing has been run or sent then.
    """
    # check
    _check(beta, w_d, w_u)
    others = mismatch(examples)
    # reference point of all ranks
    with torch.no_grad():
        p_kl = _sums(policy, others)
    z0 = kl_anchor(p_kl, _known(cache, others, p_kl), dp)
    # pass with a graph
    p = _sums(policy, examples)
    r = _known(cache, examples, p)
    desirable = torch.tensor([one.desirable for one in examples], device=p.device)
    return kto_loss(p, r, desirable, z0, beta, w_d, w_u), beta * (p.detach() - r), z0


def _check(beta: float, w_d: float, w_u: float) -> None:
    if not 0 < beta < math.inf:
        raise ValueError(f"beta: expected a finite number above 0, found {beta}")
    for name, weight in (("w_d", w_d), ("w_u", w_u)):
        if not weight > 0:
            raise ValueError(f"{name}: expected a number above 0, found {weight}")


def _sums(policy: nn.Module, examples: Sequence[Example]) -> Tensor:
    """Compute the log-probability of each answer."""
    tokens, mask = padded(examples, next(policy.parameters()).device)
    return policy(tokens).masked_fill(~mask, 0).sum(dim=1)


def _known(cache: Mapping, examples: Sequence[Example], like: Tensor) -> Tensor:
    return like.new_tensor([cache[one.prompt, one.response] for one in examples])
