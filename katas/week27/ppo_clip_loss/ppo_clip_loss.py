"""Kata week27/ppo_clip_loss: PPO's losses of policy and value, and the loop that learns by them."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Protocol

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

LOG_RATIO_LIMIT = 20.0


class Policy(Protocol):
    """An nn.Module that writes sequences, and gives their log-probabilities and values."""

    def sample(self, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Write n sequences: tokens [n, t], and a mask that is False after a sequence's end."""

    def __call__(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Find the log-probability of each token, and the value before it, both [n, t]."""

    def eval(self) -> nn.Module:
        """Switch dropout off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Sequences as they were written, and what was computed of them then; all [b, t]."""

    tokens: Tensor
    mask: Tensor
    old_logp: Tensor
    old_values: Tensor
    adv: Tensor
    returns: Tensor

    def rows(self, index: Tensor) -> "Batch":
        """Select some of the sequences."""
        return Batch(**{field.name: getattr(self, field.name)[index] for field in fields(self)})


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float = 1.0, lam: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Find advantages and returns; nothing is expected after the last token of a sequence."""
    adv = torch.zeros_like(values)
    carried = after = torch.zeros(len(values), device=values.device)
    for at in reversed(range(values.shape[1])):
        delta = rewards[:, at] + gamma * after - values[:, at]
        carried = torch.where(mask[:, at], delta + gamma * lam * carried, 0)
        after = torch.where(mask[:, at], values[:, at], 0)
        adv[:, at] = carried
    return adv, adv + values


def ppo_loss(
    logp: Float[Tensor, "b t"],
    old_logp: Float[Tensor, "b t"],
    adv: Float[Tensor, "b t"],
    values: Float[Tensor, "b t"],
    old_values: Float[Tensor, "b t"],
    returns: Float[Tensor, "b t"],
    mask: Bool[Tensor, "b t"],
    clip: float = 0.2,
    vclip: float = 0.2,
    vf_coef: float = 0.1,
    entropy: Float[Tensor, "b t"] | None = None,
    ent_coef: float = 0.01,
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """
    The clipped losses of policy and value, means over the tokens of `mask`, and diagnostics.

    Gradients go to `logp`, `values` and `entropy` alone. The logarithm of a ratio is kept within
    ±LOG_RATIO_LIMIT. In float32 (float64 for float64).

    Raises:
        ValueError: An argument has another shape than `logp`, `mask` is True nowhere, or `clip` or
            `vclip` is not above 0. The message begins with the argument's name.

    Source: Schulman et al. 2017 (PPO), equations 7 and 9.
    """
    # TODO(kata): check, policy loss, value loss, loss and diagnostics (about 35 lines)
    raise NotImplementedError


def ppo_update(
    policy: Policy,
    optimizer: Optimizer,
    batch: Batch,
    epochs: int = 4,
    minibatch: int = 32,
    target_kl: float | None = None,
    generator: Generator | None = None,
) -> dict[str, float]:
    """
    Learn from one batch: `epochs` times all of its rows, shuffled, `minibatch` of them at a time.

    Each minibatch is one pass of the policy, without dropout, and one step of the optimizer. When
    `approx_kl` of one is above `target_kl`, neither it nor any later one makes a step.

    Returns:
        "first_ratio", the mean ratio of the first minibatch; "approx_kl" and "clip_fraction" of the
        last one that was run; "steps" of the optimizer.
    """
    raise NotImplementedError  # TODO(kata): steps on minibatches (about 25 lines)


def ppo_train(
    policy: Policy,
    ref: Policy,
    reward_fn: Callable[[Tensor, Tensor], Tensor],
    optimizer: Optimizer,
    steps: int,
    batch: int = 128,
    epochs: int = 4,
    minibatch: int = 32,
    beta: float = 0.05,
    lam: float = 0.95,
    target_kl: float | None = None,
    seed: int = 0,
) -> list[dict[str, float]]:
    """
    Train `policy` for `reward_fn(tokens, mask)`, one score a sequence, and not far from `ref`.

    Each step writes `batch` sequences, rewards every token with -beta times the difference of its
    log-probabilities, the last one with the score as well, and learns from them by `ppo_update`.

    Returns:
        For each step what `ppo_update` returned, and "score", the mean score, and "kl", the mean
        over tokens of logp - ref_logp.
    """
    # TODO(kata): steps on minibatches, rollout to advantages (about 20 lines)
    raise NotImplementedError
