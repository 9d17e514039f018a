"""
What Triton kernels load and store, counted in Triton's interpreter: exact, on any machine.

    with traffic_meter() as t:            # or order="reversed", to expose races between programs
        fused_silu(x)
    t.bytes_moved, t.sectors, t.launches, t.programs, t.dots
    t.of(x).loads_per_element             # what happened to one tensor
    t.stores_of(y)                        # how often each element was stored

Only active lanes count: a lane whose mask is off, or that lies outside a block pointer or a
tensor descriptor, moves nothing. Two lanes that load one address count twice in bytes and once
in sectors. An instruction is one `tl.load`, `tl.store` or atomic of one program.

    with traffic_meter() as t, t.operators:     # PyTorch's own operators count as well
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from harness.base.errors import HarnessError
from harness.meters.operator_traffic import OperatorTraffic
from harness.simulators.triton_hooks import (
    Method,
    before,
    extents,
    interpreter_classes,
    named_arguments,
    operands,
    replaced,
)

IntArray = NDArray[np.int64]
Order = Literal["forward", "reversed"]
Kind = Literal["load", "store", "atomic"]

SECTOR_BYTES = 32  # what one request to L2 fetches at least


class Listener(Protocol):
    """Who is told of every program and every instruction as it comes."""

    def launched(self, kernel: str, arguments: Mapping[str, object]) -> None:
        """A kernel is launched; its arguments by name."""

    def program(self, index: tuple[int, ...]) -> None:
        """A program begins."""

    def accessed(self, kind: Kind, addresses: IntArray, size: int) -> None:
        """The active lanes of an instruction touch the `size` bytes from each address on."""


class _AddressCounts:
    """
    How often each address was touched, as a step function.

    Memory is bounded by the steps, so by the addresses touched and not by the accesses.
    """

    pending_limit = 1 << 20

    def __init__(self) -> None:
        self._edges: IntArray = np.zeros(1, np.int64)
        self._rises: IntArray = np.zeros(1, np.int64)
        self._pending: list[tuple[IntArray, IntArray]] = []  # where runs start and where they end
        self._pending_size = 0

    def add(self, addresses: IntArray, size: int) -> None:
        """Count one access to the `size` addresses from each of `addresses` on."""
        if not addresses.size:
            return
        breaks = np.flatnonzero(np.diff(addresses) != size)
        starts = addresses[np.concatenate([[0], breaks + 1])]
        ends = addresses[np.concatenate([breaks, [-1]])] + size
        self._pending.append((starts, ends))
        self._pending_size += 16 + starts.size  # a small array costs its header
        if self._pending_size > self.pending_limit:
            self._merge()

    def at(self, addresses: IntArray) -> IntArray:
        """Accesses of each of `addresses`."""
        self._merge()
        steps = np.searchsorted(self._edges, addresses, side="right") - 1
        return np.cumsum(self._rises)[steps]

    def total(self, addresses: IntArray, size: int) -> int:
        """Accesses of the `size` addresses from each of `addresses` on, summed."""
        return int((self._below(addresses + size) - self._below(addresses)).sum())

    def _below(self, addresses: IntArray) -> IntArray:
        """Accesses of all addresses smaller than each of `addresses`."""
        self._merge()
        counts = np.cumsum(self._rises)
        areas = np.concatenate([[0], np.cumsum(counts[:-1] * np.diff(self._edges))])
        steps = np.searchsorted(self._edges, addresses, side="right") - 1
        return np.asarray(areas[steps] + counts[steps] * (addresses - self._edges[steps]))

    def _merge(self) -> None:
        edges, rises = [self._edges], [self._rises]
        for starts, ends in self._pending:
            edges += [starts, ends]
            rises += [np.ones_like(starts), np.full_like(ends, -1)]
        merged, where = np.unique(np.concatenate(edges), return_inverse=True)
        summed = np.bincount(where, weights=np.concatenate(rises)).astype(np.int64)
        kept = (summed != 0) | (merged == 0)  # address 0 is where the first step begins
        self._edges, self._rises = merged[kept], summed[kept]
        self._pending, self._pending_size = [], 0


@dataclass(slots=True)
class _Flow:
    """One direction of traffic: loads, stores or atomics."""

    lanes: int = 0
    bytes: int = 0
    sectors: int = 0
    touched: _AddressCounts = field(default_factory=_AddressCounts)
    touched_sectors: _AddressCounts = field(default_factory=_AddressCounts)

    def note(
        self,
        pointers: Any,  # noqa: ANN401 -- Triton's TensorHandle
        mask: object,
    ) -> tuple[IntArray, int]:
        """Count one instruction; return the addresses of its active lanes and their size."""
        data, active = np.broadcast_arrays(pointers.data, np.asarray(mask, dtype=bool))
        addresses = data[active].astype(np.int64)
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        sectors = np.unique(addresses // SECTOR_BYTES)
        self.lanes += addresses.size
        self.bytes += addresses.size * size
        self.sectors += sectors.size
        self.touched.add(addresses, size)
        self.touched_sectors.add(sectors, 1)
        return addresses, size


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorTraffic:
    """
    The part of the traffic that touched one tensor.

    `loads_per_element` is `loaded_bytes` over the tensor's own bytes. A sector that the tensor
    shares with its neighbour counts for both.
    """

    loaded_bytes: int
    stored_bytes: int
    atomic_bytes: int
    load_sectors: int
    store_sectors: int
    loads_per_element: float


class TrafficMeter:
    """
    Counts of all kernels launched inside the `with` block.

    loaded_bytes, stored_bytes    bytes of the active lanes of loads and of stores
    atomics, atomic_bytes         active lanes of atomics, and their bytes
    bytes_moved                   loaded, stored, and atomic bytes twice: read and written
    load_sectors, store_sectors   distinct 32-byte sectors of each instruction, summed
    sectors                       both, and those of atomics twice
    programs, dots                program instances run, `tl.dot` calls
    kernels, launches             names of the kernels launched, in order, and how many
    extents                       sizes compiled into them: constexpr numbers, ranges, descriptors
    operators                     a meter of PyTorch's own operators between launches; what it
                                  counted while entered is part of all bytes and sectors

    Storages handed to kernels stay alive as long as the meter, so that no address means two
    tensors.
    """

    def __init__(self, listener: Listener | None = None) -> None:
        self.programs = 0
        self.dots = 0
        self._listener = listener
        self.kernels: list[str] = []
        self.extents: set[int] = set()
        self.operators = OperatorTraffic()
        self._loads, self._stores, self._atomics = _Flow(), _Flow(), _Flow()
        self._alive: dict[int, torch.UntypedStorage] = {}

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the active lanes of all loads, and what operators read."""
        return self._loads.bytes + self.operators.read_bytes

    @property
    def stored_bytes(self) -> int:
        """Bytes of the active lanes of all stores, and what operators write."""
        return self._stores.bytes + self.operators.written_bytes

    @property
    def atomic_bytes(self) -> int:
        """Bytes of the active lanes of all atomics, each lane once."""
        return self._atomics.bytes

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written; an atomic does both."""
        return self.loaded_bytes + self.stored_bytes + 2 * self.atomic_bytes

    @property
    def atomics(self) -> int:
        """Active lanes of all atomics."""
        return self._atomics.lanes

    @property
    def load_sectors(self) -> int:
        """Distinct sectors of each load, summed, and as many as operators must read."""
        return self._loads.sectors - -self.operators.read_bytes // SECTOR_BYTES

    @property
    def store_sectors(self) -> int:
        """Distinct sectors of each store, summed, and as many as operators must write."""
        return self._stores.sectors - -self.operators.written_bytes // SECTOR_BYTES

    @property
    def sectors(self) -> int:
        """Sectors read and written; an atomic does both."""
        return self.load_sectors + self.store_sectors + 2 * self._atomics.sectors

    @property
    def launches(self) -> int:
        """Kernels launched."""
        return len(self.kernels)

    def of(self, tensor: torch.Tensor) -> TensorTraffic:
        """
        Tell what touched the elements of `tensor`, by address: a view counts its own ones only.

        Ask while the tensor is alive; its memory may be another's afterwards.
        """
        elements = np.unique(_element_addresses(tensor))
        sectors = np.unique(elements // SECTOR_BYTES)
        own_bytes = elements.size * tensor.itemsize
        loaded = self._loads.touched.total(elements, tensor.itemsize)
        return TensorTraffic(
            loaded_bytes=loaded,
            stored_bytes=self._stores.touched.total(elements, tensor.itemsize),
            atomic_bytes=self._atomics.touched.total(elements, tensor.itemsize),
            load_sectors=self._loads.touched_sectors.total(sectors, 1),
            store_sectors=self._stores.touched_sectors.total(sectors, 1),
            loads_per_element=loaded / own_bytes if own_bytes else 0.0,
        )

    def loads_of(self, tensor: torch.Tensor) -> IntArray:
        """How often each element of `tensor` was loaded, flat, in the order of `flatten()`."""
        return self._loads.touched.at(_element_addresses(tensor))

    def stores_of(self, tensor: torch.Tensor) -> IntArray:
        """How often each element was stored, likewise; atomics are not stores."""
        return self._stores.touched.at(_element_addresses(tensor))

    def _note_dot(self) -> None:
        self.dots += 1

    def _note_program(self, index: tuple[int, ...]) -> None:
        self.programs += 1
        if self._listener is not None:
            self._listener.program(index)

    def _note_access(self, kind: Kind, pointers: Any, mask: object) -> None:  # noqa: ANN401
        flow = {"load": self._loads, "store": self._stores, "atomic": self._atomics}[kind]
        addresses, size = flow.note(pointers, mask)
        if self._listener is not None:
            self._listener.accessed(kind, addresses, size)

    def _note_launch(self, kernel: str, arguments: Mapping[str, object]) -> None:
        self.kernels.append(kernel)
        if self._listener is not None:
            self._listener.launched(kernel, arguments)
        for operand in operands(tuple(arguments.values())):
            if isinstance(operand, torch.Tensor):
                storage = operand.untyped_storage()
                self._alive[storage.data_ptr()] = storage


def _element_addresses(tensor: torch.Tensor) -> IntArray:
    """Address of each element, flat, in the order of `flatten()`."""
    addresses = np.asarray(tensor.data_ptr(), dtype=np.int64)
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        steps = np.arange(length, dtype=np.int64) * (stride * tensor.itemsize)
        addresses = np.add.outer(addresses, steps)
    return addresses.reshape(-1)


# ---- hooks inside Triton -------------------------------------------------------------------


@contextmanager
def traffic_meter(
    *, order: Order = "forward", listener: Listener | None = None
) -> Iterator[TrafficMeter]:
    """
    Count what the interpreted kernels inside the `with` block do.

    Args:
        order: With "reversed" the programs of each grid run last to first.
        listener: Told of every launch, program and access as it comes.

    Raises:
        HarnessError: `order` is neither, this process does not interpret kernels, or Triton's
            interpreter is not one this meter knows.
    """
    if order not in ("forward", "reversed"):
        raise HarnessError(f"traffic_meter: expected order forward or reversed, found {order!r}.")
    builder, function = interpreter_classes()
    meter = TrafficMeter(listener)

    def note_launch(kernel: Any, *args: Any, warmup: bool, **kwargs: Any) -> None:  # noqa: ANN401
        if not warmup:
            arguments = named_arguments(kernel, args, kwargs)
            meter.extents.update(extents(kernel, arguments))
            meter._note_launch(kernel.__name__, arguments)

    with ExitStack() as hooks:
        for name, note in _notes(meter).items():
            noted = before(getattr(builder, name), note)
            hooks.enter_context(replaced(builder, name, noted))
        if order == "reversed":
            mirrored = _backwards(builder.set_grid_idx)
            hooks.enter_context(replaced(builder, "set_grid_idx", mirrored))
        noted = before(function.run, note_launch)
        hooks.enter_context(replaced(function, "run", _without_operators(noted, meter.operators)))
        yield meter


def _notes(meter: TrafficMeter) -> dict[str, Callable[..., None]]:
    """What to note before each method of the interpreter's builder runs."""
    return {
        "create_masked_load": _note_access(meter, "load", pointers=1, mask=2),
        "create_masked_store": _note_access(meter, "store", pointers=1, mask=3),
        "create_atomic_rmw": _note_access(meter, "atomic", pointers=2, mask=4),
        "create_atomic_cas": lambda *args: meter._note_access("atomic", args[1], True),
        "create_dot": lambda *args: meter._note_dot(),
        "create_make_range": lambda _, _type, start, stop: meter.extents.add(stop - start),
        "set_grid_idx": lambda _, *index: meter._note_program(index),
    }


def _note_access(
    meter: TrafficMeter, kind: Kind, *, pointers: int, mask: int
) -> Callable[..., None]:
    """Note a method's call; `pointers` and `mask` are places in its arguments."""
    return lambda *args, **_: meter._note_access(kind, args[pointers], args[mask].data)


def _without_operators(launch: Method, operators: OperatorTraffic) -> Method:
    """Keep from the count what the interpreter itself does with operators."""

    @functools.wraps(launch)
    def launched(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 -- a launch's own
        with operators.aside():
            return launch(*args, **kwargs)

    return launched


def _backwards(set_grid_idx: Method) -> Method:
    """Swap first and last program by renaming them: the interpreter's own loop stays."""

    def set_mirrored(builder: Any, *index: int) -> None:  # noqa: ANN401 -- Triton's
        mirrored = (n - 1 - i for n, i in zip(builder.grid_dim, index, strict=True))
        set_grid_idx(builder, *mirrored)

    return set_mirrored
