"""Kata week10/compile_mode_planner: what each mode of torch.compile takes away, and its price."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

MODES = (
    "eager",
    "default",
    "reduce-overhead",
    "max-autotune-no-cudagraphs",
    "max-autotune",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """
    One kernel of a call, in the order of one stream.

    The host is busy for `host_us` until the launch has returned; then the kernel may start, and
    runs for `kernel_us`. `tuned_us` is the time of the best kernel that autotuning finds, None
    where it does not search. With `wait` (`.item()`) the host goes on when the kernel has ended.
    """

    host_us: float
    kernel_us: float
    tuned_us: float | None = None
    wait: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStats:
    """
    One call, from the host's first moment to the end of the last kernel.

    `exposed_us` is how long the device has nothing to do, `tuning_us` what autotuning takes off
    `kernel_us`.
    """

    kernels: int
    host_us: float
    kernel_us: float
    span_us: float
    exposed_us: float
    tuning_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A CUDA graph: the launch of all of it, and the gap between two of its kernels."""

    launch_us: float
    gap_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeCost:
    """What a mode takes before it is fast: for a compilation, and for each shape that is called."""

    compile_us: float = 0
    shape_us: float = 0
    shape_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A mode, and how long all calls take with it, compilations included."""

    mode: str
    total_us: float


def launch_model(trace: Sequence[Launch]) -> TraceStats:
    """
    Follow host and device through one call.

    Raises:
        ValueError: the trace is empty, or a time in it is negative.
    """
    # check
    if not trace or any(min(launch.host_us, _tuned(launch)) < 0 for launch in trace):
        raise ValueError(f"trace: expected kernels with times of at least 0, found {list(trace)}")
    # host and device clocks
    host = device = 0
    for launch in trace:
        host += launch.host_us
        device = max(host, device) + launch.kernel_us
        if launch.wait:
            host = device
    kernel_us = sum(launch.kernel_us for launch in trace)
    return TraceStats(
        kernels=len(trace),
        host_us=sum(launch.host_us for launch in trace),
        kernel_us=kernel_us,
        span_us=device,
        exposed_us=device - kernel_us,
        tuning_us=kernel_us - sum(map(_tuned, trace)),
    )


def _tuned(launch: Launch) -> float:
    """The kernel's time after autotuning, which keeps what is faster."""
    if launch.tuned_us is None:
        return launch.kernel_us
    return min(launch.kernel_us, launch.tuned_us)


def predict(mode: str, eager: Sequence[Launch], fused: Sequence[Launch], graph: Graph) -> float:
    """
    Time of one call in a mode, compiled long ago, in microseconds.

    Args:
        mode: One of `MODES`.
        eager: What runs without torch.compile.
        fused: What Inductor launches instead, in every other mode.
        graph: What replaying costs, in the modes that record a CUDA graph.

    Returns:
        The time, or infinity where the mode needs a graph and the host waits within it.

    Raises:
        ValueError: the mode is unknown, or `launch_model` refuses the trace of this mode.
    """
    # check
    if mode not in MODES:
        raise ValueError(f"mode: expected one of {', '.join(MODES)}, found {mode!r}")
    # time in the mode
    if mode == "eager":
        return launch_model(eager).span_us
    stats = launch_model(fused)
    tuned = mode.startswith("max-autotune")
    if mode in ("reduce-overhead", "max-autotune"):
        if any(launch.wait for launch in fused):
            return math.inf
        kernel_us = stats.kernel_us - (stats.tuning_us if tuned else 0)
        return graph.launch_us + kernel_us + (stats.kernels - 1) * graph.gap_us
    if tuned:
        fused = [
            Launch(host_us=launch.host_us, kernel_us=_tuned(launch), wait=launch.wait)
            for launch in fused
        ]
    return launch_model(fused).span_us


def choose_mode(
    histogram: Mapping[int, int],
    call_us: Callable[[str, int], float],
    costs: Mapping[str, ModeCost],
    memory_bytes: float = math.inf,
) -> Choice:
    """
    The mode with which all calls finish first.

    Args:
        histogram: How many calls there will be of each shape.
        call_us: The time of one call, for a mode and a shape; infinity where that is impossible.
        costs: The modes to choose from, and what each costs beforehand.
        memory_bytes: What graphs may hold, those of all shapes together.

    Raises:
        ValueError: a count is negative, or no mode is possible.
    """
    # check
    if any(count < 0 for count in histogram.values()):
        raise ValueError(f"histogram: expected counts of at least 0, found {dict(histogram)}")
    # total of each mode
    calls = {shape: count for shape, count in histogram.items() if count}
    shapes = len(calls)
    choices = []
    for mode, cost in costs.items():
        total_us = cost.compile_us * min(shapes, 2) + cost.shape_us * shapes
        total_us += sum(count * call_us(mode, shape) for shape, count in calls.items())
        if total_us < math.inf and cost.shape_bytes * shapes <= memory_bytes:
            choices.append(Choice(mode=mode, total_us=total_us))
    # least total
    if not choices:
        raise ValueError(f"costs: expected a mode that is possible, found {', '.join(costs)}")
    return min(choices, key=lambda choice: choice.total_us)


def choose_buckets(histogram: Mapping[int, int], max_graphs: int) -> list[int]:
    """
    Lengths to record graphs for, ascending, so that padding costs least.

    Each call is padded to the next bucket, and takes as long as that is.

    Args:
        histogram: How many calls there will be of each length.
        max_graphs: How many buckets there may be.

    Raises:
        ValueError: `max_graphs` or a length is below 1, or a count is negative.
    """
    # check
    if max_graphs < 1:
        raise ValueError(f"max_graphs: expected at least 1, found {max_graphs}")
    if any(length < 1 or count < 0 for length, count in histogram.items()):
        raise ValueError(
            f"histogram: expected lengths of at least 1 and counts of at least 0, "
            f"found {dict(histogram)}"
        )
    # best last bucket
    lengths = sorted(length for length, count in histogram.items() if count)
    calls = list(accumulate(histogram[length] for length in lengths))
    # for each length the least padded work up to it, and the buckets that it takes
    every = range(len(lengths))
    best = [(calls[last] * lengths[last], [lengths[last]]) for last in every]

    def joined(first: int, last: int) -> tuple[int, list[int]]:
        """The best up to `first`, and one more bucket for all that is behind it."""
        work, buckets = best[first]
        bucket = lengths[last]
        return work + (calls[last] - calls[first]) * bucket, [*buckets, bucket]

    for _ in range(1, min(max_graphs, len(lengths))):
        best = [
            min((joined(first, last) for first in range(last)), default=best[last])
            for last in every
        ]
    return best[-1][1] if best else []
