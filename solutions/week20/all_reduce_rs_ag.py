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
from torch.nn.functional import pad

from harness.meters.collectives import Collectives, Pending
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
    # check
    if chunks < 1:
        raise ValueError(f"chunks: expected at least 1, found {chunks}.")
    # split
    whole = x.contiguous()
    flat = whole.view(-1)
    size = -(-flat.numel() // (comm.world * chunks))
    parts = flat.split(comm.world * size)
    # overlap scatter and gather
    started = _scatter(parts[0], size, comm)
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        padded, shard, scattering = started
        scattering.wait()
        gathering = comm.all_gather(padded, shard)
        if following is not None:
            started = _scatter(following, size, comm)
        gathering.wait()
        if padded is not part:
            part.copy_(padded[: len(part)])
    if whole is not x:
        x.copy_(whole)


def _scatter(part: Tensor, size: int, comm: Collectives) -> tuple[Tensor, Tensor, Pending]:
    """Start to reduce `part` into shards of `size`: what is sent, this rank's shard, the wait."""
    missing = comm.world * size - len(part)
    padded = pad(part, (0, missing)) if missing else part
    shard = part.new_empty(size)
    return padded, shard, comm.reduce_scatter(shard, padded)


def bus_bandwidth(op: str, nbytes: int, seconds: float, n: int) -> float:
    """
    Return the bus bandwidth, in bytes a second, of a collective on `n` ranks.

    `nbytes` are those of the whole: what an all-gather puts out, what a reduce-scatter takes in.

    Raises:
        ValueError: op is unknown, nbytes below 0, seconds not above 0, n below 1.

    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    # check
    carried = {  # n times the factor
        "all_reduce": 2 * (n - 1),
        "all_gather": n - 1,
        "reduce_scatter": n - 1,
        "all_to_all": n - 1,
        "broadcast": n,
    }
    if op not in carried:
        raise ValueError(f"op: expected one of {', '.join(carried)}, found {op!r}.")
    if nbytes < 0:
        raise ValueError(f"nbytes: expected at least 0, found {nbytes}.")
    if not seconds > 0:
        raise ValueError(f"seconds: expected more than 0, found {seconds}.")
    if n < 1:
        raise ValueError(f"n: expected at least 1, found {n}.")
    # factor of the collective
    return nbytes / seconds * carried[op] / n


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
    # check
    sizes = [*sizes]
    for nbytes in sizes:
        if nbytes < 4 or nbytes % 4:
            raise ValueError(f"sizes: expected positive multiples of 4, found {nbytes}.")
    # time on the slowest rank
    rows = []
    for nbytes in sizes:
        x = torch.zeros(nbytes // 4, device=rank_device())
        own = timed(lambda x=x: all_reduce(x), comm)
        everybodys = torch.empty(comm.world, dtype=torch.float64, device=x.device)
        comm.all_gather(everybodys, torch.full_like(everybodys[:1], own)).wait()
        seconds = everybodys.max().item()
        busbw = bus_bandwidth("all_reduce", nbytes, seconds, comm.world)
        rows.append(Row(nbytes=nbytes, seconds=seconds, algbw=nbytes / seconds, busbw=busbw))
    return rows


def half_bandwidth_size(rows: Sequence[Row]) -> float:
    """
    Return the bytes at which half of the bandwidth for large vectors is reached: alpha times beta.

    These are the numbers for which alpha + `nbytes` / beta is `seconds` with the least sum of
    squared relative errors.

    Raises:
        ValueError: rows: fewer than two different sizes.
    """
    # check
    if len({row.nbytes for row in rows}) < 2:
        raise ValueError(f"rows: expected two different sizes or more, found {len(rows)} rows.")
    # fit relative errors
    sizes = torch.tensor([row.nbytes for row in rows])
    seconds = torch.tensor([row.seconds for row in rows], dtype=torch.float64)
    columns = torch.stack([1 / seconds, sizes / seconds], dim=1)
    alpha, slope = torch.linalg.lstsq(columns, torch.ones_like(columns[:, :1])).solution
    return (alpha / slope).item()
