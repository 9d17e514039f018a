"""Kata week18/nsys_timeline_gaps: why the GPU was idle, asked of a profiler's database."""

import heapq
import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"
STRINGS = "StringIds"
REQUIRED = (KERNEL, RUNTIME, STRINGS)  # the profiler leaves other tables out if they have no rows

COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD"}  # of the column copyKind
KINDS = ("kernel", "memset", *COPY_KINDS.values())
CAUSES = ("sync bubble", "memcpy wait", "host work", "launch bound", "device", "unknown")
AWAY_NS = 50_000  # out of the API for longer, the host does something else


@dataclass(frozen=True, slots=True, order=True)
class Gap:
    """A time in which the GPU does nothing, from `start` to just before `end`, in nanoseconds."""

    start: int
    end: int


def gpu_gaps(db: sqlite3.Connection, min_ns: int = 0) -> list[Gap]:
    """
    Times of `min_ns` or more in which nothing runs, between the first activity and the last.

    Args:
        db: An export of Nsight Systems, which is only read.
        min_ns: The shortest gap that counts.

    Raises:
        ValueError: a table is missing, or `min_ns` is negative; the message begins with its name.
    """
    # check
    if min_ns < 0:
        raise ValueError(f"min_ns: expected 0 or more, found {min_ns}")
    # merge activities
    busy = _union((one.start, one.end) for one in _activities(db))
    gaps = (Gap(end, start) for (_, end), (start, _) in pairwise(busy))
    return [gap for gap in gaps if gap.end - gap.start >= min_ns]


def explain(db: sqlite3.Connection, gap: Gap) -> str:
    """
    Which of `CAUSES` made the GPU wait in a gap.

    Raises:
        ValueError: a table is missing, or no activity begins where the gap ends; the message
            begins with its name, or with ``gap``.
    """
    # cause of a gap
    activities = _activities(db)
    calls = _Calls(db)
    ended_by = _first_by_start(activities)
    if gap.end not in ended_by:
        raise ValueError(f"gap: expected an activity that begins at {gap.end}, found none")
    return calls.cause(gap, ended_by[gap.end])


def overlap(db: sqlite3.Connection, kind_a: str, kind_b: str) -> float:
    """
    Time in which both of two `KINDS` run, as a share of the one that runs for less time.

    Raises:
        ValueError: a kind is unknown, or a table missing; the message begins with its name.
    """
    # check
    for name, kind in (("kind_a", kind_a), ("kind_b", kind_b)):
        if kind not in KINDS:
            raise ValueError(f"{name}: expected one of {', '.join(KINDS)}, found {kind!r}")
    # overlap
    activities = _activities(db)
    times_a, times_b = (
        _total(_union((one.start, one.end) for one in activities if one.kind == kind))
        for kind in (kind_a, kind_b)
    )
    either = _total(
        _union((one.start, one.end) for one in activities if one.kind in (kind_a, kind_b))
    )
    fewer = min(times_a, times_b)
    return (times_a + times_b - either) / fewer if fewer else 0.0


