"""What orders the CTAs of a cluster: their barrier; and what they do to global memory meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.simulators.gluon.agents import Partition
from harness.simulators.gluon.context import hazard, site
from harness.simulators.gluon.values import Array
from harness.simulators.hazards import Clock, Place

WARPGROUP = 4  # warps; what specialised partitions are filled up to


@dataclass(eq=False, kw_only=True)
class ClusterBarrier:
    """
    The barrier of a cluster: every thread of all its CTAs arrives, then waits.

    Attributes:
        arrivals: Of each partition, by its index.
        known: What those who arrived for each use of it have published.
        last: Where somebody arrived last.
    """

    arrivals: dict[int, int] = field(default_factory=dict)
    waits: dict[int, int] = field(default_factory=dict)
    known: list[Clock] = field(default_factory=list)
    last: Place | None = None

    def arrive(self, partition: Partition, *, relaxed: bool) -> None:
        """Arrive in every CTA; a relaxed arrival publishes but the mbarriers that were fenced."""
        use = self.arrivals.get(partition.index, 0)
        if use > self.waits.get(partition.index, 0):
            hazard(
                "too-many-arrivals",
                f"{partition} arrives at the barrier of the cluster again without having waited",
                site(),
                self.last,
            )
        self.last = site()
        self.arrivals[partition.index] = use + 1
        if use == len(self.known):
            self.known.append(Clock())
        for one in partition.peers:
            self.known[use].join(one.published if relaxed else one.clock)

    def passed(self, partition: Partition, partitions: Sequence[Partition]) -> bool:
        """Whether all of `partitions` have arrived as often as `partition`, which waits."""
        use = self.arrivals.get(partition.index, 0)
        if use == self.waits.get(partition.index, 0):
            return False  # it has not arrived itself
        # the warps that fill specialised ones up never come
        idle = len(partitions) > 1 and sum(one.num_warps for one in partitions) % WARPGROUP
        return not idle and all(self.arrivals.get(one.index, 0) >= use for one in partitions)

    def check_workers(self) -> None:
        """Tell of a use before warps are specialised: those of the workers never came to it."""
        if self.last:
            hazard(
                "deadlock",
                "warps are specialised after a barrier of the cluster: the warps of the workers "
                "stand in a loop of Triton's until then, and never arrive at it",
                site(),
                self.last,
            )

    def wait(self, partition: Partition) -> None:
        """Know in every CTA what was published; all have arrived."""
        use = self.arrivals[partition.index]
        self.waits[partition.index] = use
        for one in partition.peers:
            one.clock.join(self.known[use - 1])


@dataclass(eq=False, kw_only=True)
class GlobalAccess:
    """
    Loads, stores or atomics of one CTA's part of a tensor of pointers.

    Attributes:
        partition: Whose.
        epoch: When.
        kind: "load", "store" or "atomic".
        name: Of the tensor in global memory.
        addresses: Of the elements, in order.
        site: Where.
    """

    partition: Partition
    epoch: int
    kind: str
    name: str
    addresses: Array
    site: Place

    def clashes(self, other: GlobalAccess) -> bool:
        """Whether both touch an element, in two CTAs, and one of them changes it."""
        if self.partition.cta == other.partition.cta or self.kind == other.kind != "store":
            return False
        mine, theirs = self.addresses, other.addresses
        if mine[-1] < theirs[0] or theirs[-1] < mine[0]:
            return False
        return bool(np.isin(mine, theirs, assume_unique=True).any())


@dataclass(eq=False, kw_only=True)
class GlobalOrder:
    """Accesses of the CTAs of a cluster to global memory that not everybody knows of yet."""

    accesses: list[GlobalAccess] = field(default_factory=list)

    def note(self, mine: GlobalAccess) -> None:
        """Keep an access; one of another CTA that it is not ordered with is a hazard."""
        if not mine.addresses.size:
            return
        clock = mine.partition.clock
        for one in self.accesses:
            if not clock.knows(one.partition.key, one.epoch) and mine.clashes(one):
                hazard(
                    "global-race",
                    f"the {mine.kind} of {mine.name} in CTA {mine.partition.cta} is unordered with "
                    f"the {one.kind} of {one.name} in CTA {one.partition.cta}",
                    mine.site,
                    one.site,
                )
        self.accesses.append(mine)

    def forget(self, everyone: Iterable[Partition]) -> None:
        """Drop what every partition knows of."""
        clocks = [one.clock for one in everyone]
        self.accesses = [
            one
            for one in self.accesses
            if not all(clock.knows(one.partition.key, one.epoch) for clock in clocks)
        ]
