"""
What Numba kernels did on the SIMT simulator: their accesses as warp requests, barriers, shuffles.

    with simt_meter(order="reversed") as meter:
        kernel[grid, block](x, out)
    meter.global_load.full_sectors_per_request   # 4.0 where a full warp reads fp32 in order
    meter.shared_load.max_wavefronts             # 1 where no two lanes want words of one bank
    meter.of(x).load.elements, meter.stores_per_element(out), meter.barriers
    print(meter.report())                        # line by line

What counts as one request stands in `harness.simulators.simt.trace`, what a request costs in
`memory_model` beside it. Allocations start aligned to 256 bytes. A slice of a device array keeps
its offset in it; a NumPy array handed to a kernel is copied to an allocation of its own, as on a
GPU, whatever it is a slice of. Atomic operations are neither loads nor stores, and local arrays
are registers: they are not counted.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, get_args
from unittest import mock

import numba.cuda
import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.lib.stride_tricks import as_strided

from harness.base.errors import UsageProblem
from harness.simulators.simt.arrays import Array, Buffer, KernelArray, address
from harness.simulators.simt.host import launching, numba_parts
from harness.simulators.simt.machine import Order, Settings, Tally
from harness.simulators.simt.memory_model import Integers
from harness.simulators.simt.scheduler import Launch
from harness.simulators.simt.stats import ArrayStats, GlobalStats, SharedStats
from harness.simulators.simt.trace import Accesses, Kind, Requests, Trace, TracedArray

# told of each launch that has ended
Listener = Callable[["SimtMeter", Launch, Trace, Requests, Accesses], None]


class Span(NamedTuple):
    """Addresses from `low` to `high`, whose contents also lie `shift` bytes further on."""

    low: int
    high: int
    shift: int

    def reaches(self, array: Array) -> bool:
        """Whether the copy touches the memory of `array`."""
        low, high = byte_bounds(array)
        return self.low + self.shift < high and low < self.high + self.shift


class SimtMeter:
    """Counts the launches made inside its `with` block; `simt_meter` makes one."""

    def __init__(self, warp_size: int, listener: Listener | None = None) -> None:
        self._trace = Trace(warp_size)
        self._listener = listener
        requests, accesses = self._trace.take()
        self._requests = [requests]
        self._accesses = [accesses]
        self._tallies: list[Tally] = []
        self._copies: list[tuple[Array, Array]] = []
        self.extents: set[int] = set()  # of blocks, and of arrays in shared memory

    # ---- what the machine reports ----------------------------------------------------------

    def array(self, raw: Array, buffer: Buffer, launch: Launch) -> KernelArray:
        """Wrap one array of a kernel."""
        if buffer.space == "shared":
            self.extents.update(raw.shape)
        return TracedArray(raw, buffer, self._trace, launch)

    def transferred(self, host: object, device: Array) -> None:
        """Remember that `host` and `device` hold the same elements at the same offsets."""
        if isinstance(host, np.ndarray) and host.strides == device.strides:
            self._copies.append((host, device))

    def finished(self, launch: Launch) -> None:
        """Take in what a launch did."""
        requests, accesses = self._trace.take()
        self._requests.append(requests)
        self._accesses.append(accesses)
        self._tallies.append(launch.tally)
        self.extents.update(launch.block_dim)
        if self._listener is not None:
            self._listener(self, launch, self._trace, requests, accesses)

    # ---- loads and stores ------------------------------------------------------------------

    @property
    def global_load(self) -> GlobalStats:
        """Loads from global memory."""
        return GlobalStats.of(self._of_kind("global_load"))

    @property
    def global_store(self) -> GlobalStats:
        """Stores to global memory."""
        return GlobalStats.of(self._of_kind("global_store"))

    @property
    def shared_load(self) -> SharedStats:
        """Loads from shared memory."""
        return SharedStats.of(self._of_kind("shared_load"))

    @property
    def shared_store(self) -> SharedStats:
        """Stores to shared memory."""
        return SharedStats.of(self._of_kind("shared_store"))

    @property
    def loaded_bytes(self) -> int:
        """Bytes loaded from global memory, by all lanes together."""
        return self.global_load.bytes

    @property
    def stored_bytes(self) -> int:
        """Bytes stored to global memory."""
        return self.global_store.bytes

    @property
    def bytes_moved(self) -> int:
        """Both together."""
        return self.loaded_bytes + self.stored_bytes

    @property
    def sectors(self) -> int:
        """Sectors of global memory touched, request by request."""
        return self.global_load.sectors + self.global_store.sectors

    # ---- barriers and the rest -------------------------------------------------------------

    @property
    def launches(self) -> int:
        """Kernels launched."""
        return len(self._tallies)

    @property
    def accesses(self) -> int:
        """Loads and stores of single threads, of global and shared memory."""
        return sum(len(table.thread) for table in self._accesses)

    @property
    def barriers(self) -> int:
        """Barriers of a block completed, all blocks together."""
        return sum(sum(tally.block_barriers) for tally in self._tallies)

    @property
    def barriers_per_block(self) -> int:
        """Barriers completed in one launch by the block with the most."""
        return max((most for tally in self._tallies for most in tally.block_barriers), default=0)

    @property
    def grid_barriers(self) -> int:
        """Barriers of a whole grid completed."""
        return sum(tally.grid_barriers for tally in self._tallies)

    @property
    def exited_before_barrier(self) -> int:
        """Threads that had returned when others of their block completed a barrier."""
        return sum(tally.exited_before_barrier for tally in self._tallies)

    @property
    def shuffles(self) -> int:
        """Shuffles, one for all the lanes that take part."""
        return self._warp_calls("shfl")

    @property
    def votes(self) -> int:
        """Votes, counted alike."""
        return self._warp_calls("ballot", "all", "any")

    @property
    def warp_barriers(self) -> int:
        """Calls of syncwarp, counted alike."""
        return self._warp_calls("syncwarp")

    @property
    def atomics(self) -> int:
        """Atomic operations, one for each lane."""
        return self.global_atomics + self.shared_atomics

    @property
    def global_atomics(self) -> int:
        """Those on global arrays."""
        return sum(tally.atomics["global"] for tally in self._tallies)

    @property
    def shared_atomics(self) -> int:
        """Those on shared arrays."""
        return sum(tally.atomics["shared"] for tally in self._tallies)

    @property
    def shared_bytes(self) -> int:
        """The most shared memory of a block, static and dynamic."""
        return max((tally.shared_bytes for tally in self._tallies), default=0)

    # ---- one array, one line ---------------------------------------------------------------

    def of(self, array: Any) -> ArrayStats:  # noqa: ANN401
        """
        What was done to one array: a NumPy or device array, or its copy on the other side.

        Raises:
            UsageProblem: No kernel was given this memory.
        """
        buffers = {buffer for buffer, _ in self._buffers(_raw(array))}
        return ArrayStats(
            load=GlobalStats.of(self._of_kind("global_load", buffers)),
            store=GlobalStats.of(self._of_kind("global_store", buffers)),
            atomics=sum(buffer.atomics for buffer in buffers),
        )

    def stores_per_element(self, array: Any) -> Integers:  # noqa: ANN401
        """
        How often each element of an array was stored, in the array's shape.

        Raises:
            UsageProblem: No kernel was given this memory.
        """
        return self._per_element(_raw(array), "global_store")

    def loads_per_element(self, array: Any) -> Integers:  # noqa: ANN401
        """
        How often each element of an array was loaded, in the array's shape.

        Raises:
            UsageProblem: No kernel was given this memory.
        """
        return self._per_element(_raw(array), "global_load")

    @property
    def by_line(self) -> dict[str, dict[Kind, GlobalStats | SharedStats]]:
        """Accesses by line and kind: `by_line["kernel.py:12"]["shared_load"]`."""
        lines = np.array([str(site) for site in self._trace.sites.known], dtype=np.str_)
        found: dict[str, dict[Kind, GlobalStats | SharedStats]] = {}
        for kind in get_args(Kind):
            table = self._of_kind(kind)
            stats = GlobalStats if kind.startswith("global") else SharedStats
            for line in np.unique(lines[table.site]).tolist():
                found.setdefault(line, {})[kind] = stats.of(table.where(lines[table.site] == line))
        return found

    def report(self) -> str:
        """One line for each line of the source and kind of access."""
        return "\n".join(
            f"{line:24} {kind:12} {stats}"
            for line, kinds in sorted(self.by_line.items())
            for kind, stats in kinds.items()
        )

    def origin(self, buffer: Buffer) -> int:
        """Where the array lies that a launch copied `buffer` from; its own address without one."""
        start = buffer.start
        return next((address(host) for host, copy in self._copies if address(copy) == start), start)

    # ---- looking things up -----------------------------------------------------------------

    def _of_kind(self, kind: Kind, buffers: Collection[Buffer] | None = None) -> Requests:
        table = Requests.joined(self._requests)
        return table.where(np.isin(table.channel, self._channels(kind, buffers)))

    def _channels(self, kind: Kind, buffers: Collection[Buffer] | None) -> list[int]:
        return [
            number
            for number, (buffer, law) in enumerate(self._trace.channels)
            if law.kind == kind and (buffers is None or buffer in buffers)
        ]

    def _warp_calls(self, *prefixes: str) -> int:
        return sum(
            count
            for tally in self._tallies
            for name, count in tally.warp_calls.items()
            if name.startswith(prefixes)
        )

    def _buffers(self, raw: Array) -> list[tuple[Buffer, Span]]:
        """The allocations that hold `raw` or a copy of it, and where."""
        found = [
            (buffer, span)
            for buffer in {buffer for buffer, law in self._trace.channels if law.space == "global"}
            for span in self._spans(raw)
            if span.reaches(buffer.array)
        ]
        if raw.size and not found:
            raise UsageProblem(
                f"SimtMeter: expected an array that a counted kernel was given, found one of shape "
                f"{raw.shape} in memory that none saw. Ask for the array passed to the kernel."
            )
        return found

    def _spans(self, raw: Array) -> set[Span]:
        low, high = byte_bounds(raw)
        spans = {Span(low, high, 0)}
        for host, device in self._copies:
            host_low, host_high = byte_bounds(host)
            if host_low < high and low < host_high:
                shift = address(device) - address(host)
                spans.add(Span(max(low, host_low), min(high, host_high), shift))
        return spans

    def _per_element(self, raw: Array, kind: Kind) -> Integers:
        low, high = byte_bounds(raw)
        counts = np.zeros(high - low, dtype=np.int64)  # by the byte an element starts at
        for buffer, span in self._buffers(raw):
            channels = self._channels(kind, {buffer})
            for accesses in self._accesses:
                at = accesses.offset[np.isin(accesses.channel, channels)]
                at = at + (buffer.start - span.shift)
                at = at[(at >= span.low) & (at < span.high)]
                np.add.at(counts, at - low, 1)
        steps = [step * counts.itemsize for step in raw.strides]
        return as_strided(counts[address(raw) - low :], raw.shape, steps).copy()


@contextmanager
def simt_meter(
    *,
    order: Order = "forward",
    seed: int = 0,
    warp_size: int = 32,
    resident_blocks: int = 64,
    listener: Listener | None = None,
) -> Iterator[SimtMeter]:
    """
    Run the launches of the `with` block on a machine of this kind, and count them.

    Args:
        order: "forward", "reversed" or "random": of blocks, and of threads between barriers.
        seed: Of the permutations of "random".
        warp_size: 32 or 64.
        resident_blocks: The most blocks that can wait at a grid barrier.
        listener: Given the requests and the accesses of each launch, once it has ended.

    Raises:
        UsageProblem: No such machine, or a meter inside another's block.
        HarnessError: numba-cuda is missing or of an unknown make, or its simulator is off.
    """
    settings = Settings(
        order=order, seed=seed, warp_size=warp_size, resident_blocks=resident_blocks
    )
    meter = SimtMeter(warp_size, listener)
    with launching(settings, meter), _copies_noted(meter):
        yield meter


@contextmanager
def _copies_noted(meter: SimtMeter) -> Iterator[None]:
    """Tell `meter` of arrays that the host copies itself, so that it knows them by either name."""
    device_array = numba_parts().device_array_class
    to_device, copy_to_host = numba.cuda.to_device, device_array.copy_to_host

    def noted_to_device(array: object, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        device = to_device(array, *args, **kwargs)
        if device is not None:  # with `to=` there is none
            meter.transferred(array, device._ary)
        return device

    def noted_copy_to_host(device: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        host = copy_to_host(device, *args, **kwargs)
        meter.transferred(host, device._ary)
        return host

    with (
        mock.patch.object(numba.cuda, "to_device", noted_to_device),
        mock.patch.object(device_array, "copy_to_host", noted_copy_to_host),
    ):
        yield


def _raw(array: Any) -> Array:  # noqa: ANN401
    """The NumPy array itself, or the one underneath a simulated device array."""
    raw: Array = array if isinstance(array, np.ndarray) else array._ary
    return raw
