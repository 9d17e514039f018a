"""
Arithmetic of PTX as NumPy functions of what the operands are computed in.

`ARITHMETIC[opcode]` is how many operands there are, and a maker that turns what follows the
opcode and its type into the function. Approximate instructions (ex2, rsqrt, …) are computed
exactly, f32 fma through float64. Source: PTX ISA 9.0, Integer and Floating-Point Instructions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from harness.simulators.ptx.formats import (
    INTS,
    SIZE,
    UINT,
    Array,
    f64,
    i32,
    i64,
    u32,
    u64,
)
from harness.simulators.ptx.program import Unsupported

Function = Callable[..., Any]
Maker = Callable[[Sequence[str], str], Function]

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
WIDE: Mapping[str, Any] = {"s16": i32, "u16": u32, "s32": i64, "u32": u64}


def upper_half(a: Array, b: Array) -> Array:
    """The upper half of each product of two integers of the same type."""
    if a.dtype.itemsize == 4:
        big = i64 if a.dtype.kind == "i" else u64
        return ((a.astype(big) * b.astype(big)) >> big(32)).astype(a.dtype)
    if a.dtype.itemsize == 2:
        return ((a.astype(i64) * b.astype(i64)) >> i64(16)).astype(a.dtype)
    half, low = u64(32), u64(0xFFFFFFFF)
    ua, ub = a.view(u64), b.view(u64)
    ah, al, bh, bl = ua >> half, ua & low, ub >> half, ub & low
    mid = ah * bl + ((al * bl) >> half)
    other = al * bh + (mid & low)
    high = ah * bh + (mid >> half) + (other >> half)
    if a.dtype.kind == "i":
        high = high - np.where(a < 0, ub, u64(0)) - np.where(b < 0, ua, u64(0))
    return np.asarray(high.view(a.dtype))


def _saturating(sign: int) -> Maker:
    plain = np.add if sign > 0 else np.subtract

    def make(mods: Sequence[str], kind: str) -> Function:
        if "sat" in mods and kind == "s32":
            return lambda a, b: np.clip(a.astype(i64) + sign * b.astype(i64), INT32_MIN, INT32_MAX)
        return plain

    return make


def _mul(mods: Sequence[str], kind: str) -> Function:
    if "hi" in mods:
        return upper_half
    if "wide" in mods:
        wide = WIDE[kind]
        return lambda a, b: a.astype(wide) * b.astype(wide)
    return np.multiply


def _mad(mods: Sequence[str], kind: str) -> Function:
    if "hi" in mods:
        return lambda a, b, c: upper_half(a, b) + c
    if "wide" in mods:
        wide = WIDE[kind]
        return lambda a, b, c: a.astype(wide) * b.astype(wide) + c
    return (lambda a, b, c: a * b + c) if kind in INTS else _fma(mods, kind)


def _fma(mods: Sequence[str], kind: str) -> Function:
    if kind == "f64":
        return lambda a, b, c: (a.astype(np.longdouble) * b + c).astype(f64)
    relu = "relu" in mods

    def fma(a: Array, b: Array, c: Array) -> Array:
        exact = a.astype(f64) * b.astype(f64) + c.astype(f64)  # the product is, the sum nearly
        return np.maximum(exact, 0) if relu else exact

    return fma


def _div(mods: Sequence[str], kind: str) -> Function:
    if kind not in INTS:
        return np.divide

    def div(a: Array, b: Array) -> Array:
        by_zero = b == 0
        quotient = np.floor_divide(a, np.where(by_zero, 1, b).astype(a.dtype))
        if a.dtype.kind == "i":  # towards zero
            quotient = quotient + ((quotient * b != a) & ((a < 0) != (b < 0)) & ~by_zero)
        return np.where(by_zero, np.array(-1).astype(a.dtype), quotient).astype(a.dtype)

    return div


def _rem(mods: Sequence[str], kind: str) -> Function:
    div = _div(mods, kind)
    return lambda a, b: np.where(b == 0, a, a - div(a, b) * b).astype(a.dtype)


def _shift(*, left: bool) -> Maker:
    def make(mods: Sequence[str], kind: str) -> Function:
        bits = 8 * SIZE[kind]

        def shift(a: Array, count: Array) -> Array:
            by = np.minimum(count, bits - 1).astype(a.dtype)
            if left:
                return np.where(count >= bits, 0, a << by).astype(a.dtype)
            if a.dtype.kind == "i":
                return np.asarray(a >> by)
            return np.where(count >= bits, 0, a >> by).astype(a.dtype)

        return shift

    return make


def _extreme(exact: Function, without_nan: Function) -> Maker:
    def make(mods: Sequence[str], kind: str) -> Function:
        return exact if kind in INTS or "NaN" in mods else without_nan

    return make


def _bfe(mods: Sequence[str], kind: str) -> Function:
    bits = 8 * SIZE[kind]

    def bfe(a: Array, start: Array, length: Array) -> Array:
        first, count = start.astype(i64) & 255, length.astype(i64) & 255
        within = np.minimum(first, bits - 1)
        kept = np.minimum(count, bits - within)
        field = a.view(UINT[bits // 8]).astype(u64) >> within.astype(u64)
        top = np.clip(64 - kept, 0, 63).astype(u64)
        field = field << top
        field = (field.view(i64) >> top.view(i64)) if kind[0] == "s" else field >> top
        return np.where((count > 0) & (first < bits), field, 0).astype(a.dtype)

    return bfe


def _bfi(mods: Sequence[str], kind: str) -> Function:
    everything = u64((1 << 8 * SIZE[kind]) - 1)

    def bfi(a: Array, b: Array, start: Array, length: Array) -> Array:
        first = np.minimum(start.astype(u64) & u64(255), u64(63))
        count = np.minimum(length.astype(u64) & u64(255), u64(63))
        mask = (((u64(1) << count) - u64(1)) << first) & everything
        mixed = (b.astype(u64) & ~mask) | ((a.astype(u64) << first) & mask)
        return np.asarray(mixed.astype(a.dtype))

    return bfi


def _prmt(mods: Sequence[str], kind: str) -> Function:
    if len(mods) > 1:
        raise Unsupported("prmt with a mode")

    def prmt(a: Array, b: Array, selector: Array) -> Array:
        both = a.astype(u64) | (b.astype(u64) << u64(32))
        out = np.zeros(np.broadcast(a, b, selector).shape, u32)
        for place in range(4):
            chosen = (selector >> u32(4 * place)) & u32(15)
            byte = ((both >> ((chosen & u32(7)) * u32(8)).astype(u64)) & u64(255)).astype(u32)
            sign = np.where(byte & u32(128), u32(255), u32(0))
            out |= np.where(chosen & u32(8), sign, byte) << u32(8 * place)
        return out

    return prmt


def _shf(mods: Sequence[str], kind: str) -> Function:
    left, wrap = "l" in mods, "wrap" in mods

    def shf(a: Array, b: Array, count: Array) -> Array:
        by = (count & u32(31) if wrap else np.minimum(count, u32(32))).astype(u64)
        both = a.astype(u64) | (b.astype(u64) << u64(32))
        if not left:
            return (both >> by).astype(u32)
        # by 32 at most, which leaves `a` alone
        return np.where(by == 32, a, ((both << by) >> u64(32)).astype(u32))

    return shf


def _lop3(mods: Sequence[str], kind: str) -> Function:
    def lop3(a: Array, b: Array, c: Array, table: Array) -> Array:
        out, wanted = np.zeros(np.broadcast(a, b, c).shape, u32), int(table[0])
        for row in range(8):
            if wanted >> row & 1:
                out |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        return out

    return lop3


def leading_zeros(a: Array) -> Array:
    """How many zeros stand before the first one, in each unsigned integer."""
    bits = 8 * a.dtype.itemsize
    for by in (1, 2, 4, 8, 16, 32)[: bits.bit_length() - 1]:
        a = a | (a >> a.dtype.type(by))
    return (bits - np.bitwise_count(a).astype(i64)).astype(u32)


def _bmsk(mods: Sequence[str], kind: str) -> Function:
    wraps = "wrap" in mods

    def bmsk(start: Array, length: Array) -> Array:
        limit = u64(31) if wraps else u64(32)
        first = start.astype(u64) & limit if wraps else np.minimum(start.astype(u64), limit)
        count = length.astype(u64) & limit if wraps else np.minimum(length.astype(u64), limit)
        ones = (((u64(1) << count) - u64(1)) << first) & u64(0xFFFFFFFF)
        return np.asarray(ones.astype(u32))

    return bmsk


def _testp(mods: Sequence[str], kind: str) -> Function:
    tests: Mapping[str, Function] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        "normal": lambda a: np.isfinite(a) & (np.abs(a) >= np.finfo(a.dtype).tiny),
        "subnormal": lambda a: (a != 0) & (np.abs(a) < np.finfo(a.dtype).tiny),
    }
    return tests[mods[0]]


def _brev(mods: Sequence[str], kind: str) -> Function:
    bits = 8 * SIZE[kind]
    return lambda a: np.array([int(f"{int(one):0{bits}b}"[::-1], 2) for one in a], a.dtype)


def _bfind(mods: Sequence[str], kind: str) -> Function:
    def bfind(a: Array) -> Array:
        size = SIZE[kind]
        bits = np.where(a < 0, ~a, a).view(UINT[size]) if kind[0] == "s" else a
        zeros = leading_zeros(bits).astype(i64)
        place = 8 * size - 1 - zeros
        return np.where(place < 0, -1, zeros if "shiftamt" in mods else place).astype(i32)

    return bfind


ORDERED: Mapping[str, Function] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
UNSIGNED: Mapping[str, Function] = {
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip


def comparison(mods: Sequence[str], kind: str) -> Function:
    """What setp and set compare by, with PTX's rules for NaN."""
    word = mods[0]
    if kind in INTS or kind == "pred":
        return {**ORDERED, **UNSIGNED}[word]
    if word == "num":
        return lambda a, b: ~(np.isnan(a) | np.isnan(b))
    if word == "nan":
        return lambda a, b: np.isnan(a) | np.isnan(b)
    base = ORDERED[word[:2]]
    if word.endswith("u"):
        return lambda a, b: base(a, b) | np.isnan(a) | np.isnan(b)
    if word == "ne":
        return lambda a, b: base(a, b) & ~(np.isnan(a) | np.isnan(b))
    return base


