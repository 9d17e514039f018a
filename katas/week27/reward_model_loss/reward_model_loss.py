"""Kata week27/reward_model_loss: rewards from pairs, from rankings, and for single steps."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


def bt_loss(
    r_chosen: Float[Tensor, " b"],
    r_rejected: Float[Tensor, " b"],
    margin: Float[Tensor, " b"] | None = None,
    center_coef: float = 0.0,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """
    Bradley-Terry: the mean of -log sigmoid(chosen - rejected - margin), and the accuracy.

    `center_coef` times the mean of (chosen + rejected)² is added. The accuracy is the share of
    pairs in which the chosen one has the larger reward; equal ones count one half. Both in float32
    (float64 for float64).

    Raises:
        ValueError: There are no pairs (`r_chosen`), `r_rejected` or `margin` has another shape than
            `r_chosen`, or `center_coef` is negative. The message begins with the argument's name.

    Source: Bradley & Terry 1952; Ouyang et al. 2022 (InstructGPT), equation 1.
    """
    # TODO(kata): check, loss and accuracy of pairs (about 20 lines with helpers)
    raise NotImplementedError


def kwise_loss(
    rewards: Float[Tensor, " n"], ranks: Int[Tensor, " n"], prompt_id: Int[Tensor, " n"]
) -> Float[Tensor, ""]:
    """
    Bradley-Terry over all pairs of completions of one prompt; the mean over prompts of their means.

    The completion of lower rank is the better one; two of the same rank are not a pair. A prompt
    without pairs does not count. In float32 (float64 for float64).

    Raises:
        ValueError: `ranks` or `prompt_id` has another shape than `rewards`, or there is no pair at
            all (`ranks`). The message begins with the argument's name.
    """
    # TODO(kata): check, pairs within a prompt, mean for each prompt (about 10 lines)
    raise NotImplementedError


def last_token_reward(
    hidden: Float[Tensor, "b t d"], head: Float[Tensor, " d"], mask: Bool[Tensor, "b t"]
) -> Float[Tensor, " b"]:
    """
    The product of `head` and the last hidden state of each row for which `mask` is True.

    In float32 (float64 for float64); no other position affects values or gradients.

    Raises:
        ValueError: `head` is not as wide as `hidden`, `mask` has another shape than its first two
            axes, or has a row without True. The message begins with the argument's name.
    """
    raise NotImplementedError  # TODO(kata): check, reward at the last token (about 9 lines)


def ranking_loss(
    encode: Callable[[Tensor, Tensor], Tensor],
    head: Float[Tensor, " d"],
    tokens: Int[Tensor, "n t"],
    mask: Bool[Tensor, "n t"],
    ranks: Int[Tensor, " n"],
    prompt_id: Int[Tensor, " n"],
) -> Float[Tensor, ""]:
    """
    `kwise_loss` of the rewards of `encode(tokens, mask)`: each completion is encoded once.

    Raises:
        ValueError: As `last_token_reward` and `kwise_loss`.
    """
    raise NotImplementedError  # TODO(kata): encode each once, reward, rank (1 line)


def prm_loss(
    logits: Float[Tensor, "b t"], step_mask: Bool[Tensor, "b t"], labels: Tensor
) -> Float[Tensor, ""]:
    """
    Binary cross entropy at the ends of steps, where `step_mask` is True; the mean over all steps.

    `labels` are probabilities, or bools or integers 0 and 1. In float32 (float64 for float64).

    Raises:
        ValueError: `step_mask` or `labels` has another shape than `logits`; there is no step
            (`step_mask`); the label of a step is not within 0 and 1 (`labels`). The message begins
            with the argument's name.

    Source: Lightman et al. 2023 (Let's Verify Step by Step).
    """
    raise NotImplementedError  # TODO(kata): check, read the steps (about 8 lines)


def prm_score(
    logits: Float[Tensor, "b t"], step_mask: Bool[Tensor, "b t"], how: str
) -> Float[Tensor, " b"]:
    """
    The logarithm of each row's score: of the least probable step, of their product, of the last.

    A step is right with the probability sigmoid(logit). In float32 (float64 for float64).

    Raises:
        ValueError: `step_mask` has another shape than `logits`, or a row without steps; `how` is
            not "min", "prod" or "last". The message begins with the argument's name.
    """
    raise NotImplementedError  # TODO(kata): check, read the steps (about 10 lines)
