"""mbarriers: who arrives, who waits, how many bytes are announced; and the proxy fence."""

import triton.language as tl
from triton.experimental.gluon.language.nvidia import ampere

from harness.simulators.gluon.agents import Barrier, Operation, PassedWait
from harness.simulators.gluon.context import fault, hazard, site
from harness.simulators.gluon.shared_memory import SharedMemory, _allocate_shared_memory, as_memory
from harness.simulators.gluon.tensors import Table, export, running, truth
from harness.simulators.gluon.values import KernelValue, unwrap

MBARRIER: Table = {}
HOPPER: Table = {}


def count_waiting(operations: list[Operation]) -> None:
    """Count what is in flight at a wait for data."""
    program = running()
    program.tally.counts["waits for data"] += 1
    program.tally.counts["bytes in flight at waits"] += sum(one.nbytes for one in operations)


@export(MBARRIER)
def _allocate_mbarrier(batch: KernelValue = None, two_ctas: KernelValue = False) -> SharedMemory:
    shape = [1] if unwrap(batch) is None else [unwrap(batch), 1]
    return _allocate_shared_memory(tl.int64, shape, ampere.mbarrier.MBarrierLayout())


@export(MBARRIER)
def _init(mbarrier: SharedMemory, count: KernelValue) -> None:
    known = as_memory(mbarrier).allocation.barriers
    if old := known.get(mbarrier.offset):
        text = f"{old.label} is initialised again without mbarrier.invalidate"
        hazard("barrier-reinitialised", text, site(), old.initialised)
    if mbarrier.numel != 1:
        raise fault(
            ValueError, f"an mbarrier is one int64, found {mbarrier.label} of {mbarrier.shape}"
        )
    count = int(unwrap(count))
    if count < 1:
        raise fault(ValueError, f"{mbarrier.label}: expected a count of 1 or more, found {count}")
    barrier = Barrier(label=mbarrier.label, count=count, initialised=site())
    known[mbarrier.offset] = barrier
    running().barriers.append(barrier)


@export(MBARRIER)
def _invalidate(mbarrier: SharedMemory) -> None:
    program, barrier = running(), as_memory(mbarrier).barrier()
    if busy := [one for one in program.pending if one.barrier is barrier]:
        text = f"a {busy[0].kind} in flight will still signal {barrier.label}"
        hazard("barrier-invalidated-in-use", text, site(), busy[0].site)
    barrier.check_idle()
    program.barriers.remove(barrier)
    del mbarrier.allocation.barriers[mbarrier.offset]


@export(MBARRIER)
def _expect(
    mbarrier: SharedMemory,
    bytes_per_cta: KernelValue = None,
    pred: KernelValue = True,
    **names: KernelValue,
) -> None:
    """Announce bytes, and arrive: Gluon's expect is mbarrier.arrive.expect_tx."""
    if not truth(pred):
        return
    program = running()
    program.step()
    barrier, here = as_memory(mbarrier).barrier(), site()
    nbytes = int(unwrap(names.get("bytes", bytes_per_cta)))
    if not barrier.pending:
        hazard(
            "reused-too-early",
            f"{barrier.label} is armed again for {nbytes} bytes, but phase {barrier.phase} of it "
            "is still in flight",
            here,
            barrier.armed,
        )
    barrier.expect(nbytes)
    barrier.armed = here
    barrier.arrive_by(program.current, arming=True)


@export(MBARRIER)
def _arrive(
    mbarrier: SharedMemory, *, count: KernelValue = 1, pred: KernelValue = True, **_: KernelValue
) -> None:
    if truth(pred):
        program = running()
        program.step()
        as_memory(mbarrier).barrier().arrive_by(program.current, int(unwrap(count)))


@export(MBARRIER)
def _wait(
    mbarrier: SharedMemory,
    phase: KernelValue,
    pred: KernelValue = True,
    deps: KernelValue = (),
) -> None:
    if not truth(pred):
        return
    program, barrier = running(), as_memory(mbarrier).barrier()
    partition, parity = program.current, int(unwrap(phase))
    if parity not in (0, 1):  # PTX ISA, mbarrier.try_wait.parity: no other is valid
        text = f"waits for parity {parity} of {barrier.label}, of which there are 0 and 1"
        hazard("wrong-phase", text, site())
        parity &= 1
    if barrier.armed:
        count_waiting([one for one in program.loads if not one.complete])
    program.step()
    program.wait(lambda: barrier.passes(parity), f"waits for parity {parity} of", barrier)
    partition.clock.join(barrier.released)
    passed = PassedWait(
        after=len(program.operations),
        barrier=barrier,
        parity=parity,
        phase=barrier.phase,
        fresh=barrier.phase > partition.phases_seen(barrier),
        site=site(),
    )
    partition.waits[barrier] = partition.last_wait = passed


@export(HOPPER)
def _fence_async_shared(cluster: KernelValue = False) -> None:
    """What ordinary writes are known are visible to the async proxy from now on."""
    running().current.clock.fence()
