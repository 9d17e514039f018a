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
    # check
    _check(ref_logp, clip_low, clip_high, beta)
    own_divisor = loss_divisor(mask, agg, max_len)
    if divisor is None:
        divisor = own_divisor
    if divisor < 1:
        raise ValueError(f"divisor: expected 1 or more, found {divisor}")

    # smaller surrogate
    # what is padding is gone before it can overflow
    ratio = (logp - old_logp.detach()).masked_fill(~mask, 0).exp()
    a = adv.detach()[:, None]
    losses = -torch.minimum(ratio * a, ratio.clamp(1 - clip_low, 1 + clip_high) * a)
    # KL penalty
    if beta:
        apart = (ref_logp.detach() - logp).masked_fill(~mask, 0)
        losses = losses + beta * (torch.expm1(apart) - apart)
    # average over tokens
    per_row = losses.masked_fill(~mask, 0).sum(dim=1)
    if agg == "grpo":
        per_row = per_row / mask.sum(dim=1).clamp(min=1)
    return per_row.sum() / divisor


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
    # check
    if scale not in SCALES:
        raise ValueError(f"scale: expected one of {', '.join(SCALES)}, found {scale!r}")
    # compare within the group
    informative = informative_groups(rewards, group)
    rows = rewards.reshape(-1, group)
    adv = rows - rows.mean(dim=1, keepdim=True)
    if scale == "std":
        adv = adv / (rows.std(dim=1, keepdim=True) + eps)
    return adv.masked_fill(~informative[:, None], 0).view(-1)


def informative_groups(rewards: Float[Tensor, " n"], group: int) -> Bool[Tensor, " b"]:
    """
    Say of each group whether its rewards differ.

    Raises:
        ValueError: `group` is below 2 or does not divide the `rewards`.
    """
    # check
    if group < 2:
        raise ValueError(f"group: expected at least 2, found {group}")
    if len(rewards) % group:
        raise ValueError(f"rewards: expected groups of {group}, found {len(rewards)} rewards")
    # compare within the group
    rows = rewards.reshape(-1, group)
    return (rows != rows[:, :1]).any(dim=1)


def loss_divisor(mask: Bool[Tensor, "n t"], agg: str, max_len: int | None = None) -> int:
    """
    Count what the sum is divided by: rows, tokens, or rows times `max_len`; at least 1.

    Raises:
        ValueError: `agg` is unknown, or `max_len` below 1 or missing with "dr_grpo".
    """
    # check
    if agg not in AGGS:
        raise ValueError(f"agg: expected one of {', '.join(AGGS)}, found {agg!r}")
    # average over tokens
    if agg == "dapo":
        count = int(mask.sum())
    elif agg == "grpo":
        count = len(mask)
    elif max_len is None or max_len < 1:
        raise ValueError(f"max_len: expected 1 or more with dr_grpo, found {max_len}")
    else:
        count = len(mask) * max_len
    return max(1, count)


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
    # check
    if rows < 1:
        raise ValueError(f"rows: expected at least 1, found {rows}")
    s = settings
    _check(rollout.ref_logp, s.clip_low, s.clip_high, s.beta)
    # compare within the group
    adv = group_advantages(rollout.rewards, s.group, s.scale)
    divisor = loss_divisor(rollout.mask, s.agg, s.max_len)
    useful = informative_groups(rollout.rewards, s.group) | (s.beta > 0)
    wanted = useful.repeat_interleave(s.group).nonzero().flatten()
    # part by part
    total = adv.new_zeros(())
    for at in range(0, len(wanted), rows):
        some = wanted[at : at + rows]
        logp = policy(rollout.tokens[some])
        old = logp if rollout.old_logp is None else rollout.old_logp[some]
        ref = None if rollout.ref_logp is None else rollout.ref_logp[some]
        loss = grpo_loss(
            logp, old, ref, adv[some], rollout.mask[some],
            s.clip_low, s.clip_high, s.beta, s.agg, s.max_len, divisor,
        )  # fmt: skip
        loss.backward()
        total += loss.detach()
    return total


def _check(ref_logp: Tensor | None, clip_low: float, clip_high: float, beta: float) -> None:
    for name, value in (("beta", beta), ("clip_low", clip_low), ("clip_high", clip_high)):
        if not value >= 0:
            raise ValueError(f"{name}: expected 0 or more, found {value}")
    if beta and ref_logp is None:
        raise ValueError("ref_logp: expected one, since beta is above 0")
