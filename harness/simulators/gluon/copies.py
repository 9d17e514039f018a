"""Asynchronous copies: cp.async, and boxes of tensors moved by TMA."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from triton.experimental.gluon import language as gl

from harness.simulators.gluon.agents import Operation
from harness.simulators.gluon.context import fault, hazard, site
from harness.simulators.gluon.global_memory import (
    COUNTED,
    UPDATES,
    Update,
    addressed,
    count_access,
    sectors_of,
    strided,
)
from harness.simulators.gluon.layouts import Layout, LayoutError, bases_of, copies, equal
from harness.simulators.gluon.mbarriers import count_waiting
from harness.simulators.gluon.shared_memory import SharedMemory, as_memory
from harness.simulators.gluon.tensors import (
    Table,
    Tensor,
    check_same_ctas,
    export,
    running,
    truth,
)
from harness.simulators.gluon.values import Array, KernelValue, Sizes, poison, shape_of, unwrap
from harness.simulators.hazards import Clock

CP_ASYNC: Table = {}
TMA: Table = {}
Box = tuple[tuple[slice, ...], tuple[slice, ...]]
Ints = list[int]


# ---- cp.async -------------------------------------------------------------------------------


@export(CP_ASYNC, "async_load", "async_copy_global_to_shared")
def _cp_async(
    smem: SharedMemory,
    pointer: KernelValue,
    mask: KernelValue = None,
    *_: KernelValue,
    **__: KernelValue,
) -> None:
    program = running()
    program.step()
    offsets, on = addressed(pointer, mask)
    if list(offsets.shape) != as_memory(smem).shape:
        raise fault(
            ValueError,
            f"{smem.label} is {smem.shape}, and the pointers into it are {list(offsets.shape)}",
        )
    check_same_ctas(pointer.layout, smem.layout, smem.shape, "cp.async")
    source = pointer.memory.flat
    count_access(pointer, offsets, on, "load")
    nbytes = int(on.sum()) * source.itemsize * copies(smem.layout, program.num_ctas)
    program.count("cp.async", nbytes)
    for part, box in zip(smem.parts(), smem.boxes(), strict=True):
        operation = _copied(part, source, offsets[box], on[box])
        part.access(write=True, operation=operation)
        part.view[...] = poison(smem.dtype)
        program.current.copies.append(operation)


def _copied(smem: SharedMemory, source: Array, offsets: Array, on: Array) -> Operation:
    """Issue a cp.async into what the current partition's CTA has."""

    def run() -> None:  # elements that are masked off are written as zeros
        smem.view[...] = np.where(on, source[offsets], np.zeros((), source.dtype))

    program = running()
    group, nbytes = program.current.group, int(on.sum()) * source.itemsize
    return program.issue("cp.async", run, label=smem.label, group=group, nbytes=nbytes)


@export(CP_ASYNC)
def _commit_group() -> None:
    for partition in running().each():
        partition.group += 1


@export(CP_ASYNC)
def _wait_group(num_outstanding: KernelValue = 0) -> None:
    program = running()
    pending = [one for peer in program.current.peers for one in peer.copies]
    count_waiting([one for one in pending if not one.complete])
    for partition in program.each():
        newest = partition.group - int(unwrap(num_outstanding))
        program.retire(partition.copies, sum(one.group >= newest for one in partition.copies))
    program.step()


@export(CP_ASYNC, "mbarrier_arrive")
def _cp_async_arrive(mbarrier: SharedMemory, increment_count: KernelValue = True) -> None:
    """Arrive once the cp.async issued so far have landed; by default that is counted in first."""
    for part in as_memory(mbarrier).parts():
        _arrive_after_copies(part, counted_in=bool(unwrap(increment_count)))


def _arrive_after_copies(mbarrier: SharedMemory, *, counted_in: bool) -> None:
    program, barrier = running(), mbarrier.barrier()
    partition, here = program.current, site()
    before, clock = list(partition.copies), partition.clock.copy()
    partition.signals_copies = True
    arrivals = 1 if counted_in else 32 * partition.num_warps
    barrier.pending += counted_in

    def run() -> None:
        for one in before:
            program.complete(one)
            clock.complete(one.number)
        barrier.arrive_with(arrivals, clock, here)

    program.pending.append(program.issue("cp.async arrive", run, label=mbarrier.label))


