"""What is right: the kernel on all of it; a device that knows what is ordered, and how long."""

from dataclasses import dataclass, field

import torch


class Race(AssertionError):
    """Two operations meet in memory, and nothing orders them."""


@dataclass(eq=False)
class SimStream:
    """What has happened before whatever comes next in it, and when that is over."""

    name: str
    clock: dict = field(default_factory=dict)  # of each stream, how many operations
    time: float = 0.0


@dataclass(eq=False)
class SimEvent:
    """What had happened when it was last recorded; nothing before that."""

    clock: dict = field(default_factory=dict)
    time: float = 0.0


@dataclass(eq=False)
class Access:
    """One operation's touch of one stretch of memory."""

    what: str
    low: int
    high: int
    writes: bool
    stream: str
    step: int  # the operation's number in its stream

    def before(self, clock):
        return clock.get(self.stream, 0) >= self.step

    def meets(self, other):
        overlap = self.low < other.high and other.low < self.high
        return overlap and (self.writes or other.writes)


class SimDevice:
    """
    One engine for copies in, one for kernels, one for copies out, each with a rate of its own.

    An operation that meets an earlier one in memory has to come after it, by its stream, by events
    or by the host's wait: else it is a Race, however the two would have run. Memory of the device
    begins as NaN, or as -1.

    Args:
        rates: Time of an element in each engine: copy in, kernel, copy out.
    """

    def __init__(self, rates=(1.0, 1.0, 1.0)):
        self.rates = dict(zip(("copy in", "kernel", "copy out"), rates, strict=True))
        self.busy_until = dict.fromkeys(self.rates, 0.0)
        self._pinned = {}  # kept, as device memory is
        self.host = SimStream("the host")
        self.streams = 0
        self.host_waits = 0
        self.device_bytes = 0
        self.lengths = {engine: [] for engine in self.rates}
        self.makespan = 0.0
        self._accesses = {}  # of each storage
        self._device_memory = {}  # kept, so that no address is used twice

    # ---- what the kata asks for ----------------------------------------------------------------

    def empty(self, elements, dtype):
        made = torch.full((elements,), float("nan") if dtype.is_floating_point else -1, dtype=dtype)
        self.device_bytes += made.nbytes
        self._device_memory[made.untyped_storage().data_ptr()] = made
        return made

    def pinned(self, host):
        return host.untyped_storage().data_ptr() in self._pinned

    def stream(self):
        self.streams += 1
        return SimStream(f"stream {self.streams}", dict(self.host.clock), self.host.time)

    def event(self):
        return SimEvent()

    def h2d(self, to, source, stream):
        self._asked_for("h2d", to=(to, True), source=(source, False))
        self._put("copy in", stream, reads=source, writes=to)
        to.copy_(source)

    def launch(self, kernel, x, stream):
        self._asked_for("launch", x=(x, True))
        self._put("kernel", stream, reads=x, writes=x)
        kernel(x)

    def d2h(self, to, source, stream):
        self._asked_for("d2h", to=(to, False), source=(source, True))
        self._put("copy out", stream, reads=source, writes=to)
        to.copy_(source)

    def record(self, event, stream):
        event.clock, event.time = dict(stream.clock), stream.time

    def wait(self, event, stream):
        self._join(stream, event)

    def synchronize(self, event):
        self.host_waits += 1
        self._join(self.host, event)

    # ---- what the tests ask for ----------------------------------------------------------------

    def pin(self, *hosts):
        """Have the memory of these tensors pinned."""
        for host in hosts:
            self._pinned[host.untyped_storage().data_ptr()] = host

    def assert_done(self, host):
        """Fail unless all that was done to a tensor of the host is over for the host."""
        for access in self._accesses.get(host.untyped_storage().data_ptr(), ()):
            if not access.before(self.host.clock):
                raise Race(f"returned while {access.what} may still be under way: wait for its end")

    def _put(self, engine, stream, *, reads, writes):
        self._join(stream, self.host)
        stream.time = max(stream.time, self.busy_until[engine]) + self.rates[engine] * len(writes)
        self.busy_until[engine] = stream.time
        self.makespan = max(self.makespan, stream.time)
        self.lengths[engine].append(len(writes))
        step = stream.clock.get(stream.name, 0) + 1
        what = f"{engine} {len(self.lengths[engine]) - 1}"
        for tensor, writing in ((reads, False), (writes, True)):
            self._touch(tensor, what, writing, stream, step)
        stream.clock[stream.name] = step

    def _touch(self, tensor, what, writing, stream, step):
        storage = tensor.untyped_storage().data_ptr()
        low = tensor.storage_offset() * tensor.itemsize
        high = low + tensor.nbytes
        access = Access(what, low, high, writing, stream.name, step)
        where = "the device's" if storage in self._device_memory else "the host's"
        known = self._accesses.setdefault(storage, [])
        for earlier in reversed(known):
            if earlier.what == what or not earlier.meets(access) or earlier.before(stream.clock):
                continue
            raise Race(
                f"{what} {'writes' if writing else 'reads'} {where} memory that {earlier.what} may "
                f"still be {'writing' if earlier.writes else 'reading'}: nothing orders the two"
            )
        known.append(access)

    @staticmethod
    def _join(stream, other):
        for name, step in other.clock.items():
            stream.clock[name] = max(step, stream.clock.get(name, 0))
        stream.time = max(stream.time, other.time)

    def _asked_for(self, call, **tensors):
        for name, (tensor, on_the_device) in tensors.items():
            found = tensor.untyped_storage().data_ptr() in self._device_memory
            if found != on_the_device:
                words = ("the host's", "the device's")
                raise TypeError(
                    f"{call}: {name}: expected {words[on_the_device]} memory, found {words[found]}"
                )
            if not found and not self.pinned(tensor):
                raise AssertionError(f"{call}: {name}: expected pinned memory, found pageable")


