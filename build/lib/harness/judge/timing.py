"""
Time on a device, honestly: warm, cold caches, medians with their interval, both sides in one run.

Every clock is passed in, so that the protocol itself is tested without a GPU.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Call = Callable[[], object]

WARM_UP_S, WARM_UP_CALLS = 0.2, 10
LEAST_SAMPLES, LEAST_S, MOST_S = 30, 0.3, 10.0
BATCH = 10  # rounds between two synchronisations
PRECISION = 0.01  # stop once the interval of the median is this narrow, relative to the median


class Clock(Protocol):
    """Something that can say how long calls take on the device they run on."""

    def now(self) -> float:
        """Host seconds, for budgets only."""

    def time_rounds(self, calls: Sequence[Call], rounds: int, before: Call) -> list[list[float]]:
        """Seconds of each call in each round, one list per call; `before` runs untimed ahead."""

    def wait(self) -> None:
        """Return when the device is idle."""


class HostClock:
    """For code that runs where Python runs."""

    def now(self) -> float:
        """Seconds of the monotonic high-resolution clock."""
        return time.perf_counter()

    def time_rounds(self, calls: Sequence[Call], rounds: int, before: Call) -> list[list[float]]:
        """Seconds by the host's clock."""
        times: list[list[float]] = [[] for _ in calls]
        for _ in range(rounds):
            for kept, call in zip(times, calls, strict=True):
                before()
                start = time.perf_counter()
                call()
                kept.append(time.perf_counter() - start)
        return times

    def wait(self) -> None:
        """Nothing is asynchronous here."""


class EventClock:
    """For a CUDA or ROCm device: events around each call, one synchronisation per batch."""

    def __init__(self) -> None:
        import torch

        self.cuda: Any = torch.cuda

    def now(self) -> float:
        """Host seconds."""
        return time.perf_counter()

    def time_rounds(self, calls: Sequence[Call], rounds: int, before: Call) -> list[list[float]]:
        """
        Device seconds; the host never waits inside the batch.

        One untimed round goes first, so that the device's queue is full when timing starts and
        the host's launch time hides behind work that is already queued.
        """
        for call in calls:
            before()
            call()
        events: list[list[Any]] = [[] for _ in calls]
        for _ in range(rounds):
            for kept, call in zip(events, calls, strict=True):
                before()
                start, stop = (self.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                call()
                stop.record()
                kept.append((start, stop))
        self.wait()
        return [[start.elapsed_time(stop) / 1e3 for start, stop in kept] for kept in events]

    def wait(self) -> None:
        """Device-wide: work left on any stream is waited for."""
        self.cuda.synchronize()


def cache_flush(nbytes: int) -> Call:
    """A call that writes `nbytes` on the current CUDA device, pushing everything else out of L2."""
    import torch

    scratch = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    return lambda: scratch.fill_(1)


@dataclass(frozen=True, slots=True)
class Samples:
    """Every measured time, in seconds; statistics are derived, never stored."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle sample."""
        return statistics.median(self.values)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the median, from order statistics (no shape is assumed)."""
        return median_interval(self.values)

    def quantile(self, share: float) -> float:
        """The sample below which `share` of all samples lie."""
        ordered = sorted(self.values)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """
    Bounds that hold the true median with 95 % confidence.

    The ranks n/2 -+ 1.96 sqrt(n)/2 of the ordered sample: the normal approximation of the
    binomial that counts how many samples fall below the median.
    """
    ordered = sorted(values)
    count = len(ordered)
    reach = 1.96 * math.sqrt(count) / 2
    low = max(0, math.floor(count / 2 - reach))
    high = min(count - 1, math.ceil(count / 2 + reach))
    return ordered[low], ordered[high]


def measure(call: Call, clock: Clock, *, before: Call = lambda: None) -> Samples:
    """Time `call` until the median is known to 1 %, within 10 seconds."""
    return Samples(tuple(_measure_all([call], clock, before, _precise)[0]))


def compare(
    call: Call,
    baseline: Call,
    clock: Clock,
    *,
    before: Call = lambda: None,
    required: float | None = None,
) -> Samples:
    """
    How many times faster `call` is than `baseline`: one ratio per interleaved pair.

    Interleaving makes a drifting machine slow both sides alike. With `required` it is enough to
    know on which side of that ratio the median lies; without, both medians to 1 %.
    """

    def known(kept: list[list[float]]) -> bool:
        if required is None:
            return _precise(kept)
        low, high = median_interval(_ratios(kept))
        return not low <= required <= high

    return Samples(tuple(_ratios(_measure_all([call, baseline], clock, before, known))))


def _ratios(kept: list[list[float]]) -> list[float]:
    mine, theirs = kept
    return [b / a for a, b in zip(mine, theirs, strict=True)]


def _measure_all(
    calls: list[Call], clock: Clock, before: Call, known: Callable[[list[list[float]]], bool]
) -> list[list[float]]:
    start = clock.now()
    warm = 0
    while warm < WARM_UP_CALLS or clock.now() - start < WARM_UP_S:
        for call in calls:
            before()
            call()
        warm += 1
        if warm % WARM_UP_CALLS == 0:
            clock.wait()
        if clock.now() - start > MOST_S / 2:
            break
    clock.wait()
    kept: list[list[float]] = [[] for _ in calls]
    start = clock.now()
    while True:
        for samples, new in zip(kept, clock.time_rounds(calls, BATCH, before), strict=True):
            samples.extend(new)
        spent = clock.now() - start
        if spent > MOST_S:
            break
        if len(kept[0]) >= LEAST_SAMPLES and spent >= LEAST_S and known(kept):
            break
    return kept


def _precise(kept: list[list[float]]) -> bool:
    for samples in kept:
        low, high = median_interval(samples)
        if high - low > PRECISION * statistics.median(samples):
            return False
    return True
