"""Who acts in a program: its partitions, the operations they issue, and its mbarriers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from harness.simulators.gluon.context import hazard, site
from harness.simulators.hazards import Clock, Mbarrier, Place

Shape = tuple[int, ...]
WHOLE = "default"  # the partition of a program that has no others


@dataclass(eq=False, kw_only=True)
class Operation:
    """
    An asynchronous operation: issued, and complete some time later.

    Attributes:
        kind: "TMA load", "TMA store", "cp.async", "cp.async arrive" or "wgmma".
        number: Counts the operations of a program, from 1.
        issuer: The partition.
        site: Where it was issued.
        clock: What the issuer knew then.
        run: Moves the bytes, or computes.
        label: The shared memory it is about.
        barrier: What it signals when it is complete.
        nbytes: What it brings.
        phase: Of its barrier, when it was issued.
        group: Of its issuer's groups of cp.async.
        issued: The program's step then.
        landed: And when it was complete.
    """

    kind: str
    number: int
    issuer: Partition
    site: Place
    clock: Clock
    run: Callable[[], None]
    label: str = ""
    barrier: Barrier | None = None
    nbytes: int = 0
    phase: int = 0
    group: int = 0
    complete: bool = False
    issued: int = 0
    landed: int | None = None


@dataclass(eq=False, kw_only=True)
class Product:
    """
    A product on the tensor cores: one operation in each CTA of a cluster.

    Attributes:
        operations: By rank.
        result: What they compute, each its part.
        site: Where it was issued.
    """

    operations: list[Operation]
    result: npt.NDArray[Any]
    site: Place

    @property
    def shape(self) -> Shape:
        """Of its result."""
        return self.result.shape

    @property
    def known(self) -> bool:
        """Whether those who issued it know that it is complete."""
        return all(one.issuer.clock.knows_complete(one.number) for one in self.operations)


@dataclass(eq=False, kw_only=True)
class Waiting:
    """
    What a partition stands at: it goes on once `over` is true.

    Attributes:
        over: Whether it has ended.
        words: What it waits for.
        barriers: The mbarriers of all CTAs, where it waits for some.
        parity: And what for.
        site: Where.
        since: The program's step.
    """

    over: Callable[[], bool]
    words: str
    barriers: Sequence[Barrier] = ()
    parity: int = 0
    site: Place
    since: int

    @property
    def barrier(self) -> Barrier | None:
        """The mbarrier that keeps it waiting."""
        late = [one for one in self.barriers if not one.passes(self.parity)]
        return next(iter(late or self.barriers), None)


@dataclass(eq=False, kw_only=True)
class PassedWait:
    """
    A wait for an mbarrier that has ended.

    Attributes:
        after: Operations that had been issued before it.
        barrier: Which.
        parity: What it waited for.
        phase: The phase that was still incomplete when it passed.
        fresh: Whether it saw a phase complete that no wait of this partition had seen before.
        site: Where.
        used: Whether what that phase brought has been read since.
    """

    after: int
    barrier: Barrier
    parity: int
    phase: int
    fresh: bool
    site: Place
    used: bool = False


@dataclass(eq=False, kw_only=True)
class Partition:
    """
    The warps of a CTA that run one piece of code together: all of them, or some.

    It is one agent: Triton puts the barriers between its own threads by itself. The CTAs of a
    cluster run the same code on the same scalars, so that it is followed once for all of them: the
    partition of the first CTA has the greenlet, and `peers` has that of each by its rank.
    """

    index: int
    name: str
    num_warps: int
    cta: int = 0
    peers: list[Partition] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)
    greenlet: Any = None
    waiting: Waiting | None = None
    products: deque[Operation] = field(default_factory=deque)  # wgmma, in order
    stores: deque[Operation] = field(default_factory=deque)  # by TMA, in order
    copies: deque[Operation] = field(default_factory=deque)  # cp.async that nobody waited for
    group: int = 0
    waits: dict[Barrier, PassedWait] = field(default_factory=dict)
    last_wait: PassedWait | None = None
    signals_copies: bool = False  # its cp.async report to mbarriers, not in groups
    published: Clock = field(default_factory=Clock)  # mbarriers made before its last fence for them
    began: int = 0  # the program's step
    ended: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """What clocks call it."""
        return self.index, self.cta

    @property
    def making(self) -> tuple[int, int, str]:
        """What clocks call the mbarriers that it makes, which a fence of their own publishes."""
        return self.index, self.cta, "mbarriers"

    @property
    def where(self) -> str:
        """Its CTA, in words, where there are several."""
        return f" in CTA {self.cta}" if len(self.peers) > 1 else ""

    def __str__(self) -> str:
        return ("the kernel" if self.name == WHOLE else f"partition {self.name}") + self.where

    def tick(self) -> int:
        """Take a step; return its epoch."""
        return self.clock.tick(self.key)

    def phases_seen(self, barrier: Barrier | None) -> int:
        """How many phases of a barrier its waits, or those of its peers, have seen complete."""
        waits = (one.waits.get(barrier) for one in self.peers) if barrier else ()
        return max((one.phase for one in waits if one), default=0)


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """An arrival of a partition at a barrier."""

    partition: Partition
    epoch: int
    site: Place


@dataclass(eq=False, kw_only=True)
class Barrier(Mbarrier[Clock]):
    """
    An mbarrier that knows what it waits for, and checks that who arrives may.

    Attributes:
        maker: The partition that made it, and how many it had then made.
        armed: Where bytes were announced last.
        addressed: TMA loads issued on the current phase.
        causes: Arrivals and loads that complete this phase.
        causes_before: And that completed the one before.
    """

    start: Clock = field(default_factory=Clock)
    maker: tuple[Partition, int]
    armed: Place | None = None
    addressed: list[Operation] = field(default_factory=list)
    causes: list[Arrival | Operation] = field(default_factory=list)
    causes_before: list[Arrival | Operation] = field(default_factory=list)

    def flip(self) -> bool:
        """Complete the phase if nothing is missing; no load that signals it may be in flight."""
        if self.pending or self.tx:
            return False
        if late := [load for load in self.addressed if not load.complete]:
            total = sum(load.nbytes for load in self.addressed)
            hazard(
                "expect-tx-mismatch" if self.expected else "missing-expect",
                f"phase {self.phase} of {self.label} completed after {self.expected} expected "
                f"bytes, but TMA loads of {total} bytes signal it: the one into {late[0].label} is "
                "still in flight",
                None,
                late[0].site,
            )
        self.addressed = []
        self.causes_before, self.causes = self.causes, []
        return super().flip()

    def _not_known(self, partition: Partition) -> tuple[str, Place] | None:
        """What completed the phase before, and where, if a partition cannot know that it did."""
        for cause in self.causes_before:
            if isinstance(cause, Operation):
                if not partition.clock.knows_complete(cause.number):
                    return f"the {cause.kind} into {cause.label}", cause.site
            elif not partition.clock.knows(cause.partition.key, cause.epoch):
                return f"the arrival of {cause.partition}", cause.site
        return None

    def arrive_by(self, partition: Partition, count: int = 1, *, arming: bool = False) -> None:
        """
        Count arrivals of a partition.

        It must know that the phase before is complete: else they may count for that one.
        """
        if unknown := self._not_known(partition):
            what, there = unknown
            hazard(
                "reused-too-early" if arming else "too-many-arrivals",
                f"{self.label} is {'armed' if arming else 'arrived at'} for phase {self.phase} "
                f"by a partition that cannot know that {what} has completed phase "
                f"{self.phase - 1}",
                site(),
                there,
            )
        here = site()
        self.causes.append(Arrival(partition=partition, epoch=partition.tick(), site=here))
        self.arrive_with(count, partition.clock, here)

    def check_signal_from_afar(self, partition: Partition) -> None:
        """Check that a copy of another CTA may signal it: it is made, and the phase before over."""
        maker, number = self.maker
        if not partition.clock.knows(maker.making, number):
            hazard(
                "barrier-not-initialised",
                f"a copy issued by CTA {partition.cta} signals {self.label}, of whose "
                "initialisation that CTA cannot know",
                site(),
                self.initialised,
            )
        if unknown := self._not_known(partition):
            what, there = unknown
            hazard(
                "reused-too-early",
                f"a copy issued by CTA {partition.cta} signals {self.label} for phase "
                f"{self.phase}, and that CTA cannot know that {what} has completed phase "
                f"{self.phase - 1}",
                site(),
                there,
            )

    def arrive_with(self, count: int, clock: Clock, at: Place) -> None:
        """Count arrivals of whoever has this clock; more than are missing are a hazard."""
        missing, phase = self.pending, self.phase
        if count > missing:
            hazard(
                "too-many-arrivals",
                f"{count} arrivals at {self.label}, initialised with count {self.count}, of which "
                f"{missing} are missing in phase {phase}",
                at,
                self.initialised,
            )
        self.arrive(count, clock)

    def check_idle(self) -> None:
        """Tell of bytes that were announced, and that no copy on its way will bring."""
        if self.tx and all(load.complete for load in self.addressed):
            hazard(
                "expect-tx-mismatch",
                f"{self.label} is left armed: {self.expected} bytes announced in phase "
                f"{self.phase}, {self.expected - self.tx} landed, and no copy is on its way",
                None,
                self.armed or self.initialised,
            )


def in_words(partitions: Sequence[Partition]) -> str:
    """What each partition waits for, one to a line or two."""
    lines = []
    for one in partitions:
        if one.waiting is None:
            lines.append(f"    {one.name}: {'finished' if one.greenlet.dead else 'runs'}")
            continue
        waiting = one.waiting
        about = f" {waiting.barrier}" if waiting.barrier else ""
        lines.append(f"    {one.name}: {waiting.words}{about}\n        at {waiting.site}")
        seen = one.phases_seen(waiting.barrier)
        if waiting.barrier and waiting.barrier.phase > seen:
            phase = waiting.barrier.phase
            lines.append(f"        it has seen {seen} phases complete, {phase} are")
    return "\n".join(lines)
