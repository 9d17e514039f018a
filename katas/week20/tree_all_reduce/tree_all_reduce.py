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
    # TODO(kata): collect from the children, through the parent, hand down (about 15 lines with
    # helpers)
    raise NotImplementedError


def ring_time(nbytes: float, n: int, alpha: float, bw: float) -> float:
    """
    Return the seconds of a ring all-reduce of `nbytes` on `n` ranks.

    Each message costs `alpha` seconds and its bytes over `bw`.

    Raises:
        ValueError: nbytes below 0, n below 1, alpha below 0, bw not above 0.
    """
    raise NotImplementedError  # TODO(kata): check (about 10 lines with helpers)


def tree_time(nbytes: float, n: int, alpha: float, bw: float, chunks: int = 1) -> float:
    """
    Return the seconds of a tree all-reduce of `nbytes` on `n` ranks, in `chunks` that overlap.

    Raises:
        ValueError: as for `ring_time`; chunks below 1.
    """
    raise NotImplementedError  # TODO(kata): check, times of ring and tree (about 6 lines)


def crossover(n: int, alpha: float, bw: float) -> float:
    """
    Return the bytes below which the tree of one chunk is faster; from there on the ring is.

    Raises:
        ValueError: as for `ring_time`.
    """
    raise NotImplementedError  # TODO(kata): check, times of ring and tree (about 4 lines)


def fit_alpha_beta(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """
    Return latency and bandwidth of the line with the least sum of squared relative errors.

    Raises:
        ValueError: sizes: fewer than two different ones; seconds: not as many, or not above 0.
    """
    raise NotImplementedError  # TODO(kata): check, fit (about 10 lines)
