"""Asynchronous copies: cp.async, and boxes of tensors moved by TMA."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from triton.experimental.gluon import language as gl

from harness.simulators.gluon.context import fault, hazard, site
from harness.simulators.gluon.global_memory import (
    UPDATES,
    Update,
    addressed,
    count_access,
    sectors_of,
    strided,
)
from harness.simulators.gluon.layouts import Layout, LayoutError, equal
from harness.simulators.gluon.mbarriers import count_waiting
from harness.simulators.gluon.shared_memory import SharedMemory, as_memory
from harness.simulators.gluon.tensors import Table, Tensor, export, running, truth
from harness.simulators.gluon.values import Array, KernelValue, Sizes, poison, shape_of, unwrap

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
    source = pointer.memory.flat

    def run() -> None:  # elements that are masked off are written as zeros
        smem.view[...] = np.where(on, source[offsets], np.zeros((), source.dtype))

    count_access(pointer.memory, offsets, on, "loaded_bytes")
    nbytes = int(on.sum()) * source.itemsize
    program.count("cp.async", nbytes)
    operation = program.issue(
        "cp.async", run, label=smem.label, group=program.current.group, nbytes=nbytes
    )
    smem.access(write=True, operation=operation)
    smem.view[...] = poison(smem.dtype)
    program.current.copies.append(operation)


@export(CP_ASYNC)
def _commit_group() -> None:
    running().current.group += 1


@export(CP_ASYNC)
def _wait_group(num_outstanding: KernelValue = 0) -> None:
    program = running()
    partition = program.current
    count_waiting([one for one in partition.copies if not one.complete])
    newest = partition.group - int(unwrap(num_outstanding))
    program.retire(partition.copies, sum(one.group >= newest for one in partition.copies))
    program.step()


@export(CP_ASYNC, "mbarrier_arrive")
def _cp_async_arrive(mbarrier: SharedMemory, increment_count: KernelValue = True) -> None:
    """Arrive once the cp.async issued so far have landed; by default that is counted in first."""
    program, barrier = running(), as_memory(mbarrier).barrier()
    partition, here = program.current, site()
    before, clock = list(partition.copies), partition.clock.copy()
    counted_in = bool(unwrap(increment_count))
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
        self.nbytes_per_cta = math.prod(self.block_shape) * self.view.itemsize

    @property
    def type(self) -> Descriptor:
        """What Gluon asks for block shape and layout."""
        return self

    def box(self, coord: KernelValue, smem: SharedMemory) -> Box | None:
        """
        The part of a box that lies in the tensor: an index into the tensor and one into the box.

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
        low = [max(0, one) for one in at]
        high = [
            min(size, one + block)
            for size, one, block in zip(self.shape, at, self.block_shape, strict=True)
        ]
        if any(end <= start for start, end in zip(low, high, strict=True)):
            # it reads zeros, or writes nothing
            text = f"the box at {at} lies outside {self.name}, whose shape is {self.shape}"
            hazard("tma-box-out-of-bounds", text, site(), legal=True)
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
    program.count(direction, nbytes)
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
    program = running()
    program.step()
    signalled = as_memory(barrier).barrier()
    box = as_descriptor(tensor_desc).box(coord, as_memory(result))
    source = tensor_desc.view

    def run() -> None:
        result.view[...] = np.nan if tensor_desc.padding == "nan" else 0
        if box:
            result.view[box[1]] = source[box[0]]

    place = (tensor_desc.name, *shape_of(coord))
    _count_box("TMA load", "loaded_bytes", source[box[0]] if box else None, place)
    operation = program.issue(
        "TMA load",
        run,
        label=result.label,
        barrier=signalled,
        nbytes=tensor_desc.nbytes_per_cta,
        phase=signalled.phase,
    )
    result.access(write=True, operation=operation)
    result.view[...] = poison(tensor_desc.dtype)
    signalled.addressed.append(operation)
    program.pending.append(operation)
    program.loads.append(operation)


def _tma_store(*names: str, update: Update) -> None:
    def apply(
        tensor_desc: Descriptor, coord: KernelValue, src: SharedMemory, **_: KernelValue
    ) -> None:
        program = running()
        program.step()
        box = as_descriptor(tensor_desc).box(coord, as_memory(src))
        target = tensor_desc.view

        def run() -> None:
            if box:
                target[box[0]] = update(target[box[0]], src.view[box[1]])

        _count_box("TMA store", "stored_bytes", target[box[0]] if box else None)
        operation = program.issue(
            "TMA store", run, label=src.label, nbytes=tensor_desc.nbytes_per_cta
        )
        src.access(write=False, operation=operation)
        program.current.stores.append(operation)

    TMA.update(dict.fromkeys(names, apply))


_tma_store("async_store", "async_copy_shared_to_global", update=UPDATES["xchg"])
for _name in ("add", "max", "min", "and", "or", "xor"):
    _tma_store(f"async_atomic_{_name}", update=UPDATES[_name])


@export(TMA)
def _store_wait(pendings: KernelValue, read_only: KernelValue = True) -> None:
    program = running()
    program.retire(program.current.stores, int(unwrap(pendings)))


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
