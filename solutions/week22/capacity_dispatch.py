"""Kata week22/capacity_dispatch: a place in its expert's buffer for each token, or none."""

import math
from bisect import bisect_left

import torch
from jaxtyping import Float, Int
from torch import Tensor


def capacity(tokens: int, k: int, experts: int, factor: float) -> int:
    """How many slots each expert has: `factor * k * tokens / experts`, rounded up."""
    return math.ceil(factor * k * tokens / experts)


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
    # check
    _check_capacity(capacity)
    counts = _counts(idx, experts)
    # order the assignments
    if priority == "position":
        tokens = torch.arange(len(idx), device=idx.device)
    elif priority == "gate":
        tokens = torch.argsort(gates.amax(1), descending=True, stable=True)
    else:
        raise ValueError(f"priority: expected 'position' or 'gate', found {priority!r}")
    wanted = idx[tokens].T.flatten().long()  # an expert for each assignment, the first one first
    # positions
    starts = counts.cumsum(0) - counts
    grouped, order = torch.sort(wanted, stable=True)
    position = torch.arange(len(wanted), device=idx.device) - starts[grouped]
    # slots
    slot = torch.where(position < capacity, grouped * capacity + position, -1)
    by_choice, slots = torch.empty_like(wanted), torch.empty_like(idx, dtype=torch.int64)
    by_choice[order] = slot
    slots[tokens] = by_choice.view(idx.shape[::-1]).T
    return slots


def drop_pad_stats(idx: Int[Tensor, "t k"], experts: int, capacity: int) -> tuple[float, float]:
    """
    The share of all assignments that is dropped, and the share of all slots that stays empty.

    Raises:
        ValueError: `capacity` is below 1, or `idx` names an expert that there is not.
    """
    # check
    _check_capacity(capacity)
    counts = _counts(idx, experts)
    # shares
    kept = counts.clamp(max=capacity).sum().item()
    return _dropped(counts, capacity), 1 - kept / (experts * capacity)


def min_capacity(idx: Int[Tensor, "t k"], experts: int, max_drop: float) -> int:
    """
    The fewest slots for each expert, at least 1, with which at most `max_drop` is dropped.

    Raises:
        ValueError: `max_drop` is not within 0 to 1, or `idx` names an expert that there is not.
    """
    # check
    if not 0 <= max_drop <= 1:
        raise ValueError(f"max_drop: expected 0 to 1, found {max_drop}")
    counts = _counts(idx, experts)
    # fewest slots
    # as many slots as assignments are always enough
    fewer = range(1, idx.numel())
    return 1 + bisect_left(fewer, True, key=lambda slots: _dropped(counts, slots) <= max_drop)


def _check_capacity(capacity: int) -> None:
    if capacity < 1:
        raise ValueError(f"capacity: expected at least 1, found {capacity}")


def _counts(idx: Tensor, experts: int) -> Tensor:
    """How many assignments each expert gets, up to the last that gets any."""
    if ((idx < 0) | (idx >= experts)).any():
        raise ValueError(f"idx: expected experts 0 to {experts - 1}, found others")
    return torch.bincount(idx.flatten())


def _dropped(counts: Tensor, capacity: int) -> float:
    return (counts - capacity).clamp(min=0).sum().item() / max(counts.sum().item(), 1)
