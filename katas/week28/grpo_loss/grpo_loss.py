"""Kata week28/grpo_loss: policy gradients without a critic, in which a group is its own baseline.

What a token weighs is a choice, and a group whose answers are equally good is not worth a pass.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

AGGS = ("grpo", "dapo", "dr_grpo")
SCALES = ("std", "none")


@dataclass(frozen=True, slots=True)
class Rollout:
    """Answers that were sampled, group after group, and what is known of each token."""

    tokens: Int64[Tensor, "n t"]
    mask: Bool[Tensor, "n t"]  # the tokens that the policy wrote
    rewards: Float[Tensor, " n"]
    old_logp: Float[Tensor, "n t"] | None = None  # of the policy that sampled; None: this one
    ref_logp: Float[Tensor, "n t"] | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a step."""

    group: int
    scale: str = "std"
    clip_low: float = 0.2
    clip_high: float = 0.2
    beta: float = 0.0
    agg: str = "grpo"
    max_len: int | None = None


def grpo_loss(
    logp: Float[Tensor, "n t"],
    old_logp: Float[Tensor, "n t"],
    ref_logp: Float[Tensor, "n t"] | None,
    adv: Float[Tensor, " n"],
    mask: Bool[Tensor, "n t"],
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    beta: float = 0.0,
    agg: str = "grpo",
    max_len: int | None = None,
    divisor: int | None = None,
) -> Float[Tensor, ""]:
    """
    Average the clipped surrogate, and the divergence from the reference, over tokens.

    Args:
        logp: Of each token under the policy; the only one with a gradient.
        old_logp: Under the policy that sampled.
        ref_logp: Under the reference. Ignored where `beta` is 0.
        adv: The advantage of each sequence.
        mask: True for the tokens that count.
        clip_low: How far below 1 a ratio may be.
        clip_high: How far above 1.
        beta: Weight of the divergence.
        agg: "grpo", "dapo" or "dr_grpo".
        max_len: Tokens that "dr_grpo" counts for each row.
        divisor: What the sum is divided by; the `loss_divisor` of this mask if not given.

    Raises:
        ValueError: `agg` is unknown, `max_len` below 1 or missing with "dr_grpo", `beta`,
            `clip_low` or `clip_high` negative, `ref_logp` missing though `beta` is above 0, or
            `divisor` below 1.
    """
    # TODO(kata): check, smaller surrogate, KL penalty, average over tokens (about 20 lines with
    # helpers)
    raise NotImplementedError


def group_advantages(
    rewards: Float[Tensor, " n"], group: int, scale: str = "std", eps: float = 1e-4
) -> Float[Tensor, " n"]:
    """
    Compare each reward with the mean of its group, in deviations of the group with "std".

    Groups lie one after the other. The deviation is that of a sample (n - 1), and `eps` is added
    to it. Where all rewards of a group are equal its advantages are exactly 0.

    Raises:
        ValueError: `group` is below 2 or does not divide the `rewards`, or `scale` is unknown.
    """
    raise NotImplementedError  # TODO(kata): check, compare within the group (about 8 lines)


def informative_groups(rewards: Float[Tensor, " n"], group: int) -> Bool[Tensor, " b"]:
    """
    Say of each group whether its rewards differ.

    Raises:
        ValueError: `group` is below 2 or does not divide the `rewards`.
    """
    raise NotImplementedError  # TODO(kata): check, compare within the group (about 6 lines)


def loss_divisor(mask: Bool[Tensor, "n t"], agg: str, max_len: int | None = None) -> int:
    """
    Count what the sum is divided by: rows, tokens, or rows times `max_len`; at least 1.

    Raises:
        ValueError: `agg` is unknown, or `max_len` below 1 or missing with "dr_grpo".
    """
    raise NotImplementedError  # TODO(kata): check, average over tokens (about 10 lines)


def grpo_step(
    policy: nn.Module, rollout: Rollout, settings: Settings, rows: int
) -> Float[Tensor, ""]:
    """
    Add the gradients of a batch to those of the policy, and return its loss without a graph.

    The policy is run on at most `rows` sequences at a time, each once, and on none whose gradient
    is known to be 0: those of a group with equal rewards, where `beta` is 0.

    Raises:
        ValueError: `rows` is below 1; and what the other functions raise.
    """
    # TODO(kata): check, compare within the group, part by part (about 20 lines)
    raise NotImplementedError
