"""One program: its partitions, what is in flight, and in which order all of it happens."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, Literal

from greenlet import GreenletExit, getcurrent, greenlet

from harness.simulators.gluon.agents import WHOLE, Barrier, Operation, Partition, Waiting, in_words
from harness.simulators.gluon.cluster_order import ClusterBarrier, GlobalOrder
from harness.simulators.gluon.context import fault, hazard, site
from harness.simulators.hazards import Hazard, Place

Policy = Literal["late", "random", "early"]
MOST_STEPS = 100_000  # of one program: operations of its partitions and turns of their loops
YIELDING = 0.5  # how often a partition lets the others go on where it may


@dataclass(kw_only=True)
class Tally:
    """
    What kernels did, counted.

    Attributes:
        counts: Amounts by what they are of: bytes, elements, FLOPs.
        under: The same, by what else was in flight meanwhile.
        under_own: And by what the same partition had in flight: products, stores, cp.async.
        programs: How many were run.
        launches: And how many kernels.
        most_shared_bytes: Of any program.
        conflicts: Passes beyond the first that an access to shared memory takes through its
            banks, by the line that makes it.
        boxes: Bytes of each box that a program loads by TMA, by launch, program, tensor and
            coordinates.
    """

    counts: Counter[str] = field(default_factory=Counter)
    under: Counter[tuple[str, str]] = field(default_factory=Counter)
    under_own: Counter[tuple[str, str]] = field(default_factory=Counter)
    programs: int = 0
    launches: int = 0
    most_shared_bytes: int = 0
    conflicts: dict[Place, int] = field(default_factory=dict)
    boxes: dict[tuple[int, tuple[int, ...]], dict[tuple[object, ...], int]] = field(
        default_factory=dict
    )

    def note_conflicts(self, passes: int, where: Callable[[], Place]) -> None:
        """Note an access that has bank conflicts."""
        if passes:
            place = where()
            self.conflicts[place] = max(passes, self.conflicts.get(place, 0))


class Program:
    """
    One CTA as it runs, or the CTAs of a cluster.

    Each partition is a greenlet that runs its Python code once for all its threads. They take
    turns where one could see what another does; what is in flight lands by the `policy`.
    """

    def __init__(
        self,
        index: Sequence[int],
        grid: Sequence[int],
        num_warps: int,
        *,
        rng: random.Random,
        policy: Policy,
        tally: Tally,
        most_steps: int = MOST_STEPS,
        kernel: str = "",
        num_ctas: int = 1,
    ) -> None:
        self.kernel, self.index, self.grid = kernel, tuple(index), tuple(grid)
        self.rng, self.policy, self.tally, self.most_steps = rng, policy, tally, most_steps
        self.num_ctas = num_ctas
        self.partitions: list[Partition] = []  # those of the first CTA
        self.current = self.add_partition(WHOLE, num_warps)
        self.cluster = ClusterBarrier()
        self.afar = GlobalOrder()
        self.hub = getcurrent()
        self.steps = 0
        self.operations: list[Operation] = []
        self.pending: list[Operation] = []  # they complete by themselves: loads, arrivals
        self.loads: list[Operation] = []
        self.barriers: list[Barrier] = []
        self.shared_bytes = 0
        self.waited: list[tuple[Partition, Waiting, int]] = []  # until which step
        self.work: list[tuple[int, Partition, str]] = []  # functions by name, at which step

    # ---- partitions ------------------------------------------------------------------------

    def add_partition(self, name: str, num_warps: int) -> Partition:
        """A partition more, in each CTA; that of the first one is returned."""
        index = len(self.partitions)
        peers = [
            Partition(index=index, name=name, num_warps=num_warps, cta=cta)
            for cta in range(self.num_ctas)
        ]
        for one in peers:
            one.peers = peers
        self.partitions.append(peers[0])
        return peers[0]

    @property
    def everyone(self) -> Iterator[Partition]:
        """The partitions of all CTAs."""
        return (peer for one in self.partitions for peer in one.peers)

    def each(self) -> Iterator[Partition]:
        """The current partition of one CTA after the other, each made the current one."""
        leader = self.current
        for peer in leader.peers:
            self.current = peer
            yield peer
        self.current = leader

    # ---- operations ------------------------------------------------------------------------

    def issue(self, kind: str, run: Callable[[], None], **details: Any) -> Operation:  # noqa: ANN401
        """Make an operation of the current partition; its destination is the caller's to mark."""
        operation = Operation(
            kind=kind,
            number=len(self.operations) + 1,
            issuer=self.current,
            site=site(),
            clock=self.current.clock.copy(),
            run=run,
            issued=self.steps,
            **details,
        )
        self.operations.append(operation)
        return operation

    def complete(self, operation: Operation) -> None:
        """Have an operation read and write its bytes, then signal."""
        if operation.complete:
            return
        operation.run()
        operation.complete = True
        operation.landed = self.steps
        if operation in self.pending:
            self.pending.remove(operation)
        if barrier := operation.barrier:
            barrier.causes.append(operation)
            operation.clock.complete(operation.number)
            barrier.land(operation.nbytes, operation.clock)

    def retire(self, queue: deque[Operation], keep: int) -> None:
        """
        Complete all but the newest `keep` of a queue; the current partition then knows it.

        Raises:
            ValueError: `keep` is negative.
        """
        if keep < 0:
            raise fault(ValueError, f"a wait leaves 0 or more in flight, found {keep}")
        while len(queue) > keep:
            operation = queue.popleft()
            self.complete(operation)
            self.current.clock.complete(operation.number)

    def count(self, what: str, amount: int) -> None:
        """Add to a count, and to what was done while other things were in flight."""
        self.tally.counts[what] += amount
        kinds = {one.kind for one in self.pending if one.kind == "TMA load"}
        for leader in self.partitions:
            queues = (
                queue
                for one in leader.peers
                for queue in (one.products, one.stores, one.copies)
                if queue
            )
            own = {queue[0].kind for queue in queues}
            kinds |= own
            if leader.index == self.current.index:
                self.tally.under_own.update(dict.fromkeys(((what, kind) for kind in own), amount))
        for kind in kinds:
            self.tally.under[what, kind] += amount

    # ---- taking turns ----------------------------------------------------------------------

    def tick(self) -> None:
        """
        Count a step.

        Raises:
            Hazard: "endless", there have been too many.
        """
        self.steps += 1
        if self.steps > self.most_steps:
            others = [one for one in self.partitions if one is not self.current]
            raise Hazard(
                "endless",
                f"program {self.index} does not come to an end: {self.most_steps:,} operations, "
                f"and {self.current} goes on" + (f"\n{in_words(others)}" if others else ""),
                site(),
            )

    def step(self) -> None:
        """Count a step after which another partition may go on, and something in flight land."""
        self.tick()
        if self.policy != "late":
            self._drift(1.0 if self.policy == "early" else 0.3)
        if len(self.partitions) > 1 and self.rng.random() < YIELDING:
            self.hub.switch()

    def _drift(self, chance: float) -> None:
        """Let some of what is in flight land now, each queue in its order."""
        for operation in list(self.pending):
            if self.rng.random() < chance:
                self.complete(operation)
        for one in self.everyone:
            for queue in (one.products, one.stores, one.copies):
                for operation in queue:
                    if self.rng.random() >= chance:
                        break
                    self.complete(operation)

    def wait(
        self,
        over: Callable[[], bool],
        words: str,
        barriers: Sequence[Barrier] = (),
        parity: int = 0,
    ) -> None:
        """Let the others go on until something is true."""
        waiting = Waiting(
            over=over, words=words, barriers=barriers, parity=parity, site=site(), since=self.steps
        )
        partition = self.current
        partition.waiting = waiting
        while not over():
            self.hub.switch()
        partition.waiting = None
        self.waited.append((partition, waiting, self.steps))

    def spawn(self, partition: Partition, fn: Callable[..., Any], args: Sequence[Any]) -> None:
        """Have a partition run `fn(*args)`."""
        partition.greenlet = greenlet(lambda: fn(*args), self.hub)
        partition.greenlet.gr_context = copy_context()  # in which NumPy keeps its warnings
        partition.began = partition.ended = self.steps

    def run(self, fn: Callable[..., Any], args: Sequence[Any]) -> None:
        """Run the program to its end, or until a hazard is raised."""
        self.spawn(self.partitions[0], fn, args)
        try:
            while alive := [one for one in self.partitions if not one.greenlet.dead]:
                if ready := [one for one in alive if not one.waiting or one.waiting.over()]:
                    self.current = self.rng.choice(ready)
                    self.current.greenlet.switch()
                    self.current.ended = self.steps
                elif self.pending:
                    self.complete(self.rng.choice(self._wanted(alive)))
                else:
                    self._deadlock(alive)
                    return
            self._finish()
        finally:
            for one in self.partitions:
                if not one.greenlet.dead:
                    one.greenlet.throw(GreenletExit)
            self.tally.programs += 1
            self.tally.most_shared_bytes = max(self.tally.most_shared_bytes, self.shared_bytes)

    def _wanted(self, alive: Sequence[Partition]) -> list[Operation]:
        """What may land when nobody can go on: where all is late, what somebody waits for."""
        waited = [barrier for one in alive if one.waiting for barrier in one.waiting.barriers]
        labels = {barrier.label for barrier in waited}
        wanted = [one for one in self.pending if one.barrier in waited or one.label in labels]
        return wanted if wanted and self.policy == "late" else self.pending

    def _finish(self) -> None:
        """Tell of what the program leaves behind."""
        known = 0
        for one in self.everyone:
            known |= one.clock.done
        for load in self.loads:
            if not known >> load.number & 1:
                hazard(
                    "load-not-waited",
                    f"the program ends while a TMA load may still be writing {load.label}",
                    None,
                    load.site,
                )
        for one in self.everyone:
            for store in one.stores:
                hazard(
                    "store-not-waited",
                    f"the program ends while a TMA store may still be reading {store.label}",
                    None,
                    store.site,
                )
            for operation in (*one.stores, *one.products, *one.copies):
                self.complete(operation)
        for operation in list(self.pending):
            self.complete(operation)
        for barrier in self.barriers:
            barrier.check_idle()

    def _deadlock(self, alive: Sequence[Partition]) -> None:
        name, place = "deadlock", None
        for one in alive:
            assert one.waiting is not None
            place = place or one.waiting.site
            if found := _cause_of(one, one.waiting.barrier):
                name, place = found, one.waiting.site
        hazard(
            name,
            f"program {self.index} cannot go on: every partition waits and nothing is in flight\n"
            f"{in_words(self.partitions)}",
            place,
            _armed_of(alive),
        )


def _cause_of(partition: Partition, barrier: Barrier | None) -> str:
    """The name of what keeps a partition waiting, where it is more than a deadlock."""
    if barrier is None:
        return ""
    if barrier.tx:
        return "missing-expect" if barrier.pending else "expect-tx-mismatch"
    ahead = barrier.phase - partition.phases_seen(barrier)
    # two phases ahead: nobody waited for this partition
    return "" if ahead <= 0 else "wrong-phase" if ahead == 1 else "reused-too-early"


def _armed_of(partitions: Sequence[Partition]) -> Place | None:
    """Where the barrier that somebody waits for was last told to expect bytes."""
    waiting = (one.waiting for one in partitions)
    barriers = (one.barrier for one in waiting if one and one.barrier and one.barrier.tx)
    return next((one.armed for one in barriers), None)
