"""What the requests of warps add up to."""

import math
from dataclasses import dataclass

from harness.simulators.simt.memory_model import SECTOR_BYTES
from harness.simulators.simt.trace import Requests


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessStats:
    """
    Requests of warps, and what they asked for.

    Averages over no requests are NaN, which fails every comparison.

    Attributes:
        requests: Requests.
        full_requests: Those that every lane of the warp took part in.
        elements: Elements asked for, by all lanes together.
        bytes: The same in bytes.
    """

    requests: int
    full_requests: int
    elements: int
    bytes: int

    @property
    def partial_requests(self) -> int:
        """Requests that some lane sat out."""
        return self.requests - self.full_requests

    @property
    def _requested(self) -> str:
        return f"{self.requests} requests, {self.full_requests} full"


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalStats(AccessStats):
    """
    Requests to global memory.

    Attributes:
        sectors: 32-byte sectors touched, request by request.
        full_sectors: Those of full requests.
        max_sectors: Of the worst request.
    """

    sectors: int
    full_sectors: int
    max_sectors: int

    @property
    def sectors_per_request(self) -> float:
        """Sectors of the average request."""
        return _ratio(self.sectors, self.requests)

    @property
    def full_sectors_per_request(self) -> float:
        """Sectors of the average full request: ragged ends do not blur it."""
        return _ratio(self.full_sectors, self.full_requests)

    @property
    def sector_efficiency(self) -> float:
        """Bytes asked for in each byte of the sectors; above 1 where lanes share elements."""
        return _ratio(self.bytes, self.sectors * SECTOR_BYTES)

    def __str__(self) -> str:
        return f"{self._requested}, {self.sectors_per_request:.2f} sectors each"

    @classmethod
    def of(cls, table: Requests) -> "GlobalStats":
        """Sum up requests to global memory."""
        return cls(
            **_common(table),
            sectors=int(table.cost.sum()),
            full_sectors=int(table.cost[table.full].sum()),
            max_sectors=int(table.cost.max(initial=0)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStats(AccessStats):
    """
    Requests to shared memory.

    Attributes:
        wavefronts: Passes they took.
        full_wavefronts: Those of full requests.
        max_wavefronts: Of the worst request.
    """

    wavefronts: int
    full_wavefronts: int
    max_wavefronts: int

    @property
    def wavefronts_per_request(self) -> float:
        """Passes of the average request."""
        return _ratio(self.wavefronts, self.requests)

    @property
    def full_wavefronts_per_request(self) -> float:
        """Passes of the average full request."""
        return _ratio(self.full_wavefronts, self.full_requests)

    def __str__(self) -> str:
        return f"{self._requested}, {self.wavefronts_per_request:.2f} wavefronts each"

    @classmethod
    def of(cls, table: Requests) -> "SharedStats":
        """Sum up requests to shared memory."""
        return cls(
            **_common(table),
            wavefronts=int(table.cost.sum()),
            full_wavefronts=int(table.cost[table.full].sum()),
            max_wavefronts=int(table.cost.max(initial=0)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayStats:
    """
    What was done to one array in global memory.

    Attributes:
        load: Its loads.
        store: Its stores.
        atomics: Atomic operations on it, one for each lane.
    """

    load: GlobalStats
    store: GlobalStats
    atomics: int


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _common(table: Requests) -> dict[str, int]:
    return {
        "requests": len(table.cost),
        "full_requests": int(table.full.sum()),
        "elements": int(table.lanes.sum()),
        "bytes": int(table.bytes.sum()),
    }
