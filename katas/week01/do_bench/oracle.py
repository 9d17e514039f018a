"""A device whose times are known: a queue, a cache, a compiler, a climbing clock, disturbances."""

import math
import random
from dataclasses import dataclass

MIB = 2**20
TICK_MS = 0.5e-3  # resolution of events
LAUNCH_MS, RECORD_MS, SYNC_MS = 5e-3, 1e-3, 20e-3  # of the host
WRITE_BYTES_PER_MS = 2e9
RAMP_MS = 10  # busy time in which the clock doubles


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """
    The truth about a kernel.

    `cold_ms` with nothing in the cache, `warm_ms` with everything; a launch deviates by up to
    `jitter`, and the share `disturbed` of them takes ten times as long: one in fifty, for with one
    in twenty a warm-up that happens to meet none of them lets a right answer overrun the time it
    was given. The launch with the number `disturbs`, counted from 1, takes ten times as long in any
    case. On a device that gets hot each launch takes a share `drift` of those times longer than the
    one before. The first launch keeps the host busy for `compile_ms`.
    """

    cold_ms: float
    warm_ms: float
    jitter: float = 0.01
    disturbed: float = 0.02
    drift: float = 0.0
    disturbs: int = 0
    compile_ms: float = 50.0


KERNELS = {
    "fits in the cache": Kernel(cold_ms=0.1, warm_ms=0.02),
    "short": Kernel(cold_ms=0.002, warm_ms=0.0015),
    "streams": Kernel(cold_ms=1.0, warm_ms=1.0),
    "long": Kernel(cold_ms=8.0, warm_ms=8.0, disturbed=0.0),
}


class Event:
    """A mark; when the device passes it, the device knows."""


class VirtualDevice:
    """
    Runs one kernel; `launch` queues it.

    Whoever times it can read what was counted, in milliseconds, calls and bytes, and change
    none of it.
    """

    def __init__(self, kernel, l2_bytes=40 * MIB):
        self.__kernel, self.__l2_bytes = kernel, l2_bytes
        self.__host_ms = 0.0  # now, on the host
        self.__idle_from_ms = 0.0  # when the queue will be empty
        self.__busy_ms = 0.0
        self.__launches = self.__syncs = self.__written_bytes = 0
        self.__resident = 0.0  # share of the kernel's data in the cache
        self.__random = random.Random(7)
        self.__marks = {}  # when the device passes them

    @property
    def l2_bytes(self):
        return self.__l2_bytes

    @property
    def busy_ms(self):
        return self.__busy_ms

    @property
    def launches(self):
        return self.__launches

    @property
    def syncs(self):
        return self.__syncs

    @property
    def written_bytes(self):
        return self.__written_bytes

    def launch(self):
        self.__launches += 1
        self.__host_ms += LAUNCH_MS + (self.__kernel.compile_ms if self.__launches == 1 else 0.0)
        cold, warm = self.__kernel.cold_ms, self.__kernel.warm_ms
        deviation = 1 + self.__kernel.jitter * self.__random.uniform(-1, 1)
        disturbed = self.__random.random() < self.__kernel.disturbed
        disturbance = 10 if disturbed or self.__launches == self.__kernel.disturbs else 1
        clock = 2 - min(1, self.__busy_ms / RAMP_MS) + self.__kernel.drift * self.__launches
        self.__queue((cold + (warm - cold) * self.__resident) * deviation * disturbance * clock)
        self.__resident = 1.0

    def memset(self, nbytes):
        if nbytes < 1:
            raise ValueError(f"nbytes: expected 1 or more, found {nbytes}. Leave the memset out.")
        self.__host_ms += LAUNCH_MS
        self.__written_bytes += nbytes
        self.__queue(nbytes / WRITE_BYTES_PER_MS)
        # lines are not evicted strictly in order of age: a cache's size leaves a third behind
        self.__resident = max(0.0, self.__resident - nbytes / (1.5 * self.__l2_bytes))

    def event(self):
        return Event()

    def record(self, event):
        self.__host_ms += RECORD_MS
        self.__marks[event] = max(self.__host_ms, self.__idle_from_ms)

    def elapsed_ms(self, start, stop):
        start_ms, stop_ms = (self.__marks.get(event, math.inf) for event in (start, stop))
        if max(start_ms, stop_ms) > self.__host_ms:
            raise RuntimeError("event: expected one that the device has passed. Call sync first.")
        return (stop_ms // TICK_MS - start_ms // TICK_MS) * TICK_MS

    def sync(self):
        self.__syncs += 1
        self.__host_ms = max(self.__host_ms, self.__idle_from_ms) + SYNC_MS

    def __queue(self, ms):
        self.__idle_from_ms = max(self.__host_ms, self.__idle_from_ms) + ms
        self.__busy_ms += ms
