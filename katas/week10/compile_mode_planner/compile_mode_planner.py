"""Kata week10/compile_mode_planner: what each mode of torch.compile takes away, and its price."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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
    # TODO(kata): check, host and device clocks (about 20 lines with helpers)
    raise NotImplementedError


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
    raise NotImplementedError  # TODO(kata): check, time in the mode (about 15 lines)


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
    raise NotImplementedError  # TODO(kata): check, total of each mode, least total (about 15 lines)


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
    raise NotImplementedError  # TODO(kata): check, best last bucket (about 20 lines)
