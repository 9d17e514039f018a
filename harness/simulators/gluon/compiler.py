"""
What Triton's own compiler says of dtypes and layouts, asked without a GPU: nothing is compiled.

The dtype that two operands meet in is its rule. The layout of a reshaped, permuted, joined or
split tensor is its inference. Bank conflicts are its count, for the instructions that it would
choose for a load or a store.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import triton.language as tl
from triton._C.libtriton import gluon_ir, ir
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._semantic import GluonSemantic

from harness.simulators.gluon.layouts import ANY, FREE, Layout, answerable, bases_of
from harness.simulators.gluon.values import Dtype

Sizes = tuple[int, ...]
WARPS, THREADS, TARGET = 4, 32, "cuda:90"  # what a module has to say; layouts have their own


class _Semantics:
    """Triton's semantics over an empty function, and what has been asked of them."""

    def __init__(self, num_ctas: int) -> None:
        self._context = ir.context()
        ir.load_dialects(self._context)
        builder = gluon_ir.GluonOpBuilder(self._context)
        self._module = builder.create_module()
        self._module.set_attr("ttg.target", builder.get_string_attr(TARGET))
        numbers = {"num-warps": WARPS, "num-ctas": num_ctas, "threads-per-warp": THREADS}
        for name, number in numbers.items():
            self._module.set_attr(f"ttg.{name}", builder.get_int32_attr(number))
        signature = builder.get_function_ty([], [])
        function = builder.get_or_insert_function(self._module, "asked", signature, "public", False)
        self._module.push_back(function)
        builder.set_insertion_point_to_start(function.add_entry_block())
        self.builder, self.known = builder, dict[tuple[Any, ...], Any]()
        self.semantic: Any = GluonSemantic(builder)

    def tensor(self, shape: Sizes, layout: Layout) -> Any:  # noqa: ANN401 -- Triton's
        """A tensor of whatever values."""
        kind = gl._core.distributed_type(tl.float32, list(shape), layout)
        return gl._core.tensor(self.builder.create_poison(kind.to_ir(self.builder)), kind)


@cache
def _semantics(num_ctas: int = 1) -> _Semantics:
    return _Semantics(num_ctas)


def _asked(
    what: str, shape: Sizes, layout: Layout, more: object, ask: Callable[[_Semantics], Any]
) -> Any:  # noqa: ANN401 -- whatever is asked
    """What `ask` finds, once for each question; None where Triton has no answer."""
    if not answerable(layout, shape):
        return None
    semantics = _semantics(1 << len(bases_of(layout)))
    key = (what, shape, type(layout), layout.mangle(), more)
    if key not in semantics.known:
        try:
            semantics.known[key] = ask(semantics)
        except (RuntimeError, ValueError, TypeError, NotImplementedError, AssertionError):
            semantics.known[key] = None
    return semantics.known[key]


@cache
def promoted(
    a: Dtype, b: Dtype, *, a_number: bool = False, b_number: bool = False, divides: bool = False
) -> Dtype:
    """
    The dtype that two operands compute in.

    Args:
        a: Dtype of the left operand.
        b: Dtype of the right one.
        a_number: Whether the left one is a Python number, whose dtype gives way.
        b_number: Whether the right one is.
        divides: Whether it is a division or a remainder, which is done in float32.

    Raises:
        TypeError: They do not go together, as a signed and an unsigned one under `divides`.
    """
    semantic = _semantics().semantic
    return semantic.computation_type_impl(a, a_number, b, b_number, divides)


def reshaped(layout: Layout, shape: Sequence[int], to: Sequence[int]) -> Layout:
    """The layout of a tensor of `shape` that is reshaped."""
    if isinstance(layout, FREE):
        return ANY
    old, new = tuple(shape), tuple(to)
    return (
        _asked(
            "reshape", old, layout, new,
            lambda on: on.semantic.reshape(on.tensor(old, layout), list(new), False).type.layout,
        )
        or ANY
    )  # fmt: skip


def permuted(layout: Layout, shape: Sequence[int], order: Sequence[int]) -> Layout:
    """The layout of a tensor of `shape` whose axes are taken in `order`."""
    if isinstance(layout, FREE):
        return layout
    sizes, axes = tuple(shape), tuple(order)
    return (
        _asked(
            "permute", sizes, layout, axes,
            lambda on: on.semantic.permute(on.tensor(sizes, layout), axes).type.layout,
        )
        or ANY
    )  # fmt: skip


def joined(layout: Layout, shape: Sequence[int]) -> Layout:
    """The layout of two tensors of `shape` joined along a new last axis."""
    if isinstance(layout, FREE):
        return ANY
    sizes = tuple(shape)

    def ask(on: _Semantics) -> Layout:
        half = on.tensor(sizes, layout)
        return on.semantic.join(half, half).type.layout

    return _asked("join", sizes, layout, None, ask) or ANY


def split(layout: Layout, shape: Sequence[int]) -> Layout:
    """The layout of either half of a tensor of `shape` that is split along its last axis."""
    if isinstance(layout, FREE):
        return ANY
    sizes = tuple(shape)
    return (
        _asked(
            "split", sizes, layout, None,
            lambda on: on.semantic.split(on.tensor(sizes, layout))[0].type.layout,
        )
        or ANY
    )  # fmt: skip


def shared_reshaped(
    layout: Layout, dtype: Dtype, shape: Sequence[int], to: Sequence[int]
) -> Layout:
    """The layout of shared memory of `shape` seen in another one."""
    old, new = tuple(shape), tuple(to)

    def ask(on: _Semantics) -> Layout:
        memory = on.semantic.allocate_shared(dtype, list(old), layout, None)
        return on.semantic.memdesc_reshape(memory, list(new)).layout

    return _asked("shared reshape", old, layout, (dtype, new), ask) or layout


def shared_permuted(
    layout: Layout, dtype: Dtype, shape: Sequence[int], order: Sequence[int]
) -> Layout:
    """The layout of shared memory of `shape` whose axes are taken in `order`."""
    sizes, axes = tuple(shape), tuple(order)

    def ask(on: _Semantics) -> Layout:
        memory = on.semantic.allocate_shared(dtype, list(sizes), layout, None)
        return on.semantic.memdesc_trans(memory, list(axes)).layout

    return _asked("shared permute", sizes, layout, (dtype, axes), ask) or layout


def bank_conflicts(registers: Layout, shared: Layout, dtype: Dtype, shape: Sequence[int]) -> int:
    """
    Passes through the banks beyond the first, of each load or store between these layouts.

    Args:
        registers: Of the tensor; one that is not fixed has none.
        shared: Of the whole allocation, or of an entry along its first axes.
        dtype: Of the elements.
        shape: Of both.
    """
    if registers is None or isinstance(registers, FREE):
        return 0
    sizes = tuple(shape)
    if not answerable(shared, sizes):
        return 0

    def ask(on: _Semantics) -> int:
        return int(
            on.semantic.bank_conflicts(
                gl._core.distributed_type(dtype, list(sizes), registers),
                gl._core.shared_memory_descriptor_type(dtype, list(sizes), shared, list(sizes)),
            )
        )

    key = (dtype, type(shared), shared.mangle())
    return _asked("bank conflicts", sizes, registers, key, ask) or 0
