"""Shared memory: what is allocated, who accesses it, and which accesses nothing orders."""

from __future__ import annotations

import linecache
import math
import re
from collections.abc import Iterator

import numpy as np

from harness.simulators.gluon import compiler
from harness.simulators.gluon.accesses import Access, Allocation, tell_conflict, tell_unwritten
from harness.simulators.gluon.agents import Barrier, Operation
from harness.simulators.gluon.context import fault, not_modelled, site
from harness.simulators.gluon.layouts import (
    Box,
    Layout,
    LayoutError,
    SharedLayout,
    boxes,
    copies,
    flaw_of_ctas,
)
from harness.simulators.gluon.tensors import (
    GL,
    Tensor,
    check_same_ctas,
    export,
    layout_here,
    running,
)
from harness.simulators.gluon.values import (
    Array,
    Dtype,
    KernelValue,
    Sizes,
    numpy_dtype,
    shape_of,
    unwrap,
)
from harness.simulators.hazards import Hazard

ASSIGNED = re.compile(r"\s*([\w.]+)\s*=")


class SharedMemory:
    """
    A shared memory descriptor: a view into an allocation. Two overlap if their views do.

    In a cluster its layout spreads it over the CTAs; `home` is the CTA that has this part of it.
    """

    def __init__(
        self,
        allocation: Allocation,
        view: Array,
        dtype: Dtype,
        layout: Layout,
        label: str,
        home: int = 0,
    ) -> None:
        self.allocation, self.view, self.dtype = allocation, view, dtype
        self.layout, self.label, self.home = layout, label, home
        start, base = (one.__array_interface__["data"][0] for one in (view, allocation.raw))
        self.offset: int = start - base

    @property
    def shape(self) -> Sizes:
        """Sizes along each axis."""
        return Sizes(self.view.shape)

    @property
    def rank(self) -> int:
        """How many axes there are."""
        return self.view.ndim

    @property
    def numel(self) -> int:
        """How many elements there are."""
        return self.view.size

    @property
    def type(self) -> SharedMemory:
        """What Gluon asks for dtype, shape and layout."""
        return self

    @property
    def element_ty(self) -> Dtype:
        """The dtype, by Gluon's other name."""
        return self.dtype

    # ---- the CTAs of a cluster -------------------------------------------------------------

    def boxes(self) -> tuple[Box, ...]:
        """What each CTA has of it."""
        found = boxes(self.layout, self.shape, running().num_ctas)
        assert found is not None
        return found

    def part(self, cta: int) -> SharedMemory:
        """What a CTA has of it."""
        if running().num_ctas == 1:
            return self
        view, label = self.view[self.boxes()[cta]], f"{self.label} of CTA {cta}"
        return SharedMemory(self.allocation, view, self.dtype, self.layout, label, cta)

    def parts(self) -> Iterator[SharedMemory]:
        """What one CTA after the other has of it, whose partition is made the current one."""
        return (self.part(one.cta) for one in running().each())

    def _not_in_a_cluster(self, what: str) -> None:
        if running().num_ctas > 1:
            raise not_modelled(f"{what} of shared memory in a cluster")

    # ---- views -----------------------------------------------------------------------------

    def _part(self, view: Array, label: str, layout: Layout = None) -> SharedMemory:
        return SharedMemory(self.allocation, view, self.dtype, layout or self.layout, label)

    def index(self, index: KernelValue) -> SharedMemory:
        """One entry along the first axis."""
        index = int(unwrap(index))
        if not 0 <= index < self.shape[0]:
            text = f"{self.label}.index({index}), where the first axis has {self.shape[0]}"
            raise Hazard("smem-out-of-bounds", text, site())
        return self._part(self.view[index], f"{self.label}[{index}]")

    def slice(self, start: KernelValue, length: KernelValue, dim: KernelValue = 0) -> SharedMemory:
        """Some entries along an axis."""
        start, length, dim = (int(unwrap(one)) for one in (start, length, dim))
        label = f"{self.label}.slice({start}, {length}, {dim})"
        if running().num_ctas > 1:
            raise fault(LayoutError, f"{label}: Triton builds no slice in a cluster")
        if start < 0 or start + length > self.shape[dim]:
            text = f"{label}, where the axis has {self.shape[dim]}"
            raise Hazard("smem-out-of-bounds", text, site())
        key = (slice(None),) * dim + (slice(start, start + length),)
        return self._part(self.view[key], label)

    def permute(self, order: KernelValue) -> SharedMemory:
        """The axes in another order."""
        axes = [int(unwrap(one)) for one in unwrap(order)]
        if sorted(axes) != list(range(self.rank)):
            raise fault(ValueError, f"permute takes each of {self.rank} axes once, found {axes}")
        layout = compiler.shared_permuted(self.layout, self.dtype, self.shape, axes)
        return self._part(self.view.transpose(axes), f"{self.label}.T", layout)

    def reshape(self, shape: KernelValue) -> SharedMemory:
        """The same bytes in another shape."""
        sizes = shape_of(shape)
        if math.prod(sizes) != self.numel:
            raise fault(ValueError, f"reshape takes as many elements, found {self.shape}, {sizes}")
        layout = compiler.shared_reshaped(self.layout, self.dtype, self.shape, sizes)
        if layout is self.layout:  # where its parts lie then is not known
            self._not_in_a_cluster("such a reshape")
        return self._part(self.view.reshape(sizes), self.label, layout)

    def _reinterpret(
        self, dtype: KernelValue, shape: KernelValue, layout: KernelValue
    ) -> SharedMemory:
        self._not_in_a_cluster("_reinterpret")
        dtype, sizes = unwrap(dtype), shape_of(shape)
        numpys = numpy_dtype(dtype)
        end = self.offset + math.prod(sizes) * numpys.itemsize
        if end > self.allocation.raw.size:
            text = f"{self.label} as {dtype}{list(sizes)}, past the end of {self.allocation.name}"
            raise Hazard("smem-out-of-bounds", text, site())
        raw = self.allocation.raw[self.offset : end]
        view = raw.view(numpys).reshape(sizes)
        return SharedMemory(self.allocation, view, dtype, unwrap(layout), self.label)

    def _keep_alive(self) -> None:
        """Only the compiler cares."""

    # ---- ordinary accesses -----------------------------------------------------------------

    def load(self, layout: KernelValue) -> Tensor:
        """Read all of it into registers."""
        running().step()
        layout = layout_here(layout)
        check_same_ctas(self.layout, layout, self.shape, "load")
        for part in self.parts():
            part.access(write=False)
        self._count_conflicts(layout)
        return Tensor(self.view.copy(), self.dtype, layout)

    def store(self, value: KernelValue) -> None:
        """Write all of it."""
        if not isinstance(value, Tensor):
            raise fault(TypeError, f"expected a tensor to store, found {type(value).__name__}")
        if value.shape != self.shape or value.dtype != self.dtype:
            raise fault(
                ValueError,
                f"{self.label} is {self.dtype}{self.shape}, and cannot be given "
                f"{value.dtype}{value.shape}",
            )
        running().step()
        check_same_ctas(value.layout, self.layout, self.shape, "store")
        values = value.values
        for part in self.parts():
            part.access(write=True)
        self._count_conflicts(value.layout)
        self.view[...] = values

    def _count_conflicts(self, registers: Layout) -> None:
        """Note the bank conflicts of an ordinary access; those of part of an axis are not known."""
        if self.view.flags.c_contiguous:
            found = compiler.bank_conflicts(registers, self.layout, self.dtype, self.shape)
            running().tally.note_conflicts(found, site)

    def gather(self, indices: Tensor, axis: KernelValue) -> Tensor:
        """Read the entries that `indices` names along an axis."""
        self._not_in_a_cluster("gather")
        running().step()
        self.access(write=False)
        values = np.take_along_axis(self.view, indices.values, unwrap(axis))
        return Tensor(values, self.dtype, indices.layout)

    def scatter(self, values: Tensor, indices: Tensor, axis: KernelValue) -> None:
        """Write the entries that `indices` names along an axis."""
        self._not_in_a_cluster("scatter")
        running().step()
        self.access(write=True)
        np.put_along_axis(self.view, indices.values, values.values, unwrap(axis))

    @property
    def place(self) -> tuple[int, int]:
        """Its CTA, and its offset there."""
        return self.home, self.offset

    def barrier(self) -> Barrier:
        """The mbarrier that lies here."""
        found = self.allocation.barriers.get(self.place)
        if found is None:
            text = f"{self.label} is used as an mbarrier, which it is only after mbarrier.init"
            raise Hazard("barrier-not-initialised", text, site())
        return found

    # ---- hazards ---------------------------------------------------------------------------

    def _written(self) -> Array:
        """Which bytes of this view have ever been written."""
        return np.lib.stride_tricks.as_strided(
            self.allocation.written[self.home, self.offset :],
            (*self.view.shape, self.view.itemsize),
            (*self.view.strides, 1),
        )

    def access(self, *, write: bool, operation: Operation | None = None) -> None:
        """
        Record an access to this part by the current partition, or by `operation`, which it issues.

        Those that it is not ordered with are hazards.
        """
        partition = running().current
        clock = partition.clock
        mine = Access(
            label=self.label,
            view=self.view,
            key=(self.offset, self.view.shape, self.view.strides),
            write=write,
            partition=partition,
            operation=operation,
            site=operation.site if operation else site(),
        )
        kept, clashing = [], []
        for one in self.allocation.accesses[self.home]:
            known = one.before(clock)
            clashes = (one.write or write) and (not known or one.unfenced(mine, clock))
            if clashes and np.shares_memory(one.view, self.view):
                clashing.append((one, known))
            # else `mine` stands for it from now on
            if not (known and one.key == mine.key and (write or not one.write)):
                kept.append(one)
            if known and one.write and one.operation and one.operation.barrier and not write:
                passed = partition.waits.get(one.operation.barrier)
                if passed and not passed.used:
                    passed.used = np.shares_memory(one.view, self.view)
        for one, known in reversed(clashing):  # the latest says most
            tell_conflict(mine, one, ordered=known)
        if write:
            self._written()[...] = True
        elif not self._written().all():
            tell_unwritten(mine)
        mine.epoch = partition.tick()
        self.allocation.accesses[self.home] = [*kept, mine]


