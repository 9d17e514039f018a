"""Operators of register tensors, with Triton's promotion, and pointers that move."""

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl

from harness.simulators.gluon.compiler import promoted
from harness.simulators.gluon.context import fault
from harness.simulators.gluon.layouts import Layout
from harness.simulators.gluon.tensors import Tensor, as_tensor, meet, running
from harness.simulators.gluon.values import Array, Dtype, KernelValue, numpy_dtype, unwrap


def _truncating_division(a: Array, b: Array) -> Array:
    """Towards zero, as on the GPU; by 0 it is anything there, and 0 here."""
    quotient = np.floor_divide(a, b)
    rounded = np.where((quotient < 0) & (quotient * b != a), quotient + 1, quotient)
    result: Array = rounded.astype(quotient.dtype)[()]
    return result


COMPARISONS: dict[str, Callable[..., Any]] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.true_divide,
    "floordiv": _truncating_division,
    "mod": np.fmod,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "lshift": np.left_shift,
    "rshift": np.right_shift,
    **COMPARISONS,
}
DIVISIONS = ("truediv", "floordiv", "mod")
EXTREMES: dict[str, Callable[..., Any]] = {
    "fmax": np.fmax,
    "fmin": np.fmin,
    # those that pass a NaN on
    "maximum": np.maximum,
    "minimum": np.minimum,
}


def binary(op: str, left: KernelValue, right: KernelValue) -> Tensor:
    """Two operands under an operator of `BINARY` or `EXTREMES`, with Triton's promotion."""
    running().tick()
    x, y = as_tensor(left), as_tensor(right)
    layout, fn = meet(x, y, op), BINARY.get(op) or EXTREMES[op]
    if x.memory is not None or y.memory is not None:
        return _moved(op, x, y, layout)
    dtype = _met(op, left, right, x.dtype, y.dtype)
    if op == "truediv" and not dtype.is_floating():
        dtype = tl.float32
    if op in ("floordiv", "and", "or", "xor", "lshift", "rshift") and dtype.is_floating():
        raise fault(TypeError, f"{op} takes integers, found {dtype}")
    if dtype == tl.int1 and op in ("add", "sub", "mul"):
        dtype = tl.int32
    numpys, a, b = numpy_dtype(dtype), x.values, y.values
    result = fn(
        a if a.dtype == numpys else a.astype(numpys), b if b.dtype == numpys else b.astype(numpys)
    )
    if op in COMPARISONS:
        return Tensor(result, tl.int1, layout)
    return Tensor(result if result.dtype == numpys else result.astype(numpys), dtype, layout)


def _met(op: str, left: KernelValue, right: KernelValue, a: Dtype, b: Dtype) -> Dtype:
    """The dtype that an operator computes in; a Python number has to fit into it."""
    numbers = [None if isinstance(one, Tensor) else unwrap(one) for one in (left, right)]
    try:
        dtype = promoted(
            a,
            b,
            a_number=numbers[0] is not None,
            b_number=numbers[1] is not None,
            divides=op in DIVISIONS,
        )
    except TypeError as error:
        raise fault(TypeError, str(error)) from None
    if dtype.is_int() and dtype != tl.int1:
        limits = np.iinfo(numpy_dtype(dtype))
        for one in numbers:
            if isinstance(one, int) and not limits.min <= one <= limits.max:
                raise fault(ValueError, f"{one} does not fit into {dtype}, which {op} is done in")
    return dtype


def _moved(op: str, x: Tensor, y: Tensor, layout: Layout) -> Tensor:
    """A pointer moved by a number of elements."""
    pointer, by = (x, y) if x.memory is not None else (y, x)
    forward = op == "add" or (op == "sub" and pointer is x)
    if not forward or by.memory is not None or by.dtype.is_floating():
        raise fault(TypeError, f"expected a pointer and whole numbers to be added, found {op}")
    offsets = BINARY[op](pointer.values, np.asarray(by.values, np.int64))
    return Tensor(offsets, pointer.dtype, layout, memory=pointer.memory)


def _operators() -> None:
    """Give `Tensor` the operators of `BINARY`."""
    for name in BINARY:

        def forward(x: Tensor, y: KernelValue, name: str = name) -> Tensor:
            return binary(name, x, y)

        def backward(x: Tensor, y: KernelValue, name: str = name) -> Tensor:
            return binary(name, y, x)

        setattr(Tensor, f"__{name}__", forward)
        if name not in COMPARISONS:
            setattr(Tensor, f"__r{name}__", backward)
    for name, alone in {"neg": _negated, "invert": _inverted}.items():
        setattr(Tensor, f"__{name}__", alone)


def _negated(x: Tensor) -> Tensor:
    return binary("sub", 0, x)


def _inverted(x: Tensor) -> Tensor:
    return Tensor(np.invert(x.values), x.dtype, x.layout)


_operators()
