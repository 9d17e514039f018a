"""Kata week14/stream_happens_before: what CUDA orders, as one vector clock for each operation."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self


@dataclass(frozen=True, slots=True)
class Blocking:
    """A stream that takes part in the legacy stream's barriers (cudaStreamCreate)."""

    index: int


@dataclass(frozen=True, slots=True)
class NonBlocking:
    """A stream that does not (cudaStreamCreateWithFlags, cudaStreamNonBlocking)."""

    index: int


LEGACY = "legacy"
HOST = "host"

Stream = Blocking | NonBlocking | Literal["legacy"]
Timeline = Stream | Literal["host"]


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel or an asynchronous copy that reads some buffers and writes others."""

    stream: Stream
    reads: tuple[Hashable, ...] = ()
    writes: tuple[Hashable, ...] = ()


@dataclass(frozen=True, slots=True)
class Host:
    """Code of the host that reads some buffers and writes others; done when the next op is met."""

    reads: tuple[Hashable, ...] = ()
    writes: tuple[Hashable, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """The event stands for what is in the stream by now (cudaEventRecord)."""

    event: Hashable
    stream: Stream


@dataclass(frozen=True, slots=True)
class Wait:
    """What follows in the stream waits for the event (cudaStreamWaitEvent)."""

    event: Hashable
    stream: Stream


@dataclass(frozen=True, slots=True)
class StreamSync:
    """The host waits for a stream (cudaStreamSynchronize)."""

    stream: Stream


@dataclass(frozen=True, slots=True)
class EventSync:
    """The host waits for an event (cudaEventSynchronize)."""

    event: Hashable


@dataclass(frozen=True, slots=True)
class DeviceSync:
    """The host waits for all streams (cudaDeviceSynchronize)."""


Op = Launch | Host | Record | Wait | StreamSync | EventSync | DeviceSync


class Clock(Protocol):
    """How far each timeline was seen to be; never changes."""

    def join(self, other: Self) -> Self:
        """The later of the two on every timeline."""

    def tick(self, timeline: Timeline) -> Self:
        """One step further on one timeline."""

    def leq(self, other: Self) -> bool:
        """Whether this one is ahead of `other` on no timeline."""


def clocks(program: Sequence[Op], streams: Sequence[Stream], start: Clock) -> list[Clock]:
    """
    Clocks of all operations: a happens before b exactly if a's clock is `leq` b's.

    Args:
        program: What the host calls, in this order.
        streams: The streams there are besides LEGACY.
        start: The clock on which nothing has happened.

    Raises:
        ValueError: `streams` names a stream twice, or LEGACY; an operation is on a stream that
            does not exist.

    Source: CUDA C++ Programming Guide, streams and implicit synchronization.
    """
    # check
    known = {LEGACY, *streams}
    if len(known) <= len(streams):
        raise ValueError(f"streams: expected each once and no LEGACY, found {list(streams)}")
    now = dict.fromkeys((HOST, *known), start)
    recorded: dict[Hashable, Clock] = {}
    found = []
    for at, op in enumerate(program):
        if getattr(op, "stream", LEGACY) not in known:
            raise ValueError(f"program[{at}]: expected a stream that exists, found {op}")
        # join and tick
        timeline = _timeline(op)
        clock = now[timeline]
        for other in _awaited(op, streams):
            clock = clock.join(now[other])
        if isinstance(op, Wait | EventSync) and op.event in recorded:
            clock = clock.join(recorded[op.event])
        now[timeline] = clock = clock.tick(timeline)
        if isinstance(op, Record):
            recorded[op.event] = clock
        found.append(clock)
    return found


def find_races(
    program: Sequence[Op], streams: Sequence[Stream], start: Clock
) -> set[tuple[int, int]]:
    """
    All pairs (earlier, later) of positions in `program` that race.

    Two operations race if they touch one buffer, at least one of them writes it, and neither
    happens before the other.

    Args:
        program: What the host calls, in this order.
        streams: The streams there are besides LEGACY.
        start: The clock on which nothing has happened.

    Raises:
        ValueError: what `clocks` refuses.

    Source: Flanagan and Freund 2009 (FastTrack) for the idea of looking at the last accesses.
    """
    clock_of = clocks(program, streams, start)
    # the accesses of each timeline to a buffer, in order
    reads = defaultdict(lambda: defaultdict(list))
    writes = defaultdict(lambda: defaultdict(list))
    races = set()
    # conflicting accesses
    for later, op in enumerate(program):
        if not isinstance(op, Launch | Host):
            continue
        timeline = _timeline(op)
        conflicts = [writes[buffer] for buffer in {*op.reads, *op.writes}]
        conflicts += [reads[buffer] for buffer in op.writes]
        # find races
        for accesses in conflicts:
            for positions in accesses.values():
                for earlier in reversed(positions):
                    # what a timeline did before that is ordered, too
                    if clock_of[earlier].leq(clock_of[later]):
                        break
                    races.add((earlier, later))
        # note the access
        for buffer in op.reads:
            reads[buffer][timeline].append(later)
        for buffer in op.writes:
            writes[buffer][timeline].append(later)
    return races


def _timeline(op: Op) -> Timeline:
    """Where an operation runs."""
    return op.stream if isinstance(op, Launch | Record | Wait) else HOST


def _awaited(op: Op, streams: Sequence[Stream]) -> Sequence[Timeline]:
    """Timelines, besides its own, whose operations so far an operation waits for."""
    # what is waited for
    if isinstance(op, DeviceSync):
        return [LEGACY, *streams]
    if isinstance(op, Host | EventSync):
        return []
    # a blocking stream has waited for the legacy stream since that was last given work
    legacy = [LEGACY] if isinstance(op.stream, Blocking) else []
    if isinstance(op, StreamSync):
        return [op.stream, *legacy]
    if op.stream == LEGACY:
        return [HOST, *(stream for stream in streams if isinstance(stream, Blocking))]
    return [HOST, *legacy]
