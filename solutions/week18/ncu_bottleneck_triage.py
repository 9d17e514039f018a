"""Kata week18/ncu_bottleneck_triage: what holds a kernel back, from the counters of its report."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.hardware import Profile

# one launch of a kernel: its metrics in base units, percentages as fractions, and text
Launch = dict[str, float | str]

BUSY = 0.6  # from this share of its peak on, a unit is what a kernel waits for
SHORT = 2.5  # launch floors: a kernel that takes less is mostly launched

MEMORY = ("dram", "l2", "l1")  # from the outermost level inwards
COMPUTE = ("issue", "alu", "fma", "tensor", "xu")

# the metrics to use, and the section of the profiler that collects each
SECTIONS = {
    "gpu__time_duration.sum": "SpeedOfLight",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "SpeedOfLight",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "SpeedOfLight",
    "dram__bytes_read.sum": "MemoryWorkloadAnalysis_Tables",
    "dram__bytes_write.sum": "MemoryWorkloadAnalysis_Tables",
    "dram__bytes.sum.peak_sustained": "SpeedOfLight_RooflineChart",
    "dram__cycles_elapsed.avg.per_second": "SpeedOfLight",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "SpeedOfLight",
    "l1tex__throughput.avg.pct_of_peak_sustained_active": "SpeedOfLight",
    "l1tex__cycles_active.avg": "WorkloadDistribution",
    "l1tex__cycles_elapsed.avg": "WorkloadDistribution",
    "smsp__inst_issued.sum": "InstructionStats",
    "smsp__cycles_elapsed.sum": "WorkloadDistribution",
    "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active": "ComputeWorkloadAnalysis",
    "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active": "ComputeWorkloadAnalysis",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": "ComputeWorkloadAnalysis",
    "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active": "ComputeWorkloadAnalysis",
    "sm__cycles_active.avg": "WorkloadDistribution",
    "sm__cycles_elapsed.avg": "WorkloadDistribution",
}


@dataclass(frozen=True)
class Bottleneck:
    """Kind "bandwidth", "compute", "latency" or "launch"; a unit for the first two, else None."""

    kind: str
    unit: str | None = None


def sol(k: Launch) -> dict[str, float]:
    """
    Speed of light: what share of its peak each unit reached, over the kernel's whole duration.

    Returns:
        Fractions for "sm" and "memory" (the profiler's two headlines), and for each of `MEMORY`
        and `COMPUTE`.

    Raises:
        ValueError: a metric is missing; the message names it and its section.
    """
    # shares of the whole duration
    moved = _metric(k, "dram__bytes_read.sum") + _metric(k, "dram__bytes_write.sum")
    # bytes a cycle times cycles a second, of the memory's own clock
    bytes_per_s = _metric(k, "dram__bytes.sum.peak_sustained") * _metric(
        k, "dram__cycles_elapsed.avg.per_second"
    )
    l1 = _metric(k, "l1tex__throughput.avg.pct_of_peak_sustained_active")
    l1_awake = _metric(k, "l1tex__cycles_active.avg") / _metric(k, "l1tex__cycles_elapsed.avg")
    sm_awake = _metric(k, "sm__cycles_active.avg") / _metric(k, "sm__cycles_elapsed.avg")
    pipes = {
        "alu": "sm__pipe_alu_cycles_active",
        "fma": "sm__pipe_fma_cycles_active",
        "tensor": "sm__pipe_tensor_cycles_active",
        "xu": "sm__inst_executed_pipe_xu",
    }
    return {
        "sm": _metric(k, "sm__throughput.avg.pct_of_peak_sustained_elapsed"),
        "memory": _metric(k, "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"),
        "dram": moved / (bytes_per_s * _metric(k, "gpu__time_duration.sum") * 1e-9),
        "l2": _metric(k, "lts__throughput.avg.pct_of_peak_sustained_elapsed"),
        "l1": l1 * l1_awake,
        "issue": _metric(k, "smsp__inst_issued.sum") / _metric(k, "smsp__cycles_elapsed.sum"),
        **{
            pipe: sm_awake * _metric(k, f"{metric}.avg.pct_of_peak_sustained_active")
            for pipe, metric in pipes.items()
        },
    }


def classify(k: Launch, profile: Profile) -> Bottleneck:
    """
    What holds the kernel back.

    Raises:
        ValueError: a metric is missing; the message names it and its section.
    """
    # headlines
    shares = sol(k)
    if max(shares["sm"], shares["memory"]) < BUSY:
        short = SHORT * profile.launch_s
        return Bottleneck("launch" if _seconds(k) < short else "latency")
    # limiting unit
    if shares["sm"] > shares["memory"]:
        return Bottleneck("compute", max(COMPUTE, key=shares.__getitem__))
    # what passes an outer level keeps the inner ones busy, too
    busy = [unit for unit in MEMORY if shares[unit] >= BUSY]
    return Bottleneck("bandwidth", busy[0] if busy else max(MEMORY, key=shares.__getitem__))


def headroom(k: Launch, profile: Profile) -> float:
    """
    How many times faster the same work can be before the next limit, 1 at least.

    Raises:
        ValueError: a metric is missing; the message names it and its section.
    """
    limit = classify(k, profile)
    if limit.kind == "launch":
        return max(1.0, _seconds(k) / profile.launch_s)
    shares = sol(k)
    reached = shares[limit.unit] if limit.unit else max(shares["sm"], shares["memory"])
    return max(1.0, 1 / reached) if reached else math.inf


def triage(launches: Sequence[Launch], profile: Profile) -> dict[Bottleneck, float]:
    """
    Share of the total time that launches of each verdict take, the largest first.

    Raises:
        ValueError: there are no launches, or a metric is missing.
    """
    if not launches:
        raise ValueError("launches: expected one or more, found none")
    times: dict[Bottleneck, float] = {}
    for k in launches:
        limit = classify(k, profile)
        times[limit] = times.get(limit, 0.0) + _seconds(k)
    total = sum(times.values())
    return {
        limit: time / total
        for limit, time in sorted(times.items(), key=lambda item: item[1], reverse=True)
    }


def ncu_argv(
    kernel_regex: str, skip: int, count: int, sections: Sequence[str], out: str
) -> list[str]:
    """
    Command line that profiles `count` launches of the kernels named so, after the first `skip`.

    Raises:
        ValueError: `skip` is negative, `count` not positive, or there are no sections.
    """
    if skip < 0:
        raise ValueError(f"skip: expected 0 or more, found {skip}")
    if count < 1:
        raise ValueError(f"count: expected 1 or more, found {count}")
    if not sections:
        raise ValueError("sections: expected one or more, found none")
    chosen = [word for section in sections for word in ("--section", section)]
    return [
        "ncu",
        *("--clock-control", "none"),  # others on the machine keep their clocks
        *("--kernel-name", f"regex:{kernel_regex}"),
        *("--launch-skip", str(skip)),
        *("--launch-count", str(count)),
        *chosen,
        *("--export", out),
    ]


def _metric(k: Launch, name: str) -> float:
    if name not in k:
        raise ValueError(f"{name}: missing; collect it with --section {SECTIONS[name]}")
    return k[name]


def _seconds(k: Launch) -> float:
    return _metric(k, "gpu__time_duration.sum") * 1e-9
