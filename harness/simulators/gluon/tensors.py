"""Register tensors: NumPy arrays that carry Gluon's own layouts, and their arithmetic."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from triton.experimental.gluon import language as gl

from harness.simulators.gluon.agents import Product
from harness.simulators.gluon.context import fault, hazard, site
from harness.simulators.gluon.layouts import (
    FREE,
    Layout,
    LayoutError,
    boxes,
    common,
    expanded,
    flaw_of,
    splits,
)
from harness.simulators.gluon.machine import Program
from harness.simulators.gluon.values import (
    Array,
    Dtype,
    KernelValue,
    Sizes,
    convert,
    number,
    numpy_dtype,
    unwrap,
)

F = TypeVar("F", bound=Callable[..., Any])
Table = dict[str, Callable[..., Any]]
GL: Table = {}  # what `gl.name` means in a kernel


def export(table: Table, *names: str) -> Callable[[F], F]:
    """Put a function into a table under these names; its own without underscores by default."""

    def put(fn: F) -> F:
        table.update(dict.fromkeys(names or (fn.__name__.strip("_"),), fn))
        return fn

    return put


# which of them a tensor has as methods
METHODS = frozenset(
    {
        "abs", "associative_scan", "atomic_add", "atomic_and", "atomic_cas", "atomic_max",
        "atomic_min", "atomic_or", "atomic_xchg", "atomic_xor", "broadcast_to", "cast", "cdiv",
        "ceil", "cos", "cumprod", "cumsum", "erf", "exp", "exp2", "expand_dims", "floor", "gather",
        "histogram", "log", "log2", "max", "min", "permute", "ravel", "reduce", "reduce_or",
        "reshape", "rsqrt", "sin", "split", "sqrt", "sqrt_rn", "store", "sum", "trans", "xor_sum",
    }
)  # fmt: skip


class _Running:
    program: Program | None = None


_running = _Running()


def running() -> Program:
    """The program that runs now."""
    assert _running.program is not None, "a kernel's function was called outside of a kernel"
    return _running.program


def run_now(program: Program | None) -> None:
    """Make `program` the one that runs."""
    _running.program = program


class Memory:
    """
    The memory of a tensor in global memory, flat.

    Attributes:
        name: The kernel's parameter.
        flat: Its elements, from the first to the last that belongs to it.
    """

    __slots__ = ("flat", "name")

    def __init__(self, name: str, flat: Array) -> None:
        self.name, self.flat = name, flat


class Tensor:
    """
    A register tensor, or a scalar: shape [].

    A pointer holds offsets, in elements, into the memory that it points to. The accumulator of a
    product in flight holds the product.
    """

    __slots__ = ("_values", "dtype", "layout", "memory", "product")

    def __init__(
        self,
        values: Any,  # noqa: ANN401 -- an array, or a scalar of NumPy
        dtype: Dtype,
        layout: Layout = None,
        memory: Memory | None = None,
        product: Product | None = None,
    ) -> None:
        self._values, self.dtype, self.layout = values, dtype, layout
        self.memory, self.product = memory, product
        fits = layout is None or product or isinstance(layout, FREE) or layout.rank == values.ndim
        if not fits:
            raise fault(
                LayoutError,
                f"a tensor of shape {list(values.shape)} cannot have a layout of rank "
                f"{layout.rank}, {layout}",
            )

    @property
    def values(self) -> Any:  # noqa: ANN401 -- an array, or a scalar of NumPy
        """The elements; those of a product that is not known to be complete are a hazard."""
        if self.product is not None:
            if not self.product.known:
                hazard(
                    "missing-wgmma-wait",
                    "the accumulator of a wgmma in flight is used",
                    site(),
                    self.product.site,
                )
                return np.full(self.product.shape, np.nan, numpy_dtype(self.dtype))
            self._values, self.product = self.product.result, None
        return self._values

    @property
    def shape(self) -> Sizes:
        """Sizes along each axis."""
        return Sizes(self.product.shape if self.product is not None else self._values.shape)

    @property
    def numel(self) -> int:
        """How many elements there are."""
        return math.prod(self.shape)

    @property
    def T(self) -> Tensor:  # noqa: N802 -- Gluon's name
        """The transposed matrix."""
        transposed: Tensor = GL["permute"](self, 1, 0)
        return transposed

    @property
    def type(self) -> Any:  # noqa: ANN401 -- Triton's
        """What Gluon calls its type."""
        if not self.shape:
            return self.dtype
        if isinstance(self.layout, FREE):
            return types.SimpleNamespace(
                shape=self.shape, layout=self.layout, element_ty=self.dtype, scalar=self.dtype
            )
        return gl._core.distributed_type(self.dtype, self.shape, self.layout)

    def to(
        self, dtype: KernelValue, fp_downcast_rounding: KernelValue = None, bitcast: bool = False
    ) -> Tensor:
        """Cast, or see the same bits as another dtype."""
        dtype = unwrap(dtype)
        if unwrap(bitcast):
            return Tensor(np.asarray(self.values).view(numpy_dtype(dtype)), dtype, self.layout)
        if dtype == self.dtype:
            return self
        return Tensor(convert(self.values, self.dtype, dtype), dtype, self.layout)

    def __bool__(self) -> bool:
        if self.shape:
            raise fault(ValueError, "a tensor is no condition: expected gl.where")
        return bool(self.values)

    def __index__(self) -> int:
        return int(self.values)

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Tensor({self._values}, {self.dtype}, {self.layout})"

    def __getitem__(self, key: KernelValue) -> Tensor:
        out = self
        for axis, one in enumerate(key if isinstance(key, tuple) else (key,)):
            if unwrap(one) is None:
                out = _expand_dims(out, axis)
            elif one != slice(None):
                raise fault(ValueError, f"expected None or : as the index of a tensor, found {one}")
        return out

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A function of `gl` as a method: ``x.sum(0)``, ``x.reshape(4, 4)``."""
        if name not in METHODS:
            if name.startswith("__"):  # Python asks for what there may be
                raise AttributeError(name)
            raise fault(AttributeError, f"a tensor has no {name!r}")
        return lambda *args, **kwargs: GL[name](self, *args, **kwargs)


