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
    was given. The first launch keeps the host busy for `compile_ms`.
    """

    cold_ms: float
    warm_ms: float
    jitter: float = 0.01
    disturbed: float = 0.02
    compile_ms: float = 50.0


KERNELS = {
    "fits in the cache": Kernel(cold_ms=0.1, warm_ms=0.02),
    "short": Kernel(cold_ms=0.002, warm_ms=0.0015),
    "streams": Kernel(cold_ms=1.0, warm_ms=1.0),
    "long": Kernel(cold_ms=8.0, warm_ms=8.0, disturbed=0.0),
}


class Event:
    """A mark; `at_ms` is when the device passes it."""

    def __init__(self):
        self.at_ms = math.inf


class VirtualDevice:
    """Runs one kernel; `launch` queues it."""

    def __init__(self, kernel, l2_bytes=40 * MIB):
        self.kernel, self.l2_bytes = kernel, l2_bytes
        self.host_ms = 0.0  # now, on the host
        self.idle_from_ms = 0.0  # when the queue will be empty
        self.busy_ms = 0.0
        self.launches = self.syncs = 0
        self.resident = 0.0  # share of the kernel's data in the cache
        self.random = random.Random(7)

    def launch(self):
        self.launches += 1
        self.host_ms += LAUNCH_MS + (self.kernel.compile_ms if self.launches == 1 else 0.0)
        cold, warm = self.kernel.cold_ms, self.kernel.warm_ms
        deviation = 1 + self.kernel.jitter * self.random.uniform(-1, 1)
        disturbance = 10 if self.random.random() < self.kernel.disturbed else 1
        clock = 2 - min(1, self.busy_ms / RAMP_MS)
        self._queue((cold + (warm - cold) * self.resident) * deviation * disturbance * clock)
        self.resident = 1.0

    def memset(self, nbytes):
        self.host_ms += LAUNCH_MS
        self._queue(nbytes / WRITE_BYTES_PER_MS)
        # lines are not evicted strictly in order of age: a cache's size leaves a third behind
        self.resident = max(0.0, self.resident - nbytes / (1.5 * self.l2_bytes))

    def event(self):
        return Event()

    def record(self, event):
        self.host_ms += RECORD_MS
        event.at_ms = max(self.host_ms, self.idle_from_ms)

    def elapsed_ms(self, start, stop):
        if max(start.at_ms, stop.at_ms) > self.host_ms:
            raise RuntimeError("event: expected one that the device has passed. Call sync first.")
        return (stop.at_ms // TICK_MS - start.at_ms // TICK_MS) * TICK_MS

    def sync(self):
        self.syncs += 1
        self.host_ms = max(self.host_ms, self.idle_from_ms) + SYNC_MS

    def _queue(self, ms):
        self.idle_from_ms = max(self.host_ms, self.idle_from_ms) + ms
        self.busy_ms += ms
