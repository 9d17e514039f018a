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
    # TODO(kata): cut to the step, union of intervals (about 30 lines with helpers)
    raise NotImplementedError


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
    # TODO(kata): check, compute time, bucket after bucket (about 30 lines with helpers)
    raise NotImplementedError


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
    raise NotImplementedError  # TODO(kata): check, search the batch (about 10 lines)
