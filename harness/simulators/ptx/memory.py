"""Global and local memory: bounds, alignment, and the sectors that requests touch."""

from typing import NamedTuple

import numpy as np

from harness.simulators.ptx.formats import UINT, Array, i64, u8, u64
from harness.simulators.ptx.program import Instruction
from harness.simulators.ptx.view import View

# generic addresses say by their upper bits which memory they mean
SHARED_WINDOW, LOCAL_WINDOW, GLOBAL_BASE = 1 << 40, 2 << 40, 1 << 52
WINDOW_BITS = 40  # each allocation has so many bits of addresses to itself
UNWRITTEN = 0xFF  # NaN in every float
SECTOR_BYTES = 32
GUARD = 256  # bytes at the start, which take what went astray


class Views:
    """Bytes, seen as unsigned integers of each size as well."""

    def __init__(self, size: int, fill: int = 0) -> None:
        self.bytes = np.full((size + 15) // 16 * 16, fill, u8)
        self.by = {width: self.bytes.view(UINT[width]) for width in UINT}


class Buffer(NamedTuple):
    """Memory that a kernel was given: its name, address, size and place among all bytes."""

    name: str
    start: int
    size: int
    offset: int


def first_of(bad: Array) -> int:
    """The first place where `bad` holds."""
    return int(np.flatnonzero(bad)[0])


class GlobalMemory:
    """
    Buffers far apart from each other; whatever lies in none of them is out of bounds.

    A bad access is reported and goes to bytes that nobody else uses.
    """

    def __init__(self, state: View) -> None:
        self.state = state
        self.buffers: list[Buffer] = []
        self.size = GUARD  # of the arena
        self._windows: list[int] = []  # the first buffer of each allocation
        self._contents: list[tuple[int, Array]] = []

    def add(self, name: str, contents: Array, lead: int = 0, home: int | None = None) -> int:
        """
        Take in a buffer; its address, `lead` bytes past the start of an allocation.

        Args:
            name: What reports call it.
            contents: Its bytes, which are copied.
            lead: Bytes between the allocation's start and the buffer's.
            home: The last allocation, of which this is another piece; None for a new one.
        """
        if home is None:
            self._windows.append(len(self.buffers))
        start = GLOBAL_BASE + (len(self._windows) - 1 << WINDOW_BITS) + lead
        offset = self.size + lead % 256
        self.buffers.append(Buffer(name, start, contents.nbytes, offset))
        self._contents.append((offset, contents))
        self.size = (offset + contents.nbytes + 511) // 256 * 256
        return start

    def seal(self) -> None:
        """Lay the bytes out, once all buffers are known."""
        self.views = Views(self.size, UNWRITTEN)
        for offset, contents in self._contents:
            self.views.bytes[offset : offset + contents.nbytes] = contents.view(u8).ravel()
        self._starts = np.array([one.start for one in self.buffers], u64)
        self._ends = np.array([one.start + one.size for one in self.buffers], u64)
        self._shifts = self._starts - np.array([one.offset for one in self.buffers], u64)

    def contents(self, number: int) -> Array:
        """The bytes of a buffer as they are now."""
        one = self.buffers[number]
        return self.views.bytes[one.offset : one.offset + one.size]

    def locate(self, ins: Instruction, threads: Array, addresses: Array, size: int) -> Array:
        """Where among all bytes the addresses lie."""
        window = (int(addresses[0]) - GLOBAL_BASE) >> WINDOW_BITS
        if 0 <= window < len(self._windows):
            number = self._windows[window]
            low, high = int(addresses.min()), int(addresses.max())
            one = self.buffers[number]
            if one.start <= low and high + size <= one.start + one.size:
                at = (addresses - self._shifts[number]).astype(i64)
                return self._aligned(ins, threads, addresses, at, size)
        numbers = np.clip(np.searchsorted(self._starts, addresses, "right") - 1, 0, None)
        outside = addresses < self._starts[numbers]
        outside |= addresses + u64(size) > self._ends[numbers]
        at = np.where(outside, 0, (addresses - self._shifts[numbers]).astype(i64))
        if outside.any():
            first = first_of(outside)
            where = self._where(int(numbers[first]), int(addresses[first]))
            who = self.state.who(threads[first])
            self.state.report(
                "global-out-of-bounds",
                ins,
                f"{who} {size}-byte access at {where}",
                int(outside.sum()),
            )
        return self._aligned(ins, threads, addresses, at, size)

    def _where(self, number: int, address: int) -> str:
        one = self.buffers[number]
        if address < GLOBAL_BASE - (1 << 20) or address > one.start + (1 << WINDOW_BITS - 1):
            return f"{address:#x}, which is in no buffer"
        beyond = number + 1 < len(self.buffers) and address > one.start + one.size
        if beyond and self.buffers[number + 1].start - address < address - one.start - one.size:
            one = self.buffers[number + 1]
        return f"byte {address - one.start} of {one.name} ({one.size} bytes)"

    def _aligned(
        self, ins: Instruction, threads: Array, addresses: Array, at: Array, size: int
    ) -> Array:
        if size == 1 or not (addresses & u64(size - 1)).any():
            return at
        bad = (addresses & u64(size - 1)) != 0
        first = first_of(bad)
        text = f"{self.state.who(threads[first])} {size}-byte access at {int(addresses[first]):#x}"
        self.state.report("misaligned", ins, text, int(bad.sum()))
        return np.where(bad, 0, at)

    def load(
        self, ins: Instruction, threads: Array, addresses: Array, size: int, count: int
    ) -> list[Array]:
        """`count` numbers of `size` bytes for each thread."""
        at = self.locate(ins, threads, addresses, size * count)
        self.count(ins, threads, at, size * count, "load")
        self.state.global_race(ins, threads, at, size * count, "load")
        view = self.views.by[size]
        at = at // size
        return [view[at + number] for number in range(count)]

    def store(
        self, ins: Instruction, threads: Array, addresses: Array, size: int, values: list[Array]
    ) -> None:
        """Store the values of each thread side by side."""
        at = self.locate(ins, threads, addresses, size * len(values))
        self.count(ins, threads, at, size * len(values), "store")
        view, place = self.views.by[size], at // size
        same = np.ones(len(threads), bool)
        for number, value in enumerate(values):
            same &= view[place + number] == value
        self.state.global_race(ins, threads, at, size * len(values), "store", same)
        for number, value in enumerate(values):
            view[place + number] = value
            lost = (view[place + number] != value) & (at >= GUARD)
            if self.state.checked and lost.any():
                first = first_of(lost)
                text = f"{self.state.who(threads[first])} and others store different values to"
                text = f"{text} {self.name_of(int(at[first]))} at once"
                self.state.report("global-race", ins, text, int(lost.sum()), ins.line)

    def name_of(self, at: int) -> str:
        """A place among all bytes in words."""
        for one in self.buffers:
            if one.offset <= at < one.offset + one.size:
                return f"byte {at - one.offset} of {one.name}"
        return "memory"

    def count(self, ins: Instruction, threads: Array, at: Array, size: int, what: str) -> None:
        """Count the requests of warps, and the 32-byte sectors of each."""
        state = self.state
        key = (ins.pc, what, int(at[0]) & 31, (at - at[0]).tobytes(), state.mask_key())
        found = state.remembered.get(key)
        if found is None:
            warps = threads.astype(i64) >> 5
            first, last = at // SECTOR_BYTES, (at + size - 1) // SECTOR_BYTES
            most = int((last - first).max()) + 1
            touched = np.minimum(first[:, None] + np.arange(most), last[:, None])
            pairs = np.unique(((warps << 40)[:, None] | touched).ravel())
            found = (len(np.unique(warps)), len(pairs))
            state.remembered[key] = found
        state.tally(
            ins,
            {
                f"global_{what}_requests": found[0],
                f"global_{what}_sectors": found[1],
                f"global_{what}_bytes": len(at) * size,
            },
        )


class LocalMemory:
    """What each thread has to itself."""

    def __init__(self, state: View, size: int) -> None:
        self.state = state
        self.size = max(16, (size + 15) // 16 * 16)
        self.views = Views(state.threads * self.size, UNWRITTEN)

    def locate(self, ins: Instruction, threads: Array, addresses: Array, size: int) -> Array:
        """Where among all bytes the addresses lie."""
        at = addresses.astype(i64) & 0xFFFFFFFF
        bad = at + size > self.size
        if bad.any():
            text = f"{self.state.who(threads[first_of(bad)])} local byte {int(at[first_of(bad)])}"
            self.state.report("local-out-of-bounds", ins, text, int(bad.sum()))
            at = np.where(bad, 0, at)
        return np.asarray(at + threads * self.size)

    def load(
        self, ins: Instruction, threads: Array, addresses: Array, size: int, count: int
    ) -> list[Array]:
        """`count` numbers of `size` bytes for each thread."""
        at = self.locate(ins, threads, addresses, size * count) // size
        self.state.tally(ins, {"local_loads": len(at)})
        return [self.views.by[size][at + number] for number in range(count)]

    def store(
        self, ins: Instruction, threads: Array, addresses: Array, size: int, values: list[Array]
    ) -> None:
        """Store the values of each thread side by side."""
        at = self.locate(ins, threads, addresses, size * len(values)) // size
        self.state.tally(ins, {"local_stores": len(at)})
        for number, value in enumerate(values):
            self.views.by[size][at + number] = value
