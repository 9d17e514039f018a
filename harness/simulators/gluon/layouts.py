"""
Layouts of register tensors, checked where the compiler checks them.

They mean nothing else here: a partition is one agent, and has no lanes.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from triton.experimental.gluon.language import _layouts as gluon_layouts

from harness.simulators.gluon.context import fault

Layout: TypeAlias = Any  # a layout of Gluon, or None for a scalar

SharedLayout = gluon_layouts.SharedLayout
NVMMASharedLayout = gluon_layouts.NVMMASharedLayout
NVMMADistributedLayout = gluon_layouts.NVMMADistributedLayout
DotOperandLayout = gluon_layouts.DotOperandLayout
BlockedLayout = gluon_layouts.BlockedLayout
SliceLayout = gluon_layouts.SliceLayout
AutoLayout = gluon_layouts.AutoLayout


ANSWERABLE = (
    BlockedLayout,
    SliceLayout,
    DotOperandLayout,
    NVMMADistributedLayout,
    gluon_layouts.DistributedLinearLayout,
)
LANES = 32  # of a warp
ATOM_ROWS, NARROWEST_BYTES = 8, 16  # of a swizzled tile


class LayoutError(ValueError):
    """Layouts that differ where the compiler wants one, or that an operation does not take."""


class AnyLayout(gluon_layouts.DistributedLayout):  # type: ignore[misc]
    """The layout of a result that is not worked out here: it agrees with every other."""

    rank = None

    def __repr__(self) -> str:
        return "AnyLayout()"


ANY = AnyLayout()
FREE = (AutoLayout, gluon_layouts.CoalescedLayout, AnyLayout)  # fit whatever they meet


def equal(a: Layout, b: Layout) -> bool:
    """Whether two layouts are the same: Triton tells a list from a tuple, their names do not."""
    return bool(a == b) or (type(a) is type(b) and a.mangle() == b.mangle())


def common(a: Layout, b: Layout, what: str) -> Layout:
    """
    The layout that two operands share.

    Raises:
        LayoutError: They have different ones; `what` says in which operation.
    """
    if a is b or b is None or isinstance(b, FREE):
        return a if a is not None else b
    if a is None or isinstance(a, FREE) or equal(a, b):
        return b
    raise fault(LayoutError, f"the layouts of {what} differ: {a} and {b}")


def expanded(layout: Layout, axis: int) -> Layout:
    """
    The layout of a tensor that gets an axis of size 1.

    Raises:
        LayoutError: It is no slice along this axis.
    """
    if isinstance(layout, FREE):
        return layout
    if not isinstance(layout, SliceLayout) or layout.dim != axis:
        raise fault(LayoutError, f"expand_dims takes a SliceLayout({axis}, ...), found {layout}")
    return layout.parent


def _powers_of_two(numbers: Iterable[Any]) -> bool:
    return all(type(one) is int and one > 0 and not one & (one - 1) for one in numbers)


def flaw_of(layout: Layout, num_warps: int | None = None) -> str:
    """
    What the compiler would refuse a layout of a tensor for, in words; "" where it would not.

    Of some it does not even say so: an assertion of its C++ fails, which ends the process.

    Args:
        layout: Of a register tensor.
        num_warps: Of the partition that has the tensor; None where that does not matter.
    """
    if isinstance(layout, SliceLayout):
        known = layout.dim in range(getattr(layout.parent, "rank", None) or 0)
        return flaw_of(layout.parent, num_warps) if known else f"there is no axis {layout.dim}"
    if isinstance(layout, DotOperandLayout):
        return flaw_of(layout.parent, num_warps)
    if isinstance(layout, BlockedLayout):
        return _flaw_of_blocked(layout) or _flaw_of_warps(layout.warps_per_cta, num_warps)
    if isinstance(layout, NVMMADistributedLayout):
        return _flaw_of_product(layout) or _flaw_of_warps(layout.warps_per_cta, num_warps)
    return ""


def _flaw_of_blocked(layout: Layout) -> str:
    parts = layout.size_per_thread, layout.threads_per_warp, layout.warps_per_cta
    if not all(map(_powers_of_two, parts)):
        return "expected powers of two"
    if (threads := math.prod(layout.threads_per_warp)) != LANES:
        return f"expected {LANES} threads a warp, found {threads}"
    if sorted(layout.order) != list(range(layout.rank)):
        return f"expected each axis once in the order, found {layout.order}"
    return ""


def _flaw_of_product(layout: Layout) -> str:
    version, shape = layout.version[0], list(layout.instr_shape)
    if version == 2:
        return "" if shape == [16, 8] else f"expected instructions of [16, 8], found {shape}"
    wide = len(shape) == 3 and shape[0] == 16 and shape[1] in range(8, 257, 8)
    if version != 3 or not wide or not _powers_of_two(shape[2:]):
        return f"expected instructions of [16, 8 to 256 in steps of 8, 256 bits], found {shape}"
    return "" if _powers_of_two(layout.warps_per_cta) else "expected powers of two"


def _flaw_of_warps(warps_per_cta: Sequence[int], num_warps: int | None) -> str:
    warps = math.prod(warps_per_cta)
    if num_warps in (None, warps):
        return ""
    return f"expected the {num_warps} warps that run here, found {warps}"


def answerable(layout: Layout, shape: Sequence[int]) -> bool:
    """Whether the compiler can be asked about a block of `shape` with this layout, and lives on."""
    if not _powers_of_two(shape) or flaw_of(layout):
        return False
    if isinstance(layout, NVMMASharedLayout):
        if len(shape) < 2:
            return False
        rows, columns = shape[-2:] if not layout.transposed else (shape[-1], shape[-2])
        widest = max(layout.swizzle_byte_width, NARROWEST_BYTES)
        return bool(rows >= ATOM_ROWS and columns * layout.element_bitwidth // 8 >= widest)
    if isinstance(layout, gluon_layouts.SwizzledSharedLayout):
        swizzle = layout.vec, layout.per_phase, layout.max_phase
        return _powers_of_two(swizzle) and sorted(layout.order) == list(range(len(shape)))
    return isinstance(layout, ANSWERABLE) and layout.rank == len(shape)
