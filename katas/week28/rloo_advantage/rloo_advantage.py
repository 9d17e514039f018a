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
    raise NotImplementedError  # TODO(kata): check, mean of the others (about 8 lines)


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
    raise NotImplementedError  # TODO(kata): check, reward less divergence (about 4 lines)


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
    # TODO(kata): check, draw the groups, advantage by estimator, moments of the estimates (about 20
    # lines)
    raise NotImplementedError
