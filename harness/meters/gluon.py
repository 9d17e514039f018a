"""
What Gluon kernels do on their simulator, counted; and what nothing in them orders.

    with gluon_meter(policy="late") as meter:
        gemm(a, b)                              # raises the first Hazard
    meter.bytes_moved, meter.sectors, meter.flops, meter.shared_bytes
    meter.overlap("exp2", under="wgmma")        # the share done while a wgmma was in flight
    meter.bytes_in_flight                       # on average, at a wait for data
    meter.footprint(132)                        # distinct bytes that so many programs load

    with gluon_meter(collect=True) as meter:    # goes on, and keeps them
        gemm(a, b)
    [hazard.name for hazard in meter.hazards]

What is in flight has been issued and not been waited for, so that both follow from the program
alone: no clock is involved. They are meant for the policy "late", which is the default.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness.base.errors import UsageProblem
from harness.meters.operator_traffic import OperatorTraffic
from harness.simulators.gluon import Order, Policy, Simulator, simulating
from harness.simulators.gluon.elementwise import ELEMENTWISE
from harness.simulators.gluon.global_memory import SECTOR_BYTES
from harness.simulators.hazards import Hazard

IN_FLIGHT = ("TMA load", "TMA store", "cp.async", "wgmma")  # what other things may happen under
COUNTED = (*IN_FLIGHT, *ELEMENTWISE)  # what may happen under something


class GluonMeter:
    """
    Counts of all kernels launched inside the `with` block.

    operators   a meter of PyTorch's own operators between launches; what it counted while
                entered is part of all bytes and sectors
    extents     sizes compiled into the kernels: whole constants, boxes of descriptors
    """

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._tally = simulator.tally
        self.operators = OperatorTraffic()
        self.extents = simulator.extents

    @property
    def hazards(self) -> list[Hazard]:
        """What was found, each pair of lines once; empty unless hazards are collected."""
        return self._simulator.hazards

    @property
    def notes(self) -> list[Hazard]:
        """What is legal but odd: boxes that miss their tensor altogether."""
        return self._simulator.notes

    @property
    def launches(self) -> int:
        """Kernels launched."""
        return self._tally.launches

    @property
    def programs(self) -> int:
        """Programs run."""
        return self._tally.programs

    @property
    def loaded_bytes(self) -> int:
        """Bytes read from global memory, by whatever means; out of bounds there are none."""
        return self._tally.counts["loaded_bytes"] + self.operators.read_bytes

    @property
    def stored_bytes(self) -> int:
        """Bytes written to global memory."""
        return self._tally.counts["stored_bytes"] + self.operators.written_bytes

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written; an atomic does both."""
        return self.loaded_bytes + self.stored_bytes

    @property
    def sectors(self) -> int:
        """Distinct 32-byte sectors of each access and of each box, summed."""
        moved = self.operators.read_bytes, self.operators.written_bytes
        return self._tally.counts["sectors"] + sum(-(-one // SECTOR_BYTES) for one in moved)

    @property
    def flops(self) -> int:
        """FLOPs of all products of matrices."""
        return self._tally.counts["flops"]

    @property
    def shared_bytes(self) -> int:
        """Bytes that a program allocates in shared memory, the most of any."""
        return self._tally.most_shared_bytes

    @property
    def bytes_in_flight(self) -> float:
        """Bytes of copies in flight at a wait for data, on average; 0 where there is none."""
        waits = self._tally.counts["waits for data"]
        return self._tally.counts["bytes in flight at waits"] / waits if waits else 0.0

    @property
    def bank_conflicts(self) -> int:
        """Passes beyond the first that the worst load or store takes through the banks."""
        return max(self._tally.conflicts.values(), default=0)

    @property
    def conflicts(self) -> dict[str, int]:
        """The same for each line that has some."""
        return {str(place): passes for place, passes in self._tally.conflicts.items()}

    def amount(self, what: str) -> int:
        """Bytes of copies, FLOPs of "wgmma", elements of a function such as "exp2"."""
        _known(what, COUNTED)
        return self._tally.counts[what]

    def footprint(self, programs: int) -> float:
        """
        Distinct bytes that a wave of so many programs loads by TMA: boxes of any of them, once.

        The mean of all waves, which are programs in the order of their ids; one that is not full
        counts only where there is no other.
        """
        order = sorted(self._tally.boxes.items())
        waves = [order[at : at + programs] for at in range(0, len(order), programs)]
        full = [wave for wave in waves if len(wave) == programs] or waves
        sizes = []
        for wave in full:
            distinct: dict[tuple[object, ...], int] = {}
            for _, boxes in wave:
                distinct.update(boxes)
            sizes.append(sum(distinct.values()))
        return sum(sizes) / len(sizes) if sizes else 0.0

    def overlap(self, what: str, *, under: str, own: bool = False) -> float:
        """
        The share of `what` done while something of another kind was in flight.

        Args:
            what: "TMA load", "TMA store" or "cp.async" (by bytes), "wgmma" (by FLOPs), or a
                function such as "exp2" (by elements).
            under: "TMA load", "TMA store", "cp.async" or "wgmma".
            own: Count only what the same partition has in flight, so that the schedule of the
                partitions plays no part; a TMA load belongs to none.

        Raises:
            UsageProblem: Either is something else.
        """
        _known(under, IN_FLIGHT)
        total = self.amount(what)
        done = (self._tally.under_own if own else self._tally.under)[what, under]
        return done / total if total else 0.0


def _known(name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise UsageProblem(f"gluon_meter: expected one of {', '.join(names)}, found {name!r}.")


@contextmanager
def gluon_meter(
    *,
    order: Order | None = None,
    policy: Policy | None = None,
    seed: int | None = None,
    collect: bool | None = None,
    strict: bool | None = None,
) -> Iterator[GluonMeter]:
    """
    Count what the Gluon kernels launched inside the `with` block do.

    What is not given is as in the launches around it.

    Args:
        order: In which order programs run: "forward", "reversed" or "shuffled".
        policy: When what is in flight lands: as "late" as it may, at "random", or "early".
        seed: What the order of partitions and of landings starts from; drawn when not given.
        collect: Keep hazards in `hazards` and go on, instead of raising the first one.
        strict: Whether a box that misses its tensor altogether is a hazard as well.
    """
    changes = {
        "order": order, "policy": policy, "seed": seed, "collect": collect, "strict": strict,
    }  # fmt: skip
    given: dict[str, Any] = {name: one for name, one in changes.items() if one is not None}
    with simulating(**given) as simulator:
        meter = GluonMeter(simulator)
        simulator.around = meter.operators.aside
        yield meter
