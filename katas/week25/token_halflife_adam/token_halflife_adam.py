"""Kata week25/token_halflife_adam: an Adam whose second moment forgets by tokens, not by steps.

Half of what it knows of squared gradients is gone after `half_life` tokens, however many steps
they came in, so the size of a batch may change from one step to the next.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer


def half_life_tokens(beta2: float, batch: int, seqlen: int) -> float:
    """
    Return after how many tokens a second moment with `beta2` has forgotten half of its value.

    Args:
        beta2: What is kept in a step.
        batch: Sequences in a step.
        seqlen: Tokens in a sequence.

    Raises:
        ValueError: `beta2` is not between 0 and 1, both excluded, `batch` or `seqlen` below 1.

    Source: Marek et al. 2025, section 4.
    """
    raise NotImplementedError  # TODO(kata): check, half-life and β₂ (about 10 lines with helpers)


def rescale_beta2(beta2: float, b_old: int, b_new: int) -> float:
    """
    Find the β₂ that keeps the half-life in tokens when batches of `b_old` become ones of `b_new`.

    Raises:
        ValueError: `beta2` is not between 0 and 1, both excluded, `b_old` or `b_new` below 1.
    """
    raise NotImplementedError  # TODO(kata): check, half-life and β₂ (about 4 lines)


class TokenAdam(Optimizer):
    """
    Adam whose steps are told how many tokens their gradient is a mean over.

    The first moment is Adam's, and counts steps. The options of a group of parameters are those
    of the constructor, by name, and are read at each step.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, object]],
        half_life: float,
        *,
        lr: float = 1e-3,
        beta1: float = 0.9,
        eps: float = 1e-8,
    ) -> None:
        """
        Take parameters, or groups of them, as PyTorch's optimizers do.

        Raises:
            ValueError: `half_life` is not finite and above 0, `lr` or `eps` is below 0, or
                `beta1` not from 0 to 1, 1 excluded.
        """
        raise NotImplementedError  # TODO(kata): check (about 9 lines)

    @torch.no_grad()
    def step(self, tokens: int) -> None:
        """
        Update every parameter that has a gradient, which is the mean over `tokens` tokens.

        A step of 0 tokens changes nothing.

        Raises:
            ValueError: `tokens` is below 0; nothing has been changed.
        """
        # TODO(kata): check, count steps and tokens, bias correction, moments, update (about 25
        # lines with helpers)
        raise NotImplementedError
