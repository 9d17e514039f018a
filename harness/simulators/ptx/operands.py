"""Reading and writing operands: functions made once, when an instruction is decoded."""

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.simulators.ptx.formats import (
    INTS,
    READ,
    SIZE,
    UINT,
    WRITE,
    Array,
    Convert,
    f32,
    f64,
    u32,
    u64,
)
from harness.simulators.ptx.memory import (
    GLOBAL_BASE,
    LOCAL_WINDOW,
    SHARED_WINDOW,
    GlobalMemory,
    LocalMemory,
)
from harness.simulators.ptx.program import (
    Address,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Register,
    Sink,
    Slot,
    Special,
    Symbol,
    Unsupported,
    Vector,
)
from harness.simulators.ptx.shared import SharedMemory
from harness.simulators.ptx.state import State

Get = Callable[[], Array]
Put = Callable[[Array], None]
Space = GlobalMemory | SharedMemory | LocalMemory
SPACES = ("global", "shared", "local", "const", "param")


def vector(operand: Operand) -> tuple[Operand, ...]:
    """The operands in braces, or the only one."""
    return operand.items if isinstance(operand, Vector) else (operand,)


def registers(operand: Operand) -> list[int]:
    """The numbers of the registers in braces."""
    found = [one.index for one in vector(operand) if isinstance(one, Register)]
    if len(found) != len(vector(operand)):
        raise Unsupported("operands in braces that are no registers")
    return found


def address_in(operand: Operand) -> Address:
    """The operand in brackets."""
    if not isinstance(operand, Address):
        raise Unsupported(f"an address as {operand}")
    return operand


def immediate(operand: Operand) -> int:
    """A number that has to be known to the compiler."""
    if not isinstance(operand, Immediate):
        raise Unsupported(f"a number as {operand}")
    return operand.bits


def size_of(kind: str) -> int:
    """Bytes of a register's type, of which 16 are kept as 8."""
    return min(8, SIZE[kind])


