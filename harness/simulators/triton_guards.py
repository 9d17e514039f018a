"""
What Triton's interpreter must not do: compute in bfloat16, touch memory outside its arguments, or
run what no GPU would launch.

Its bfloat16 arithmetic is wrong. It follows raw pointers, so that a forgotten mask would corrupt
the process that judges it. Its grid is a loop, which any number fits, and it
has no warps. All are told before they happen: which kernel, what, where.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime.errors import InterpreterError

from harness.base.errors import HarnessError
from harness.simulators.triton_hooks import (
    before,
    interpreter_classes,
    named_arguments,
    operands,
)

# methods of the interpreter's builder that touch memory: places of pointers and mask in their
# arguments, and what they do
ACCESSES = {
    "create_masked_load": (1, 2, "reads"),
    "create_masked_store": (1, 3, "writes"),
    "create_atomic_rmw": (2, 4, "updates"),
}

# what wraps in int32, and the builder's methods that do it
INT32 = np.iinfo(np.int32)
ARITHMETIC: dict[str, np.ufunc] = {
    "*": np.multiply,
    "+": np.add,
    "-": np.subtract,
}
ARITHMETIC_METHODS = {"create_mul": "*", "create_add": "+", "create_sub": "-"}

# the most programs along x, y and z. Source: CUDA C++ programming guide, compute capabilities
GRID_LIMITS = (2**31 - 1, 65_535, 65_535)
WARPS = (1, 2, 4, 8, 16, 32)  # of 32 threads, 1024 in a block


class OutOfBounds(HarnessError, IndexError):
    """A kernel touched memory outside the tensors it was given."""

    exit_code = 1


@dataclass(slots=True)
class Bounds:
    """The memory one launch may touch, as sorted disjoint ranges of addresses."""

    kernel: str
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    checked: bool = True
    overflow: str = ""  # the last sum or product of this launch that int32 could not hold

    @classmethod
    def of(cls, kernel: str, arguments: Mapping[str, object]) -> "Bounds":
        """The storages of every tensor among `arguments`."""
        ranges = {
            (storage.data_ptr(), storage.data_ptr() + storage.nbytes())
            for operand in operands(tuple(arguments.values()))
            if isinstance(operand, torch.Tensor)
            for storage in [operand.untyped_storage()]
        }
        starts, ends = np.array(sorted(ranges), dtype=np.int64).reshape(-1, 2).T
        return cls(kernel, starts, ends)

    def check(self, pointers: Any, mask: object, does: str) -> None:  # noqa: ANN401 -- a handle
        """Raise OutOfBounds when an active lane lies outside every range."""
        if not self.checked:
            return
        data, active = np.broadcast_arrays(pointers.data, np.asarray(mask, dtype=bool))
        addresses = data[active].astype(np.int64)
        if not addresses.size:
            return
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        place = np.searchsorted(self.starts, addresses, side="right") - 1
        inside = (place >= 0) & (addresses + size <= self.ends[place])
        if not inside.all():
            stray = addresses[~inside]
            gap = (stray - self.ends[np.maximum(place[~inside], 0)]) // size
            far = {0: "right", 1: "1 element"}.get(int(gap.min()), f"{int(gap.min())} elements")
            past = f", the first {far} past the end" if gap.min() >= 0 else ""
            raise OutOfBounds(
                f"{self.kernel}: {does} {stray.size} element{'s' if stray.size > 1 else ''} "
                f"outside the tensors it was given{past}. {self._advice()}"
            )

    def _advice(self) -> str:
        if self.overflow:
            return (
                f"int32 overflow: {self.overflow} does not fit into 32 bits. Make its first "
                "operand int64 beforehand: .to(tl.int64)."
            )
        return "Mask what lies beyond the data."


def int32_overflow(symbol: str, lhs: Any, rhs: Any) -> str:  # noqa: ANN401 -- handles
    """The first sum, difference or product of two int32 operands that wraps; empty without one."""
    if lhs.dtype.scalar != tl.int32 or rhs.dtype.scalar != tl.int32:
        return ""
    exact = ARITHMETIC[symbol](lhs.data, rhs.data, dtype=np.int64)
    wraps = (exact > INT32.max) | (exact < INT32.min)
    if not wraps.any():
        return ""
    left, right, first = (
        np.broadcast_to(data, exact.shape)[wraps][0] for data in (lhs.data, rhs.data, exact)
    )
    return f"{left:,} {symbol} {right:,} = {first:,}"


class GridTooLarge(HarnessError, ValueError):
    """A kernel was launched on more programs along an axis than CUDA allows."""

    exit_code = 1


def refuse_large_grid(kernel: str, grid: Sequence[int]) -> None:
    """Raise GridTooLarge when CUDA would not launch `grid`."""
    for axis, programs, limit in zip("xyz", grid, GRID_LIMITS, strict=True):
        if programs > limit:
            raise GridTooLarge(
                f"{kernel}: expected at most {limit:,} programs along {axis} of the grid, found "
                f"{programs:,}. A GPU refuses that launch: put the longest axis first, or let a "
                "program do more."
            )


class TooManyWarps(HarnessError, ValueError):
    """A kernel asks for a block that no GPU can hold."""

    exit_code = 1


def refuse_odd_warps(kernel: str, num_warps: object) -> None:
    """Raise TooManyWarps for a `num_warps` that no compiled launch takes; None is the default."""
    if num_warps is not None and num_warps not in WARPS:
        raise TooManyWarps(
            f"{kernel}: expected num_warps to be a power of two up to {WARPS[-1]}, found "
            f"{num_warps}. A block has 1024 threads at most: give a thread more elements."
        )


def install_bounds_guard() -> None:
    """
    Check every interpreted launch from now on: grid, warps, and each of its accesses.

    A second call changes nothing.
    """
    builder, function = interpreter_classes()
    if getattr(function.run, "checks_bounds", False):
        return
    current: list[Bounds] = []
    run = function.run

    def guarded(kernel: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 -- Triton's own
        refuse_odd_warps(kernel.__name__, kwargs.get("num_warps"))
        current.append(Bounds.of(kernel.__name__, named_arguments(kernel, args, kwargs)))
        try:
            return run(kernel, *args, **kwargs)
        except InterpreterError as error:
            if isinstance(error.__cause__, (OutOfBounds, NotImplementedError)):
                raise error.__cause__ from None
            if error.__cause__ is not None:  # in its own words, not the repr of them
                kind = type(error.__cause__).__name__
                error.error_message = f"{kind}: {error.__cause__}"
            raise
        finally:
            current.pop()

    def trust_pointer(*_: object) -> None:
        # an address that was computed from a number may lie in a tensor the launch never saw
        if current:
            current[-1].checked = False

    def check_grid(_: object, *grid: int) -> None:
        refuse_large_grid(current[-1].kernel if current else "grid", grid)

    def access(pointers: int, mask: int, does: str) -> Callable[..., None]:
        def check(*args: Any, **_: object) -> None:  # noqa: ANN401
            if current:
                current[-1].check(args[pointers], args[mask].data, does)

        return check

    def note_overflow(symbol: str) -> Callable[..., None]:
        def check(_: object, lhs: Any, rhs: Any) -> None:  # noqa: ANN401
            if current and (overflow := int32_overflow(symbol, lhs, rhs)):
                current[-1].overflow = overflow

        return check

    for name, symbol in ARITHMETIC_METHODS.items():
        setattr(builder, name, before(getattr(builder, name), note_overflow(symbol)))
    for name, (pointers, mask, does) in ACCESSES.items():
        checked = before(getattr(builder, name), access(pointers, mask, does))
        setattr(builder, name, checked)
    builder.set_grid_dim = before(builder.set_grid_dim, check_grid)
    builder.create_int_to_ptr = before(builder.create_int_to_ptr, trust_pointer)
    guarded.__dict__.update(run.__dict__, checks_bounds=True)
    function.run = guarded


class Bfloat16InInterpreter(HarnessError, ValueError):
    """A kernel was given bfloat16, which Triton's interpreter computes wrongly."""

    exit_code = 1


def refuse_bf16(kernel: str, arguments: Mapping[str, object]) -> None:
    """Raise Bfloat16InInterpreter when an argument is, or describes, a bfloat16 tensor."""
    for name, argument in arguments.items():
        dtypes = [getattr(operand, "dtype", None) for operand in operands(argument)]
        if torch.bfloat16 in dtypes or tl.bfloat16 in dtypes:
            raise Bfloat16InInterpreter(
                f"{kernel}: expected fp16/fp32 under Triton's interpreter, found bfloat16 in "
                f"argument {name!r}. Run on a GPU or use float16: the interpreter's bf16 "
                "arithmetic is wrong."
            )


def install_bf16_guard() -> None:
    """Make every interpreted launch refuse bfloat16 from now on; a second call changes nothing."""
    _, function = interpreter_classes()
    if getattr(function.run, "refuses_bf16", False):
        return

    def refuse(kernel: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        refuse_bf16(kernel.__name__, named_arguments(kernel, args, kwargs))

    function.run = before(function.run, refuse)
    function.run.refuses_bf16 = True  # functools.wraps carries the mark to hooks around it
