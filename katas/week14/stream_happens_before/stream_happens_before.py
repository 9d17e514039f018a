"""Kata week14/stream_happens_before: what CUDA orders, as one vector clock for each operation."""

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
    # TODO(kata): check, what is waited for, join and tick (about 35 lines with helpers)
    raise NotImplementedError


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
    # TODO(kata): conflicting accesses, find races, note the access (about 20 lines)
    raise NotImplementedError
