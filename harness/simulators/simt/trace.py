"""
Every access of a launch, and the warp requests they make up.

A request is one access of the source by one warp: the k-th time its lanes come to that place since
they were last together at a barrier, a shuffle or a vote of the whole warp. Where lanes repeat a
loop a different number of times in between, their k-th rounds are taken together.
"""

import sys
from array import array as typed_array
from collections.abc import Iterable, Iterator
from operator import index as as_index
from types import FrameType
from typing import Any, Literal, NamedTuple

import numpy as np

from harness.simulators.simt.arrays import Array, Buffer, KernelArray, address
from harness.simulators.simt.memory_model import Flags, Integers, sectors, wavefronts
from harness.simulators.simt.scheduler import Launch
from harness.simulators.simt.sites import Sites

Kind = Literal["global_load", "global_store", "shared_load", "shared_store"]

CHUNK = 8192  # requests costed at a time: a chunk of full ones is a few megabytes


class Law(NamedTuple):
    """What decides the cost of an access."""

    space: Literal["global", "shared"]
    store: bool
    size: int  # bytes of an element

    @property
    def kind(self) -> Kind:
        """Space and direction in a word."""
        kinds: dict[tuple[str, bool], Kind] = {
            ("global", False): "global_load",
            ("global", True): "global_store",
            ("shared", False): "shared_load",
            ("shared", True): "shared_store",
        }
        return kinds[self.space, self.store]


class Channel(NamedTuple):
    """Accesses of one buffer under one law."""

    buffer: Buffer
    law: Law


class Requests(NamedTuple):
    """
    A table, one row a request of a warp.

    Attributes:
        channel: Number of the channel.
        site: Number of the site.
        lanes: Lanes that took part.
        full: Whether that is every lane of the warp.
        bytes: What they asked for.
        cost: Sectors of global, wavefronts of shared memory.
    """

    channel: Array
    site: Array
    lanes: Array
    full: Array
    bytes: Array
    cost: Array

    @classmethod
    def joined(cls, tables: Iterable["Requests"]) -> "Requests":
        """One table of several, of one at least."""
        return cls(*map(np.concatenate, zip(*tables, strict=True)))

    def where(self, rows: Flags) -> "Requests":
        """Some of the rows."""
        return Requests(*(column[rows] for column in self))


class Accesses(NamedTuple):
    """
    A table, one row an access of a thread.

    Attributes:
        request: Which row of the launch's `Requests` it is part of.
        thread: Number of the thread in the grid, as if every warp were full.
        site: Number of the site.
        channel: Number of the channel.
        offset: Bytes from the start of the buffer.
    """

    request: Integers
    thread: Integers
    site: Integers
    channel: Integers
    offset: Integers


class Trace:
    """
    The accesses of launches.

    Attributes:
        channels: What the channel numbers mean.
        sites: What the site numbers mean.
    """

    def __init__(self, warp_size: int) -> None:
        self.channels: list[Channel] = []
        self.sites = Sites()
        self._warp_size = warp_size
        self._channel_numbers: dict[tuple[int, Law], int] = {}
        self._log = typed_array("q")

    def channel(self, buffer: Buffer, law: Law) -> int:
        """Number the accesses of `buffer` under `law`."""
        key = (id(buffer), law)  # the channel keeps the buffer, and so its id, alive
        if key not in self._channel_numbers:
            self._channel_numbers[key] = len(self.channels)
            self.channels.append(Channel(buffer, law))
        return self._channel_numbers[key]

    def record(self, launch: Launch, frame: FrameType, channel: int, offset: int) -> None:
        """Note that the running thread accesses the element `offset` bytes into its buffer."""
        thread = launch.thread
        site = self.sites.number(frame)
        self._log.extend((thread.number, thread.warp.epoch, site, channel, offset))

    def take(self) -> tuple[Requests, Accesses]:
        """Empty the log of a finished launch: its requests, and the accesses they are made of."""
        rows = np.array(self._log, dtype=np.int64).reshape(-1, 5).T
        self._log = typed_array("q")
        return self._requests(*rows)

    def _requests(
        self, thread: Integers, epoch: Integers, site: Integers, channel: Integers, offset: Integers
    ) -> tuple[Requests, Accesses]:
        laws = sorted({one.law for one in self.channels})
        law = np.array([laws.index(one.law) for one in self.channels], dtype=np.int64)[channel]
        warp, lane = np.divmod(thread, self._warp_size)
        turn = _turns(thread, epoch, site)
        order, first = _runs(law, warp, epoch, site, turn, channel)
        starts = np.flatnonzero(first)
        ends = np.append(starts, len(order))
        cost = np.zeros(len(starts), dtype=np.int64)
        for low, high, number in _stretches(law[order][starts]):
            rows = order[ends[low] : ends[high]]
            row = np.cumsum(first[ends[low] : ends[high]]) - 1
            offsets = np.zeros((high - low, self._warp_size), dtype=np.int64)
            active = np.zeros_like(offsets, dtype=np.bool_)
            offsets[row, lane[rows]] = offset[rows]
            active[row, lane[rows]] = True
            cost[low:high] = _cost(laws[number], offsets, active)
        leader, lanes = order[starts], np.diff(ends)
        sizes = np.array([one.law.size for one in self.channels], dtype=np.int64)
        requests = Requests(
            channel=channel[leader],
            site=site[leader],
            lanes=lanes,
            full=lanes == self._warp_size,
            bytes=lanes * sizes[channel[leader]],
            cost=cost,
        )
        request = np.empty_like(order)
        request[order] = np.cumsum(first) - 1
        return requests, Accesses(request, thread, site, channel, offset)


