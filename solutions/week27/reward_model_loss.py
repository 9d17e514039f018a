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
    # check
    if not len(r_chosen):
        raise ValueError("r_chosen: expected one pair or more, found none")
    _check(r_chosen.shape, r_rejected=r_rejected)
    if center_coef < 0:
        raise ValueError(f"center_coef: expected 0 or more, found {center_coef}")
    # loss and accuracy of pairs
    chosen = _wide(r_chosen)  # and with it whatever it meets
    gap = chosen - r_rejected
    accuracy = torch.heaviside(gap.detach(), gap.new_tensor(0.5)).mean()
    if margin is not None:
        _check(r_chosen.shape, margin=margin)
        gap = gap - margin
    loss = -F.logsigmoid(gap).mean() + center_coef * (chosen + r_rejected).square().mean()
    return loss, accuracy


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
    # check
    _check(rewards.shape, ranks=ranks, prompt_id=prompt_id)
    # pairs within a prompt
    same = prompt_id[:, None] == prompt_id
    better, worse = (same & (ranks[:, None] < ranks)).nonzero(as_tuple=True)
    if not len(better):
        raise ValueError("ranks: expected a prompt with two different ranks, found none")
    # mean for each prompt
    _, prompt = prompt_id[better].unique(return_inverse=True)
    pairs = prompt.bincount()
    scores = _wide(rewards)
    losses = -F.logsigmoid(scores[better] - scores[worse])
    return (losses / pairs[prompt]).sum() / len(pairs)


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
    # check
    if head.shape != hidden.shape[2:]:
        raise ValueError(f"head: expected {hidden.shape[2]} numbers, found shape {[*head.shape]}")
    _check(hidden.shape[:2], mask=mask)
    if not mask.any(1).all():
        raise ValueError("mask: expected a token in each row, found a row without")
    # reward at the last token
    positions = torch.arange(mask.shape[1], device=mask.device)
    last = (positions * mask).amax(1)
    rows = torch.arange(len(mask), device=mask.device)
    return _wide(hidden[rows, last]) @ _wide(head)


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
    return kwise_loss(last_token_reward(encode(tokens, mask), head, mask), ranks, prompt_id)


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
    # check
    _check(logits.shape, step_mask=step_mask, labels=labels)
    if not step_mask.any():
        raise ValueError("step_mask: expected one step or more, found none")
    # read the steps
    right = labels[step_mask]
    if not ((right >= 0) & (right <= 1)).all():
        raise ValueError("labels: expected 0 to 1 at each step, found others")
    given = _wide(logits[step_mask])
    return F.binary_cross_entropy_with_logits(given, right.to(given.dtype))


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
    # check
    _check(logits.shape, step_mask=step_mask)
    if not step_mask.any(1).all():
        raise ValueError("step_mask: expected a step in each row, found a row without")
    # read the steps
    log_p = F.logsigmoid(_wide(logits))
    if how == "min":
        return log_p.masked_fill(~step_mask, torch.inf).amin(1)
    if how == "prod":
        return log_p.masked_fill(~step_mask, 0).sum(1)
    if how == "last":
        last = (torch.arange(logits.shape[1], device=logits.device) * step_mask).amax(1)
        return log_p.gather(1, last[:, None]).flatten()
    raise ValueError(f"how: expected min, prod or last, found {how!r}")


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _check(shape: torch.Size, **given: Tensor) -> None:
    for name, one in given.items():
        if one.shape != shape:
            raise ValueError(f"{name}: expected shape {[*shape]}, found {[*one.shape]}")
