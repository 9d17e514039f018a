"""Functions of `gl` on each element by itself: arithmetic by name, where, exponentials."""

from collections.abc import Callable

import numpy as np
import torch
import triton.language as tl

from harness.simulators.gluon.arithmetic import binary
from harness.simulators.gluon.compiler import promoted
from harness.simulators.gluon.context import fault, not_modelled
from harness.simulators.gluon.layouts import common
from harness.simulators.gluon.tensors import GL, Tensor, as_tensor, export, meet, running
from harness.simulators.gluon.values import (
    Array,
    KernelValue,
    convert,
    numpy_dtype,
    unwrap,
)


@export(GL)
def _cdiv(x: KernelValue, y: KernelValue) -> KernelValue:
    x, y = unwrap(x), unwrap(y)
    if isinstance(x, int) and isinstance(y, int):
        return -(-x // y)
    return binary("floordiv", binary("add", x, binary("sub", y, 1)), y)


@export(GL)
def _add(x: KernelValue, y: KernelValue, *_: KernelValue, **__: KernelValue) -> Tensor:
    return binary("add", x, y)


@export(GL)
def _sub(x: KernelValue, y: KernelValue, *_: KernelValue, **__: KernelValue) -> Tensor:
    return binary("sub", x, y)


@export(GL)
def _mul(x: KernelValue, y: KernelValue, *_: KernelValue, **__: KernelValue) -> Tensor:
    return binary("mul", x, y)


def _passes_nan(propagate_nan: KernelValue) -> bool:
    """Whether an extreme is asked to give a NaN where one operand is one."""
    return getattr(unwrap(propagate_nan), "name", "NONE") == "ALL"


@export(GL)
def _maximum(x: KernelValue, y: KernelValue, propagate_nan: KernelValue = None) -> Tensor:
    return binary("maximum" if _passes_nan(propagate_nan) else "fmax", x, y)


@export(GL)
def _minimum(x: KernelValue, y: KernelValue, propagate_nan: KernelValue = None) -> Tensor:
    return binary("minimum" if _passes_nan(propagate_nan) else "fmin", x, y)


@export(GL)
def _clamp(
    x: KernelValue, low: KernelValue, high: KernelValue, propagate_nan: KernelValue = None
) -> Tensor:
    return _minimum(_maximum(x, low, propagate_nan), high, propagate_nan)


@export(GL)
def _fma(x: KernelValue, y: KernelValue, z: KernelValue) -> Tensor:
    return binary("add", binary("mul", x, y), z)


@export(GL, "fdiv", "div_rn")
def _fdiv(x: KernelValue, y: KernelValue, **_: KernelValue) -> Tensor:
    return binary("truediv", x, y)


@export(GL)
def _umulhi(x: KernelValue, y: KernelValue) -> Tensor:
    a, b = as_tensor(x), as_tensor(y)
    if a.dtype.primitive_bitwidth != 32 or b.dtype.primitive_bitwidth != 32:
        raise fault(ValueError, f"umulhi takes two of 32 bits here, found {a.dtype}, {b.dtype}")
    wide = [np.asarray(one.values).astype(np.uint32).astype(np.uint64) for one in (a, b)]
    high = (wide[0] * wide[1] >> np.uint64(32)).astype(numpy_dtype(a.dtype))
    return Tensor(high[()], a.dtype, meet(a, b, "umulhi"))


@export(GL)
def _where(condition: KernelValue, x: KernelValue, y: KernelValue) -> Tensor:
    numbers = [not isinstance(one, Tensor) for one in (x, y)]
    chosen, a, b = map(as_tensor, (condition, x, y))
    dtype = promoted(a.dtype, b.dtype, a_number=numbers[0], b_number=numbers[1])
    layout = common(meet(chosen, a, "where"), meet(chosen, b, "where"), "where")
    layout = common(layout, meet(a, b, "where"), "where")
    sides = (convert(one.values, one.dtype, dtype) for one in (a, b))
    return Tensor(np.where(chosen.values, *sides)[()], dtype, layout)


def _erf(values: Array) -> Array:
    result: Array = torch.erf(torch.from_numpy(np.array(values))).numpy()
    return result


ELEMENTWISE: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "sqrt": np.sqrt,
    "sqrt_rn": np.sqrt,
    "rsqrt": lambda values: 1 / np.sqrt(values),
    "floor": np.floor,
    "ceil": np.ceil,
    "erf": _erf,
}


def _elementwise(name: str) -> None:
    compute = ELEMENTWISE[name]

    def apply(x: KernelValue) -> Tensor:
        x = as_tensor(x)
        if x.dtype not in (tl.float32, tl.float64):
            raise fault(ValueError, f"gl.{name} takes fp32 or fp64, found {x.dtype}")
        program = running()
        program.tick()
        program.count(name, int(np.size(x.values)))
        program.work.append((program.steps, program.current, name))
        return Tensor(compute(x.values).astype(numpy_dtype(x.dtype)), x.dtype, x.layout)

    GL[name] = apply


for _name in ELEMENTWISE:
    _elementwise(_name)


@export(GL)
def _abs(x: KernelValue) -> Tensor:
    x = as_tensor(x)
    return Tensor(np.abs(x.values), x.dtype, x.layout)


@export(GL)
def _map_elementwise(
    fn: Callable[..., KernelValue], *args: Tensor, pack: KernelValue = 1
) -> KernelValue:
    """A function of scalars, called for each element; it may branch."""
    if unwrap(pack) != 1:
        raise not_modelled("gl.map_elementwise with pack")
    shapes = [tuple(one.shape) for one in args]
    shape = np.broadcast_shapes(*shapes)
    lanes = [np.broadcast_to(one.values, shape).ravel() for one in args]
    found = []
    for values in zip(*lanes, strict=True):
        result = fn(*(Tensor(value, one.dtype) for value, one in zip(values, args, strict=True)))
        found.append(
            [as_tensor(one) for one in (result if isinstance(result, tuple) else (result,))]
        )
    parts = tuple(
        Tensor(np.array([one.values for one in each]).reshape(shape), each[0].dtype, args[0].layout)
        for each in zip(*found, strict=True)
    )
    return parts if len(parts) > 1 else parts[0]