class TracedArray(KernelArray):
    """A kernel's array that notes every element it hands out or takes in."""

    __slots__ = ("extents", "launch", "loads", "start", "steps", "stores", "trace")

    def __init__(self, raw: Array, buffer: Buffer, trace: Trace, launch: Launch) -> None:
        super().__init__(raw, buffer)
        self.trace = trace
        self.launch = launch
        self.start = address(raw) - buffer.start
        self.extents = raw.shape
        self.steps = raw.strides
        self.loads = trace.channel(buffer, Law(buffer.space, False, raw.itemsize))
        self.stores = trace.channel(buffer, Law(buffer.space, True, raw.itemsize))

    def view_of(self, raw: Array) -> "TracedArray":
        """Another array on the same buffer, noted in the same trace."""
        return TracedArray(raw, self.buffer, self.trace, self.launch)

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401
        found = self.raw[index]
        if isinstance(found, np.ndarray):
            return self.view_of(found)
        self.trace.record(self.launch, sys._getframe(1), self.loads, self._offset(index))
        return found

    def __setitem__(self, index: Any, value: Any) -> None:  # noqa: ANN401
        frame = sys._getframe(1)
        if isinstance(value, TracedArray):
            for offset in value.offsets():
                self.trace.record(self.launch, frame, value.loads, offset)
            value = value.raw
        self.raw[index] = value
        stored = self.raw[index]
        whole = isinstance(stored, np.ndarray)
        for offset in self.view_of(stored).offsets() if whole else (self._offset(index),):
            self.trace.record(self.launch, frame, self.stores, offset)

    def offsets(self) -> list[int]:
        """Of every element, in bytes from the start of the buffer."""
        offsets = np.array(self.start)
        for extent, step in zip(self.extents, self.steps, strict=True):
            offsets = offsets[..., None] + np.arange(extent) * step
        listed: list[int] = offsets.ravel().tolist()
        return listed

    def _offset(self, index: Any) -> int:  # noqa: ANN401
        offset = self.start
        each = index if isinstance(index, tuple) else (index,)
        for at, extent, step in zip(each, self.extents, self.steps, strict=True):
            whole = as_index(at)
            offset += (whole if whole >= 0 else whole + extent) * step
        return offset


def _runs(*keys: Integers) -> tuple[Integers, Flags]:
    """Sort by the keys, the first of them foremost; mark where a new combination starts."""
    order = np.lexsort(keys[::-1])
    first = np.zeros(len(order), dtype=np.bool_)
    first[:1] = True
    for key in keys:
        ordered = key[order]
        first[1:] |= ordered[1:] != ordered[:-1]
    return order, first


def _turns(*keys: Integers) -> Integers:
    """How many rows with the same keys came before each row."""
    order, first = _runs(*keys)
    at = np.arange(len(order))
    turns = np.empty_like(at)
    turns[order] = at - np.maximum.accumulate(np.where(first, at, 0))
    return turns


def _stretches(numbers: Integers) -> Iterator[tuple[int, int, int]]:
    """Cut sorted numbers into ranges of equal ones, none longer than CHUNK: low, high, number."""
    for number in np.unique(numbers).tolist():
        end = int(np.searchsorted(numbers, number, side="right"))
        for low in range(int(np.searchsorted(numbers, number)), end, CHUNK):
            yield low, min(low + CHUNK, end), number


def _cost(law: Law, offsets: Integers, active: Flags) -> Integers:
    if law.space == "global":
        return sectors(offsets, active)
    return wavefronts(offsets, active, law.size, store=law.store)
