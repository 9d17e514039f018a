"""What a recorded run of a kata's kernels is kept as: plain data, binned to be drawn."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

SECTOR_BYTES = 32
BANKS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchStart:
    """A launch: its kernel, the number of its first unit, and how many of them are a block."""

    kernel: str
    first: int
    per_block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Neighbouring bins that a row touched: bytes `low` to `high` from the array's start."""

    row: int
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayMap:
    """Which row touched what of one array in device memory; a bin is touched whole or not."""

    name: str
    size_bytes: int
    bin_bytes: int
    loads: tuple[Run, ...]
    stores: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """
    The requests to device memory that one line of the source makes.

    A request is one instruction of one program, or of one warp. `least` is the sectors that the
    distinct bytes asked for would fill, of all requests together. `bytes` is what they ask for, an
    element that several lanes want once for each of them.
    """

    where: str
    source: str
    kind: str
    requests: int
    sectors: int
    least: int
    bytes: int

    @property
    def sectors_per_request(self) -> float:
        """Sectors of the average request."""
        return self.sectors / self.requests

    @property
    def least_per_request(self) -> float:
        """Sectors of the average request, had it found its bytes side by side."""
        return self.least / self.requests


@dataclass(frozen=True, slots=True, kw_only=True)
class BankMap:
    """
    How one line of the source loads the banks of shared memory.

    `words` is [warps of a block, banks]: the distinct words that the worst request of this warp,
    in any block, wants of the bank. Each beyond the first is a pass more.
    """

    where: str
    source: str
    kind: str
    requests: int
    wavefronts: int
    words: tuple[tuple[int, ...], ...]

    @property
    def wavefronts_per_request(self) -> float:
        """Passes through shared memory of the average request."""
        return self.wavefronts / self.requests

    @property
    def worst(self) -> int:
        """The most words that any request wants of one bank."""
        return max(max(row) for row in self.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """
    One call of a kata's function.

    Attributes:
        unit: What is counted in rows: "program" or "warp".
        units: How many ran, all launches together, in launch order.
        per_row: How many of them share a row of the maps.
        launches: In order.
        maps: One for each array, in the order in which kernels were given them.
        lines: In the order of the source.
        banks: Empty where kernels have no shared memory of their own.
    """

    unit: str
    units: int
    per_row: int
    launches: tuple[LaunchStart, ...]
    maps: tuple[ArrayMap, ...]
    lines: tuple[Line, ...]
    banks: tuple[BankMap, ...]

    @property
    def rows(self) -> int:
        """Rows of the maps."""
        return -(-self.units // self.per_row)

    def as_json(self) -> str:
        """For another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Recording":
        """What `as_json` made."""
        data = json.loads(text)
        return cls(
            unit=data["unit"],
            units=data["units"],
            per_row=data["per_row"],
            launches=tuple(LaunchStart(**one) for one in data["launches"]),
            maps=tuple(
                ArrayMap(**{**one, "loads": _runs(one["loads"]), "stores": _runs(one["stores"])})
                for one in data["maps"]
            ),
            lines=tuple(Line(**one) for one in data["lines"]),
            banks=tuple(
                BankMap(**{**one, "words": tuple(map(tuple, one["words"]))})
                for one in data["banks"]
            ),
        )


def _runs(rows: Sequence[dict[str, Any]]) -> tuple[Run, ...]:
    return tuple(Run(**one) for one in rows)
