"""
Time on a device, honestly: warm, cold caches, medians with their interval, both sides in one run.

Every clock and every probe is passed in, so that the protocol itself is tested without a GPU.
docs/timing.md says why it is as it is.
"""

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter  # this one, whatever the code under test puts in its place
from typing import TYPE_CHECKING, Any, ClassVar

from harness.judge.timing.device_state import DeviceState, Probe, settled_state

if TYPE_CHECKING:
    from torch.cuda import Event

Call = Callable[[], object]
Times = list[list[float]]  # seconds, one list for each call

WARM_UP_S, WARM_UP_CALLS = 0.2, 10
LEAST_SAMPLES, LEAST_S, MOST_S = 30, 0.3, 10.0
BATCH = 10  # rounds between two synchronisations, at least
GROWTH = 0.1  # or this share of the rounds so far, so that the checks between stay few
PRECISION = 0.01  # stop once the interval of the median is this narrow, relative to the median

CHECK_EVERY = 10  # batches
CHECK_S, CHECK_MOST_CALLS, CHECK_TRIES = 0.01, 100, 3
# the host notices an idle device a little late, and is itself kept waiting now and then
CHECK_SLACK_S, CHECK_SLACK = 0.5e-3, 0.1


class Clock(ABC):
    """Something that can say how long calls take on the device they run on."""

    # whether a call may return before its work is done
    asynchronous: ClassVar[bool] = False

    def now(self) -> float:
        """Host seconds."""
        return perf_counter()

    @abstractmethod
    def mark(self) -> Any:  # noqa: ANN401 -- each clock's own
        """A point in the device's queue of work."""

    @abstractmethod
    def between(self, start: Any, stop: Any) -> float:  # noqa: ANN401
        """Seconds of the device from mark to mark, both of them passed."""

    @abstractmethod
    def wait_for(self, mark: Any) -> None:  # noqa: ANN401
        """Return when the device has passed `mark`."""

    @abstractmethod
    def wait(self) -> None:
        """Return when the device is idle, on every stream."""

    def occupy(self, seconds: float) -> None:
        """Keep an asynchronous device busy for about this long, without waiting for it."""
        raise NotImplementedError

    def time_rounds(self, calls: Sequence[Call], rounds: int, before: Call) -> Times:
        """
        Seconds of each call in each round; `before` runs untimed ahead of each.

        The host never waits inside. Where it runs ahead of the device, one untimed round says how
        long the host takes, and the device is kept busy for as long as the host needs for all
        rounds: they are queued before the first one runs, and no launch shows in a time.
        """
        if self.asynchronous:
            began = self.now()
            for call in calls:
                before()
                call()
            self.occupy(min(1.5 * rounds * (self.now() - began), LONGEST_HOLD_S))
        marks: list[list[tuple[Any, Any]]] = [[] for _ in calls]
        for _ in range(rounds):
            for kept, call in zip(marks, calls, strict=True):
                before()
                start = self.mark()
                call()
                kept.append((start, self.mark()))
        self.wait()
        # two marks may read alike, but nothing takes no time
        return [[max(self.between(*pair), 1e-9) for pair in kept] for kept in marks]


class HostClock(Clock):
    """For code that runs where Python runs."""

    def mark(self) -> float:
        """The host's time: whatever came before is done."""
        return perf_counter()

    def between(self, start: float, stop: float) -> float:
        """Seconds by the host's clock."""
        return stop - start

    def wait_for(self, mark: float) -> None:
        """Nothing is asynchronous here."""

    def wait(self) -> None:
        """Nothing is asynchronous here."""


class WallClock(HostClock):
    """For what launches themselves cost: from an idle GPU to an idle GPU, by the host's clock."""

    def mark(self) -> float:
        """The host's time, when the GPU has done what came before."""
        self.wait()
        return super().mark()

    def wait(self) -> None:
        """Device-wide."""
        import torch

        torch.cuda.synchronize()


