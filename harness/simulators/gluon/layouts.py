"""
Layouts of register tensors, checked where the compiler checks them.

They mean nothing else here: a partition is one agent, and has no lanes.
"""

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