class Operands(State):
    """Operands of instructions."""

    # ---- sources ---------------------------------------------------------------------------

    def source(self, operand: Operand, kind: str) -> Get:
        """A function that returns an operand for all threads, or one value for all of them."""
        convert, size = READ[kind], SIZE[kind]
        if isinstance(operand, Register):
            return self._register(operand.index, kind)
        if isinstance(operand, Negated):
            get = self.source(operand.operand, kind)
            return lambda: ~get()
        if isinstance(operand, Immediate):
            constant = self._constant(operand, kind)
            return lambda: constant
        if isinstance(operand, Special):
            return self._special_source(operand.name, convert, UINT[size])
        if isinstance(operand, Symbol):
            address = self._symbol(operand.name)
            bits = convert(np.array([address & ((1 << 8 * size) - 1)], UINT[size]))
            return lambda: bits
        if isinstance(operand, Vector):
            return self._packing(operand, convert, size)
        raise Unsupported(f"{operand} as a source")

    def _register(self, index: int, kind: str) -> Get:
        held, convert = self.registers, READ[kind]
        if kind == "pred":
            return lambda: held[index]
        if self.register_types[index] == "pred":
            raise Unsupported("a predicate as a number")
        if size_of(self.register_types[index]) == SIZE[kind]:
            return lambda: convert(held[index])
        raw = UINT[SIZE[kind]]
        return lambda: convert(held[index].astype(raw))

    def _constant(self, operand: Immediate, kind: str) -> Array:
        bits, size = operand.bits, SIZE[kind]
        if kind == "pred":
            return np.array([bool(bits)])
        if operand.kind == "f4" and kind == "f64":
            bits = int(np.array(np.array(bits, u32).view(f32), f64).view(u64))
        if operand.kind == "f8" and size == 4:
            bits = int(np.array(np.array(bits, u64).view(f64), f32).view(u32))
        raw = np.array([bits & ((1 << 8 * size) - 1)], UINT[size])
        if kind.endswith("x2"):  # two numbers a thread cannot stand for all
            raw = np.full(self.threads, raw[0])
        return np.ascontiguousarray(READ[kind](raw))

    def _special_source(self, name: str, convert: Convert, raw: Any) -> Get:  # noqa: ANN401
        if name.startswith(("%clock", "%globaltimer")):
            # time passes with every instruction
            return lambda: convert(
                np.full(self.threads, sum(self.warp_executions) & 0xFFFFFFFF, raw)
            )
        if name not in self.special:
            raise Unsupported(f"the register {name}")
        return lambda: convert(self.special[name].astype(raw))

    def _symbol(self, name: str) -> int:
        if name in self.parameters:
            return self.parameters_start + self.parameters[name]
        if name not in self.symbols:
            raise Unsupported(f"the address of {name}")
        return self.symbols[name]

    def _packing(self, operand: Vector, convert: Convert, size: int) -> Get:
        """Several narrow operands as one wide one."""
        width = size // len(operand.items)
        parts = [self.source(one, f"b{8 * width}") for one in operand.items]

        def pack() -> Array:
            out = np.empty((self.threads, len(parts)), UINT[width])
            for number, part in enumerate(parts):
                out[:, number] = part()
            return convert(out.reshape(-1).view(UINT[size]))

        return pack

    # ---- destinations ----------------------------------------------------------------------

    def destination(self, operand: Operand, kind: str) -> Put:
        """A function that writes values, as computed, for the active threads."""
        if isinstance(operand, Sink):
            return lambda values: None
        if isinstance(operand, Vector):
            return self._unpacking(operand, kind)
        if not isinstance(operand, Register):
            raise Unsupported(f"{operand} as a destination")
        index, convert, held = operand.index, WRITE[kind], self.registers
        widen = self._widening(index, kind)

        def put(values: Array) -> None:
            bits = convert(values)
            if widen is not None:
                bits = widen(bits)
            if not self.full:
                held[index] = np.where(self.mask, bits, held[index])
            elif bits.shape[0] == self.threads:
                held[index] = bits
            else:
                held[index] = np.full(self.threads, bits[0])

        return put

    def _widening(self, index: int, kind: str) -> Convert | None:
        """What fits bits of `kind` into a register of another size."""
        if kind == "pred":
            return None
        have = 1 if self.register_types[index] == "pred" else size_of(self.register_types[index])
        if have == SIZE[kind]:
            return None
        raw = UINT[have]
        if kind[0] != "s":
            return lambda bits: bits.astype(raw)
        narrow, wide = INTS[f"s{8 * SIZE[kind]}"], INTS[f"s{8 * have}"]
        return lambda bits: bits.view(narrow).astype(wide).view(raw)

    def _unpacking(self, operand: Vector, kind: str) -> Put:
        count = len(operand.items)
        width = SIZE[kind] // count
        parts = [self.destination(one, f"b{8 * width}") for one in operand.items]
        convert = WRITE[kind]

        def unpack(values: Array) -> None:
            bits = np.ascontiguousarray(self.each(convert(values)))
            split = bits.view(UINT[width]).reshape(self.threads, count)
            for number, part in enumerate(parts):
                part(np.ascontiguousarray(split[:, number]))

        return unpack

    def lanes(self, operand: Operand, kind: str) -> Put:
        """A function that writes bits given for the active threads only."""
        if isinstance(operand, Sink):
            return lambda values: None
        if not isinstance(operand, Register):
            raise Unsupported(f"{operand} as a destination")
        index, held = operand.index, self.registers
        raw = UINT[size_of(self.register_types[index])]
        widen = self._widening(index, kind) if kind[0] == "s" else None

        def put(bits: Array) -> None:
            bits = widen(bits) if widen is not None else bits
            if self.full:
                held[index] = bits.astype(raw, copy=False)
            else:
                new = held[index].copy()
                new[self.active()] = bits
                held[index] = new

        return put

    def by_warp(self, index: int) -> Array:
        """The register of the warps that are here: [warp, lane]."""
        return self.registers[index].reshape(-1, 32)[self.warps_here]

    def put_by_warp(self, index: int, bits: Array) -> None:
        """Write a register of the warps that are here from [warp, lane]."""
        new = self.registers[index].copy().reshape(-1, 32)
        new[self.warps_here] = bits
        self.registers[index] = new.reshape(-1)

    def slot(self, operand: Slot) -> int:
        """The register that stands for a piece of an inlined call's arguments."""
        key = (operand.variable, operand.offset)
        if key not in self.slots:
            self.slots[key] = len(self.register_types)
            self.register_types.append("b64")
            self.registers.append(np.zeros(self.threads, u64))
        return self.slots[key]

    # ---- addresses -------------------------------------------------------------------------

    def address(self, operand: Operand) -> Get:
        """A function that returns the addresses of the active threads, as uint64."""
        where = address_in(operand)
        base, offset = where.base, where.offset
        if isinstance(base, Immediate | Symbol):
            start = base.bits if isinstance(base, Immediate) else self._symbol(base.name)
            fixed = u64((start + offset) & 0xFFFFFFFFFFFFFFFF)
            return lambda: np.full(len(self.active()), fixed)
        if not isinstance(base, Register):
            raise Unsupported(f"an address at {base}")
        narrow = SIZE[self.register_types[base.index]] == 4
        get = self.source(base, "u32" if narrow else "u64")
        beyond = u32(offset & 0xFFFFFFFF) if narrow else u64(offset & 0xFFFFFFFFFFFFFFFF)

        def addresses() -> Array:
            found = get()
            if offset:
                found = found + beyond
            if not self.full:
                found = found[self.active()]
            return found.astype(u64) if narrow else found

        return addresses

    @staticmethod
    def space_of(ins: Instruction) -> str | None:
        """The state space that the instruction names; None for a generic address."""
        spaces = (mod.split("::")[0] for mod in ins.mods)
        return next((space for space in spaces if space in SPACES), None)

    def in_spaces(
        self, space: str | None, addresses: Array, action: Callable[[Any, Array, Array], None]
    ) -> None:
        """Call `action` with a memory, threads and addresses; generic ones are told apart."""
        named: dict[str, Space] = {
            "global": self.global_memory,
            "const": self.global_memory,
            "shared": self.shared,
            "local": self.local,
        }
        if space in named:
            action(named[space], self.active(), addresses)
            return
        windows: dict[int, Space] = {
            SHARED_WINDOW >> 40: self.shared,
            LOCAL_WINDOW >> 40: self.local,
        }
        window = np.minimum(addresses >> u64(40), u64(3))
        first = int(window[0])
        if (window == first).all():
            action(windows.get(first, self.global_memory), self.active(), addresses)
            return
        mask, threads = self.mask, self.active()
        for number in np.unique(window):
            chosen = window == number
            part = self.nobody()
            part[threads[chosen]] = True
            self.set_mask(part)
            action(windows.get(int(number), self.global_memory), threads[chosen], addresses[chosen])
        self.set_mask(mask)

    @staticmethod
    def in_window(addresses: Array, space: str) -> Array:
        """Whether generic addresses mean this space."""
        if space == "global":
            return addresses >= u64(GLOBAL_BASE)
        window = SHARED_WINDOW if space == "shared" else LOCAL_WINDOW
        return np.asarray(addresses >> u64(40) == u64(window >> 40))
