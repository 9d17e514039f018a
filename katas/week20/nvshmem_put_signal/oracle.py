"""What is right: a fabric that delivers in any order, and what nothing orders is a race."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from harness.simulators import fabric
from harness.simulators.fabric import Access, caller
from harness.simulators.fabric import schedules as schedules  # the tests take it from here

HOLDS = {
    "eq": lambda found, value: found == value,
    "ge": lambda found, value: found >= value,
    "gt": lambda found, value: found > value,
}


@dataclass(eq=False, kw_only=True)
class Message(fabric.Flight):
    sender: "Pe"
    copy: tuple | None
    sig: str | None
    value: int | None
    carries: int  # what whoever waits for the signal knows


class Pe(fabric.Agent):
    """What the functions get; everything it knows and asks goes through the fabric."""

    def __init__(self, fabric, rank, buffers, signals):
        super().__init__(fabric, rank, buffers)
        self.n = fabric.n
        self._signals = dict.fromkeys(signals, 0)
        self._told = dict.fromkeys(signals, 0)  # what the last value of a signal lets one know
        self._begun = 0
        self._begun_for, self._ordered = Counter(), Counter()  # by PE: numbers, as bits
        self._nic = 0
        self._until = 0
        self._computed, self._counts = [], Counter()

    def __repr__(self):
        return f"PE {self.rank}"

    # own memory

    def size(self, name):
        return len(self._memory.buffers[name])

    def load(self, name, start, stop):
        self._at_once("load", name, start, stop, writes=False)
        return self._memory.buffers[name][start:stop].copy()

    def store(self, name, start, values):
        values = np.asarray(values)
        assert values.ndim == 1, f"store({name!r}): expected one axis, found {values.shape}"
        self._at_once("store", name, start, start + len(values), writes=True)
        self._memory.buffers[name][start : start + len(values)] = values

    def stencil(self, values):
        width = self.size("from_left") // 2
        expected = self.size("u") + 2 * width
        assert len(values) == expected, f"stencil: {len(values)} values, expected {expected}"
        return stencil(np.asarray(values), width)

    # messages

    def put_nbi(self, dst, offset, src, start, stop, to):
        self._send("put_nbi", to, (dst, offset, src, start, stop), None, None)

    def put_signal_nbi(self, dst, offset, src, start, stop, to, sig, value):
        self._send("put_signal_nbi", to, (dst, offset, src, start, stop), sig, value)

    def signal(self, sig, value, to):
        self._send("signal", to, None, sig, value)

    def _send(self, what, to, copy, sig, value):
        fabric, here = self._fabric, caller(3)
        if not 0 <= to < self.n:
            raise ValueError(f"to: there is no PE {to} of {self.n}")
        target = fabric.agents[to]
        if sig is not None and sig not in target._signals:
            raise ValueError(f"sig: there is no signal {sig!r}")
        number = fabric.number()
        # what lies before a fence has arrived at that PE when this does
        known = self._knows | self._ordered[to]
        length = 1
        if copy:
            dst, offset, src, start, stop = copy
            length = stop - start
            text = f"{self}, {what}({dst!r}, {offset}:{offset + length}) to PE {to}"
            source = f"{text}, which reads {src!r}, {start}:{stop} of {self}"
            read = Access(number, source, False, start, stop, here)
            self._memory.judge(src, read, self._knows)
            write = Access(number, text, True, offset, offset + length, here)
            target._memory.judge(dst, write, known)
        self._nic = max(self._nic, fabric.now) + length
        message = Message(
            number=number, to=target, after=self._ordered[to], lands=self._nic + fabric.latency,
            sender=self, copy=copy, sig=sig, value=value, carries=known | 1 << number,
        )  # fmt: skip
        fabric.flying.append(message)
        self._begun |= 1 << number
        self._begun_for[to] |= 1 << number
        self._counts["messages"] += 1
        fabric.ways.add((self.rank, to))

    def fence(self):
        self._counts["fences"] += 1
        self._ordered |= self._begun_for

    # waits

    def quiet(self):
        return ("quiet", self)

    def wait_until(self, sig, cmp, value):
        if sig not in self._signals:
            raise ValueError(f"sig: there is no signal {sig!r}")
        if cmp not in HOLDS:
            raise ValueError(f"cmp: expected one of {', '.join(HOLDS)}, found {cmp!r}")
        return ("wait", self, sig, cmp, value)

    def compute(self, slot):
        return ("compute", self, slot, caller())

    def barrier_all(self):
        return ("barrier", self)


class Fabric(fabric.Fabric):
    """PEs and the messages between them; in time an element takes a PE's port a cycle."""

    def __init__(self, n, work, buffers, signals=(), latency=30, cycles=1, slots=1):
        super().__init__()
        self.n, self.latency, self.cycles, self.slots = n, latency, cycles, slots
        self.ways = set()  # (from, to) of all messages
        for rank in range(n):
            own = {name: of[rank] for name, of in buffers.items()}
            self.begin(work, Pe(self, rank, own, signals))

    def count(self, what):
        return max(pe._counts[what] for pe in self.agents)

    def buffer(self, name):
        return [pe._memory.buffers[name] for pe in self.agents]

    def computed(self):
        """Of each PE the slots and tiles it multiplied, in order."""
        return [pe._computed for pe in self.agents]

    # who goes next

    def ready(self, pe):
        match pe._doing:
            case ("wait", _, sig, cmp, value):
                return HOLDS[cmp](pe._signals[sig], value)
            case ("quiet", _):
                return not pe._begun & ~self.arrived
            case ("barrier", _):
                here = all(one._doing and one._doing[0] == "barrier" for one in self.agents)
                return here and not self.flying
            case ("compute", *_):
                return not self.timed or self.now >= pe._until
        return True

    def next_in_time(self, landing):
        busy = [pe for pe in self.agents if pe._alive and pe._doing and pe._doing[0] == "compute"]
        times = [(one.lands, 0, at) for at, one in enumerate(landing)]
        times += [(pe._until, 1, at) for at, pe in enumerate(busy)]
        if not times:
            return None
        when, kind, at = min(times)
        self.now = max(self.now, when)
        return (landing, busy)[kind][at]

    def land(self, one):
        if one.copy:
            dst, offset, src, start, stop = one.copy
            one.to._memory.buffers[dst][offset : offset + stop - start] = (
                one.sender._memory.buffers[src][start:stop]
            )  # fmt: skip
        if one.sig is not None:
            one.to._signals[one.sig] = one.value
            one.to._told[one.sig] = one.carries

    def go_on(self, pe):
        if not pe._doing or pe._doing[0] != "barrier":
            super().go_on(pe)
            return
        everything = 0
        for one in self.agents:
            everything |= one._knows | one._begun
        for one in self.agents:
            one._knows, one._doing = everything, None
            one._counts["barriers"] += 1
        for one in self.agents:
            self.step(one, None)

    def resume(self, pe):
        match pe._doing:
            case ("wait", _, sig, _, _):
                pe._knows |= pe._told[sig]
            case ("quiet", _):
                pe._knows |= pe._begun

    def asked(self, pe, wait):
        known = isinstance(wait, tuple) and len(wait) > 1 and wait[1] is pe
        assert known, f"{pe} yields {wait!r}, expected a wait, quiet, compute or barrier of its own"
        if wait[0] == "compute":
            slot, here = wait[2:]
            if not 0 <= slot < self.slots:
                raise ValueError(f"slot: there is no slot {slot} of {self.slots}")
            size = pe.size("tiles") // self.slots
            number, at = self.number(), slot * size
            read = Access(number, f"{pe}, compute({slot})", False, at, at + size, here)
            pe._memory.judge("tiles", read, pe._knows)
            pe._knows |= 1 << number
            pe._computed.append((slot, pe._memory.buffers["tiles"][at : at + size].tolist()))
            pe._until = self.now + self.cycles

    def waits(self, pe):
        match pe._doing:
            case ("wait", _, sig, cmp, value):
                return f"waits until {sig!r} {cmp} {value}, and it is {pe._signals[sig]}"
            case ("barrier", _):
                return "waits at the barrier"
        return f"{pe._doing}"


def stencil(values, width):
    """Most of a weighted mean of a cell and those up to `width` away, with unequal sides."""
    cells = len(values) - 2 * width
    parts = [(shift + 1) * values[shift : shift + cells] for shift in range(2 * width + 1)]
    return 0.9 * sum(parts) / ((width + 1) * (2 * width + 1))


def after_steps(u, width, steps):
    """The stencil on all cells of all PEs at once, zeros beyond both ends."""
    whole = np.concatenate(u)
    for _ in range(steps):
        whole = stencil(np.pad(whole, width), width)
    return np.split(whole, len(u))
