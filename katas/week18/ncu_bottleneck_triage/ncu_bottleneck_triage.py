"""Kata week18/ncu_bottleneck_triage: what holds a kernel back, from the counters of its report."""

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
    # TODO(kata): shares of the whole duration (about 30 lines with helpers)
    raise NotImplementedError


def classify(k: Launch, profile: Profile) -> Bottleneck:
    """
    What holds the kernel back.

    Raises:
        ValueError: a metric is missing; the message names it and its section.
    """
    raise NotImplementedError  # TODO(kata): headlines, limiting unit (about 10 lines with helpers)


def headroom(k: Launch, profile: Profile) -> float:
    """
    How many times faster the same work can be before the next limit, 1 at least.

    Raises:
        ValueError: a metric is missing; the message names it and its section.
    """
    raise NotImplementedError  # TODO(kata): headroom (about 6 lines)


def triage(launches: Sequence[Launch], profile: Profile) -> dict[Bottleneck, float]:
    """
    Share of the total time that launches of each verdict take, the largest first.

    Raises:
        ValueError: there are no launches, or a metric is missing.
    """
    raise NotImplementedError  # TODO(kata): time by verdict (about 10 lines)


def ncu_argv(
    kernel_regex: str, skip: int, count: int, sections: Sequence[str], out: str
) -> list[str]:
    """
    Command line that profiles `count` launches of the kernels named so, after the first `skip`.

    Raises:
        ValueError: `skip` is negative, `count` not positive, or there are no sections.
    """
    raise NotImplementedError  # TODO(kata): command line (about 15 lines)