# ---- TMA ------------------------------------------------------------------------------------


class Descriptor:
    """
    A tensor map as a kernel has it.

    Attributes:
        view: The tensor in global memory.
        block_shape: Of the boxes that it moves.
        layout: Of a box in shared memory.
        padding: What stands for elements out of bounds: "zero" or "nan".
    """

    def __init__(
        self,
        base: Tensor,
        shape: KernelValue,
        strides: KernelValue,
        block_shape: KernelValue,
        layout: Layout,
        padding: str = "zero",
        name: str = "the tensor",
    ) -> None:
        self.dtype, self.layout = base.dtype.element_ty, layout
        self.padding, self.name = padding, name
        self.shape, self.strides, self.block_shape = (
            Sizes(int(unwrap(one)) for one in each) for each in (shape, strides, block_shape)
        )
        self.block_type = gl._core.block_type(self.dtype, self.block_shape)
        self.block_type.shape = self.block_shape
        self.view = strided(base, self.shape, self.strides)
        parts = sum(any(basis) for basis in bases_of(layout))  # each doubles their number
        self.nbytes_per_cta = math.prod(self.block_shape) * self.view.itemsize >> parts

    @property
    def type(self) -> Descriptor:
        """What Gluon asks for block shape and layout."""
        return self

    def check(self, coord: KernelValue, smem: SharedMemory) -> Ints:
        """
        The coordinates of a box, where the shared memory fits it.

        Raises:
            ValueError: The shared memory does not fit the box, or, as a LayoutError, its layout.
        """
        at = list(shape_of(coord))
        fits = smem.shape == self.block_shape and smem.dtype == self.dtype
        if not fits or len(at) != len(self.shape):
            raise fault(
                ValueError,
                f"{smem.label} is {smem.dtype}{smem.shape}, a box of {self.name} is {self.dtype}"
                f"{self.block_shape} at {len(self.shape)} coordinates, and {len(at)} are given",
            )
        if not equal(smem.layout, self.layout):
            raise fault(
                LayoutError,
                f"the layouts of {smem.label} and {self.name} differ: {smem.layout} and "
                f"{self.layout}",
            )
        if self.box(at, self.block_shape) is None:
            # it reads zeros, or writes nothing
            text = f"the box at {at} lies outside {self.name}, whose shape is {self.shape}"
            hazard("tma-box-out-of-bounds", text, site(), legal=True)
        return at

    def box(self, at: Ints, sizes: Ints) -> Box | None:
        """What of a box lies in the tensor: an index into the tensor and one into the box."""
        low = [max(0, one) for one in at]
        high = [
            min(size, one + block) for size, one, block in zip(self.shape, at, sizes, strict=True)
        ]
        if any(end <= start for start, end in zip(low, high, strict=True)):
            return None
        spans = list(zip(low, high, at, strict=True))
        return (
            tuple(slice(start, end) for start, end, _ in spans),
            tuple(slice(start - one, end - one) for start, end, one in spans),
        )


