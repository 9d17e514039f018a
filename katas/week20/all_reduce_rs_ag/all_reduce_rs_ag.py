"""Kata week20/all_reduce_rs_ag: an all-reduce in two collectives, and how fast it is.

Per part of x: a reduce-scatter, then an all-gather; those of neighbouring parts overlap.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Num
from torch import Tensor

from harness.meters.collectives import Collectives
from harness.simulators.ranks import rank_device

WARM_UP, REPEATS = 3, 7


@dataclass(frozen=True, kw_only=True)
class Row:
    """
    One size of a sweep.

    Attributes:
        nbytes: Of the vector that each rank has.
        seconds: Of one call, on the slowest rank.
        algbw: Bytes of the vector a second.
        busbw: Bus bandwidth, bytes a second.
    """

    nbytes: int
    seconds: float
    algbw: float
    busbw: float


def seconds_of(call: Callable[[], None], comm: Collectives) -> float:
    """Time `call` on this rank: the median of some calls that all ranks begin together."""
    taken = []
    for _ in range(WARM_UP + REPEATS):
        dist.barrier(group=comm.group)
        finish()
        began = time.perf_counter()
        call()
        finish()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[WARM_UP:])


def finish() -> None:
    """Wait for the work of this rank's GPU, if it has one."""
    if rank_device().type == "cuda":
        torch.cuda.synchronize()


def rs_ag_all_reduce(x: Num[Tensor, "*shape"], comm: Collectives, chunks: int = 1) -> None:
    """
    Replace `x`, on every rank of `comm`, by the sum over these ranks: the same bits everywhere.

    It is cut into at most `chunks` parts. Sums are formed in the dtype of `x`.

    Raises:
        ValueError: chunks is below 1. Nothing has been sent then.
    """
    # TODO(kata): check, split, overlap scatter and gather (about 25 lines with helpers)
    raise NotImplementedError


def bus_bandwidth(op: str, nbytes: int, seconds: float, n: int) -> float:
    """
    Return the bus bandwidth, in bytes a second, of a collective on `n` ranks.

    `nbytes` are those of the whole: what an all-gather puts out, what a reduce-scatter takes in.

    Raises:
        ValueError: op is unknown, nbytes below 0, seconds not above 0, n below 1.

    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    raise NotImplementedError  # TODO(kata): check, factor of the collective (about 15 lines)


def sweep(
    all_reduce: Callable[[Tensor], None],
    sizes: Iterable[int],
    comm: Collectives,
    timed: Callable[[Callable[[], None], Collectives], float] = seconds_of,
) -> list[Row]:
    """
    Time `all_reduce` on float32 vectors of `sizes` bytes; every rank of `comm` gets the same rows.

    Raises:
        ValueError: sizes: one is not a positive multiple of 4. Nothing has been timed then.
    """
    raise NotImplementedError  # TODO(kata): check, time on the slowest rank (about 15 lines)


def half_bandwidth_size(rows: Sequence[Row]) -> float:
    """
    Return the bytes at which half of the bandwidth for large vectors is reached: alpha times beta.

    These are the numbers for which alpha + `nbytes` / beta is `seconds` with the least sum of
    squared relative errors.

    Raises:
        ValueError: rows: fewer than two different sizes.
    """
    raise NotImplementedError  # TODO(kata): check, fit relative errors (about 7 lines)