class CudaDevice:
    """The same of a GPU that is there, by PyTorch."""

    def empty(self, elements, dtype):
        made = torch.empty(elements, dtype=dtype, device="cuda")
        # its last user may be at work in the current stream, of which other streams know nothing
        torch.cuda.current_stream().synchronize()
        return made

    def pinned(self, host):
        return host.is_pinned()

    def stream(self):
        return torch.cuda.Stream()

    def event(self):
        return torch.cuda.Event()

    def h2d(self, to, source, stream):
        with torch.cuda.stream(stream):
            to.copy_(source, non_blocking=True)

    def launch(self, kernel, x, stream):
        with torch.cuda.stream(stream):
            kernel(x)

    def d2h(self, to, source, stream):
        with torch.cuda.stream(stream):
            to.copy_(source, non_blocking=True)

    def record(self, event, stream):
        event.record(stream)

    def wait(self, event, stream):
        stream.wait_event(event)

    def synchronize(self, event):
        event.synchronize()


def best_makespan(lengths, rates, buffers):
    """Each engine takes chunk after chunk, and a chunk goes in when its buffer is empty."""
    ends = [(0.0, 0.0, 0.0)]
    out = []  # when each chunk is out
    for chunk, length in enumerate(lengths):
        free = out[chunk - buffers] if chunk >= buffers else 0.0
        copied_in = max(ends[-1][0], free) + rates[0] * length
        computed = max(ends[-1][1], copied_in) + rates[1] * length
        out.append(max(ends[-1][2], computed) + rates[2] * length)
        ends.append((copied_in, computed, out[-1]))
    return out[-1]


def squared(x):
    """(x² + 1) / 2, four times, in place: twelve passes over memory."""
    for _ in range(4):
        x.mul_(x).add_(1).mul_(0.5)


def make_inputs(*, n, chunks, device, seed):
    src = torch.rand(n, generator=torch.Generator().manual_seed(seed))
    dst = torch.zeros(n)
    if device == "cuda":
        dev, src, dst = CudaDevice(), src.pin_memory(), dst.pin_memory()
    else:
        dev = SimDevice()
        dev.pin(src, dst)
    return {"dev": dev, "src": src, "dst": dst, "kernel": squared, "chunks": chunks}


def reference(*, dev, src, dst, kernel, chunks, buffers=3):
    x = src.clone()
    kernel(x)
    return x


def serial_map(*, dev, src, dst, kernel, chunks, buffers=3):
    """The usual way: all of it in, all of it computed, all of it out, in one stream."""
    stream, event, x = dev.stream(), dev.event(), dev.empty(len(src), src.dtype)
    dev.h2d(x, src, stream)
    dev.launch(kernel, x, stream)
    dev.d2h(dst, x, stream)
    dev.record(event, stream)
    dev.synchronize(event)
    return dst
