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
    # TODO(kata): check, value of each answer (about 10 lines with helpers)
    raise NotImplementedError


def mismatch(examples: Sequence[Example]) -> list[Example]:
    """
    Give each prompt the answer of the next example, and the last that of the first.

    Raises:
        ValueError: there are fewer than two `examples`.
    """
    raise NotImplementedError  # TODO(kata): check, mismatched pairs (about 7 lines)


def kl_anchor(
    p_kl: Float[Tensor, " b"], r_kl: Float[Tensor, " b"], dp: Collectives | None = None
) -> Float[Tensor, ""]:
    """
    Average `p_kl` - `r_kl` over the answers of all ranks, clamped at 0 and without a gradient.

    One all-reduce of two numbers, in which a rank without answers takes part too.
    """
    raise NotImplementedError  # TODO(kata): reference point of all ranks (about 5 lines)


def class_weights(n_d: int, n_u: int) -> tuple[float, float]:
    """
    Weigh the two kinds so that w_d n_d / (w_u n_u) is from 1 to 4/3.

    At most one of the two weights is above 1, by no more than is needed.

    Raises:
        ValueError: `n_d` or `n_u` is below 1.
    """
    raise NotImplementedError  # TODO(kata): check, balance the kinds (about 4 lines)


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
    # TODO(kata): check, reference point of all ranks, pass with a graph (about 15 lines with
    # helpers)
    raise NotImplementedError
