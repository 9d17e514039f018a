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

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from unittest import mock

import numba.cuda
import numpy as np
import numpy.typing as npt
from numpy.lib.array_utils import byte_bounds
from numpy.lib.stride_tricks import as_strided

from harness.errors import UsageProblem
from harness.simulators.simt.arrays import Array, Buffer, KernelArray
from harness.simulators.simt.host import launching, numba_parts
from harness.simulators.simt.memory_model import SECTOR_BYTES, Flags, Integers
from harness.simulators.simt.scheduler import Launch, Order, Tally
from harness.simulators.simt.trace import Channel, Requests, Trace, address


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessStats:
    """
    Requests of warps, and what they asked for.

    Averages over no requests are NaN, which fails every comparison.

    Attributes:
        requests: Requests.
        full_requests: Those that every lane of the warp took part in.
        elements: Elements asked for, by all lanes together.
        bytes: The same in bytes.
    """

    requests: int
    full_requests: int
    elements: int
    bytes: int

    @property
    def partial_requests(self) -> int:
        """Requests that some lane sat out."""
        return self.requests - self.full_requests


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalStats(AccessStats):
    """
    Requests to global memory.

    Attributes:
        sectors: 32-byte sectors touched, request by request.
        full_sectors: Those of full requests.
        max_sectors: Of the worst request.
    """

    sectors: int
    full_sectors: int
    max_sectors: int

    @property
    def sectors_per_request(self) -> float:
        """Sectors of the average request."""
        return _ratio(self.sectors, self.requests)

    @property
    def full_sectors_per_request(self) -> float:
        """Sectors of the average full request: ragged ends do not blur it."""
        return _ratio(self.full_sectors, self.full_requests)

    @property
    def sector_efficiency(self) -> float:
        """Bytes asked for in each byte of the sectors; above 1 where lanes share elements."""
        return _ratio(self.bytes, self.sectors * SECTOR_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStats(AccessStats):
    """
    Requests to shared memory.

    Attributes:
        wavefronts: Passes they took.
        full_wavefronts: Those of full requests.
        max_wavefronts: Of the worst request.
    """

    wavefronts: int
    full_wavefronts: int
    max_wavefronts: int

    @property
    def wavefronts_per_request(self) -> float:
        """Passes of the average request."""
        return _ratio(self.wavefronts, self.requests)

    @property
    def full_wavefronts_per_request(self) -> float:
        """Passes of the average full request."""
        return _ratio(self.full_wavefronts, self.full_requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayStats:
    """
    What was done to one array in global memory.

    Attributes:
        load: Its loads.
        store: Its stores.
        atomics: Atomic operations on it, one for each lane.
    """

    load: GlobalStats
    store: GlobalStats
    atomics: int


class SimtMeter:
    """Counts the launches made inside its `with` block; `simt_meter` makes one."""

    def __init__(self, warp_size: int) -> None:
        self._warp_size = warp_size
        self._trace = Trace(warp_size)
        self._requests: list[Requests] = []
        self._accesses: list[Integers] = []
        self._tallies: list[Tally] = []
        self._copies: list[tuple[Array, Array]] = []

    # ---- what the machine reports ----------------------------------------------------------

    def array(self, raw: Array, buffer: Buffer, launch: Launch) -> KernelArray:
        """Wrap one array of a kernel."""
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

    # ---- loads and stores ------------------------------------------------------------------

    @property
    def global_load(self) -> GlobalStats:
        """Loads from global memory."""
        return self._global_stats(self._channels("global_load"))

    @property
    def global_store(self) -> GlobalStats:
        """Stores to global memory."""
        return self._global_stats(self._channels("global_store"))

    @property
    def shared_load(self) -> SharedStats:
        """Loads from shared memory."""
        return self._shared_stats(self._channels("shared_load"))

    @property
    def shared_store(self) -> SharedStats:
        """Stores to shared memory."""
        return self._shared_stats(self._channels("shared_store"))

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
    def barriers(self) -> int:
        """Barriers of a block completed, all blocks together."""
        return sum(sum(tally.block_barriers) for tally in self._tallies)

    @property
    def barriers_per_block(self) -> int:
        """Barriers completed in one launch by the block with the most."""
        return max((max(tally.block_barriers) for tally in self._tallies), default=0)

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
        buffers = {buffer for buffer, _ in self._buffers(array)}
        return ArrayStats(
            load=self._global_stats(self._channels("global_load", buffers)),
            store=self._global_stats(self._channels("global_store", buffers)),
            atomics=sum(buffer.atomics for buffer in buffers),
        )

    def stores_per_element(self, array: Any) -> Integers:  # noqa: ANN401
        """
        How often each element of an array was stored, in its shape.

        Raises:
            UsageProblem: No kernel was given this memory.
        """
        return self._per_element(array, "global_store")

    def loads_per_element(self, array: Any) -> Integers:  # noqa: ANN401
        """
        How often each element of an array was loaded, in its shape.

        Raises:
            UsageProblem: No kernel was given this memory.
        """
        return self._per_element(array, "global_load")

    @property
    def by_line(self) -> dict[tuple[str, int], dict[str, AccessStats]]:
        """Path and line of the source to kind (`shared_load` …) to the accesses made there."""
        ...
