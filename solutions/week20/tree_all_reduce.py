"""Kata week20/tree_all_reduce: an all-reduce of few messages, and when few messages are better.

Up a binomial tree and down again: whole vectors, one message at a time.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from jaxtyping import Num
from torch import Tensor


class Pending(Protocol):
    """A message under way."""

    def wait(self) -> None:
        """Return when it has been sent, or has arrived. To be called once."""


class P2P(Protocol):
    """Point-to-point messages of contiguous tensors."""

    def isend(self, tensor: Tensor, dst: int) -> Pending:
        """Start to send `tensor`, which must not change before the wait."""

    def irecv(self, tensor: Tensor, src: int) -> Pending:
        """Start to receive into `tensor`, which holds nothing useful before the wait."""


def tree_all_reduce(x: Num[Tensor, "*shape"], rank: int, world: int, p2p: P2P) -> None:
    """
    Replace `x`, on every rank, by the sum over all ranks: the same bits everywhere, every time.

    What rank r collects is (((x of r) + (sum of r + 1)) + (sum of r + 2)) + (sum of r + 4) …, in
    the dtype of `x`.
    """
    # collect from the children
    total = x.contiguous()
    arriving = torch.empty_like(total)
    below = rank & -rank if rank else world  # the parent is that far away, and children less
    children = [rank + 2**k for k in range(_rounds(below)) if rank + 2**k < world]
    for child in children:
        p2p.irecv(arriving, child).wait()
        total += arriving
    # through the parent
    if rank:
        p2p.isend(total, rank - below).wait()
        p2p.irecv(total, rank - below).wait()
    # hand down
    for child in reversed(children):
        p2p.isend(total, child).wait()
    if total is not x:
        x.copy_(total)


def _rounds(n: int) -> int:
    """Return the logarithm of `n` to base 2, rounded up."""
    return (n - 1).bit_length()


def ring_time(nbytes: float, n: int, alpha: float, bw: float) -> float:
    """
    Return the seconds of a ring all-reduce of `nbytes` on `n` ranks.

    Each message costs `alpha` seconds and its bytes over `bw`.

    Raises:
        ValueError: nbytes below 0, n below 1, alpha below 0, bw not above 0.
    """
    _check(nbytes, n, alpha, bw)
    return 2 * (n - 1) * (alpha + nbytes / n / bw)


def tree_time(nbytes: float, n: int, alpha: float, bw: float, chunks: int = 1) -> float:
    """
    Return the seconds of a tree all-reduce of `nbytes` on `n` ranks, in `chunks` that overlap.

    Raises:
        ValueError: as for `ring_time`; chunks below 1.
    """
    # check
    _check(nbytes, n, alpha, bw)
    if chunks < 1:
        raise ValueError(f"chunks: expected at least 1, found {chunks}.")
    # times of ring and tree
    if n == 1:
        return 0.0
    return (2 * _rounds(n) + chunks - 1) * (alpha + nbytes / chunks / bw)


def crossover(n: int, alpha: float, bw: float) -> float:
    """
    Return the bytes below which the tree of one chunk is faster; from there on the ring is.

    Raises:
        ValueError: as for `ring_time`.
    """
    # check
    _check(0, n, alpha, bw)
    # times of ring and tree
    if n == 1:
        return 0.0
    return alpha * bw * (n - 1 - _rounds(n)) / (_rounds(n) - (n - 1) / n)


def _check(nbytes: float, n: int, alpha: float, bw: float) -> None:
    # check
    if not nbytes >= 0:
        raise ValueError(f"nbytes: expected at least 0, found {nbytes}.")
    if n < 1:
        raise ValueError(f"n: expected at least 1, found {n}.")
    if not alpha >= 0:
        raise ValueError(f"alpha: expected at least 0, found {alpha}.")
    if not bw > 0:
        raise ValueError(f"bw: expected more than 0, found {bw}.")


def fit_alpha_beta(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """
    Return latency and bandwidth of the line with the least sum of squared relative errors.

    Raises:
        ValueError: sizes: fewer than two different ones; seconds: not as many, or not above 0.
    """
    # check
    if len(set(sizes)) < 2:
        raise ValueError(f"sizes: expected two different ones or more, found {[*sizes]}.")
    if len(seconds) != len(sizes):
        raise ValueError(f"seconds: expected {len(sizes)}, found {len(seconds)}.")
    if not all(one > 0 for one in seconds):
        raise ValueError(f"seconds: expected all above 0, found {[*seconds]}.")
    # fit
    times = torch.tensor(seconds, dtype=torch.float64)
    columns = torch.stack([1 / times, torch.tensor(sizes, dtype=torch.float64) / times], dim=1)
    alpha, slope = torch.linalg.lstsq(columns, torch.ones_like(times)[:, None]).solution
    return alpha.item(), 1 / slope.item()
