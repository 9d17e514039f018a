"""Moves, loads, stores and branches."""

import re
from collections.abc import Sequence

import numpy as np

from harness.simulators.ptx.barriers import Barriers
from harness.simulators.ptx.formats import READ, SIZE, UINT, Array, f64, i32, i64, u8, u32, u64
from harness.simulators.ptx.memory import LOCAL_WINDOW, SHARED_WINDOW
from harness.simulators.ptx.operands import Space, address_in, vector
from harness.simulators.ptx.program import (
    Instruction,
    PtxError,
    Register,
    Slot,
    Symbol,
    Table,
    Unsupported,
    Vector,
)
from harness.simulators.ptx.scheduler import GONE, Decoded

WAITING = {"volatile", "acquire", "relaxed", "mmio"}  # loads that a loop may wait with
FORMAT = re.compile(r"%[-+ #0]*\d*(?:\.\d+)?(?:ll|l|h|z)?[a-zA-Z%]")


class Moves(Barriers):
    """What moves values, and what moves threads."""

    # ---- registers -------------------------------------------------------------------------

    def op_mov(self, ins: Instruction) -> Decoded:
        """mov, also between a register and several narrow ones."""
        kind, (to, what) = ins.mods[-1], ins.args
        if not (isinstance(to, Vector) and isinstance(what, Vector)):
            put, get = self.destination(to, kind), self.source(what, kind)
            return (lambda: put(get())), None
        puts = [self.destination(one, kind) for one in to.items]
        gets = [self.source(one, kind) for one in what.items]

        def several() -> None:
            for put, value in zip(puts, [get() for get in gets], strict=True):
                put(value)

        return several, None

    def op_cvta(self, ins: Instruction) -> Decoded:
        """Between an address of a state space and a generic one."""
        kind = ins.mods[-1]
        put, get = self.destination(ins.args[0], kind), self.source(ins.args[1], kind)
        space = next((mod.split("::")[0] for mod in ins.mods if mod not in ("to", kind)), "")
        window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(space, 0)
        if not window:
            return (lambda: put(get())), None
        shift = u64(window)
        if "to" in ins.mods:
            return (lambda: put(get() - shift)), None
        return (lambda: put(get() + shift)), None

    def op_isspacep(self, ins: Instruction) -> Decoded:
        """Whether a generic address lies in a state space."""
        put, get = self.destination(ins.args[0], "pred"), self.source(ins.args[1], "u64")
        space = ins.mods[0].split("::")[0]
        return (lambda: put(self.in_window(get(), space))), None

    # ---- memory ----------------------------------------------------------------------------

    def op_ld(self, ins: Instruction) -> Decoded:
        """Loads from every state space."""
        kind, space, what = ins.mods[-1], self.space_of(ins), ins.args[1]
        size, dests = SIZE[kind], vector(ins.args[0])
        if isinstance(what, Slot):
            index, put, read = self.slot(what), self.destination(dests[0], kind), READ[kind]
            raw = UINT[size]
            return (lambda: put(read(self.registers[index].astype(raw)))), None
        if space == "param":
            base = address_in(what).base
            if isinstance(base, Symbol):
                return self._parameter(ins, base.name)
            space = "global"
        puts = [self.lanes(one, kind) for one in dests]
        addresses, waits = self.address(what), bool(WAITING & set(ins.mods))
        count = len(dests)

        def load(memory: Space, threads: Array, where: Array) -> None:
            if waits:
                self.acquire(memory, where)
            for put, value in zip(puts, memory.load(ins, threads, where, size, count), strict=True):
                put(value)

        def step() -> None:
            self.spin += waits
            self.in_spaces(space, addresses(), load)

        return step, None

    op_ldu = op_ld

    def _parameter(self, ins: Instruction, name: str) -> Decoded:
        kind = ins.mods[-1]
        dests, size = vector(ins.args[0]), SIZE[kind]
        at = self.parameters[name] + address_in(ins.args[1]).offset
        puts = [self.destination(one, kind) for one in dests]
        raw = np.frombuffer(self.parameter_bytes, UINT[size], len(dests), at)
        values = [READ[kind](raw[number : number + 1].copy()) for number in range(len(dests))]

        def step() -> None:
            for put, value in zip(puts, values, strict=True):
                put(value)

        return step, None

    def op_st(self, ins: Instruction) -> Decoded:
        """Stores to every state space."""
        space, size = self.space_of(ins), SIZE[ins.mods[-1]]
        kind = f"b{8 * size}"
        gets = [self.source(one, kind) for one in vector(ins.args[1])]
        if isinstance(ins.args[0], Slot):
            put = self.destination(Register(self.slot(ins.args[0])), kind)
            return (lambda: put(gets[0]())), None
        addresses = self.address(ins.args[0])
        publishes = bool({"volatile", "release", "relaxed", "mmio"} & set(ins.mods))

        def store(memory: Space, threads: Array, where: Array) -> None:
            values = [get() for get in gets]
            lanes = [one if one.shape[0] == 1 else one[threads] for one in values]
            if publishes:
                self.release_global(memory, where, fenced="release" in ins.mods)
            memory.store(ins, threads, where, size, lanes)

        return (lambda: self.in_spaces(space, addresses(), store)), None

    def acquire(self, memory: Space, addresses: Array) -> None:
        """Learn what others published at these addresses of global memory."""

    def release_global(self, memory: Space, addresses: Array, *, fenced: bool) -> None:
        """Publish at these addresses of global memory."""

    # ---- control ---------------------------------------------------------------------------

    def taken(self, ins: Instruction) -> Array:
        """The active threads whose predicate holds."""
        if ins.guard is None:
            return self.mask
        register, turned = ins.guard
        holds = self.registers[register.index]
        return self.mask & (~holds if turned else holds)

    def op_bra(self, ins: Instruction) -> Decoded:
        """A branch; where threads disagree, those with the smaller pc go first."""
        label = ins.args[0]
        assert isinstance(label, Symbol)
        target = self.targets[label.name]
        if ins.guard is None:
            return None, lambda pc: target

        def step(pc: int) -> int:
            taken = self.taken(ins)
            if not taken.any():
                return self.following[pc]
            rest = self.mask & ~taken
            if not rest.any():
                return target
            self._note_divergence(ins, taken, rest)
            straight = self.following[pc]
            first, second = (rest, taken) if straight < target else (taken, rest)
            if straight == target:
                return target
            self.push(self.scheduled, max(straight, target), second)
            self.set_mask(first)
            return min(straight, target)

        return None, step

    def _note_divergence(self, ins: Instruction, taken: Array, rest: Array) -> None:
        both = taken.reshape(-1, 32).any(1) & rest.reshape(-1, 32).any(1)
        if count := int(np.count_nonzero(both)):
            self.tally(ins, {"divergent_branches": count})

    def op_brx(self, ins: Instruction) -> Decoded:
        """A branch to one label of a table."""
        chosen, labels = self.source(ins.args[0], "u32"), ins.args[1]
        assert isinstance(labels, Table)
        targets = [self.targets[label] for label in labels.labels]

        def step(pc: int) -> int:
            index, mask = self.each(chosen()), self.mask
            for value in np.unique(index[mask]):
                self.push(self.scheduled, targets[int(value)], mask & (index == value))
            return GONE

        return None, step

    def op_ret(self, ins: Instruction) -> Decoded:
        """The end of a thread; a trap ends it as well."""

        def step(pc: int) -> int:
            gone = self.taken(ins)
            self.exited = self.exited | gone
            self.exit_pc[gone] = pc
            rest = self.mask & ~gone
            if rest.any():
                self.push(self.scheduled, self.following[pc], rest)
            if ins.op == "trap" and gone.any():
                who = self.who(np.flatnonzero(gone)[0])
                self.report("assert", ins, f"{who} ran into a trap", int(gone.sum()))
            self.left(ins, gone)
            return GONE

        return None, step

    op_exit = op_trap = op_ret

    def left(self, ins: Instruction, gone: Array) -> None:
        """Look at what threads leave behind when they exit."""

    def op_nop(self, ins: Instruction) -> Decoded:
        """Hints, and what is always so here."""
        return (lambda: None), None

    op_prefetch = op_discard = op_applypriority = op_griddepcontrol = op_setmaxnreg = op_nop
    op_pmevent = op_nop

    def op_nanosleep(self, ins: Instruction) -> Decoded:
        """A pause: others may go on."""

        def step() -> None:
            self.spin += 5

        return step, None

    # ---- what is outside the module --------------------------------------------------------

    def op_extern_call(self, ins: Instruction) -> Decoded:
        """printf and assert."""
        if ins.mods[0] == "__assertfail":

            def fail(pc: int) -> int:
                text = f"{self.who(self.active()[0])} an assertion of the kernel does not hold"
                self.report("assert", ins, text, len(self.active()))
                raise PtxError(text)

            return None, fail
        if ins.mods[0] != "vprintf":
            raise Unsupported(f"a call of {ins.mods[0]}")
        words, values = (self.slot(one) for one in ins.args if isinstance(one, Slot))

        def step() -> None:
            for thread in self.active():
                self.printed.append(self._printed(ins, int(thread), words, values))

        return step, None

    def _printed(self, ins: Instruction, thread: int, words: int, values: int) -> str:
        """What printf says for one thread."""
        at = self.registers[words][thread : thread + 1]
        start = int(self.global_memory.locate(ins, np.array([thread]), at, 1)[0])
        raw = self.global_memory.views.bytes[start : start + 4096].tobytes()
        text = raw.split(b"\0")[0].decode(errors="replace")
        home = (int(self.registers[values][thread]) & 0xFFFFFFFF) + thread * self.local.size
        given, place = [], 0
        for one in [found for found in FORMAT.findall(text) if found != "%%"]:
            wide = one[-1] in "eEfgGps" or "l" in one or "z" in one
            size = 8 if wide else 4
            place = -(-place // size) * size
            held = self.local.views.bytes[home + place : home + place + size]
            given.append(_value(held, one[-1]))
            place += size
        plain = re.sub(r"(%[-+ #0]*\d*(?:\.\d+)?)(?:ll|l|h|z)(?=[a-zA-Z])", r"\1", text)
        return plain.replace("%p", "%#x") % tuple(given)


def _value(held: Array, letter: str) -> int | float | str:
    """A value that printf is given, as its conversion reads it."""
    if letter in "eEfgG":
        return float(held.view(f64)[0])
    kinds: Sequence[type] = (i64, i32) if letter in "di" else (u64, u32)
    number = int(held.view(kinds[0] if held.dtype == u8 and len(held) == 8 else kinds[1])[0])
    return chr(number & 0x7F) if letter == "c" else number
