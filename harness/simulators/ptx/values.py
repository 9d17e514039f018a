"""Arithmetic, comparisons, selections and conversions."""

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.simulators.ptx.alu import ARITHMETIC, OPERAND, RESULT, comparison, upper_half
from harness.simulators.ptx.formats import (
    FP8,
    INTS,
    SIZE,
    UINT,
    Array,
    f32,
    f32_to_fp8,
    f64,
    i8,
    i32,
    i64,
    u8,
    u16,
    u32,
)
from harness.simulators.ptx.moves import Moves
from harness.simulators.ptx.operands import vector
from harness.simulators.ptx.program import Instruction, Pair, Unsupported
from harness.simulators.ptx.scheduler import Decoded

FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
COMBINED: dict[str, Callable[..., Any]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}
ROUNDED: dict[str, Callable[..., Any]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


def clipped_to_one(values: Array) -> Array:
    """What .sat makes of floats."""
    return np.asarray(np.clip(np.nan_to_num(values, nan=0.0), 0, 1))


class Values(Moves):
    """Instructions whose result depends on their operands alone."""

    def arithmetic(self, ins: Instruction) -> Decoded:
        """Whatever `ARITHMETIC` knows."""
        count, maker = ARITHMETIC[ins.op]
        kind = [mod for mod in ins.mods if mod in SIZE][-1]
        function = maker(ins.mods, kind)
        if "sat" in ins.mods and kind in FLOATS:
            plain = function

            def function(*values: Array) -> Any:  # noqa: ANN401 -- an array
                return clipped_to_one(plain(*values))

        result = RESULT.get(ins.op, kind)
        wide = f"{kind[0]}{2 * int(kind[1:])}" if "wide" in ins.mods else None
        put = self.destination(ins.args[0], wide or result)
        sources = [
            self.source(arg, (wide if at == 2 else None) or OPERAND.get((ins.op, at), kind))
            for at, arg in enumerate(ins.args[1 : 1 + count])
        ]
        if count == 1:
            (only,) = sources
            return (lambda: put(function(only()))), None
        if count == 2:
            first, second = sources
            return (lambda: put(function(first(), second()))), None
        return (lambda: put(function(*[source() for source in sources]))), None

    def with_carry(self, ins: Instruction) -> Decoded:
        """add.cc, addc, sub.cc, subc, mad.cc, madc."""
        kind = ins.mods[-1].replace("s", "u").replace("b", "u")
        put = self.destination(ins.args[0], kind)
        sources = [self.source(arg, kind) for arg in ins.args[1:]]
        takes, gives = ins.op.endswith("c"), "cc" in ins.mods
        subtracts, upper, raw = ins.op.startswith("sub"), "hi" in ins.mods, UINT[SIZE[kind]]

        def step() -> None:
            values = [self.each(source()) for source in sources]
            a, b = values[0], values[1]
            if len(values) == 3:
                a, b = (upper_half(a, b) if upper else a * b), values[2]
            carry = self.carry.astype(raw) if takes else np.zeros(self.threads, raw)
            if subtracts:
                result, out = a - b - carry, (a < b) | ((a == b) & (carry > 0))
            else:
                total = a + b
                result, out = total + carry, (total < a) | (total + carry < total)
            put(result)
            if gives:
                self.carry = np.where(self.mask, out, self.carry)

        return step, None

    def op_dp4a(self, ins: Instruction) -> Decoded:
        """The dot product of four bytes each, added."""
        first, second = ins.mods
        put = self.destination(ins.args[0], "s32")
        a, b = self.source(ins.args[1], "b32"), self.source(ins.args[2], "b32")
        c = self.source(ins.args[3], "s32")

        def bytes_of(value: Array, kind: str) -> Array:
            raw = np.ascontiguousarray(self.each(value)).view(i8 if kind[0] == "s" else u8)
            return raw.astype(i64).reshape(-1, 4)

        def step() -> None:
            products = bytes_of(a(), first) * bytes_of(b(), second)
            put((products.sum(1) + c()).astype(i32))

        return step, None

    # ---- comparisons -----------------------------------------------------------------------

    def op_setp(self, ins: Instruction) -> Decoded:
        """Comparisons into predicates."""
        named = ins.mods[-1]
        kind = f"u{named[1:]}" if named in ("b16", "b32", "b64") else named
        compare, to = comparison(ins.mods, kind), ins.args[0]
        outs = (to.first, to.second) if isinstance(to, Pair) else (to,)
        puts = [self.destination(one, "pred") for one in outs]
        a, b = self.source(ins.args[1], kind), self.source(ins.args[2], kind)
        word = next((mod for mod in ins.mods[1:] if mod in COMBINED), None)
        third = self.source(ins.args[3], "pred") if word else None

        def step() -> None:
            result = compare(a(), b())
            if kind.endswith("x2"):
                halves = result.reshape(-1, 2)
                both = [np.ascontiguousarray(halves[:, half]) for half in range(2)]
            else:
                both = [result, ~result]
            if word and third is not None:
                other = third()
                both = [COMBINED[word](one, other) for one in both]
            for put, value in zip(puts, both, strict=False):
                put(value)

        return step, None

    def op_set(self, ins: Instruction) -> Decoded:
        """Comparisons into numbers: 1.0 or all bits."""
        to, kind = [mod for mod in ins.mods if mod in SIZE]
        compare, put = comparison(ins.mods, kind), self.destination(ins.args[0], to)
        a, b = self.source(ins.args[1], kind), self.source(ins.args[2], kind)
        if to in FLOATS:
            return (lambda: put(compare(a(), b()).astype(f32))), None
        return (lambda: put(np.where(compare(a(), b()), -1, 0).astype(INTS[to]))), None

    def op_selp(self, ins: Instruction) -> Decoded:
        """One of two values, by a predicate."""
        kind = ins.mods[-1]
        put = self.destination(ins.args[0], kind)
        a, b = self.source(ins.args[1], kind), self.source(ins.args[2], kind)
        chosen = self.source(ins.args[3], "pred")
        return (lambda: put(np.where(chosen(), a(), b()))), None

    def op_slct(self, ins: Instruction) -> Decoded:
        """One of two values, by a sign."""
        kind, sign = ins.mods[-2:]
        put = self.destination(ins.args[0], kind)
        a, b = self.source(ins.args[1], kind), self.source(ins.args[2], kind)
        by = self.source(ins.args[3], sign)
        return (lambda: put(np.where(by() >= 0, a(), b()))), None

    # ---- conversions -----------------------------------------------------------------------

    def op_cvt(self, ins: Instruction) -> Decoded:
        """Conversions between number formats."""
        kinds = [mod for mod in ins.mods if mod in SIZE]
        to, source = kinds[0], kinds[-1]
        if "pack" in ins.mods:
            raise Unsupported("cvt.pack")
        if len(vector(ins.args[0])) == 1 and len(ins.args) == 3:
            return self._packed_pair(ins, to, source)
        if source in ("e4m3x2", "e5m2x2"):
            get, put = self.source(ins.args[1], "b16"), self.destination(ins.args[0], to)
            table = FP8[source[:4]]
            return (lambda: put(table[np.ascontiguousarray(self.each(get())).view(u8)])), None
        put, get = self.destination(ins.args[0], to), self.source(ins.args[1], source)
        convert = self._conversion(ins, to, source)
        return (lambda: put(convert(get()))), None

    def _packed_pair(self, ins: Instruction, to: str, source: str) -> Decoded:
        """Two floats into one register; the first of them is the upper half."""
        eight, relu = to[:2] in ("e4", "e5"), "relu" in ins.mods
        put = self.destination(ins.args[0], "b16" if eight else to)
        high, low = self.source(ins.args[1], source), self.source(ins.args[2], source)
        if source not in FLOATS or source.endswith("x2"):
            raise Unsupported(ins.name)

        def step() -> None:
            both = np.stack([self.each(low()), self.each(high())], 1).reshape(-1)
            both = np.maximum(both, 0) if relu else both
            put(f32_to_fp8(both, to[:4]).view(u16) if eight else both)

        return step, None

    def _conversion(self, ins: Instruction, to: str, source: str) -> Callable[[Array], Array]:
        from_float, to_float = source not in INTS, to not in INTS
        rounded = next((ROUNDED[mod] for mod in ins.mods if mod in ROUNDED), None)
        saturates = "sat" in ins.mods
        if from_float and not to_float:
            return self._to_integer(to, rounded or np.trunc)
        if not to_float:
            limits = np.iinfo(INTS[to])
            least, most = int(limits.min), min(int(limits.max), 2**63 - 1)
            if saturates:
                return lambda values: np.clip(values.astype(i64), least, most).astype(INTS[to])
            return lambda values: values.astype(INTS[to])
        if not from_float:
            wide = f32 if to == "f32" else f64
            return lambda values: values.astype(wide)
        cuts, relu = "rz" in ins.mods and to == "bf16", "relu" in ins.mods

        def to_other(values: Array) -> Array:
            values = rounded(values) if rounded else values
            values = clipped_to_one(values) if saturates else values
            values = np.maximum(values, 0) if relu else values
            return (values.view(u32) & u32(0xFFFF0000)).view(f32) if cuts else values

        return to_other

    @staticmethod
    def _to_integer(to: str, rounded: Callable[..., Any]) -> Callable[[Array], Array]:
        """Floats to integers saturate, and NaN becomes 0."""
        limits = np.iinfo(INTS[to])
        most = float(limits.max)
        if SIZE[to] == 8:  # the float below, which the integer can hold
            most = float(np.nextafter(2.0 ** (63 if to[0] == "s" else 64), 0))

        def convert(values: Array) -> Array:
            whole = np.nan_to_num(rounded(values.astype(f64)), nan=0.0)
            return np.asarray(np.clip(whole, float(limits.min), most).astype(INTS[to]))

        return convert
