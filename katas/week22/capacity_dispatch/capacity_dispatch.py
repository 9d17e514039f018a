"""Kata week22/capacity_dispatch: a place in its expert's buffer for each token, or none."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor


def capacity(tokens: int, k: int, experts: int, factor: float) -> int:
    """How many slots each expert has: `factor * k * tokens / experts`, rounded up."""
    raise NotImplementedError  # TODO(kata): (1 line)


def dispatch_slots(
    idx: Int[Tensor, "t k"],
    gates: Float[Tensor, "t k"],
    experts: int,
    capacity: int,
    priority: str,
) -> Int[Tensor, "t k"]:
    """
    The slot of each assignment in the buffer `[experts * capacity]`, int64; -1 if it is dropped.

    Priority "position": first choices in the order of tokens, then second ones. "gate": the same,
    with tokens in the order of their largest gates.

    Raises:
        ValueError: `capacity` is below 1, `idx` names an expert that there is not, or `priority`
            is neither of the two.

    Source: Lepikhin et al. 2020, algorithm 1; Riquelme et al. 2021, appendix C.
    """
    # TODO(kata): check, order the assignments, positions, slots (about 25 lines with helpers)
    raise NotImplementedError


def drop_pad_stats(idx: Int[Tensor, "t k"], experts: int, capacity: int) -> tuple[float, float]:
    """
    The share of all assignments that is dropped, and the share of all slots that stays empty.

    Raises:
        ValueError: `capacity` is below 1, or `idx` names an expert that there is not.
    """
    raise NotImplementedError  # TODO(kata): check, shares (about 6 lines with helpers)


def min_capacity(idx: Int[Tensor, "t k"], experts: int, max_drop: float) -> int:
    """
    The fewest slots for each expert, at least 1, with which at most `max_drop` is dropped.

    Raises:
        ValueError: `max_drop` is not within 0 to 1, or `idx` names an expert that there is not.
    """
    raise NotImplementedError  # TODO(kata): check, fewest slots (about 5 lines)
