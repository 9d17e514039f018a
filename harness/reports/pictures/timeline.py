"""A program of a Gluon kernel as it ran: its partitions, and what was in flight when."""

import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

RUNS, WAITS = "runs", "waits"  # what a partition does; all else is in flight


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """
    Something that took from step `start` to step `end` of its program.

    Attributes:
        lane: The partition, or what is in flight: "TMA load", "wgmma", …
        kind: `RUNS` or `WAITS` of a partition, a function such as "exp2", or as the lane.
        start: Steps are operations of the program's partitions, in the order in which they ran.
        end: The same as `start` where nothing else happened meanwhile.
        label: What it is about: the shared memory, or the barrier that is waited for.
        where: File and line; "" for what a partition does between two waits.
        source: The text of the line.
    """

    lane: str
    kind: str
    start: int
    end: int
    label: str = ""
    where: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """
    One program.

    Attributes:
        kernel: Its name.
        index: Which program of the grid.
        programs: How many there were, all launches together.
        steps: How many it took.
        lanes: In the order in which they are drawn.
        spans: In the order in which they began.
        overlaps: Shares of what all programs did, in words, such as "exp2 under wgmma".
        bytes_in_flight: At a wait for data, on average over all programs.
    """

    kernel: str
    index: tuple[int, ...]
    programs: int
    steps: int
    lanes: tuple[str, ...]
    spans: tuple[Span, ...]
    overlaps: dict[str, float]
    bytes_in_flight: float

    def as_json(self) -> str:
        """For another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Timeline":
        """What `as_json` made."""
        data: dict[str, Any] = json.loads(text)
        spans = tuple(Span(**one) for one in data.pop("spans"))
        index, lanes = tuple(data.pop("index")), tuple(data.pop("lanes"))
        return cls(**data, index=index, lanes=lanes, spans=spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineOfSpans:
    """The spans of one kind that one line of the source makes."""

    where: str
    source: str
    kind: str
    count: int
    steps: float


def lines_of(found: Timeline) -> list[LineOfSpans]:
    """What each line had in flight or waited for, in the order of the source."""
    groups: dict[tuple[str, str, str], list[Span]] = defaultdict(list)
    for span in found.spans:
        if span.where:
            groups[span.where, span.kind, span.source].append(span)
    ordered = sorted(groups.items(), key=lambda one: _place(one[0][0]))
    return [
        LineOfSpans(
            where=where,
            source=source,
            kind=kind,
            count=len(spans),
            steps=sum(span.end - span.start for span in spans) / len(spans),
        )
        for (where, kind, source), spans in ordered
    ]


def _place(where: str) -> tuple[str, int]:
    file, _, line = where.partition(":")
    return file, int(line)


def stacked(spans: list[Span]) -> list[tuple[int, Span]]:
    """Each span with the row that it has to itself, of as few as there are at once."""
    free: list[int] = []  # where each row ends
    placed = []
    for span in sorted(spans, key=lambda one: (one.start, one.end)):
        row = next((at for at, end in enumerate(free) if end <= span.start), len(free))
        free[row:] = [max(span.end, span.start + 1), *free[row + 1 :]]
        placed.append((row, span))
    return placed
