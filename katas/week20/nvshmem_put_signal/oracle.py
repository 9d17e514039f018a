"""What is right: a fabric that delivers in any order, and what nothing orders is a race."""

import sys
from collections import Counter
from collections.abc import Iterator

import numpy as np

from harness.simulators.hazards import Place

HOLDS = {
    "eq": lambda found, value: found == value,
    "ge": lambda found, value: found >= value,
    "gt": lambda found, value: found > value,
}


class Race(AssertionError):
    """Two accesses to the same elements, one of them a write, that nothing orders."""


class Access:
    """
    Elements of one buffer of one PE, read or written.

    A number stands for each access; what somebody knows to be done is a set of numbers, as bits.
    """

    def __init__(self, number, what, writes, start, stop, here):
        self.number, self.what, self.writes = number, what, writes
        self.start, self.stop, self.here = start, stop, here


class Message:
    def __init__(self, sender, to, copy, sig, value, after, carries, lands, number):
        self.sender, self.to, self.copy, self.sig, self.value = sender, to, copy, sig, value
        self.after, self.carries, self.lands, self.number = after, carries, lands, number


class Pe:
    """What the functions get; everything it knows and asks goes through the fabric."""

    def __init__(self, fabric, rank, buffers, signals):
        self._fabric, self.rank, self.n = fabric, rank, fabric.n
        self._buffers = buffers
        self._signals = dict.fromkeys(signals, 0)
        self._told = dict.fromkeys(signals, 0)  # what the last value of a signal lets one know
        self._accesses = {name: [] for name in buffers}
        self._knows = self._begun = 0
        self._begun_for, self._ordered = Counter(), Counter()  # by PE: numbers, as bits
        self._nic = 0
        self._doing, self._until, self._alive = None, 0, True
        self._computed, self._counts = [], Counter()

    def __repr__(self):
        return f"PE {self.rank}"

    # own memory

    def size(self, name):
        return len(self._buffers[name])

    def load(self, name, start, stop):
        self._at_once("load", name, start, stop, False)
        return self._buffers[name][start:stop].copy()

    def store(self, name, start, values):
        values = np.asarray(values)
        assert values.ndim == 1, f"store({name!r}): expected one axis, found {values.shape}"
        self._at_once("store", name, start, start + len(values), True)
        self._buffers[name][start : start + len(values)] = values

    def stencil(self, values):
        width = self.size("from_left") // 2
        expected = self.size("u") + 2 * width
        assert len(values) == expected, f"stencil: {len(values)} values, expected {expected}"
        return stencil(np.asarray(values), width)

    def _at_once(self, what, name, start, stop, writes):
        here = _place()
        number = self._fabric.number()
        text = f"{self}, {what}({name!r}, {start}:{stop})"
        self._fabric.access(
            self, name, Access(number, text, writes, start, stop, here), self._knows
        )
        self._knows |= 1 << number

    # messages

    def put_nbi(self, dst, offset, src, start, stop, to):
        self._send("put_nbi", to, (dst, offset, src, start, stop), None, None)

    def put_signal_nbi(self, dst, offset, src, start, stop, to, sig, value):
        self._send("put_signal_nbi", to, (dst, offset, src, start, stop), sig, value)

    def signal(self, sig, value, to):
        self._send("signal", to, None, sig, value)

    def _send(self, what, to, copy, sig, value):
        fabric, here = self._fabric, _place(3)
        if not 0 <= to < self.n:
            raise ValueError(f"to: there is no PE {to} of {self.n}")
        target = fabric.pes[to]
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
            fabric.access(self, src, read, self._knows)
            write = Access(number, text, True, offset, offset + length, here)
            fabric.access(target, dst, write, known)
        self._nic = max(self._nic, fabric.now) + length
        message = Message(
            self, target, copy, sig, value, self._ordered[to], known | 1 << number,
            self._nic + fabric.latency, number,
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
        return ("compute", self, slot, _place())

    def barrier_all(self):
        return ("barrier", self)


class Fabric:
    """
    PEs and the messages between them.

    `run` takes a rule of who goes next: a function of the messages that may arrive and the PEs
    that can go on, or none for the earliest in time, where an element takes a PE's port a cycle
    and arrives `latency` later.
    """

    def __init__(self, n, work, buffers, signals=(), latency=30, cycles=1, slots=1):
        self.n, self.latency, self.cycles, self.slots, self.now = n, latency, cycles, slots, 0
        self.flying, self.arrived, self._number = [], 0, 0
        self.ways = set()  # (from, to) of all messages
        self.current = None
        self.pes = [
            Pe(self, rank, {name: of[rank].copy() for name, of in buffers.items()}, signals)
            for rank in range(n)
        ]
        self.work = []
        for pe in self.pes:
            one = work(pe)
            assert isinstance(one, Iterator), f"{pe}: returns {one!r}, expected a generator"
            self.work.append(one)

    def number(self):
        self._number += 1
        return self._number

    def access(self, pe, name, new, known):
        """Judge an access against all before it that nothing orders before it, and keep it."""
        if name not in pe._buffers:
            raise ValueError(f"{new.what}: there is no buffer {name!r}")
        if not 0 <= new.start <= new.stop <= pe.size(name):
            raise ValueError(f"{new.what}: {name!r} has {pe.size(name)} elements")
        kept = []
        for old in pe._accesses[name]:
            meets = new.start < old.stop and old.start < new.stop
            if meets and (new.writes or old.writes) and not known >> old.number & 1:
                raise Race(
                    f"{new.what}\n  now:    {new.here}\n"
                    f"  nothing orders it after: {old.what}\n  before: {old.here}"
                )
            if not (new.writes and new.start <= old.start and old.stop <= new.stop):
                kept.append(old)
        pe._accesses[name] = [*kept, new]

    def count(self, what):
        return max(pe._counts[what] for pe in self.pes)

    def buffer(self, name):
        return [pe._buffers[name] for pe in self.pes]

    def computed(self):
        """Of each PE the slots and tiles it multiplied, in order."""
        return [pe._computed for pe in self.pes]

    # who goes next

    def run(self, choose=None):
        while any(pe._alive for pe in self.pes):
            able = [pe for pe in self.pes if pe._alive and self._ready(pe, choose)]
            landing = [one for one in self.flying if not one.after & ~self.arrived]
            if choose is None:
                action = able[0] if able else self._next_in_time(landing)
            else:
                action = choose(able + landing) if able or landing else None
            assert action is not None, f"deadlock\n{self._who_waits()}"
            if isinstance(action, Message):
                self._land(action)
            else:
                self._go_on(action)
        while self.flying:  # what nobody waited for
            self._land(next(one for one in self.flying if not one.after & ~self.arrived))
        return self

    def _ready(self, pe, choose):
        match pe._doing:
            case ("wait", _, sig, cmp, value):
                return HOLDS[cmp](pe._signals[sig], value)
            case ("quiet", _):
                return not pe._begun & ~self.arrived
            case ("barrier", _):
                here = all(one._doing and one._doing[0] == "barrier" for one in self.pes)
                return here and not self.flying
            case ("compute", *_):
                return choose is not None or self.now >= pe._until
        return True

    def _next_in_time(self, landing):
        busy = [pe for pe in self.pes if pe._alive and pe._doing and pe._doing[0] == "compute"]
        times = [(one.lands, 0, at) for at, one in enumerate(landing)]
        times += [(pe._until, 1, at) for at, pe in enumerate(busy)]
        if not times:
            return None
        when, kind, at = min(times)
        self.now = max(self.now, when)
        return (landing, busy)[kind][at]

    def _land(self, one):
        self.flying.remove(one)
        if one.copy:
            dst, offset, src, start, stop = one.copy
            one.to._buffers[dst][offset : offset + stop - start] = (
                one.sender._buffers[src][start:stop]
            )  # fmt: skip
        self.arrived |= 1 << one.number
        if one.sig is not None:
            one.to._signals[one.sig] = one.value
            one.to._told[one.sig] = one.carries

    def _go_on(self, pe):
        together = [pe]
        match pe._doing:
            case ("wait", _, sig, _, _):
                pe._knows |= pe._told[sig]
            case ("quiet", _):
                pe._knows |= pe._begun
            case ("barrier", _):
                together = self.pes
                everything = 0
                for one in self.pes:
                    everything |= one._knows | one._begun
                for one in self.pes:
                    one._knows, one._doing = everything, None
                    one._counts["barriers"] += 1
        for one in together:
            self._step(one)

    def _step(self, pe):
        pe._doing = None
        asked = next(self.work[pe.rank], "end")
        if asked == "end":
            pe._alive = False
            return
        known = isinstance(asked, tuple) and len(asked) > 1 and asked[1] is pe
        assert known, (
            f"{pe} yields {asked!r}, expected a wait, quiet, compute or barrier of its own"
        )
        if asked[0] == "compute":
            slot, here = asked[2:]
            if not 0 <= slot < self.slots:
                raise ValueError(f"slot: there is no slot {slot} of {self.slots}")
            size = pe.size("tiles") // self.slots
            number, at = self.number(), slot * size
            read = Access(number, f"{pe}, compute({slot})", False, at, at + size, here)
            self.access(pe, "tiles", read, pe._knows)
            pe._knows |= 1 << number
            pe._computed.append((slot, pe._buffers["tiles"][at : at + size].tolist()))
            pe._until = self.now + self.cycles
        pe._doing = asked

    def _who_waits(self):
        lines = []
        for pe in self.pes:
            if pe._alive:
                match pe._doing:
                    case ("wait", _, sig, cmp, value):
                        text = f"waits until {sig!r} {cmp} {value}, and it is {pe._signals[sig]}"
                    case ("barrier", _):
                        text = "waits at the barrier"
                    case _:
                        text = f"{pe._doing}"
                lines.append(f"    {pe} {text}")
        return "\n".join(lines)


def _place(depth=3):
    frame = sys._getframe(depth)
    return Place(file=frame.f_code.co_filename, line=frame.f_lineno)


def stencil(values, width):
    """A weighted mean of a cell and those up to `width` away, with unequal sides."""
    cells = len(values) - 2 * width
    parts = [(shift + 1) * values[shift : shift + cells] for shift in range(2 * width + 1)]
    return sum(parts) / ((width + 1) * (2 * width + 1))


def after_steps(u, width, steps):
    """The stencil on all cells of all PEs at once, zeros beyond both ends."""
    whole = np.concatenate(u)
    for _ in range(steps):
        whole = stencil(np.pad(whole, width), width)
    return np.split(whole, len(u))


def schedules(random, n, trials):
    """Rules of who goes next: messages late, messages early, a PE kept back, any order."""

    def late(one):
        return lambda actions: ([a for a in actions if not one(a)] or actions)[0]

    yield late(lambda action: isinstance(action, Message))
    yield late(lambda action: isinstance(action, Pe))
    yield lambda actions: actions[-1]  # the newest message
    for rank in range(n):
        yield late(lambda action, rank=rank: getattr(action, "rank", None) == rank)
        yield late(
            lambda action, rank=rank: getattr(getattr(action, "to", 0), "rank", None) == rank
        )
    for _ in range(trials):
        yield random.choice
