"""
What simulators of asynchronous GPU code share: hazards, how they are told, clocks and mbarriers.

A hazard is something that no test of values can be trusted to see: two accesses that nothing
orders, a copy that is not waited for, a barrier that nobody completes. It is found by
happens-before, not by luck, so that one run names it whatever its schedule.

    reused-too-early: TMA load writes a_bufs[0] while a wgmma may still be reading it
      now:    gemm.py:133  tma_load(a_desc, [off_m, k * BK], bar)   [load, called at line 165]
      before: gemm.py:161  acc = warpgroup_mma(a_bufs.index(slot), b_bufs.index(slot), acc)
      fix:    wait for whoever used these bytes last, then refill them

Sources: L. Lamport, Time, Clocks, and the Ordering of Events in a Distributed System (1978);
the PTX ISA's sections on asynchronous operations, proxies and mbarrier objects.
"""

import linecache
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

# every name a simulator may give a hazard, and what to do about it
FIXES = {
    # asynchronous copies and products
    "missing-wait": "wait for the copy (its mbarrier, or its group) before touching what it fills",
    "wrong-phase": "the k-th use of a barrier completes its phase k: wait for parity k & 1, with k "
    "counted for each barrier by itself",
    "reused-too-early": "wait for whoever used these bytes last (the wait of the product, of the "
    "store, or their mbarrier; in another CTA, then a barrier of the cluster), then refill them",
    "missing-wgmma-wait": "a wait that leaves n products in flight leaves the newest n, and their "
    "accumulators may not be used yet",
    "missing-fence": "put a proxy fence between an ordinary write and a TMA or wgmma access of the "
    "same bytes, on the side that wrote",
    "missing-expect": "announce to the mbarrier how many bytes its TMA copies will bring",
    "expect-tx-mismatch": "announce the bytes of whole boxes, the parts out of bounds included, of "
    "every copy on this barrier",
    "store-not-waited": "wait for the store before the program ends: it still reads shared memory",
    "load-not-waited": "wait for every load before the program ends, or leave out those that "
    "nobody needs",
    # mbarriers
    "too-many-arrivals": "initialise the barrier with as many arrivals as a phase gets, and arrive "
    "again only after a wait",
    "barrier-not-initialised": "initialise the barrier, and let everybody know, before it is used",
    "barrier-reinitialised": "initialise a barrier once, or invalidate it in between",
    "barrier-invalidated-in-use": "wait for what still signals the barrier before invalidating it",
    # memory
    "race": "order the two accesses: a barrier between them, or an mbarrier that both sides use",
    "uninitialised-smem": "write these bytes before they are read",
    "smem-out-of-bounds": "stay within what was allocated",
    "global-out-of-bounds": "mask what lies outside the tensor",
    "tma-box-out-of-bounds": "coordinates count elements, the innermost last; this box misses the "
    "tensor altogether",
    "race-in-warp": "lanes of a warp run in no order: put __syncwarp between the two accesses, or "
    "let a shuffle carry the value",
    "global-race": "blocks run in no order: use atomics, publish with __threadfence and a flag, or "
    "leave the second access to another launch; blocks of a cluster may meet at its barrier",
    "misaligned": "an access of n bytes needs an address that is a multiple of n",
    "local-out-of-bounds": "an index of a thread's own array has to stay below its length",
    # barriers of blocks, warps and clusters
    "divergent-barrier": "let every thread of the block come to the same barrier: no return before "
    "it, and no condition around it that threads disagree on",
    "lane-missing": "name the lanes that come: __activemask is no cure, a ballot before the branch "
    "is",
    "lane-not-in-mask": "name every lane that executes it",
    "shuffle-from-inactive-lane": "shuffle before the branch, or read a lane that takes part",
    "incomplete-warpgroup": "let all 128 threads of the warpgroup execute it",
    "exit-before-remote-read": "put a barrier of the cluster after the last remote access",
    "dsmem-after-exit": "put a barrier of the cluster after the last remote access",
    "bad-cluster-rank": "a rank lies below the number of blocks in the cluster",
    "assert": "see why the kernel gave up",
    # programs that do not end
    "deadlock": "see who would have to arrive, or to send, for one of these waits to end",
    "endless": "see what was to end the loop: it never came",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """
    A line of the code under test.

    Attributes:
        file: Its path.
        line: From 1.
        function: The function it stands in; "" where it is not known.
        called_at: The line that called this function, where that tells more.
        source: Its text, for code that is in no file.
    """

    file: str
    line: int
    function: str = ""
    called_at: int | None = None
    source: str | None = None

    @property
    def text(self) -> str:
        """The source of the line, without indentation."""
        known = linecache.getline(self.file, self.line) if self.source is None else self.source
        return known.strip()

    def __str__(self) -> str:
        via = f"   [{self.function}, called at line {self.called_at}]" if self.called_at else ""
        return f"{Path(self.file).name}:{self.line}  {self.text}{via}"


class Hazard(Exception):
    """
    A hazard by its name, with the lines that it lies between.

    Attributes:
        name: A key of `FIXES`, the same in every simulator.
        text: What happens, in one line; more lines only where several agents are told.
        now: Where it shows.
        before: What it conflicts with.
        also: A third line, such as the wait that let it pass.
    """

    def __init__(
        self,
        name: str,
        text: str,
        now: Place | None = None,
        before: Place | None = None,
        also: Place | None = None,
    ) -> None:
        self.name, self.text = name, text
        self.now, self.before, self.also = now, before, also
        places = {"now": now, "before": before, "also": also}
        lines = [f"{name}: {text}"]
        lines += [f"  {label + ':':<7} {place}" for label, place in places.items() if place]
        lines.append(f"  {'fix:':<7} {FIXES[name]}")
        super().__init__("\n".join(lines))

    @property
    def key(self) -> Hashable:
        """What tells it from others: its name and its lines."""
        places = (self.now, self.before)
        return (self.name, *((one.file, one.line) if one else None for one in places))


class Joinable(Protocol):
    """A clock that travels through an mbarrier; a simulator may keep its own kind."""

    def copy(self) -> Self:
        """One that does not change with this."""

    def join(self, other: Self, /) -> None:
        """Know from now on what `other` knows, too."""


class Clock:
    """
    What an agent knows to have happened.

    Attributes:
        seen: How far it has followed each agent that takes steps of its own (a vector clock).
        fenced: The same, up to where their ordinary writes are visible to the async proxy.
        done: The asynchronous operations known to be complete, a bit each.
    """

    __slots__ = ("done", "fenced", "seen")

    def __init__(
        self,
        seen: Mapping[Hashable, int] | None = None,
        fenced: Mapping[Hashable, int] | None = None,
        done: int = 0,
    ) -> None:
        self.seen = dict(seen or {})
        self.fenced = dict(fenced or {})
        self.done = done

    def copy(self) -> "Clock":
        """One that does not change with this."""
        return Clock(self.seen, self.fenced, self.done)

    def join(self, other: "Clock") -> None:
        """Know from now on what `other` knows, too."""
        for mine, theirs in ((self.seen, other.seen), (self.fenced, other.fenced)):
            for agent, epoch in theirs.items():
                if epoch > mine.get(agent, 0):
                    mine[agent] = epoch
        self.done |= other.done

    def tick(self, agent: Hashable) -> int:
        """Let `agent`, whose clock this is, take a step; return the step's epoch, from 1."""
        self.seen[agent] = epoch = self.seen.get(agent, 0) + 1
        return epoch

    def knows(self, agent: Hashable, epoch: int) -> bool:
        """Whether what `agent` did at `epoch` happened before all that comes next."""
        return self.seen.get(agent, 0) >= epoch

    def sees_through_fence(self, agent: Hashable, epoch: int) -> bool:
        """Whether an ordinary write of `agent` at `epoch` is visible to the async proxy."""
        return self.fenced.get(agent, 0) >= epoch

    def knows_complete(self, operation: int) -> bool:
        """Whether the asynchronous operation of this number is known to be complete."""
        return bool(self.done >> operation & 1)

    def complete(self, operation: int) -> None:
        """Know that the asynchronous operation of this number is complete."""
        self.done |= 1 << operation

    def fence(self) -> None:
        """Make every write that is known visible to the async proxy."""
        self.fenced.update(self.seen)


C = TypeVar("C", bound=Joinable)


@dataclass(eq=False, kw_only=True)
class Mbarrier(Generic[C]):
    """
    An mbarrier: phases that complete once every arrival and every announced byte is in.

    The clocks of those who arrive are collected; whoever sees a phase complete may join
    `released`. What comes into one phase stays known in those after it.

    Attributes:
        label: What it is called, for reports.
        count: Arrivals that a phase takes.
        start: A clock that knows nothing.
        initialised: Where.
        pending: Arrivals still missing in this phase.
        tx: Bytes announced in this phase that have not landed; below 0 when they came first.
        phase: How many phases are complete.
        expected: Bytes announced in this phase.
        expected_before: And in the one before it.
    """

    label: str
    count: int
    start: C
    initialised: Place | None = None
    pending: int = field(init=False)
    tx: int = 0
    phase: int = 0
    expected: int = 0
    expected_before: int = 0
    collecting: C = field(init=False)
    released: C = field(init=False)

    def __post_init__(self) -> None:
        """Begin the first phase."""
        self.pending = self.count
        self.collecting, self.released = self.start.copy(), self.start.copy()

    def passes(self, parity: int) -> bool:
        """
        Whether a wait for `parity` ends: the phase of that parity is the one before this.

        The very first wait for parity 1 passes at once. A phase two earlier has the same parity:
        whoever falls so far behind cannot tell them apart.
        """
        return self.phase & 1 != parity & 1

    def expect(self, nbytes: int) -> None:
        """Announce `nbytes`; that is no arrival by itself."""
        self.tx += nbytes
        self.expected += nbytes
        self.flip()  # they may have landed, and everybody arrived, before

    def arrive(self, count: int, clock: C) -> int:
        """Count `count` arrivals of an agent with this clock; return how many were too many."""
        surplus = max(0, count - self.pending)
        self.pending -= count - surplus
        self.collecting.join(clock)
        self.flip()
        return surplus

    def land(self, nbytes: int, clock: C) -> None:
        """Count bytes that a copy has brought; `clock` is what the copy knows."""
        self.tx -= nbytes
        self.collecting.join(clock)
        self.flip()

    def flip(self) -> bool:
        """Complete the phase if nothing is missing from it; return whether it did."""
        if self.pending or self.tx:
            return False
        self.phase += 1
        self.pending = self.count
        self.expected_before, self.expected = self.expected, 0
        self.released = self.collecting.copy()
        return True

    def __str__(self) -> str:
        return (
            f"{self.label}: phase {self.phase} is incomplete, {self.count - self.pending} of "
            f"{self.count} arrivals, {self.expected} bytes expected, {self.expected - self.tx} "
            "landed"
        )
