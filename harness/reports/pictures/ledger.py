"""Accesses noted as they come, and binned into a recording at the end."""

import linecache
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.reports.pictures.recording import SECTOR_BYTES, ArrayMap, Line, Run

Integers = npt.NDArray[np.int64]

MOST_ROWS = 64  # more are no taller than a line of text
MOST_BINS = 512


@dataclass(slots=True, kw_only=True)
class Region:
    """
    An array in device memory that kernels were given, by the names they have for it.

    It takes bytes `start` to `end` of its allocation; sectors are counted from where that begins.
    """

    start: int
    end: int
    names: list[str]
    loaded: dict[int, Integers] = field(default_factory=dict)
    stored: dict[int, Integers] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What kernels call it; a buffer may be one's output and another's input."""
        return ", ".join(dict.fromkeys(self.names))

    def touch(self, unit: int, kind: str, sectors: Integers) -> None:
        """Note that a unit touched these sectors."""
        sides = {"load": (self.loaded,), "store": (self.stored,)}
        for side in sides.get(kind, (self.loaded, self.stored)):
            side[unit] = np.union1d(side.get(unit, sectors), sectors)


@dataclass(slots=True)
class Tally:
    """Requests of one line."""

    requests: int = 0
    sectors: int = 0
    least: int = 0
    bytes: int = 0


class Ledger:
    """
    What a run did to device memory.

    Attributes:
        regions: Arrays by a key of the recorder's choice for the allocation, first use first.
    """

    def __init__(self) -> None:
        self.regions: dict[int, Region] = {}
        self._lines: dict[tuple[str, int, str], Tally] = defaultdict(Tally)

    def region(self, key: int, name: str, start: int, end: int) -> None:
        """Make known that `name` is bytes `start` to `end` of the allocation `key`."""
        known = self.regions.setdefault(key, Region(start=start, end=end, names=[]))
        known.start, known.end = min(known.start, start), max(known.end, end)
        known.names.append(name)

    def request(
        self,
        place: tuple[str, int],
        kind: str,
        *,
        requests: int,
        sectors: int,
        least: int,
        size: int,
    ) -> None:
        """Note requests of one line of a file, for `size` bytes."""
        tally = self._lines[*place, kind]
        tally.requests += requests
        tally.sectors += sectors
        tally.least += least
        tally.bytes += size

    def lines(self) -> tuple[Line, ...]:
        """What each line asked for, in the order of the source."""
        return tuple(
            Line(
                where=f"{Path(file).name}:{line}",
                source=source_of(file, line),
                kind=kind,
                requests=tally.requests,
                sectors=tally.sectors,
                least=tally.least,
                bytes=tally.bytes,
            )
            for (file, line, kind), tally in sorted(self._lines.items())
        )

    def maps(self, order: Sequence[int]) -> tuple[ArrayMap, ...]:
        """
        Who touched what of each array that was touched at all.

        Args:
            order: The place of each unit in launch order.
        """
        touched = (one for one in self.regions.values() if one.loaded or one.stored)
        return tuple(_map_of(region, order) for region in touched)


def source_of(file: str, line: int) -> str:
    """A line of a source file, without what surrounds its code."""
    return linecache.getline(file, line).split("  #")[0].strip()


def units_per_row(units: int) -> int:
    """How many units share a row, so that there are no more rows than can be told apart."""
    return max(1, -(-units // MOST_ROWS))


def _map_of(region: Region, order: Sequence[int]) -> ArrayMap:
    size = region.end - region.start
    bin_sectors = max(1, -(-size // (SECTOR_BYTES * MOST_BINS)))
    bin_bytes = bin_sectors * SECTOR_BYTES
    first = region.start // SECTOR_BYTES
    before = region.start % SECTOR_BYTES  # bytes of the first sector that are not the array's
    per_row = units_per_row(len(order))

    def runs(side: dict[int, Integers]) -> tuple[Run, ...]:
        rows: dict[int, set[int]] = defaultdict(set)
        for unit, sectors in side.items():
            rows[order[unit] // per_row].update(((sectors - first) // bin_sectors).tolist())
        return tuple(
            Run(
                row=row,
                low=max(0, low * bin_bytes - before),
                high=min(size, high * bin_bytes - before),
            )
            for row in sorted(rows)
            for low, high in _stretches(sorted(rows[row]))
        )

    return ArrayMap(
        name=region.name,
        size_bytes=size,
        bin_bytes=bin_bytes,
        loads=runs(region.loaded),
        stores=runs(region.stored),
    )


def _stretches(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cut sorted numbers where one is missing: first, last + 1."""
    start = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
            yield numbers[start], numbers[at - 1] + 1
            start = at
