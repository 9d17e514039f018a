"""Kata week28/rloo_advantage: each answer is compared with the others of its prompt.

A baseline may be anything but a function of the answer itself: then it takes away variance, and
leaves the gradient where it is.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

ESTIMATORS = ("none", "mean", "loo", "std")


def rloo_advantage(
    rewards: Float[Tensor, " n"], k: int, interleaved: bool = False
) -> Float[Tensor, " n"]:
    """
    Subtract from each reward the mean of the other `k` - 1 of its group.

    Groups lie one after the other; `interleaved`, first the first answers of all prompts, then
    the second ones, and so on.

    Raises:
        ValueError: `k` is below 2, or does not divide the number of `rewards`.
    """
    # check
    if k < 2:
        raise ValueError(f"k: expected at least 2, found {k}")
    if len(rewards) % k:
        raise ValueError(f"rewards: expected groups of {k}, found {len(rewards)} rewards")
    # mean of the others
    answers = 0 if interleaved else 1  # the axis of a group
    rows = rewards.reshape((k, -1) if interleaved else (-1, k))
    centred = rows - rows.mean(dim=answers, keepdim=True)
    return (centred * (k / (k - 1))).flatten()


def rloo_loss(
    seq_logp: Float[Tensor, " n"],
    rewards: Float[Tensor, " n"],
    kl_seq: Float[Tensor, " n"],
    beta: float,
    k: int,
    interleaved: bool = False,
) -> Float[Tensor, ""]:
    """
    Return a loss with the gradient of REINFORCE: the mean of -advantage times log-probability.

    The advantage is that of `rewards` - `beta` * `kl_seq`. Only `seq_logp` has a gradient.

    Raises:
        ValueError: `beta` is negative, and what `rloo_advantage` raises.
    """
    # check
    if beta < 0:
        raise ValueError(f"beta: expected 0 or more, found {beta}")
    # reward less divergence
    adv = rloo_advantage((rewards - beta * kl_seq).detach(), k, interleaved)
    return -(adv * seq_logp).mean()


def gradient_moments(
    logits: Float[Tensor, " v"],
    reward: Callable[[Tensor], Tensor],
    k: int,
    estimator: str,
    groups: int,
    seed: int,
) -> tuple[Float[Tensor, " v"], Float[Tensor, ""]]:
    """
    Estimate the gradient of the expected reward from `groups` groups of `k` samples each.

    Args:
        logits: Of a policy that chooses one of v actions.
        reward: Maps actions, int64 of any shape, to their rewards.
        k: Samples in a group.
        estimator: What is subtracted from a reward: nothing ("none"), the mean of its group
            ("mean"), that of the others ("loo"), or the mean, and the rest divided by the
            deviation of the group + 1e-4 ("std").
        groups: How many estimates there are.
        seed: Of the samples.

    Returns:
        The mean of the groups' estimates of ∇ E[reward], and their variance, summed over the
        logits.

    Raises:
        ValueError: `k` or `groups` is below 2, or `estimator` is unknown.
    """
    # check
    if k < 2:
        raise ValueError(f"k: expected at least 2, found {k}")
    if groups < 2:
        raise ValueError(f"groups: expected at least 2, found {groups}")
    if estimator not in ESTIMATORS:
        raise ValueError(f"estimator: expected one of {', '.join(ESTIMATORS)}, found {estimator!r}")
    # draw the groups
    p = logits.softmax(0)
    generator = torch.Generator(logits.device).manual_seed(seed)
    actions = torch.multinomial(p, groups * k, replacement=True, generator=generator)
    actions = actions.view(groups, k)
    adv = reward(actions)
    # advantage by estimator
    if estimator == "loo":
        adv = rloo_advantage(adv.flatten(), k).view(groups, k)
    elif estimator != "none":
        spread = adv.std(dim=1, keepdim=True) + 1e-4
        adv = adv - adv.mean(dim=1, keepdim=True)
        adv = adv / spread if estimator == "std" else adv
    # moments of the estimates
    # Σ adv · (onehot(action) - p)
    by_action = torch.zeros(groups, len(p), dtype=p.dtype, device=p.device)
    by_action = by_action.scatter_add(1, actions, adv)
    found = (by_action - adv.sum(dim=1, keepdim=True) * p) / k
    return found.mean(dim=0), found.var(dim=0).sum()