class Accumulator:
    """What an asynchronous wgmma returns: no tensor until it has been waited for."""

    def __init__(self, product: Product, dtype: Dtype, layout: Layout) -> None:
        self.product, self.dtype, self.layout = product, dtype, layout
        self.shape = Sizes(product.shape)

    def misused(self, *_: object, **__: object) -> Tensor:
        """Tell of a use before the wait, and go on without its values."""
        hazard(
            "missing-wgmma-wait",
            "the accumulator of a wgmma in flight is used",
            site(),
            self.product.site,
        )
        nothing = np.full(self.product.shape, np.nan, numpy_dtype(self.dtype))
        return Tensor(nothing, self.dtype, self.layout)

    to = __getitem__ = __add__ = __radd__ = __sub__ = __rsub__ = misused
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = misused


def layout_here(layout: KernelValue) -> Layout:
    """
    The layout that a tensor of the current partition is asked to have.

    Raises:
        LayoutError: None of its tensors can have it.
    """
    layout = unwrap(layout)
    if flaw := flaw_of(layout, running().current.num_warps, running().num_ctas):
        raise fault(LayoutError, f"{layout}: {flaw}")
    return layout


def check_same_ctas(a: Layout, b: Layout, shape: Sequence[int], what: str) -> None:
    """
    Check that in a cluster each CTA has the same part of something of `shape` by both layouts.

    Triton 3.6 and 3.7 build nothing for sm_90 that moves elements from one CTA to another: not
    convert_layout (its mapa does not verify), nor loads and stores of shared memory.

    Raises:
        LayoutError: They differ.
    """
    many = running().num_ctas
    if many == 1 or a is None or b is None:
        return
    mine, theirs = boxes(a, shape, many), boxes(b, shape, many)
    if mine and theirs and mine != theirs:
        raise fault(
            LayoutError,
            f"{what} would move elements between the CTAs of a cluster, which Triton does not "
            f"build: {a} and {b}",
        )


def check_whole(layout: Layout, axis: int | None, what: str) -> None:
    """
    Check that each CTA has all of an axis that is combined, or of all where none is named.

    Triton 3.6 and 3.7 combine nothing across CTAs: a reduction fails an assertion of
    ReduceOpToLLVM.cpp, isReduceWithinCTA; a gather or a histogram is built, and wrong.

    Raises:
        LayoutError: The axis is split over CTAs.
    """
    if running().num_ctas > 1 and not isinstance(layout, FREE) and splits(layout, axis):
        raise fault(
            LayoutError,
            f"{what} takes elements of several CTAs, which Triton does not build: combine what "
            f"each CTA has, and exchange the results through global memory. Found {layout}",
        )


def as_tensor(value: KernelValue) -> Tensor:
    """
    A tensor as it is; a number as the kernel has it.

    Raises:
        TypeError: It is neither.
    """
    value = unwrap(value)
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Accumulator):
        return value.misused()
    if isinstance(value, (bool, int, float, np.bool_)):
        return Tensor(*number(value))
    raise fault(TypeError, f"expected a tensor or a number, found {type(value).__name__}")


def truth(value: KernelValue) -> bool:
    """A scalar as a condition."""
    return bool(as_tensor(value).values)


@export(GL)
def _expand_dims(x: Tensor, axis: KernelValue) -> Tensor:
    axis = unwrap(axis)
    axis += (x.values.ndim + 1) * (axis < 0)
    values = np.expand_dims(x.values, axis)
    return Tensor(values, x.dtype, expanded(x.layout, axis), memory=x.memory)


def meet(x: Tensor, y: Tensor, what: str) -> Layout:
    """
    The layout of two tensors broadcast together.

    Raises:
        ValueError: Their shapes do not fit, or, as a LayoutError, their layouts.
    """
    if x.shape and y.shape:
        same_rank = len(x.shape) == len(y.shape)
        if not same_rank or any(
            p != q and 1 not in (p, q) for p, q in zip(x.shape, y.shape, strict=True)
        ):
            raise fault(ValueError, f"the shapes of {what} do not fit: {x.shape} and {y.shape}")
        return common(x.layout, y.layout, what)
    return x.layout if x.shape else y.layout
