"""
What CUDA C++ did when it was run as PTX: hazards, requests to memory, tensor cores, copies.

    with ptx_meter(schedule=1) as p:         # a random order of warps; without it all in lockstep
        kata.transpose(x)
    p.bank_conflicts, p.sectors, p.tensor_ops, p.bytes_in_flight
    p.counters["shared_load_wavefronts"], p.lines[0][17]["global_load_sectors"]

A hazard is raised by the launch that has it; ``ptx_meter(raising=False)`` only collects them.

Counts are those of the PTX, which ptxas may still merge: it joins neighbouring accesses to shared
memory, so that wavefronts are an upper bound. Sectors, bytes, barriers and products stay.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from harness.meters.operator_traffic import OperatorTraffic
from harness.simulators.hazards import Hazard
from harness.simulators.ptx.host import Launched, install, launching

SECTOR_BYTES = 32
PRODUCTS = ("mma_ops", "mma_sp_ops", "wmma_ops", "wgmma_ops")


class PtxMeter:
    """
    Counts the launches made inside its `with` block; `ptx_meter` makes one.

    Attributes:
        launched: Each launch, with its counters and hazards.
        operators: A meter of PyTorch's own operators between launches; what it counted while
            entered is part of all bytes and sectors.
    """

    def __init__(self) -> None:
        self.launched: list[Launched] = []
        self.operators = OperatorTraffic()

    def finished(self, launched: Launched) -> None:
        """Take in a launch."""
        self.launched.append(launched)

    # ---- launches --------------------------------------------------------------------------

    @property
    def launches(self) -> int:
        """Kernels launched."""
        return len(self.launched)

    @property
    def kernels(self) -> list[str]:
        """Their names, in order."""
        return [one.kernel for one in self.launched]

    @property
    def programs(self) -> int:
        """Instructions that all threads of a wave ran together, in the time of one of Triton's."""
        return 1 + self.counters["steps"] // 100

    @property
    def extents(self) -> set[int]:
        """Sizes of blocks."""
        return {size for one in self.launched for size in one.config.block}

    @property
    def hazards(self) -> list[Hazard]:
        """Of all launches."""
        return [hazard for one in self.launched for hazard in one.hazards]

    @property
    def hazard_names(self) -> set[str]:
        """Their names."""
        return {hazard.name for hazard in self.hazards}

    # ---- counters --------------------------------------------------------------------------

    @property
    def counters(self) -> Counter[str]:
        """All that was counted, by name, over all launches."""
        total: Counter[str] = Counter()
        for one in self.launched:
            total.update(one.run.counters)
        return total

    @property
    def opcodes(self) -> Counter[str]:
        """Warps that executed each instruction of PTX."""
        total: Counter[str] = Counter()
        for one in self.launched:
            total.update(one.run.opcodes)
        return total

    @property
    def lines(self) -> list[dict[int, Counter[str]]]:
        """For each launch the counters of each line of its source."""
        return [one.run.lines for one in self.launched]

    @property
    def loaded_bytes(self) -> int:
        """Bytes that lanes loaded from global memory, and what operators read."""
        counters = self.counters
        loaded = counters["global_load_bytes"] + counters["tma_load_bytes"]
        return loaded + self.operators.read_bytes

    @property
    def stored_bytes(self) -> int:
        """Bytes that lanes stored to global memory, and what operators write."""
        counters = self.counters
        stored = counters["global_store_bytes"] + counters["tma_store_bytes"]
        return stored + self.operators.written_bytes

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written; an atomic does both."""
        return self.loaded_bytes + self.stored_bytes + 2 * self.counters["global_atomic_bytes"]

    @property
    def sectors(self) -> int:
        """Sectors of global memory, request by request; an atomic reads and writes."""
        counters = self.counters
        copied = counters["tma_load_bytes"] + counters["tma_store_bytes"]
        moved = self.operators.read_bytes + self.operators.written_bytes + copied
        own = counters["global_load_sectors"] + counters["global_store_sectors"]
        return own + 2 * counters["global_atomic_sectors"] - -moved // SECTOR_BYTES

    @property
    def sectors_per_request(self) -> float:
        """Sectors of the average load or store of a warp."""
        counters = self.counters
        requests = counters["global_load_requests"] + counters["global_store_requests"]
        sectors = counters["global_load_sectors"] + counters["global_store_sectors"]
        return sectors / requests if requests else float("nan")

    @property
    def bank_conflicts(self) -> int:
        """Wavefronts of shared memory beyond those that the widths of accesses take."""
        return sum(one.run.bank_conflicts for one in self.launched)

    @property
    def bytes_in_flight(self) -> float:
        """Bytes of a block's copies in flight at a wait for data, on average; 0 without a wait."""
        counters = self.counters
        waits = counters["data_waits"]
        return counters["bytes_in_flight"] / waits if waits else 0.0

    @property
    def bytes_left_in_flight(self) -> float:
        """Those that the wait does not wait for, on average."""
        counters = self.counters
        waits = counters["data_waits"]
        return counters["bytes_left_in_flight"] / waits if waits else 0.0

    @property
    def tensor_ops(self) -> int:
        """Products that warps, and warpgroups, gave to tensor cores."""
        counters = self.counters
        return sum(counters[name] for name in PRODUCTS)

    @property
    def barriers(self) -> int:
        """Barriers of blocks, once for each warp that comes to one."""
        return self.counters["barriers"]

    @property
    def shuffles(self) -> int:
        """Shuffles of warps."""
        return self.counters["shuffles"]

    @property
    def atomics(self) -> int:
        """Atomic operations, one for each lane."""
        return self.counters["global_atomics"] + self.counters["shared_atomics"]

    @property
    def shared_bytes(self) -> int:
        """The most shared memory of a block, static and dynamic."""
        return max((one.run.shared_bytes for one in self.launched), default=0)


@contextmanager
def ptx_meter(*, schedule: int | None = None, raising: bool = True) -> Iterator[PtxMeter]:
    """
    Run the launches of the `with` block on the simulator, and count them.

    Args:
        schedule: None for all threads in lockstep, or the seed of a random order of warps.
        raising: Whether a launch with hazards raises them.
    """
    install()
    meter = PtxMeter()
    with launching(meter, schedule=schedule, raising=raising):
        yield meter
