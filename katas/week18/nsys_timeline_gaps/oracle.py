"""What is right: every nanosecond looked at, and timelines whose gaps have a known cause."""

import csv
import sqlite3
from pathlib import Path

DATA = Path(__file__).with_name("data")
COPIES = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "PtoP": 10}
TABLES = {
    "StringIds": "id INTEGER, value TEXT",
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, "
        "globalPid INTEGER, shortName INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, "
        "globalPid INTEGER, bytes INTEGER, copyKind INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (
        "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, "
        "globalPid INTEGER, bytes INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, "
        "correlationId INTEGER, nameId INTEGER, returnValue INTEGER"
    ),
    "NVTX_EVENTS": (
        "start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, "
        "textId INTEGER"
    ),
}
ALWAYS = ("StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME")


class Timeline:
    """A timeline to be written down event by event, and turned into a database."""

    def __init__(self, offset=1_790_857_026_000_000_000):
        self._offset = offset
        self._strings = {}
        self._rows = {table: [] for table in TABLES}
        self.activities = []  # (start, end, kind)

    def kernel(self, start, end, correlation, stream=7, name="kernel"):
        self.activities.append((start, end, "kernel"))
        self._add("KERNEL", start, end, 0, stream, correlation, 1, self._string(name))

    def copy(self, start, end, correlation, kind="HtoD", stream=7, size=4):
        self.activities.append((start, end, kind))
        self._add("MEMCPY", start, end, 0, stream, correlation, 1, size, COPIES[kind])

    def memset(self, start, end, correlation, stream=7):
        self.activities.append((start, end, "memset"))
        self._add("MEMSET", start, end, 0, stream, correlation, 1, 4)

    def call(self, start, end, correlation, name="cudaLaunchKernel_v7000", thread=1):
        self._add("RUNTIME", start, end, 0, thread, correlation, self._string(name), 0)

    def nvtx(self, start, end, text, thread=1, by_id=False):
        """A range, or a mark where `end` is None; its text as itself or as the id of a string."""
        texts = (None, thread, self._string(text)) if by_id else (text, thread, None)
        end = None if end is None else end + self._offset
        kind = 34 if end is None else 59
        row = (start + self._offset, end, kind, *texts)
        self._rows["NVTX_EVENTS"].append(row)

    def database(self, without=()):
        """Only read, and without the tables that have no rows, as the profiler leaves them out."""
        db = sqlite3.connect(":memory:")
        self._rows["StringIds"] = [(number, text) for text, number in self._strings.items()]
        for table, columns in TABLES.items():
            if table in without or not (self._rows[table] or table in ALWAYS):
                continue
            db.execute(f"CREATE TABLE {table} ({columns})")
            marks = ", ".join("?" * (columns.count(",") + 1))
            # in no order, as in an export
            rows = sorted(self._rows[table], key=lambda row: row[0] * 31 % 1009)
            insert = f"INSERT INTO {table} VALUES ({marks})"  # noqa: S608
            db.executemany(insert, rows)
        db.commit()
        db.execute("PRAGMA query_only = ON")
        return db

    def _add(self, table, start, end, *row):
        times = (start + self._offset, end + self._offset)
        self._rows[f"CUPTI_ACTIVITY_KIND_{table}"].append((*times, *row))

    def _string(self, text):
        return self._strings.setdefault(text, 100 + 3 * len(self._strings))


