"""Kata week14/ncu_stall_verdict: two numbers from the profiler's counters, and what follows."""

import csv
import re
from collections import defaultdict
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
    # read the table
    rows = csv.reader(line for line in lines if not line.startswith("=="))
    table = (row for row in rows if row)
    header = next(table, [])
    units = next(table, [])
    # units
    factors = {
        name: _factor(name, unit) for name, unit in zip(header, units, strict=False) if "__" in name
    }
    return [
        {
            name: _value(cell, factors[name]) if name in factors else cell
            for name, cell in zip(header, row, strict=False)
            if name not in factors or cell not in ("", "n/a")
        }
        for row in table
    ]


def achieved_bandwidth(launches: Sequence[Launch], profile: Profile) -> tuple[float, float]:
    """
    Bytes per second to and from DRAM over all launches, and that as a share of the peak.

    Raises:
        ValueError: there are no launches, or a metric is missing; the message names it.
    """
    moved = _total(launches, "dram__bytes_read.sum") + _total(launches, "dram__bytes_write.sum")
    bytes_per_s = moved / _total(launches, "gpu__time_duration.sum")
    return bytes_per_s, bytes_per_s / profile.bandwidth


def stall_breakdown(launches: Sequence[Launch]) -> dict[str, float]:
    """
    Share of each reason in the cycles that warps spent stalled, over all launches.

    Reasons are named as in the metric, "long_scoreboard" for one; "selected" is none. The shares
    add up to 1, or are all 0 where nothing stalled.

    Raises:
        ValueError: there are no launches, or a metric is missing; the message names it.
    """
    # reasons
    _check_some(launches)
    found = (_STALLED.fullmatch(name) for launch in launches for name in launch)
    metrics = {match[1]: match[0] for match in found if match and match[1] != "selected"}
    if not metrics:
        raise ValueError("smsp__average_warps_issue_stalled_*: missing, apart from selected")
    # stall shares
    stalled = defaultdict(float)
    for launch in launches:
        # the metric is an average for each instruction issued
        issued = _metric(launch, "smsp__inst_executed.sum")
        for reason, name in metrics.items():
            stalled[reason] += issued * _metric(launch, name)
    total = sum(stalled.values())
    return {reason: cycles / total if total else 0.0 for reason, cycles in stalled.items()}


def verdict(before: Sequence[Launch], after: Sequence[Launch], profile: Profile) -> str:
    """
    What holds `after` back, if it takes another time than `before`.

    "no change" where the mean time of a launch differs by at most `SAME_TIME` of that before; else
    "bandwidth" from `NEAR_PEAK` of the peak on; else "barrier" where more cycles are stalled at
    barriers than for any other reason; else "latency".

    Raises:
        ValueError: there are no launches, or a metric is missing; the message names it.
    """
    # verdict
    old, new = (
        _total(launches, "gpu__time_duration.sum") / len(launches) for launches in (before, after)
    )
    if abs(new - old) <= SAME_TIME * old:
        return "no change"
    if achieved_bandwidth(after, profile)[1] >= NEAR_PEAK:
        return "bandwidth"
    shares = stall_breakdown(after)
    at_barriers = shares.pop("barrier", 0.0)
    return "barrier" if at_barriers > max(shares.values(), default=0.0) else "latency"


_STALLED = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")


def _factor(name: str, unit: str) -> float:
    """What a value in this unit is multiplied by; both sides of a slash have a prefix."""
    # units
    above, _, below = unit.partition("/")
    if above not in _UNITS or below not in _UNITS:
        raise ValueError(f"{name}: expected a known unit, found {unit!r}")
    return _UNITS[above] / _UNITS[below]


_UNITS = (
    dict.fromkeys(COUNTS, 1.0)
    | {"%": 0.01}
    | {
        prefix + unit: factor
        for unit in ("byte", "hz")
        for prefix, factor in (("", 1.0), ("K", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))
    }
    | {
        prefix + unit: factor
        for unit in ("s", "second")
        for prefix, factor in (("", 1.0), ("m", 1e-3), ("u", 1e-6), ("n", 1e-9))
    }
)


def _value(cell: str, factor: float) -> float | str:
    try:
        return float(cell.replace(",", "")) * factor
    except ValueError:
        return cell  # a name, such as that of the device


def _check_some(launches: Sequence[Launch]) -> None:
    if not launches:
        raise ValueError("launches: expected one or more, found none")


def _total(launches: Sequence[Launch], name: str) -> float:
    _check_some(launches)
    return sum(_metric(launch, name) for launch in launches)


def _metric(launch: Launch, name: str) -> float:
    if name not in launch:
        raise ValueError(f"{name}: missing in a launch of {launch.get('Kernel Name')}")
    return launch[name]
