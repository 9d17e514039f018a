"""Kata week23/aux_loss_free_balancing: experts balanced by a bias that only their choice sees.

No loss pulls at the router: after each step the bias of every expert is nudged against its load.
"""

import math

import torch
from jaxtyping import Float, Float32, Int, Int64
from torch import Tensor

from harness.meters.collectives import Collectives


def select_with_bias(
    scores: Float[Tensor, "t e"], bias: Float32[Tensor, " e"], k: int
) -> tuple[Float[Tensor, "t k"], Int64[Tensor, "t k"]]:
    """
    Choose for each token the `k` experts with the highest score plus bias.

    Choices are ordered by falling sum, which is compared in float32; of equal sums the expert
    with the lower number comes first.

    Returns:
        The scores of the chosen experts, without the bias, and the experts. Only `scores` has a
        gradient.

    Raises:
        ValueError: `bias` is not one number for each expert, or `k` is not from 1 to their number.
    """
    raise NotImplementedError  # TODO(kata): check, choose with the bias (about 7 lines)


def update_bias(
    bias: Float32[Tensor, " e"],
    counts: Int[Tensor, " e"],
    u: float,
    dp: Collectives | None = None,
) -> Float32[Tensor, " e"]:
    """
    Add `u` where an expert got fewer choices than the mean, take it off where it got more.

    Args:
        bias: Of the step that is over; the same on every rank.
        counts: This rank's choices of each expert in that step.
        u: The size of a nudge.
        dp: The ranks over which choices are counted; this one alone if not given.

    Returns:
        The bias of the next step, in memory of its own.

    Raises:
        ValueError: `u` is not above 0, or `counts` has another shape than `bias`. Nothing has been
            sent then.
    """
    # TODO(kata): check, load of all ranks, compare and nudge (about 9 lines)
    raise NotImplementedError


def routing_health(counts: Int[Tensor, " e"]) -> dict[str, float | int]:
    """
    How evenly experts were chosen: `max_vio`, `entropy`, `dead` and `gini`.

    Raises:
        ValueError: `counts` are all 0.
    """
    raise NotImplementedError  # TODO(kata): check, measure a load (about 15 lines)


def diagnose(history: Int[Tensor, "steps e"]) -> str:
    """
    Tell what is wrong with a router from the second half of the counts of its steps.

    Returns:
        The first that applies: "collapsed", "dead_experts", "skewed", "oscillating" or "healthy".

    Raises:
        ValueError: `history` has no choices in its second half.
    """
    raise NotImplementedError  # TODO(kata): judge the second half (about 15 lines)
