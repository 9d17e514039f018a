"""Kata week28/dpo_loss: preferences learned without a reward model, and at the price of one model.

The reward of a response is how much likelier it became since the reference; the reference is run
once for the whole dataset.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64
from torch import Tensor, nn

KINDS = ("sigmoid", "hinge", "ipo")
Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt, the response that was preferred, and the other one."""

    prompt: Tokens
    chosen: Tokens
    rejected: Tokens


def dpo_loss(
    pw: Float[Tensor, " b"],
    pl: Float[Tensor, " b"],
    rw: Float[Tensor, " b"],
    rl: Float[Tensor, " b"],
    beta: float,
    label_smoothing: float = 0.0,
    kind: str = "sigmoid",
) -> tuple[Float[Tensor, ""], Float[Tensor, " b"], Float[Tensor, " b"], Float[Tensor, " b"]]:
    """
    Average the loss of preferences over pairs.

    Args:
        pw: Log-probabilities of the chosen responses under the policy.
        pl: Those of the rejected ones.
        rw: Of the chosen under the reference. It has no gradient, and neither has `rl`.
        rl: Of the rejected under the reference.
        beta: What a difference of log-probabilities is multiplied by to be a reward.
        label_smoothing: How probable it is that a label is wrong; of "sigmoid" alone.
        kind: "sigmoid" (DPO), "hinge" (SLiC) or "ipo".

    Returns:
        The loss, and without gradients the rewards of the chosen, of the rejected, and their
        differences.

    Raises:
        ValueError: `beta` is not above 0 and finite, `kind` is unknown, `label_smoothing` is not
            from 0 to below 0.5, or not 0 for another kind, or there are no pairs (`pw`).

    Source: Rafailov et al. (arXiv 2305.18290), equation 7.
    """
    # TODO(kata): check, rewards and margin, one of three losses (about 25 lines with helpers)
    raise NotImplementedError


def sequence_logp(
    logp: Float[Tensor, "b t"], mask: Bool[Tensor, "b t"], average: bool = False
) -> Float[Tensor, " b"]:
    """
    Sum each row's log-probabilities where `mask` is True, or average them.

    What stands elsewhere does not matter, and has a gradient of 0. Half precision is added up and
    returned in float32.

    Raises:
        ValueError: `mask` has a row with nothing in it.
    """
    # TODO(kata): check, sum what the mask has (about 7 lines with helpers)
    raise NotImplementedError


class RefCache:
    """The reference's log-probability of each response, found by prompt and response."""

    def __init__(self) -> None:
        raise NotImplementedError  # TODO(kata): nothing is known yet (1 line)

    def precompute(self, reference: nn.Module, dataset: Iterable[Pair], rows: int = 8) -> None:
        """
        Run the reference over all responses of `dataset`, `rows` of them at a time.

        Each different response of a prompt is run once a call; what was known of it is replaced.
        Runs without gradients, in eval mode, and without adapters where there are any; afterwards
        every module has its own mode again.

        Raises:
            ValueError: `dataset` has a pair with an empty prompt or response. Nothing has been run
                then, and nothing is noted.
        """
        # TODO(kata): check, run the reference once (about 30 lines with helpers)
        raise NotImplementedError

    def get(self, pairs: Sequence[Pair]) -> tuple[Float64[Tensor, " b"], Float64[Tensor, " b"]]:
        """
        Return the reference's log-probabilities of the chosen and of the rejected, on the CPU.

        Raises:
            ValueError: `pairs` has a response that has not been precomputed.
        """
        raise NotImplementedError  # TODO(kata): look up what is known (about 5 lines)


def dpo_step(
    policy: nn.Module, pairs: Sequence[Pair], cache: RefCache, beta: float
) -> tuple[Float[Tensor, ""], Float[Tensor, " b"], Float[Tensor, " b"], Float[Tensor, " b"]]:
    """
    Run the policy once over both responses of all pairs, and return their `dpo_loss`.

    Raises:
        ValueError: there are no `pairs`, or one has an empty prompt or response, or one that
            the cache does not know.
    """
    # TODO(kata): check, look up what is known, one of three losses (about 7 lines)
    raise NotImplementedError