LONGEST_HOLD_S = 0.2  # what a batch may wait for its launches


class EventClock(Clock):
    """For a CUDA or ROCm device: events on the current stream."""

    asynchronous = True

    def __init__(self) -> None:
        import torch  # not above: where only the host is timed it would be the slowest import

        self._cuda = torch.cuda

    def mark(self) -> "Event":
        """An event recorded now."""
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: "Event", stop: "Event") -> float:
        """Seconds between two events, to about half a microsecond."""
        return float(start.elapsed_time(stop)) / 1e3

    def occupy(self, seconds: float) -> None:
        """A kernel that only spins; two cycles a nanosecond is more than any clock here."""
        self._cuda._sleep(int(seconds * 2e9))

    def wait_for(self, mark: "Event") -> None:
        """Until the event; other streams may go on."""
        mark.synchronize()

    def wait(self) -> None:
        """Device-wide: work left on any stream is waited for."""
        self._cuda.synchronize()


def cache_flush(nbytes: int) -> Call:
    """A call that writes `nbytes` on the current CUDA device, pushing everything else out of L2."""
    import torch

    scratch = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    return lambda: scratch.fill_(1)


# ---- what was measured ---------------------------------------------------------------------


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCheck:
    """
    Some calls back to back, told by two clocks.

    `device_s` are the device's seconds between marks around the calls, `left_s` the wall clock's
    from the second mark until the whole device was idle: of work left outside the marks.
    """

    calls: int
    device_s: float
    left_s: float

    @property
    def clean(self) -> bool:
        """Whether next to nothing went on after the marks."""
        return self.left_s <= max(CHECK_SLACK_S, CHECK_SLACK * (self.device_s + self.left_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """
    Every sample of a call, of what it was compared with, and what was seen around them.

    `streams` is the last check, or the first that found something; `before` is the device's
    state ahead of any work of ours, `during` the one while timing. `host_s` are the host's seconds
    for a call, and for the baseline's. Each is None where it was not asked for or is not known.
    """

    mine: Samples
    baseline: Samples | None = None
    streams: StreamCheck | None = None
    before: DeviceState | None = None
    during: DeviceState | None = None
    host_s: tuple[float, ...] | None = None

    @property
    def ratios(self) -> Samples:
        """How many times faster than the baseline, one for each pair."""
        assert self.baseline is not None
        return Samples(tuple(_ratios(self.mine.values, self.baseline.values)))


def _ratios(mine: Sequence[float], baseline: Sequence[float]) -> list[float]:
    return [theirs / own for own, theirs in zip(mine, baseline, strict=True)]


# ---- measuring -----------------------------------------------------------------------------


def nothing() -> None:
    """What is done between calls when nothing needs to be."""


def measure(
    call: Call,
    clock: Clock,
    *,
    before: Call = nothing,
    probe: Probe | None = None,
    most_s: float = MOST_S,
) -> Timed:
    """
    Time `call` until its median is known to 1 %, for `most_s` seconds at the most.

    Args:
        call: What is timed, again and again.
        clock: Of the device it runs on.
        before: Called untimed ahead of each call.
        probe: Reads the device's state, ahead of the warm-up and while timing.
        most_s: Seconds after which timing ends, however much the samples spread.
    """
    session = _Session([call], clock, before, probe)
    return session.time(_precise, most_s)


def compare(
    call: Call,
    baseline: Call,
    clock: Clock,
    *,
    before: Call = nothing,
    probe: Probe | None = None,
    required: float | None = None,
) -> Timed:
    """
    Time `call` and `baseline` in turns, so that a drifting machine slows both alike.

    With `required` it is enough to know on which side of it the median of their ratios lies;
    without, both medians are known to 1 %. The other arguments are those of `measure`.
    """

    def decided(kept: Times) -> bool:
        low, high = median_interval(_ratios(*kept))
        return required is not None and not low <= required <= high

    session = _Session([call, baseline], clock, before, probe)
    return session.time(_precise if required is None else decided, MOST_S)


@dataclass
class _Session:
    """Calls timed in turns on one device; the first of them is the one under test."""

    calls: Sequence[Call]
    clock: Clock
    before: Call
    probe: Probe | None

    def time(self, enough: Callable[[Times], bool], most_s: float) -> Timed:
        """Warm up, then time until `enough` of the samples, or until `most_s` are over."""
        state_before = None if self.probe is None else settled_state(self.probe)
        self._warm_up()
        # read while the device is at work
        reading = None if self.probe is None else self.probe()
        kept: Times = [[] for _ in self.calls]
        streams: StreamCheck | None = None
        start, batches = self.clock.now(), 0
        while True:
            rounds = max(BATCH, int(GROWTH * len(kept[0])))
            new = self.clock.time_rounds(self.calls, rounds, self.before)
            for samples, more in zip(kept, new, strict=True):
                samples.extend(more)
            due = self.clock.asynchronous and batches % CHECK_EVERY == 0
            if due and (streams is None or streams.clean):
                streams = check_streams(self.calls[0], self.clock, statistics.median(kept[0]))
            batches += 1
            spent_s = self.clock.now() - start
            if spent_s > most_s:
                break
            known = len(kept[0]) >= LEAST_SAMPLES and spent_s >= LEAST_S and enough(kept)
            if known and (reading is None or reading.done()):
                break
        mine, *baseline = (Samples(tuple(samples)) for samples in kept)
        return Timed(
            mine=mine,
            baseline=baseline[0] if baseline else None,
            streams=streams,
            before=state_before,
            during=None if reading is None else reading.state(),
            host_s=self._host_s(kept) if self.clock.asynchronous else None,
        )

    def _host_s(self, kept: Times) -> tuple[float, ...]:
        timed = zip(self.calls, kept, strict=True)
        return tuple(
            host_seconds(call, self.clock, statistics.median(samples)) for call, samples in timed
        )

    def _warm_up(self) -> None:
        """Compile, then call for 200 ms and 10 rounds; the last are still queued at the end."""
        for call in self.calls:
            call()
        self.clock.wait()
        start, rounds = self.clock.now(), 0
        while rounds < WARM_UP_CALLS or self.clock.now() - start < WARM_UP_S:
            if rounds % WARM_UP_CALLS == 0:
                self.clock.wait()  # or the host would queue seconds of work within these 200 ms
            for call in self.calls:
                self.before()
                call()
            rounds += 1
            if self.clock.now() - start > MOST_S / 2:
                break


def host_seconds(call: Call, clock: Clock, seconds: float) -> float:
    """The median of what a call costs the host, of some that take the device `seconds` each."""
    clock.wait()
    kept = []
    for _ in range(_calls_for_a_look(seconds)):
        start = clock.now()
        call()
        kept.append(clock.now() - start)
    clock.wait()
    return statistics.median(kept)


def check_streams(call: Call, clock: Clock, seconds: float) -> StreamCheck:
    """
    See whether some calls, which take `seconds` each, leave work running.

    A host that was kept waiting looks like work left behind, so a suspicion is looked into twice
    more; what is left behind by every call is found every time.
    """
    calls = _calls_for_a_look(seconds)
    for _ in range(CHECK_TRIES):
        clock.wait()
        start = clock.mark()
        for _ in range(calls):
            call()
        stop = clock.mark()
        clock.wait_for(stop)
        passed_s = clock.now()
        clock.wait()
        left_s = clock.now() - passed_s
        found = StreamCheck(calls=calls, device_s=clock.between(start, stop), left_s=left_s)
        if found.clean:
            break
    return found


def _calls_for_a_look(seconds: float) -> int:
    return max(2, min(CHECK_MOST_CALLS, round(CHECK_S / max(seconds, 1e-6))))


def _precise(kept: Times) -> bool:
    for samples in kept:
        low, high = median_interval(samples)
        if high - low > PRECISION * statistics.median(samples):
            return False
    return True