def captured(name):
    """The timeline of a capture in `data/`."""
    timeline = Timeline()
    with (DATA / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            times = int(row["start"]), int(row["end"])
            if row["kind"] == "nvtx":
                timeline.nvtx(*times, row["name"])
                continue
            where = (*times, int(row["correlation"]))
            if row["kind"] == "call":
                timeline.call(*where, f"{row['name']}_v3020")
            elif row["kind"] == "kernel":
                timeline.kernel(*where, int(row["stream"]), row["name"])
            elif row["kind"] == "memset":
                timeline.memset(*where, int(row["stream"]))
            else:
                timeline.copy(*where, row["name"], int(row["stream"]), int(row["bytes"]))
    return timeline


# ---- every nanosecond ----------------------------------------------------------------------


def busy(activities, *kinds):
    """The nanoseconds in which activities of these kinds run, or of any."""
    return {
        t
        for start, end, kind in activities
        if not kinds or kind in kinds
        for t in range(start, end)
    }


def gaps(activities, offset=1_790_857_026_000_000_000):
    """(start, end) of each gap."""
    at = busy(activities)
    found, since = [], None
    for t in range(min(at, default=0), max(at, default=0) + 1):
        if t not in at and since is None:
            since = t
        if t in at and since is not None:
            found.append((since + offset, t + offset))
            since = None
    return found


def shared(activities, kind_a, kind_b):
    a, b = busy(activities, kind_a), busy(activities, kind_b)
    return len(a & b) / min(len(a), len(b)) if a and b else 0.0


def random_timeline(draw, n):
    """Activities of many kinds on few streams, close together, some of no length."""
    timeline = Timeline()
    for number in range(n):
        start = draw.randrange(12 * n)
        end = start + draw.choice((0, 1, 1, 3, 10))
        kind = draw.choice(("kernel", "kernel", "memset", *COPIES))
        if kind == "kernel":
            timeline.kernel(start, end, number, stream=draw.choice((7, 13)))
        elif kind == "memset":
            timeline.memset(start, end, number)
        else:
            timeline.copy(start, end, number, kind)
    return timeline


# ---- gaps with a cause ---------------------------------------------------------------------


def planted(draw, n):
    """A timeline of `n` gaps, and for each gap its length, its cause and its innermost range."""
    timeline, expected, done = Timeline(), [], 0
    for number in range(0, 10 * n, 10):
        thread = draw.choice((1, 2))
        # whatever came before, the GPU is busy for a while, and the host is ahead
        start, done = done, done + 200_000
        timeline.kernel(start, done, number)
        cause, own = draw.choice([*SCENARIOS]), number + 9
        calls, copy_ns, call_start, latency = SCENARIOS[cause]
        if copy_ns:
            timeline.copy(done, done + copy_ns, number + 1, "DtoH", stream=13)
        for at, (begin, end, name) in enumerate(calls, number + 1):
            timeline.call(done + begin, done + end, at, name, thread)
        jitter = draw.randint(0, 90)
        begin = done + call_start + jitter
        first = begin + latency + draw.randint(0, 400)
        text = draw.choice(("", "forward", "backward"))
        if cause != "unknown":
            timeline.call(begin, begin + 4000, own, thread=thread)
        if cause == "unknown" or not text:
            text = ""
        else:
            timeline.nvtx(begin - 100_000, begin + 5000, "step", thread)
            timeline.nvtx(begin - jitter, begin + 1, text, thread, by_id=draw.random() < 0.5)
            timeline.nvtx(begin - 1, begin + 1, "somebody else's", thread + 5)
        expected.append((first - done - copy_ns, cause, text))
        done = first + draw.choice((1000, 3000))
        timeline.kernel(first, done, own, stream=draw.choice((7, 13)))
    return timeline, expected


RECORD = "cudaEventRecordWithFlags_v11010"
# from the time at which the GPU is done with what came before: calls, a copy that follows at
# once, when the call is made whose kernel ends the gap, and how long that kernel takes to begin
SCENARIOS = {
    "sync bubble": ([(-90_000, 300, "cudaStreamSynchronize_v3020")], 0, 3000, 2500),
    "memcpy wait": ([(-90_000, 2600, "cudaMemcpy_v3020")], 2000, 5000, 2500),
    "host work": ([(-9000, -8000, RECORD), (2000, 3000, RECORD)], 0, 70_000, 2500),
    "launch bound": ([(-70_000, -60_000, RECORD), (900, 3000, RECORD)], 0, 9000, 2500),
    "device": ([(-70_000, -60_000, RECORD)], 0, -40_000, 41_000),
    "unknown": ([(-90_000, 300, "cudaStreamSynchronize_v3020")], 0, 3000, 2500),
}
