"""The plain functions of `gl`: blocks of numbers, their shapes, elementwise functions."""

import math

import numpy as np
import triton.language as tl

from harness.simulators.gluon import compiler
from harness.simulators.gluon.context import fault
from harness.simulators.gluon.layouts import (
    FREE,
    AutoLayout,
    LayoutError,
)
from harness.simulators.gluon.tensors import (
    GL,
    Tensor,
    as_tensor,
    check_same_ctas,
    export,
    layout_here,
    meet,
    running,
)
from harness.simulators.gluon.values import (
    KernelValue,
    convert,
    shape_of,
    unwrap,
)

# ---- where, how many ------------------------------------------------------------------------


def _axis(axis: KernelValue) -> int:
    """An axis of the grid."""
    axis = unwrap(axis)
    if axis not in (0, 1, 2):
        raise fault(ValueError, f"the axis of a grid is 0, 1 or 2, found {axis}")
    return int(axis)


@export(GL)
def _program_id(axis: KernelValue) -> Tensor:
    return Tensor(np.int32(running().index[_axis(axis)]), tl.int32)


@export(GL)
def _num_programs(axis: KernelValue) -> Tensor:
    return Tensor(np.int32(running().grid[_axis(axis)]), tl.int32)


@export(GL)
def _num_warps() -> int:
    return running().current.num_warps


@export(GL)
def _num_ctas() -> int:
    return running().num_ctas


@export(GL)
def _static_range(*bounds: KernelValue) -> range:
    return range(*(int(unwrap(bound)) for bound in bounds))


@export(GL)
def _constexpr(value: KernelValue) -> KernelValue:
    return unwrap(value)


@export(GL, "assume", "static_print", "device_print")
def _nothing(*_: KernelValue, **__: KernelValue) -> None:
    """Only the compiler or a person cares."""


@export(GL, "multiple_of", "max_contiguous", "max_constancy")
def _same(x: KernelValue, *_: KernelValue) -> KernelValue:
    return x


@export(GL, "device_assert", "static_assert")
def _assert(condition: KernelValue, message: KernelValue = "", mask: KernelValue = None) -> None:
    holds = as_tensor(condition).values
    if mask is not None:
        holds = holds | ~as_tensor(mask).values
    if not np.all(holds):
        raise fault(AssertionError, str(unwrap(message)) or "an assertion of the kernel's")


# ---- making blocks --------------------------------------------------------------------------


def _check_powers(sizes: tuple[int, ...]) -> None:
    """Raise where a block could not be: its sizes are powers of two."""
    if any(size < 1 or size & (size - 1) for size in sizes):
        raise fault(ValueError, f"the sizes of a block are powers of two, found {list(sizes)}")


@export(GL)
def _arange(start: KernelValue, end: KernelValue, layout: KernelValue = None) -> Tensor:
    (first, last) = shape_of((start, end))
    _check_powers((last - first,))
    values = np.arange(first, last, dtype=np.int32)
    return Tensor(values, tl.int32, layout_here(layout) or AutoLayout())


@export(GL)
def _full(
    shape: KernelValue, value: KernelValue, dtype: KernelValue, layout: KernelValue = None
) -> Tensor:
    dtype, given = unwrap(dtype), as_tensor(value)
    sizes = shape_of(shape)
    _check_powers(sizes)
    filled = np.full(sizes, convert(given.values, given.dtype, dtype))
    return Tensor(filled, dtype, layout_here(layout) or AutoLayout())


@export(GL)
def _full_like(
    x: Tensor,
    value: KernelValue,
    shape: KernelValue = None,
    dtype: KernelValue = None,
    layout: KernelValue = None,
) -> Tensor:
    return _full(shape or x.shape, value, dtype or x.dtype, layout or x.layout)


@export(GL)
def _zeros(shape: KernelValue, dtype: KernelValue, layout: KernelValue = None) -> Tensor:
    return _full(shape, 0, dtype, layout)


@export(GL)
def _zeros_like(x: Tensor, **changes: KernelValue) -> Tensor:
    return _full_like(x, 0, **changes)


@export(GL)
def _to_tensor(value: KernelValue) -> KernelValue:
    value = unwrap(value)
    return value if not isinstance(value, (bool, int, float)) else as_tensor(value)


@export(GL)
def _cast(x: KernelValue, dtype: KernelValue, **details: KernelValue) -> Tensor:
    return as_tensor(x).to(dtype, **details)


# ---- shapes ---------------------------------------------------------------------------------


def _sizes(given: tuple[KernelValue, ...]) -> tuple[int, ...]:
    return shape_of(given[0] if isinstance(unwrap(given[0]), (list, tuple)) else given)


@export(GL)
def _broadcast_to(x: Tensor, *shape: KernelValue) -> Tensor:
    return Tensor(np.broadcast_to(x.values, _sizes(shape)), x.dtype, x.layout, memory=x.memory)


@export(GL)
def _broadcast(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    layout = meet(x, y, "broadcast")
    shape = np.broadcast_shapes(tuple(x.shape), tuple(y.shape))
    return tuple(
        Tensor(np.broadcast_to(one.values, shape), one.dtype, layout, memory=one.memory)
        for one in (x, y)
    )


@export(GL)
def _convert_layout(x: Tensor, layout: KernelValue, assert_trivial: KernelValue = False) -> Tensor:
    x, layout = as_tensor(x), layout_here(layout)
    check_same_ctas(x.layout, layout, x.shape, "convert_layout")
    return Tensor(x.values, x.dtype, layout, memory=x.memory)


@export(GL)
def _set_auto_layout(x: Tensor, layout: KernelValue) -> Tensor:
    if not isinstance(x.layout, FREE):
        raise fault(LayoutError, f"set_auto_layout takes an AutoLayout, found {x.layout}")
    return _convert_layout(x, layout)


@export(GL, "permute", "trans")
def _permute(x: Tensor, *dims: KernelValue) -> Tensor:
    order = list(_sizes(dims)) if dims else [1, 0]
    if sorted(order) != list(range(len(x.shape))):
        raise fault(ValueError, f"permute takes each of {len(x.shape)} axes once, found {order}")
    layout = compiler.permuted(x.layout, x.shape, order)
    return Tensor(np.transpose(x.values, order), x.dtype, layout)


@export(GL)
def _reshape(x: Tensor, *shape: KernelValue, can_reorder: KernelValue = False) -> Tensor:
    sizes = _sizes(shape)
    if math.prod(sizes) != x.numel:
        raise fault(ValueError, f"reshape takes as many elements, found {x.shape} and {sizes}")
    values = np.reshape(x.values, sizes)
    return Tensor(values, x.dtype, compiler.reshaped(x.layout, x.shape, values.shape))


@export(GL)
def _ravel(x: Tensor, **_: KernelValue) -> Tensor:
    return _reshape(x, x.numel)


@export(GL)
def _join(x: Tensor, y: Tensor) -> Tensor:
    x, y = _broadcast(x, y)
    values = np.stack([x.values, y.values], -1)
    return Tensor(values, x.dtype, compiler.joined(x.layout, x.shape))


@export(GL)
def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    layout = compiler.split(x.layout, x.shape)
    first, second = (Tensor(x.values[..., half], x.dtype, layout) for half in (0, 1))
    return first, second


# ---- what the compiler says of layouts -------------------------------------------------------


@export(GL)
def _bank_conflicts(registers: KernelValue, shared: KernelValue) -> int:
    return compiler.bank_conflicts(
        registers.layout, shared.layout, registers.element_ty, registers.shape
    )
