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
    # check
    experts = scores.shape[1]
    if bias.shape != (experts,):
        raise ValueError(f"bias: expected {experts} numbers, found shape {tuple(bias.shape)}")
    if not 1 <= k <= experts:
        raise ValueError(f"k: expected 1 to {experts}, found {k}")
    # choose with the bias
    idx = (scores + bias).sort(descending=True, stable=True).indices[:, :k]
    return scores.gather(1, idx), idx


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
    # check
    if not u > 0:
        raise ValueError(f"u: expected a number above 0, found {u}")
    if counts.shape != bias.shape:
        raise ValueError(f"counts: expected {len(bias)} numbers, found shape {tuple(counts.shape)}")
    # load of all ranks
    # a copy, since the sum over the ranks is formed in place
    total = counts.to(torch.int32, copy=True)
    if dp is not None:
        dp.all_reduce(total).wait()
    # compare and nudge
    load = total.long()
    # load < mean, without dividing: in whole numbers the sign is exact
    return bias + u * (load.sum() - len(load) * load).sign()


def routing_health(counts: Int[Tensor, " e"]) -> dict[str, float | int]:
    """
    How evenly experts were chosen: `max_vio`, `entropy`, `dead` and `gini`.

    Raises:
        ValueError: `counts` are all 0.
    """
    # check
    load = sorted(counts.tolist())
    experts, total = len(load), sum(load)
    if total == 0:
        raise ValueError("counts: expected some choices, found none")
    # measure a load
    shares = [c / total for c in load if c]
    entropy = sum(share * math.log(1 / share) for share in shares)
    # Σ over pairs |a - b|: in order, a number is subtracted from all after it, and so on
    apart = sum((2 * i - experts + 1) * c for i, c in enumerate(load))
    return {
        "max_vio": load[-1] * experts / total - 1,
        "entropy": entropy / math.log(experts) if experts > 1 else 1.0,
        "dead": load.count(0),
        "gini": apart / (experts * total),
    }


def diagnose(history: Int[Tensor, "steps e"]) -> str:
    """
    Tell what is wrong with a router from the second half of the counts of its steps.

    Returns:
        The first that applies: "collapsed", "dead_experts", "skewed", "oscillating" or "healthy".

    Raises:
        ValueError: `history` has no choices in its second half.
    """
    # judge the second half
    recent = history[len(history) // 2 :]
    recent = recent[recent.sum(1) > 0]
    if len(recent) == 0:
        raise ValueError("history: expected some choices in its second half, found none")
    overall = routing_health(recent.sum(0))
    single = sum(routing_health(step)["max_vio"] for step in recent) / len(recent)
    if overall["entropy"] < 0.5:
        return "collapsed"
    if overall["dead"]:
        return "dead_experts"
    if overall["max_vio"] > 0.5:
        return "skewed"
    if single > overall["max_vio"] + 0.5:
        return "oscillating"
    return "healthy"
