"""
Layouts of register tensors, checked where the compiler checks them.

Which lane has an element means nothing here: a partition is one agent. Which CTA of a cluster has
it does.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from triton.experimental.gluon.language import _layouts as gluon_layouts

from harness.simulators.gluon.context import fault, not_modelled

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
Box = tuple[slice, ...]  # along each axis of a layout
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


# ---- the CTAs of a cluster ------------------------------------------------------------------


def bases_of(layout: Layout) -> list[list[int]]:
    """
    How a layout spreads over the CTAs of a cluster: where each bit of a CTA's rank moves its part.

    In parts along each axis, or in elements where the layout is a linear one. None for one CTA.
    """
    if isinstance(layout, SliceLayout):
        above = bases_of(layout.parent)
        return [basis[: layout.dim] + basis[layout.dim + 1 :] for basis in above]
    if isinstance(layout, DotOperandLayout):  # each CTA has all of the axis that is summed over
        summed = -1 if layout.operand_index == 0 else -2
        above = bases_of(layout.parent)
        return [[*basis[:summed], 0, *basis[len(basis) + summed + 1 :]] for basis in above]
    found = getattr(layout, "cga_layout", None) or getattr(layout, "block_bases", None) or ()
    return [[int(one) for one in basis] for basis in found]


def _in_elements(layout: Layout) -> bool:
    """Whether the bases of a layout count elements."""
    while hasattr(layout, "parent"):
        layout = layout.parent
    return hasattr(layout, "block_bases")


def boxes(layout: Layout, shape: Sequence[int], num_ctas: int) -> tuple[Box, ...] | None:
    """
    What each CTA of a cluster has of something of `shape`; None where the layout is not known.

    CTAs with the same box have a copy each. Axes in front of those of the layout are whole.

    Raises:
        NotModelled: CTAs take turns along an axis.
    """
    if isinstance(layout, FREE):
        return None
    bases, linear = bases_of(layout), _in_elements(layout)
    lead = len(shape) - len(bases[0]) if bases else 0
    bases = [[0] * lead + basis for basis in bases]
    parts = [1] * len(shape)
    for basis in bases:
        parts = [count * 2 if step else count for count, step in zip(parts, basis, strict=True)]
    sizes = [max(1, size // count) for size, count in zip(shape, parts, strict=True)]
    found = []
    for cta in range(num_ctas):
        start = [0] * len(shape)
        for bit, basis in enumerate(bases):
            if cta >> bit & 1:
                moves = basis if linear else [a * b for a, b in zip(basis, sizes, strict=True)]
                start = [at ^ move for at, move in zip(start, moves, strict=True)]
        if any(at % size for at, size in zip(start, sizes, strict=True)):
            raise not_modelled(f"a layout in which CTAs take turns, {layout}")
        start = [at % size for at, size in zip(start, shape, strict=True)]
        found.append(tuple(slice(at, at + size) for at, size in zip(start, sizes, strict=True)))
    return tuple(found)


def copies(layout: Layout, num_ctas: int) -> int:
    """How many CTAs of a cluster have the same part of something."""
    return num_ctas >> sum(any(basis) for basis in bases_of(layout))


def splits(layout: Layout, axis: int | None) -> bool:
    """Whether CTAs have different parts of an axis, or of any where none is named."""
    return any(basis[axis] if axis is not None else any(basis) for basis in bases_of(layout))


def flaw_of_ctas(layout: Layout, num_ctas: int | None) -> str:
    """What is wrong with how a layout spreads over `num_ctas` CTAs, in words."""
    bases = bases_of(layout)
    if num_ctas not in (None, 1 << len(bases)):
        return f"expected as many CTAs as run here, {num_ctas}, found {1 << len(bases)}"
    if _in_elements(layout):
        return ""
    for steps in zip(*bases, strict=True):
        moves = sorted(step for step in steps if step)
        if moves != [1 << bit for bit in range(len(moves))]:
            return f"expected steps of 1, 2, 4 … between CTAs along an axis, found {moves}"
    return ""


# ---- what the compiler refuses --------------------------------------------------------------


def flaw_of(layout: Layout, num_warps: int | None = None, num_ctas: int | None = None) -> str:
    """
    What the compiler would refuse a layout of a tensor for, in words; "" where it would not.

    Of some it does not even say so: an assertion of its C++ fails, which ends the process.

    Args:
        layout: Of a register tensor.
        num_warps: Of the partition that has the tensor; None where that does not matter.
        num_ctas: Of the cluster; None where that does not matter.
    """
    if layout is None or isinstance(layout, FREE):
        return ""
    return _flaw_inside(layout, num_warps) or flaw_of_ctas(layout, num_ctas)


def _flaw_inside(layout: Layout, num_warps: int | None) -> str:
    """The same for what lies within a CTA."""
    if isinstance(layout, SliceLayout):
        known = layout.dim in range(getattr(layout.parent, "rank", None) or 0)
        return _flaw_inside(layout.parent, num_warps) if known else f"there is no axis {layout.dim}"
    if isinstance(layout, DotOperandLayout):
        return _flaw_inside(layout.parent, num_warps)
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
        part = (boxes(layout, shape, 1) or [()])[0]
        rows, columns = (one.stop - one.start for one in part[-2:])
        if layout.transposed:
            rows, columns = columns, rows
        widest = max(layout.swizzle_byte_width, NARROWEST_BYTES)
        return bool(rows >= ATOM_ROWS and columns * layout.element_bitwidth // 8 >= widest)
    if isinstance(layout, gluon_layouts.SwizzledSharedLayout):
        swizzle = layout.vec, layout.per_phase, layout.max_phase
        return _powers_of_two(swizzle) and sorted(layout.order) == list(range(len(shape)))
    return isinstance(layout, ANSWERABLE) and layout.rank == len(shape)
