"""
The number formats of PTX: what NumPy computes each in, and how its bits are read and written.

Registers hold bits as unsigned integers. An operand of type f16, bf16 or tf32 is computed in
float32, and rounded when it is written. Source: PTX ISA 9.0, Types and Alternate Floating-Point
Data Formats; OCP 8-bit Floating Point Specification 1.0 for e4m3 and e5m2.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Convert = Callable[[Array], Array]

u8, u16, u32, u64 = np.uint8, np.uint16, np.uint32, np.uint64
i8, i16, i32, i64 = np.int8, np.int16, np.int32, np.int64
f16, f32, f64 = np.float16, np.float32, np.float64
UINT: dict[int, Any] = {1: u8, 2: u16, 4: u32, 8: u64}

# bytes of each type; those of two numbers in one register end in x2
SIZE: dict[str, int] = {
    "pred": 1, "b128": 16, "f16x2": 4, "bf16x2": 4, "bf16": 2, "tf32": 4, "e4m3x2": 2,
    "e5m2x2": 2, "s16x2": 4, "u16x2": 4,
    **{f"{letter}{bits}": bits // 8 for letter in "bsuf" for bits in (8, 16, 32, 64)},
}  # fmt: skip
INTS: dict[str, Any] = {
    f"{letter}{8 * size}": getattr(np, f"{'int' if letter == 's' else 'uint'}{8 * size}")
    for size in UINT
    for letter in "ubs"
}


def bf16_to_f32(bits: Array) -> Array:
    """The value of each bfloat16."""
    return (bits.astype(u32) << u32(16)).view(f32)


def f32_to_bf16(values: Array) -> Array:
    """The bits of each value as bfloat16, rounded to nearest even."""
    bits = values.astype(f32).view(u32)
    rounded = (bits + u32(0x7FFF) + ((bits >> u32(16)) & u32(1))) >> u32(16)
    return np.where(np.isnan(values), u16(0x7FFF), rounded.astype(u16))


def _fp8_table(exponent_bits: int, mantissa_bits: int, *, infinities: bool) -> Array:
    """The values of the 256 codes; without infinities only all ones are no number."""
    code = np.arange(256)
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = code & ((1 << mantissa_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    value = np.where(
        exponent == 0,
        mantissa * 2.0 ** (1 - bias - mantissa_bits),
        (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias),
    )
    if infinities:
        top = exponent == (1 << exponent_bits) - 1
        value = np.where(top, np.where(mantissa == 0, np.inf, np.nan), value)
    else:
        value = np.where((code & 0x7F) == 0x7F, np.nan, value)
    return np.where(code >> 7 == 1, -value, value).astype(f32)


FP8 = {
    "e4m3": _fp8_table(4, 3, infinities=False),
    "e5m2": _fp8_table(5, 2, infinities=True),
}


def f32_to_fp8(values: Array, kind: str) -> Array:
    """The codes of values in `kind`, rounded to nearest even, saturated to the largest number."""
    finite = FP8[kind][: 0x7F if kind == "e4m3" else 0x7C].astype(f64)
    size = np.clip(np.abs(values.astype(f64)), 0, finite[-1])
    above = np.clip(np.searchsorted(finite, size), 1, len(finite) - 1)
    below = above - 1
    down, up = size - finite[below], finite[above] - size
    code = np.where((down < up) | ((down == up) & (below % 2 == 0)), below, above)
    code = np.where(np.isnan(values), 0x7F, code)
    return (code | np.where(np.signbit(values), 0x80, 0)).astype(u8)


def _pairs(bits: Array, dtype: type) -> Array:
    return np.ascontiguousarray(bits).view(dtype)


def _viewed(dtype: Any) -> Convert:  # noqa: ANN401 -- a NumPy scalar type
    return lambda bits: bits.view(dtype)


def _stored(dtype: Any, raw: Any) -> Convert:  # noqa: ANN401 -- NumPy scalar types
    return lambda values: values.astype(dtype, copy=False).view(raw)


# bits to what is computed in
READ: dict[str, Convert] = {
    **{name: _viewed(dtype) for name, dtype in INTS.items()},
    "f32": _viewed(f32),
    "f64": _viewed(f64),
    "pred": lambda bits: bits,
    "tf32": lambda bits: (bits & u32(0xFFFFE000)).view(f32),
    "f16": lambda bits: bits.view(f16).astype(f32),
    "bf16": bf16_to_f32,
    "f16x2": lambda bits: _pairs(bits, f16).astype(f32),
    "bf16x2": lambda bits: bf16_to_f32(_pairs(bits, u16)),
    "s16x2": lambda bits: _pairs(bits, i16),
    "u16x2": lambda bits: _pairs(bits, u16),
}
# and back
WRITE: dict[str, Convert] = {
    **{name: _stored(dtype, UINT[SIZE[name]]) for name, dtype in INTS.items()},
    "f32": _stored(f32, u32),
    "f64": _stored(f64, u64),
    "pred": lambda values: values,
    "f16": lambda values: values.astype(f16).view(u16),
    "bf16": f32_to_bf16,
    "tf32": lambda values: (values.astype(f32).view(u32) + u32(0x1000)) & u32(0xFFFFE000),
    "f16x2": lambda values: values.astype(f16).view(u32),
    "bf16x2": lambda values: f32_to_bf16(values).view(u32),
    "s16x2": lambda values: np.ascontiguousarray(values.astype(i16)).view(u32),
    "u16x2": lambda values: np.ascontiguousarray(values.astype(u16)).view(u32),
}
