"""Kata week07/exposed_comm_time: what communication costs a step, out of a trace and by a model."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.hardware import Profile

GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")  # `cat` of what ran on the GPU
COMM = ("ncclDevKernel_", "ncclKernel_")  # how the names of NCCL's kernels begin, new and old
STEP = "ProfilerStep#"  # how the annotation of a step is named, before its number

Span = tuple[float, float]  # start and end


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """
    Where a step's seconds went: `compute` + `exposed` + `idle` = `total`.

    `comm` is the time in which anything was communicated, hidden or not, `exposed` the part of it
    in which nothing was computed.
    """

    compute: float
    comm: float
    exposed: float
    idle: float
    total: float


def step_breakdown(trace: Mapping[str, Any], step: int) -> Breakdown:
    """
    Split one step of a trace, as the host's annotation bounds it, by what the GPU did.

    Args:
        trace: As `torch.profiler` exports it, one GPU; its events are in no order.
        step: The number in the name of the annotation.

    Raises:
        ValueError: no step is annotated, or not this one; the message names "step".
    """
    # cut to the step
    start, end = _window(trace["traceEvents"], step)
    compute: list[Span] = []
    comm: list[Span] = []
    for event in trace["traceEvents"]:
        if event.get("cat") in GPU_WORK:
            span = max(start, event["ts"]), min(end, event["ts"] + event["dur"])
            (comm if event["name"].startswith(COMM) else compute).append(span)
    # union of intervals
    compute_us, comm_us, busy_us = (_covered(spans) for spans in (compute, comm, compute + comm))
    total_us = end - start
    return Breakdown(
        compute=compute_us / 1e6,
        comm=comm_us / 1e6,
        exposed=(busy_us - compute_us) / 1e6,
        idle=(total_us - busy_us) / 1e6,
        total=total_us / 1e6,
    )


def predict(
    params: int,
    bytes_per_el: int,
    t_compute_per_sample: float,
    batch: int,
    world: int,
    profile: Profile,
    bucket_bytes: int,
) -> Breakdown:
    """
    Predict a step of data-parallel training whose gradients are all-reduced bucket by bucket.

    A third of the compute time is the forward pass. In the rest the backward pass makes gradients
    at a steady rate. A bucket starts once it is full and the one before is through, and takes a
    ring all-reduce: 2 (n - 1) / n of its bytes over the link, and 2 (n - 1) latencies.

    Args:
        params: Gradients, one each.
        bytes_per_el: Of a gradient.
        t_compute_per_sample: Seconds of forward and backward for one sample.
        batch: Samples that a rank computes.
        world: Ranks; one of them communicates nothing.
        profile: Whose link it is.
        bucket_bytes: Of every bucket but the last, which holds the rest.

    Raises:
        ValueError: a number is below 1, or `t_compute_per_sample` not above 0; the message names
            it.
    """
    # check
    _check_at_least_1(
        params=params,
        bytes_per_el=bytes_per_el,
        batch=batch,
        world=world,
        bucket_bytes=bucket_bytes,
    )
    if not t_compute_per_sample > 0:
        raise ValueError(
            f"t_compute_per_sample: expected more than 0, found {t_compute_per_sample}"
        )
    # compute time
    compute_s = batch * t_compute_per_sample
    if world == 1:
        return Breakdown(compute=compute_s, comm=0.0, exposed=0.0, idle=0.0, total=compute_s)
    # bucket after bucket
    size = params * bytes_per_el
    done_s = comm_s = 0.0
    for first in range(0, size, bucket_bytes):
        last = min(first + bucket_bytes, size)
        ready_s = compute_s * (1 + 2 * last / size) / 3
        ring_s = _ring_s(last - first, world, profile)
        done_s = max(done_s, ready_s) + ring_s
        comm_s += ring_s
    return Breakdown(
        compute=compute_s, comm=comm_s, exposed=done_s - compute_s, idle=0.0, total=done_s
    )


def break_even_batch(
    params: int,
    bytes_per_el: int,
    t_compute_per_sample: float,
    world: int,
    profile: Profile,
    bucket_bytes: int,
    share: float = 0.05,
) -> int:
    """
    Smallest batch per rank whose step is exposed to communication for at most `share` of its time.

    Calls `predict` at most 40 times for batches up to 2**20.

    Raises:
        ValueError: `share` is not above 0 and at most 1; what `predict` refuses.
    """
    # check
    if not 0 < share <= 1:
        raise ValueError(f"share: expected above 0 and at most 1, found {share}")

    # search the batch
    def hidden(batch: int) -> bool:
        found = predict(
            params, bytes_per_el, t_compute_per_sample, batch, world, profile, bucket_bytes
        )
        return found.exposed <= share * found.total

    # the share falls as the batch grows: double until it is small enough, then bisect
    enough = 1
    while not hidden(enough):
        enough *= 2
    return 1 + enough // 2 + bisect_left(range(enough // 2 + 1, enough), True, key=hidden)


def _window(events: Iterable[Mapping[str, Any]], step: int) -> Span:
    """When the host's annotation of `step` begins and ends."""
    name = f"{STEP}{step}"
    for event in events:
        if event.get("cat") == "user_annotation" and event["name"] == name:
            return event["ts"], event["ts"] + event["dur"]
    raise ValueError(f"step: expected an annotation {name}, found none")


def _covered(spans: list[Span]) -> float:
    """How long at least one of `spans` lasted; one that ends before it starts does not count."""
    covered, done = 0.0, -math.inf
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, done))
        done = max(done, end)
    return covered


def _ring_s(size: int, world: int, profile: Profile) -> float:
    """Seconds of a ring all-reduce of `size` bytes."""
    sent = 2 * (world - 1) / world * size
    return sent / profile.link_bandwidth + 2 * (world - 1) * profile.link_latency_s


def _check_at_least_1(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name}: expected 1 or more, found {number}")