def as_descriptor(value: KernelValue) -> Descriptor:
    """
    What has to be a tensor map.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(value, Descriptor):
        raise fault(TypeError, f"expected a tensor descriptor, found {type(value).__name__}")
    return value


def _count_box(
    kind: str, direction: str, part: Array | None, place: tuple[object, ...] = ()
) -> None:
    """Count what a box moves; what lies out of bounds moves nothing."""
    program = running()
    nbytes = part.nbytes if part is not None else 0
    if kind == "TMA load":
        tally = program.tally
        key = tally.launches, tuple(reversed(program.index))  # x runs fastest
        tally.boxes.setdefault(key, {})[place] = nbytes
    program.count(kind, nbytes)
    program.count(COUNTED[direction], nbytes)
    program.count("sectors", sectors_of(part) if part is not None else 0)


@export(TMA, "async_load", "async_copy_global_to_shared")
def _tma_load(
    tensor_desc: Descriptor,
    coord: KernelValue,
    barrier: SharedMemory,
    result: SharedMemory,
    pred: KernelValue = True,
    multicast: KernelValue = False,
    **_: KernelValue,
) -> None:
    if not truth(pred):
        return
    program, into = running(), as_memory(result)
    program.step()
    at = as_descriptor(tensor_desc).check(coord, into)
    parts = into.boxes()
    for partition, mine in zip(program.each(), parts, strict=True):
        # a multicast is issued by the first of the CTAs that have the same box, and fills them all
        among = [cta for cta, one in enumerate(parts) if one == mine]
        if not unwrap(multicast):
            among = [partition.cta]
        if partition.cta != among[0]:
            continue
        where = [start + one.start for start, one in zip(at, mine, strict=True)]
        box = tensor_desc.box(where, into.part(partition.cta).shape)
        source = tensor_desc.view[box[0]] if box else None
        _count_box("TMA load", "load", source, (tensor_desc.name, *where))
        for cta in among:
            _load_box(tensor_desc, source, box, as_memory(barrier).part(cta), into.part(cta))


def _load_box(
    descriptor: Descriptor,
    source: Array | None,
    box: Box | None,
    barrier: SharedMemory,
    result: SharedMemory,
) -> None:
    """Issue what fills one CTA's part of a box and signals that CTA's barrier."""
    program, signalled = running(), barrier.barrier()

    def run() -> None:
        result.view[...] = np.nan if descriptor.padding == "nan" else 0
        if box:
            result.view[box[1]] = source

    operation = program.issue(
        "TMA load",
        run,
        label=result.label,
        barrier=signalled,
        nbytes=descriptor.nbytes_per_cta,
        phase=signalled.phase,
    )
    result.access(write=True, operation=operation)
    if barrier.home != program.current.cta:
        signalled.check_signal_from_afar(program.current)
        operation.clock = Clock()  # its bytes tell the other CTA nothing of who sent them
    result.view[...] = poison(descriptor.dtype)
    signalled.addressed.append(operation)
    program.pending.append(operation)
    program.loads.append(operation)


def _tma_store(*names: str, update: Update) -> None:
    def apply(
        tensor_desc: Descriptor, coord: KernelValue, src: SharedMemory, **_: KernelValue
    ) -> None:
        program = running()
        program.step()
        at = as_descriptor(tensor_desc).check(coord, as_memory(src))
        for part, mine in zip(src.parts(), src.boxes(), strict=True):
            where = [start + one.start for start, one in zip(at, mine, strict=True)]
            _store_box(tensor_desc, tensor_desc.box(where, part.shape), part, update)

    TMA.update(dict.fromkeys(names, apply))


def _store_box(descriptor: Descriptor, box: Box | None, src: SharedMemory, update: Update) -> None:
    """Issue what stores one CTA's part of a box."""
    program, target = running(), descriptor.view

    def run() -> None:
        if box:
            target[box[0]] = update(target[box[0]], src.view[box[1]])

    _count_box("TMA store", "store", target[box[0]] if box else None)
    operation = program.issue("TMA store", run, label=src.label, nbytes=descriptor.nbytes_per_cta)
    src.access(write=False, operation=operation)
    program.current.stores.append(operation)


_tma_store("async_store", "async_copy_shared_to_global", update=UPDATES["xchg"])
for _name in ("add", "max", "min", "and", "or", "xor"):
    _tma_store(f"async_atomic_{_name}", update=UPDATES[_name])


@export(TMA)
def _store_wait(pendings: KernelValue, read_only: KernelValue = True) -> None:
    program = running()
    for partition in program.each():
        program.retire(partition.stores, int(unwrap(pendings)))


@export(TMA)
def _make_tensor_descriptor(
    base: Tensor,
    shape: KernelValue,
    strides: KernelValue,
    block_shape: KernelValue,
    layout: KernelValue,
    padding_option: Any = "zero",  # noqa: ANN401
) -> Descriptor:
    return Descriptor(
        base, shape, strides, shape_of(block_shape), unwrap(layout), unwrap(padding_option)
    )
