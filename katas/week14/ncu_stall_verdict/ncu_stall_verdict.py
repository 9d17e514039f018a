"""Kata week14/ncu_stall_verdict: two numbers from the profiler's counters, and what follows."""

from collections.abc import Iterable, Sequence

from harness.hardware import Profile

# one launch of a kernel: its metrics in SI units, and what else is said of it as text
Launch = dict[str, float | str]

# units of the raw page that count something, and stay as they are
COUNTS = frozenset(
    ["", "block", "branches", "cluster", "cycle", "inst", "pass", "register", "request", "sample"]
    + ["sector", "sectors", "SM", "thread", "warp"]
)
NEAR_PEAK = 0.6  # of the peak bandwidth: from here on fewer bytes help, and little else
SAME_TIME = 0.05  # of the time before


def parse_raw(lines: Iterable[str]) -> list[Launch]:
    """
    Launches of an export by `ncu --csv --page raw`, in the order of the file.

    Args:
        lines: An open file, or anything else that yields its lines; read once.

    Raises:
        ValueError: a metric has an unknown unit; the message names both.
    """
    raise NotImplementedError  # TODO(kata): read the table, units (about 40 lines with helpers)


def achieved_bandwidth(launches: Sequence[Launch], profile: Profile) -> tuple[float, float]:
    """
    Bytes per second to and from DRAM over all launches, and that as a share of the peak.

    Raises:
        ValueError: there are no launches, or a metric is missing; the message names it.
    """
    raise NotImplementedError  # TODO(kata): bandwidth (about 15 lines with helpers)


def stall_breakdown(launches: Sequence[Launch]) -> dict[str, float]:
    """
    Share of each reason in the cycles that warps spent stalled, over all launches.

    Reasons are named as in the metric, "long_scoreboard" for one; "selected" is none. The shares
    add up to 1, or are all 0 where nothing stalled.

    Raises:
        ValueError: there are no launches, or a metric is missing; the message names it.
    """
    raise NotImplementedError  # TODO(kata): reasons, stall shares (about 15 lines with helpers)


def verdict(before: Sequence[Launch], after: Sequence[Launch], profile: Profile) -> str:
    """
    What holds `after` back, if it takes another time than `before`.

    "no change" where the mean time of a launch differs by at most `SAME_TIME` of that before; else
    "bandwidth" from `NEAR_PEAK` of the peak on; else "barrier" where more cycles are stalled at
    barriers than for any other reason; else "latency".

    Raises:
        ValueError: there are no launches, or a metric is missing; the message names it.
    """
    raise NotImplementedError  # TODO(kata): verdict (about 10 lines)
