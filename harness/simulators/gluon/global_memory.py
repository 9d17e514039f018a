"""Global memory: the tensors of a launch; loads, stores and atomics through pointers."""

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl

from harness.simulators.gluon.cluster_order import GlobalAccess
from harness.simulators.gluon.context import fault, hazard, not_modelled, site
from harness.simulators.gluon.layouts import FREE, boxes, copies
from harness.simulators.gluon.tensors import (
    GL,
    Memory,
    Tensor,
    as_tensor,
    export,
    meet,
    running,
)
from harness.simulators.gluon.values import (
    Array,
    KernelValue,
    numpy_dtype,
    poison,
    triton_dtype,
    unwrap,
)

SECTOR_BYTES = 32  # what one request to L2 fetches at least
COUNTED = {"load": "loaded_bytes", "store": "stored_bytes"}


def pointer_to(tensor: torch.Tensor, name: str) -> Tensor:
    """A pointer to the first element of a tensor on the CPU; all it spans may be touched."""
    dtype = triton_dtype(tensor.dtype)
    spans = (
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    count = 1 + sum(spans) if tensor.numel() else 0
    if tensor.device.type != "cpu":
        raise ValueError(f"{name}: expected a tensor on the CPU, found it on {tensor.device}")
    nbytes = count * tensor.element_size()
    # by its address: the ways from a tensor to an array may be closed while a learner's code runs
    raw = (ctypes.c_uint8 * nbytes).from_address(tensor.data_ptr() if nbytes else id(tensor))
    flat = np.ctypeslib.as_array(raw).view(numpy_dtype(dtype))
    return Tensor(np.int64(0), tl.pointer_type(dtype), memory=Memory(name, flat))


def sectors_of(view: Array) -> int:
    """How many sectors of 32 bytes the elements of a view into global memory lie in."""
    if not view.size:
        return 0
    start, stops = view.__array_interface__["data"][0], np.zeros(1, np.int64)
    *outer, inner = view.strides if view.ndim else [view.itemsize]
    *sizes, last = view.shape if view.ndim else [1]
    if inner == view.itemsize:  # rows without gaps
        width = last * view.itemsize
    else:
        outer, sizes, width = [*outer, inner], [*sizes, last], view.itemsize
    for size, stride in zip(sizes, outer, strict=True):
        stops = (stops[:, None] + np.arange(size) * stride).ravel()
    first = (start + stops) // SECTOR_BYTES
    final = (start + stops + width - 1) // SECTOR_BYTES
    return int((final - first + 1).sum())


def addressed(pointer: KernelValue, mask: KernelValue) -> tuple[Array, Array]:
    """
    The offsets that an access reaches, and where it is on; it is off where it would leave memory.

    Raises:
        TypeError: `pointer` is none.
    """
    memory = getattr(pointer, "memory", None)
    if memory is None:
        raise fault(TypeError, f"expected a pointer, found {pointer!r}")
    offsets = np.asarray(pointer.values)
    if unwrap(mask) is None:
        on = np.ones(offsets.shape, bool)
    else:
        given = as_tensor(mask)
        meet(pointer, given, "a pointer and its mask")
        offsets, on = np.broadcast_arrays(offsets, given.values)
    bad = on & ((offsets < 0) | (offsets >= memory.flat.size))
    if bad.any():
        hazard(
            "global-out-of-bounds",
            f"{memory.name} has {memory.flat.size} elements, and element "
            f"{offsets[bad].flat[0]} is accessed",
            site(),
        )
        on = on & ~bad
    return np.where(on, offsets, 0), on


def count_access(pointer: Tensor, offsets: Array, on: Array, kind: str) -> None:
    """
    Count what one access through pointers moves, a "load", a "store" or an "atomic".

    CTAs that have copies of the pointers each load; the first of them alone stores.
    """
    assert pointer.memory is not None
    program, flat = running(), pointer.memory.flat
    addresses = flat.__array_interface__["data"][0] + offsets.astype(np.int64) * flat.itemsize
    known = kind == "load" and not isinstance(pointer.layout, FREE)
    times = copies(pointer.layout, program.num_ctas) if known else 1
    for what in ("load", "store") if kind == "atomic" else (kind,):
        program.count(COUNTED[what], int(on.sum()) * flat.itemsize * times)
        program.count("sectors", np.unique(addresses[on] // SECTOR_BYTES).size * times)
    if program.num_ctas > 1:
        _note_by_cta(pointer, addresses, on, kind)


def _note_by_cta(pointer: Tensor, addresses: Array, on: Array, kind: str) -> None:
    """Note which CTA of a cluster accesses what; a layout still open tells nothing."""
    assert pointer.memory is not None
    program = running()
    parts = boxes(pointer.layout, addresses.shape, program.num_ctas)
    for partition, part in zip(program.each(), parts or [()] * program.num_ctas, strict=True):
        if parts and (kind == "load" or part not in parts[: partition.cta]):
            access = GlobalAccess(
                partition=partition,
                epoch=partition.tick(),
                kind=kind,
                name=pointer.memory.name,
                addresses=np.unique(addresses[part][on[part]]),
                site=site(),
            )
            program.afar.note(access)


@export(GL)
def _load(
    pointer: KernelValue, mask: KernelValue = None, other: KernelValue = None, **_: KernelValue
) -> Tensor:
    running().tick()
    offsets, on = addressed(pointer, mask)
    memory, dtype = pointer.memory, pointer.dtype.element_ty
    count_access(pointer, offsets, on, "load")
    # what is masked off holds anything where nothing else is asked for
    fill = poison(dtype) if unwrap(other) is None else as_tensor(other).values
    fill = np.asarray(fill).astype(numpy_dtype(dtype))
    layout = pointer.layout if mask is None else meet(pointer, as_tensor(mask), "a load")
    if not memory.flat.size:
        return Tensor(np.broadcast_to(fill, offsets.shape)[()], dtype, layout)
    return Tensor(np.where(on, memory.flat[offsets], fill)[()], dtype, layout)


@export(GL)
def _store(
    pointer: KernelValue, value: KernelValue, mask: KernelValue = None, **_: KernelValue
) -> None:
    running().tick()
    offsets, on = addressed(pointer, mask)
    given = as_tensor(value).to(pointer.dtype.element_ty)
    meet(pointer, given, "a pointer and the value stored")
    count_access(pointer, offsets, on, "store")
    pointer.memory.flat[offsets[on]] = np.broadcast_to(given.values, offsets.shape)[on]


# ---- atomics --------------------------------------------------------------------------------


class OfOneCta(Tensor):
    """What an atomic gives that one CTA performs for several: Triton tells the others nothing."""

    @property
    def values(self) -> Any:  # noqa: ANN401 -- as in Tensor
        """None that all CTAs have."""
        raise not_modelled("the result of an atomic that one CTA of a cluster does for others")


Update = Callable[[Any, Any], Any]  # what was there and the operand, to what is there then
UPDATES: dict[str, Update] = {
    "add": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "xchg": lambda _, new: new,
}


def _updated(pointer: KernelValue, mask: KernelValue, change: Callable[[Any, int], Any]) -> Tensor:
    """One element after the other: `change` is given what is there and which lane it is."""
    running().step()
    offsets, on = addressed(pointer, mask)
    count_access(pointer, offsets, on, "atomic")
    flat, dtype = pointer.memory.flat, pointer.dtype.element_ty
    before = np.full(offsets.size, poison(dtype), numpy_dtype(dtype))
    for lane, (offset, active) in enumerate(zip(offsets.ravel(), on.ravel(), strict=True)):
        if active:
            before[lane] = flat[offset]
            flat[offset] = change(flat[offset], lane)
    alone = copies(pointer.layout, running().num_ctas) == 1
    return (Tensor if alone else OfOneCta)(before.reshape(offsets.shape)[()], dtype, pointer.layout)


def _atomic(name: str) -> None:
    update = UPDATES[name]

    def apply(
        pointer: KernelValue, value: KernelValue, mask: KernelValue = None, **_: KernelValue
    ) -> Tensor:
        given = as_tensor(value).to(pointer.dtype.element_ty)
        meet(pointer, given, f"atomic_{name}")
        shape = np.broadcast_shapes(tuple(pointer.shape), tuple(given.shape))
        operands = np.broadcast_to(given.values, shape).ravel()
        return _updated(pointer, mask, lambda old, lane: update(old, operands[lane]))

    GL[f"atomic_{name}"] = apply


for _name in UPDATES:
    _atomic(_name)


@export(GL)
def _atomic_cas(
    pointer: KernelValue, compared: KernelValue, value: KernelValue, **_: KernelValue
) -> Tensor:
    dtype = pointer.dtype.element_ty
    shape = tuple(pointer.shape)
    wanted, given = (
        np.broadcast_to(as_tensor(one).to(dtype).values, shape).ravel() for one in (compared, value)
    )
    return _updated(pointer, None, lambda old, lane: given[lane] if old == wanted[lane] else old)


def strided(pointer: Tensor, shape: list[int], strides: list[int]) -> Array:
    """
    A tensor in global memory as an array, for a descriptor.

    Raises:
        ValueError: It reaches past what the pointer points to.
    """
    assert pointer.memory is not None
    flat = pointer.memory.flat[int(pointer.values) :]
    reach = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if math.prod(shape) and reach > flat.size:
        raise fault(
            ValueError,
            f"a descriptor of shape {shape} and strides {strides} reaches {reach} elements into "
            f"{pointer.memory.name}, which has {flat.size}",
        )
    return np.lib.stride_tricks.as_strided(flat, shape, [one * flat.itemsize for one in strides])