def launch_latency(db: sqlite3.Connection) -> tuple[float, int] | None:
    """
    Median and 95th percentile of the time from a call to its first kernel, in nanoseconds.

    None where no kernel has its call.

    Raises:
        ValueError: a table is missing; the message begins with its name.
    """
    first: dict[int, int] = {}
    for correlation, start in _rows(db, KERNEL, "correlationId, start"):
        first[correlation] = min(start, first.get(correlation, start))
    called = _rows(db, RUNTIME, "correlationId, start")
    latencies = sorted(first[id_] - start for id_, start in called if id_ in first)
    if not latencies:
        return None
    return median(latencies), latencies[-(-95 * len(latencies) // 100) - 1]


def report(db: sqlite3.Connection) -> dict[str, object]:
    """
    Where the time went: span, busy, idle, and idle time by cause and by NVTX range.

    Raises:
        ValueError: a table is missing; the message begins with its name.
    """
    # idle time by cause and range
    activities = _activities(db)
    calls = _Calls(db)
    ended_by = _first_by_start(activities)
    busy = _union((one.start, one.end) for one in activities)
    gaps = [Gap(end, start) for (_, end), (start, _) in pairwise(busy)]
    ranges = calls.ranges([ended_by[gap.end] for gap in gaps])
    by_cause: dict[str, int] = {}
    by_range: dict[str, int] = {}
    for gap in gaps:
        correlation = ended_by[gap.end]
        cause, text = calls.cause(gap, correlation), ranges.get(correlation, "")
        by_cause[cause] = by_cause.get(cause, 0) + gap.end - gap.start
        by_range[text] = by_range.get(text, 0) + gap.end - gap.start
    span_ns = busy[-1][1] - busy[0][0] if busy else 0
    busy_ns = _total(busy)
    return {
        "span_ns": span_ns,
        "busy_ns": busy_ns,
        "idle_ns": span_ns - busy_ns,
        "idle_by_cause": by_cause,
        "idle_by_range": by_range,
    }


@dataclass(frozen=True, slots=True)
class _Activity:
    """Something that the GPU does."""

    start: int
    end: int
    correlation: int
    kind: str


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of the API, and its place among the calls of its thread."""

    start: int
    end: int
    thread: int
    correlation: int
    name: str
    at: int


class _Calls:
    """What the host did, by thread."""

    def __init__(self, db: sqlite3.Connection) -> None:
        rows = _rows(db, RUNTIME, "start, end, globalTid, correlationId, nameId")
        strings = dict(_rows(db, STRINGS, "id, value"))
        self._threads: dict[int, list[_Call]] = defaultdict(list)
        self._calls: dict[int, _Call] = {}
        for start, end, thread, correlation, name in sorted(rows):
            mine = self._threads[thread]
            call = _Call(start, end, thread, correlation, strings[name], len(mine))
            mine.append(call)
            self._calls[correlation] = call
        self._copied: dict[int, int] = {}  # when the last copy of a call was done
        for end, correlation in _rows(db, MEMCPY, "end, correlationId"):
            self._copied[correlation] = max(end, self._copied.get(correlation, end))
        self._ranges = [
            (start, end, thread, strings[text_id] if text is None else text)
            for start, end, thread, text, text_id in _rows(
                db, NVTX, "start, end, globalTid, text, textId"
            )
            if end is not None
        ]

    def cause(self, gap: Gap, correlation: int) -> str:
        """Why the activity of this id began only at the end of the gap."""
        # cause of a gap
        call = self._calls.get(correlation)
        if call is None:
            return "unknown"
        if call.end <= gap.start:
            return "device"
        away_since = gap.start
        for at in range(call.at - 1, -1, -1):
            other = self._threads[call.thread][at]
            if other.end < gap.start:
                break
            if "Synchronize" in other.name:
                return "sync bubble"
            if "Memcpy" in other.name and self._waited_for(other):
                return "memcpy wait"
            away_since = max(away_since, other.end)
        return "host work" if call.start - away_since > AWAY_NS else "launch bound"

    def ranges(self, correlations: Iterable[int]) -> dict[int, str]:
        """For each call the innermost range of its thread in which it began, if there is one."""
        # idle time by cause and range
        calls = [self._calls[one] for one in correlations if one in self._calls]
        later = sorted(self._ranges, reverse=True)  # those that are still to begin
        open_ranges = defaultdict(list)  # of each thread: the one that began last first
        found = {}
        for call in sorted(calls, key=lambda call: call.start):
            while later and later[-1][0] <= call.start:
                start, end, thread, text = later.pop()
                heapq.heappush(open_ranges[thread], (-start, end, text))
            mine = open_ranges[call.thread]
            while mine and mine[0][1] <= call.start:
                heapq.heappop(mine)
            if mine:
                found[call.correlation] = mine[0][2]
        return found

    def _waited_for(self, call: _Call) -> bool:
        """Whether there are copies of a call, and all were done when it returned."""
        return call.correlation in self._copied and self._copied[call.correlation] <= call.end


def _activities(db: sqlite3.Connection) -> list[_Activity]:
    """All that takes the GPU's time, of all streams."""
    rows = [(*row, "kernel") for row in _rows(db, KERNEL, "start, end, correlationId")]
    rows += [(*row, "memset") for row in _rows(db, MEMSET, "start, end, correlationId")]
    rows += [
        (start, end, correlation, COPY_KINDS.get(kind, "other"))
        for start, end, correlation, kind in _rows(
            db, MEMCPY, "start, end, correlationId, copyKind"
        )
    ]
    return [_Activity(*row) for row in rows if row[0] < row[1]]


def _first_by_start(activities: list[_Activity]) -> dict[int, int]:
    """For each time at which activities begin, the least of their ids."""
    first: dict[int, int] = {}
    for one in activities:
        first[one.start] = min(one.correlation, first.get(one.start, one.correlation))
    return first


def _union(times: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Start and end of each time in which at least one of them runs, with a gap between any two."""
    # merge activities
    merged: list[list[int]] = []
    for start, end in sorted(times):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def _total(times: list[list[int]]) -> int:
    return sum(end - start for start, end in times)


def _rows(db: sqlite3.Connection, table: str, columns: str) -> list[tuple]:
    known = db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    if known is None and table in REQUIRED:
        raise ValueError(f"{table}: expected this table, found none")
    return db.execute(f"SELECT {columns} FROM {table}").fetchall() if known else []  # noqa: S608
