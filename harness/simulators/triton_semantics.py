"""
Triton's interpreter, made to compute what the compiled kernel computes.

The interpreter is NumPy, and where NumPy and a GPU differ a kernel that is right here would be
wrong there. What is mended, each against the instruction that Triton emits for sm_90 (PTX ISA 8.x):

maximum, minimum    ``max.f32`` gives the number where the other operand is NaN; ``max.NaN.f32``,
                    with `propagate_nan`, gives NaN. `clamp` is one after the other.
float to fp8        ``cvt.rn.satfinite``: to nearest, ties to even, and never past the largest
                    finite number. NaN has one encoding.
fp8 to float        infinities and NaN stay what they are.
float to integer    ``cvt.rzi``: what does not fit becomes the nearest that does, NaN becomes 0.
                    There is no conversion to 8 bits: the low byte of 16 is kept.
dot                 float32 operands in "tf32", the default: 10 bits of mantissa, the rest cut off.

Division and remainder of integers truncate towards zero, shifts by the width or more give 0 or the
sign, and `where` and comparisons treat NaN alike in both: nothing is to be mended there.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton._C.libtriton import ir
from triton.runtime.interpreter import TensorHandle

from harness.simulators.ptx.formats import FP8 as FP8_NUMBERS
from harness.simulators.ptx.formats import f32_to_fp8
from harness.simulators.triton_hooks import interpreter_classes

Floats = NDArray[np.floating[Any]]
Make = Callable[..., Any]

FP8 = {tl.float8e4nv: "e4m3", tl.float8e5: "e5m2"}
FP8_NAN = 0x7F
TF32_BITS = np.uint32(0xFFFF_E000)  # sign, 8 bits of exponent, 10 of mantissa


def install_compiled_semantics() -> None:
    """Have every interpreted kernel compute as if compiled from now on; again changes nothing."""
    builder, _ = interpreter_classes()
    if getattr(builder, "computes_as_compiled", False):
        return
    builder.computes_as_compiled = True
    builder.create_maxnumf = _elementwise(np.fmax)
    builder.create_minnumf = _elementwise(np.fmin)
    builder.create_clampf = _clamp
    builder.create_fp_to_fp = _fp_to_fp(builder.create_fp_to_fp)
    builder.create_fp_to_si = builder.create_fp_to_ui = _fp_to_int
    builder.create_dot = _dot(builder.create_dot)


def _elementwise(operator: Callable[..., Any]) -> Make:
    return lambda builder, lhs, rhs: builder.binary_op(lhs, rhs, operator)


def _clamp(builder: Any, x: Any, low: Any, high: Any, propagate_nan: Any) -> Any:  # noqa: ANN401
    keeps_nan = propagate_nan == ir.PROPAGATE_NAN.ALL
    above, below = (np.maximum, np.minimum) if keeps_nan else (np.fmax, np.fmin)
    return builder.binary_op(builder.binary_op(x, low, above), high, below)


# ---- casts ---------------------------------------------------------------------------------


def _fp_to_fp(original: Make) -> Make:
    def fp_to_fp(builder: Any, src: Any, dst_type: Any, rounding: Any) -> Any:  # noqa: ANN401
        source, target = src.dtype.scalar, dst_type.scalar
        if target in FP8 and source not in FP8 and rounding == ir.ROUNDING_MODE.RTNE:
            return TensorHandle(to_fp8(src.data, FP8[target]), target)
        if source in FP8 and target in (tl.float16, tl.float32, tl.float64):
            return TensorHandle(
                from_fp8(src.data, FP8[source], np.dtype(f"f{target.itemsize}")), target
            )
        return original(builder, src, dst_type, rounding)

    return fp_to_fp


def to_fp8(values: Floats, kind: str) -> NDArray[np.uint8]:
    """
    The bits of `values` in fp8: to nearest, ties to even, infinities the largest finite.

    PyTorch's cast would be an operator within the kernel, which meters count and judges refuse.
    """
    return np.where(np.isnan(values), np.uint8(FP8_NAN), f32_to_fp8(values, kind))


def from_fp8(bits: NDArray[np.uint8], kind: str, target: np.dtype[Any]) -> Floats:
    """The numbers that fp8 `bits` stand for, all of which `target` holds."""
    wide: Floats = FP8_NUMBERS[kind][bits].astype(target)
    return wide


def _fp_to_int(builder: Any, src: Any, dst_type: Any) -> Any:  # noqa: ANN401
    target = dst_type.scalar
    if target == tl.int1:
        return builder.cast_impl(src, dst_type)
    kind = "u" if target.is_int_unsigned() else "i"
    return TensorHandle(
        to_integer(src.data, np.dtype(f"{kind}{target.primitive_bitwidth // 8}")), target
    )


def to_integer(values: Floats, dtype: np.dtype[Any]) -> NDArray[np.integer[Any]]:
    """Cut off the fraction; saturate, as 16 bits where there are fewer; NaN is 0."""
    held = np.dtype(f"{dtype.kind}{max(2, dtype.itemsize)}")
    limits = np.iinfo(held)
    wide = np.nan_to_num(
        np.trunc(values.astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf
    )
    # a float64 cannot hold the largest of 64 bits: compare with the power of two past it
    fits = (wide > float(limits.min) - 1) & (wide < float(limits.max) + 1)
    cast = np.where(fits, wide, 0).astype(held)
    saturated = np.where(wide < 0, limits.min, limits.max).astype(held)
    return np.where(fits, cast, saturated).astype(dtype)


# ---- products ------------------------------------------------------------------------------


def _dot(original: Make) -> Make:
    def dot(builder: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:  # noqa: ANN401
        if precision == ir.INPUT_PRECISION.TF32:
            a, b = _as_tf32(a), _as_tf32(b)
        return original(builder, _widened(a), _widened(b), d, precision, imprecise)

    return dot


def _as_tf32(operand: Any) -> Any:  # noqa: ANN401
    if operand.dtype.scalar != tl.float32:
        return operand
    bits = np.ascontiguousarray(operand.data).view(np.uint32) & TF32_BITS
    # what is cut off an infinity or a NaN would turn one into the other
    cut = np.where(np.isfinite(operand.data), bits.view(np.float32), operand.data)
    return TensorHandle(cut, operand.dtype)


def _widened(operand: Any) -> Any:  # noqa: ANN401
    """An fp8 operand in float16, which holds every number of both formats."""
    source = operand.dtype.scalar
    if source not in FP8:
        return operand
    return TensorHandle(from_fp8(operand.data, FP8[source], np.dtype(np.float16)), tl.float16)
