"""Kata week18/nsys_timeline_gaps: why the GPU was idle, asked of a profiler's database."""

import sqlite3
from dataclasses import dataclass

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
    raise NotImplementedError  # TODO(kata): check, merge activities (about 35 lines with helpers)


def explain(db: sqlite3.Connection, gap: Gap) -> str:
    """
    Which of `CAUSES` made the GPU wait in a gap.

    Raises:
        ValueError: a table is missing, or no activity begins where the gap ends; the message
            begins with its name, or with ``gap``.
    """
    # TODO(kata): cause of a gap, idle time by cause and range (about 75 lines with helpers)
    raise NotImplementedError


def overlap(db: sqlite3.Connection, kind_a: str, kind_b: str) -> float:
    """
    Time in which both of two `KINDS` run, as a share of the one that runs for less time.

    Raises:
        ValueError: a kind is unknown, or a table missing; the message begins with its name.
    """
    raise NotImplementedError  # TODO(kata): check, overlap (about 15 lines with helpers)


def launch_latency(db: sqlite3.Connection) -> tuple[float, int] | None:
    """
    Median and 95th percentile of the time from a call to its first kernel, in nanoseconds.

    None where no kernel has its call.

    Raises:
        ValueError: a table is missing; the message begins with its name.
    """
    raise NotImplementedError  # TODO(kata): latency of first kernels (about 8 lines)


def report(db: sqlite3.Connection) -> dict[str, object]:
    """
    Where the time went: span, busy, idle, and idle time by cause and by NVTX range.

    Raises:
        ValueError: a table is missing; the message begins with its name.
    """
    raise NotImplementedError  # TODO(kata): idle time by cause and range (about 20 lines)