def _plain(function: Function) -> Maker:
    return lambda mods, kind: function


ARITHMETIC: Mapping[str, tuple[int, Maker]] = {
    "add": (2, _saturating(1)),
    "sub": (2, _saturating(-1)),
    "mul": (2, _mul),
    "mul24": (2, _mul),
    "mad": (3, _mad),
    "mad24": (3, _mad),
    "fma": (3, _fma),
    "div": (2, _div),
    "rem": (2, _rem),
    "neg": (1, _plain(np.negative)),
    "abs": (1, _plain(np.abs)),
    "min": (2, _extreme(np.minimum, np.fmin)),
    "max": (2, _extreme(np.maximum, np.fmax)),
    "shl": (2, _shift(left=True)),
    "shr": (2, _shift(left=False)),
    "and": (2, _plain(np.bitwise_and)),
    "or": (2, _plain(np.bitwise_or)),
    "xor": (2, _plain(np.bitwise_xor)),
    "not": (1, _plain(np.invert)),
    "cnot": (1, _plain(lambda a: (a == 0).astype(a.dtype))),
    "bmsk": (2, _bmsk),
    "testp": (1, _testp),
    "bfe": (3, _bfe),
    "bfi": (4, _bfi),
    "prmt": (3, _prmt),
    "shf": (3, _shf),
    "lop3": (4, _lop3),
    "popc": (1, _plain(lambda a: np.bitwise_count(a).astype(u32))),
    "clz": (1, _plain(leading_zeros)),
    "brev": (1, _brev),
    "bfind": (1, _bfind),
    "sad": (3, _plain(lambda a, b, c: np.where(a > b, a - b, b - a) + c)),
    "copysign": (2, _plain(lambda a, b: np.copysign(b, a))),
    "sqrt": (1, _plain(np.sqrt)),
    "rsqrt": (1, _plain(lambda a: 1 / np.sqrt(a.astype(f64)))),
    "rcp": (1, _plain(lambda a: 1 / a.astype(f64))),
    "ex2": (1, _plain(np.exp2)),
    "lg2": (1, _plain(np.log2)),
    "sin": (1, _plain(np.sin)),
    "cos": (1, _plain(np.cos)),
    "tanh": (1, _plain(np.tanh)),
}
# where the result, or an operand by its place, is of another type than the instruction says
RESULT: Mapping[str, str] = {"popc": "u32", "clz": "u32", "bfind": "u32", "testp": "pred"}
OPERAND: Mapping[tuple[str, int], str] = {
    ("shl", 1): "u32", ("shr", 1): "u32", ("bfe", 1): "u32", ("bfe", 2): "u32",
    ("bfi", 2): "u32", ("bfi", 3): "u32",
}  # fmt: skip