def as_memory(value: KernelValue) -> SharedMemory:
    """
    What has to be shared memory.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(value, SharedMemory):
        raise fault(TypeError, f"expected shared memory, found {type(value).__name__}")
    return value


@export(GL)
def _allocate_shared_memory(
    element_ty: KernelValue,
    shape: KernelValue,
    layout: KernelValue,
    value: KernelValue = None,
) -> SharedMemory:
    dtype, sizes, layout, here = unwrap(element_ty), shape_of(shape), unwrap(layout), site()
    if not isinstance(layout, SharedLayout):
        raise fault(TypeError, f"expected a SharedLayout, found {layout}")
    program, numpys = running(), numpy_dtype(dtype)
    if flaw := flaw_of_ctas(layout, program.num_ctas):
        raise fault(LayoutError, f"{layout}: {flaw}")
    nbytes = math.prod(sizes) * numpys.itemsize
    named = ASSIGNED.match(linecache.getline(here.file, here.line))
    allocation = Allocation(
        name=named[1] if named else "smem",
        raw=np.full(nbytes, 0xFF, np.uint8),
        written=np.zeros((program.num_ctas, nbytes), bool),
        accesses=[[] for _ in range(program.num_ctas)],
    )
    program.shared_bytes += nbytes * copies(layout, program.num_ctas) // program.num_ctas
    view = allocation.raw.view(numpys).reshape(sizes)
    memory = SharedMemory(allocation, view, dtype, layout, allocation.name)
    if value is not None:
        memory.store(value)
    return memory
