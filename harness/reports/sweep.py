"""
Bus bandwidth over size: NCCL's collectives and a kata's all-reduce, in one run on this machine.

Bus bandwidth is what each link carries, whatever the number of ranks: the bytes that a ring sends
per rank over the time, as NVIDIA's nccl-tests define it (doc/PERFORMANCE.md there). Each time is
the slowest rank's, the median of some batches of calls back to back, and includes what the host
needs to launch them where the device is faster.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from harness.hardware.packages import installed
from harness.reports.measured import query_device

if TYPE_CHECKING:
    from torch import Tensor

SIZES = tuple(2**power for power in range(10, 31, 2))  # bytes
BATCHES, WARM_UP_CALLS = 7, 3
BATCH_S, MOST_CALLS = 0.02, 100
LIMIT_S = 300.0  # for all sizes
RING = "ring_all_reduce"  # the kata's
# parts of the tensor that each rank sends, of `world` ranks
SHARES: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda world: 2 * (world - 1) / world,
    "reduce_scatter": lambda world: (world - 1) / world,
    "all_gather": lambda world: (world - 1) / world,
    RING: lambda world: 2 * (world - 1) / world,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """
    One collective at one size.

    Attributes:
        op: A key of SHARES.
        nbytes: Of the whole float32 tensor, a multiple of 4 bytes a rank.
        seconds: Of one call.
        busbw: Bytes a second.
    """

    op: str
    nbytes: int
    seconds: float
    busbw: float


def sweep(
    world: int, solution: Path, *, device: str = "cuda", sizes: Sequence[int] = SIZES
) -> dict[str, Any]:
    """
    Time every collective of SHARES at every size on `world` ranks.

    Args:
        world: Ranks, each on a GPU of its own.
        solution: A file with the `ring_all_reduce` of week07/ring_collectives.
        device: "cuda" for NCCL, "cpu" for gloo.
        sizes: Bytes of the tensors.

    Returns:
        Date, device, what was installed, and a dict for each Row.

    Raises:
        RanksUnavailable: There are fewer GPUs than ranks.
        RankFailed: A rank died or hung.
    """
    from harness.simulators.ranks import run_ranks

    rows = run_ranks(world, _on_a_rank, solution, sizes, device=device, timeout_s=LIMIT_S)[0]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": query_device(),
        "backend": {"cuda": "nccl", "cpu": "gloo"}[device],
        "world": world,
        "installed": installed(),
        "rows": [asdict(row) for row in rows],
    }


def _on_a_rank(rank: int, world: int, solution: Path, sizes: Sequence[int]) -> list[Row]:
    import torch

    from harness.judge.loading import load_module
    from harness.simulators.ranks import rank_device

    ring, rows = load_module(solution), []
    for nbytes in sizes:
        count = max(1, nbytes // 4 // world) * world
        x = torch.zeros(count, device=rank_device())
        for op, call in _calls(ring, x, rank, world).items():
            seconds = _seconds_of(call, x)
            busbw = SHARES[op](world) * 4 * count / seconds
            rows.append(Row(op=op, nbytes=4 * count, seconds=seconds, busbw=busbw))
    return rows


def _calls(ring: ModuleType, x: "Tensor", rank: int, world: int) -> dict[str, Callable[[], object]]:
    """Each collective of SHARES on `x`, whose elements the ranks can share evenly."""
    import torch
    import torch.distributed as dist

    from harness.meters.communication import (
        CountingP2P,
        all_gather_into_tensor,
        reduce_scatter_tensor,
    )

    part = torch.zeros(x.numel() // world, device=x.device)
    return {
        "all_reduce": partial(dist.all_reduce, x),
        "reduce_scatter": partial(reduce_scatter_tensor, part, x),
        "all_gather": partial(all_gather_into_tensor, x, part),
        RING: lambda: ring.ring_all_reduce(x, rank, world, CountingP2P()),
    }


def _seconds_of(call: Callable[[], object], x: "Tensor") -> float:
    """Seconds of one call on the slowest rank: the median of some batches."""
    import torch
    import torch.distributed as dist

    def wait() -> None:
        if x.is_cuda:
            torch.cuda.synchronize()

    def batch(calls: int) -> float:
        wait()
        dist.barrier()
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        wait()
        took = torch.tensor((time.perf_counter() - start) / calls, device=x.device)
        dist.all_reduce(took, op=dist.ReduceOp.MAX)  # so that all agree how often to call
        return float(took)

    batch(WARM_UP_CALLS)
    calls = max(1, min(MOST_CALLS, round(BATCH_S / batch(1))))
    return statistics.median(batch(calls) for _ in range(BATCHES))
