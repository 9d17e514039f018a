"""Accesses to shared memory, and what is wrong between two that nothing orders."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.simulators.gluon.agents import Barrier, Operation, Partition
from harness.simulators.gluon.context import hazard
from harness.simulators.gluon.values import Array
from harness.simulators.hazards import Clock, Place

Key = tuple[int, tuple[int, ...], tuple[int, ...]]


@dataclass(eq=False, kw_only=True)
class Allocation:
    """
    One allocation of a program, in each CTA of a cluster.

    Attributes:
        name: The variable that it was assigned to.
        raw: Its bytes, those of a part that several CTAs have a copy of once.
        written: Those that have ever been written, by CTA.
        accesses: The recent ones, by CTA; those that others stand for are gone.
        barriers: The mbarriers in it, by CTA and offset.
    """

    name: str
    raw: Array
    written: Array
    accesses: list[list[Access]]
    barriers: dict[tuple[int, int], Barrier] = field(default_factory=dict)


@dataclass(eq=False, kw_only=True)
class Access:
    """
    A read or a write of some bytes, by a partition or by an operation that it issued.

    Attributes:
        label: What is accessed.
        view: The bytes.
        key: The same bytes have the same one.
        write: Whether it writes.
        partition: Whose.
        operation: None where the partition itself accesses them.
        site: Where.
        epoch: The partition's step.
    """

    label: str
    view: Array
    key: Key
    write: bool
    partition: Partition
    operation: Operation | None
    site: Place
    epoch: int = 0

    def before(self, clock: Clock) -> bool:
        """Whether it happens before everything that who holds `clock` does next."""
        if self.operation:
            return clock.knows_complete(self.operation.number)
        return clock.knows(self.partition.key, self.epoch)

    def unfenced(self, other: Access, clock: Clock) -> bool:
        """Whether `other`, through the async proxy, may not see this ordinary write."""
        if not self.write or self.operation or not other.operation:
            return False
        # cp.async is an ordinary access in this respect
        by_proxy = other.operation.kind != "cp.async"
        return by_proxy and not clock.sees_through_fence(self.partition.key, self.epoch)

    @property
    def agent(self) -> str:
        """Who accesses, in words."""
        return self.operation.kind if self.operation else str(self.partition)

    def __str__(self) -> str:
        return f"{self.agent} {'writes' if self.write else 'reads'} {self.label}"


def tell_unwritten(mine: Access) -> None:
    """Tell of a read of bytes that nobody has written yet."""
    passed = mine.partition.last_wait
    if passed and passed.phase == 0:
        hazard(
            "wrong-phase",
            f"{mine} before anything was written: the wait for parity {passed.parity} of "
            f"{passed.barrier.label} passed at once, with no phase of it complete",
            mine.site,
            passed.site,
        )
    else:
        hazard("uninitialised-smem", f"{mine}, parts of which were never written", mine.site)


def tell_conflict(mine: Access, other: Access, *, ordered: bool) -> None:
    """
    Tell what is wrong between two accesses to the same bytes.

    Args:
        mine: The later one.
        other: The earlier one.
        ordered: Whether it is certain to be earlier, so that only a proxy fence can be missing.
    """
    operation = other.operation
    if ordered:
        hazard(
            "missing-fence",
            f"{mine} through the async proxy, which may not see the ordinary write",
            mine.site,
            other.site,
        )
    elif mine.write and (operation or not other.write):
        who = f"a {operation.kind}" if operation else other.agent
        doing = "writing" if other.write else "reading"
        hazard(
            "reused-too-early", f"{mine} while {who} may still be {doing} it", mine.site, other.site
        )
    elif operation is None:
        hazard("race", f"{mine} unordered with a write by {other.agent}", mine.site, other.site)
    else:
        _tell_too_early(mine, operation)


def _tell_too_early(mine: Access, operation: Operation) -> None:
    """Tell why something is accessed before the copy into it has landed."""
    barrier, issued = operation.barrier, operation.site
    passed = mine.partition.waits.get(barrier) if barrier else None
    early = f"{mine} before the {operation.kind} into it has landed"
    if barrier and barrier.phase == operation.phase and not barrier.expected:
        hazard(
            "expect-tx-mismatch" if barrier.expected_before else "missing-expect",
            f"{early}: its bytes were never announced to {barrier.label}, whose phase "
            f"{barrier.phase} does not wait for them",
            mine.site,
            issued,
        )
    elif barrier and passed and passed.fresh and not passed.used:
        hazard(
            "reused-too-early",
            f"{mine}, where phase {passed.phase - 1} of {barrier.label} had brought data, but a "
            f"{operation.kind} of phase {operation.phase} was issued over it before it was read",
            mine.site,
            issued,
            passed.site,
        )
    elif passed and (passed.after >= operation.number or not passed.fresh):
        hazard(
            "wrong-phase",
            f"{early}: the wait for parity {passed.parity} of {passed.barrier.label} passed while "
            f"phase {passed.phase} of it was incomplete",
            mine.site,
            issued,
            passed.site,
        )
    else:
        why = ""
        if operation.kind == "cp.async" and not operation.issuer.signals_copies:
            committed = operation.group < operation.issuer.group
            why = " (its group is still pending)" if committed else " (never committed)"
        hazard("missing-wait", f"{early}{why}", mine.site, issued)
