"""mbarriers: who arrives, who waits, how many bytes are announced; and the proxy fence."""

import triton.language as tl
from triton.experimental.gluon.language.nvidia import ampere

from harness.simulators.gluon.agents import Barrier, Operation, PassedWait
from harness.simulators.gluon.context import fault, hazard, not_modelled, site
from harness.simulators.gluon.layouts import bases_of
from harness.simulators.gluon.shared_memory import SharedMemory, _allocate_shared_memory, as_memory
from harness.simulators.gluon.tensors import Table, export, running, truth
from harness.simulators.gluon.values import KernelValue, unwrap
from harness.simulators.hazards import Clock

MBARRIER: Table = {}
HOPPER: Table = {}


def count_waiting(operations: list[Operation]) -> None:
    """Count what is in flight at a wait for data."""
    program = running()
    program.tally.counts["waits for data"] += 1
    program.tally.counts["bytes in flight at waits"] += sum(one.nbytes for one in operations)


@export(MBARRIER)
def _allocate_mbarrier(batch: KernelValue = None, two_ctas: KernelValue = False) -> SharedMemory:
    if unwrap(two_ctas):
        raise not_modelled("an mbarrier of two CTAs, which are Blackwell's")
    many = running().num_ctas
    shape = [many] if unwrap(batch) is None else [unwrap(batch), many]
    layout = ampere.mbarrier.MBarrierLayout([[1 << bit] for bit in range(many.bit_length() - 1)])
    return _allocate_shared_memory(tl.int64, shape, layout)


@export(MBARRIER)
def _init(mbarrier: SharedMemory, count: KernelValue) -> None:
    if any(not any(basis) for basis in bases_of(as_memory(mbarrier).layout)):
        raise not_modelled("an mbarrier that CTAs share")
    count = int(unwrap(count))
    for part in mbarrier.parts():
        _init_one(part, count)


def _init_one(mbarrier: SharedMemory, count: int) -> None:
    program = running()
    known, where, partition = mbarrier.allocation.barriers, mbarrier.place, program.current
    if old := known.get(where):
        text = f"{old.label} is initialised again without mbarrier.invalidate"
        hazard("barrier-reinitialised", text, site(), old.initialised)
    if mbarrier.numel != 1:
        raise fault(
            ValueError, f"an mbarrier is one int64, found {mbarrier.label} of {mbarrier.shape}"
        )
    if count < 1:
        raise fault(ValueError, f"{mbarrier.label}: expected a count of 1 or more, found {count}")
    barrier = Barrier(
        label=mbarrier.label,
        count=count,
        initialised=site(),
        maker=(partition, partition.clock.tick(partition.making)),
    )
    known[where] = barrier
    program.barriers.append(barrier)


@export(MBARRIER)
def _invalidate(mbarrier: SharedMemory) -> None:
    program = running()
    for part in as_memory(mbarrier).parts():
        barrier = part.barrier()
        if busy := [one for one in program.pending if one.barrier is barrier]:
            text = f"a {busy[0].kind} in flight will still signal {barrier.label}"
            hazard("barrier-invalidated-in-use", text, site(), busy[0].site)
        barrier.check_idle()
        program.barriers.remove(barrier)
        del part.allocation.barriers[part.place]


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
    nbytes = int(unwrap(names.get("bytes", bytes_per_cta)))
    for part in as_memory(mbarrier).parts():
        barrier, here = part.barrier(), site()
        if not barrier.pending:
            hazard(
                "reused-too-early",
                f"{barrier.label} is armed again for {nbytes} bytes, but phase {barrier.phase} of "
                "it is still in flight",
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
        for part in as_memory(mbarrier).parts():
            part.barrier().arrive_by(program.current, int(unwrap(count)))


@export(MBARRIER)
def _wait(
    mbarrier: SharedMemory,
    phase: KernelValue,
    pred: KernelValue = True,
    deps: KernelValue = (),
) -> None:
    if not truth(pred):
        return
    program = running()
    barriers = [part.barrier() for part in as_memory(mbarrier).parts()]
    parity = int(unwrap(phase))
    if parity not in (0, 1):  # PTX ISA, mbarrier.try_wait.parity: no other is valid
        text = f"waits for parity {parity} of {barriers[0].label}, of which there are 0 and 1"
        hazard("wrong-phase", text, site())
        parity &= 1
    if any(one.armed for one in barriers):
        count_waiting([one for one in program.loads if not one.complete])
    program.step()
    program.wait(
        lambda: all(one.passes(parity) for one in barriers),
        f"waits for parity {parity} of",
        barriers,
        parity,
    )
    for partition, barrier in zip(program.each(), barriers, strict=True):
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


@export(MBARRIER)
def _fence_init_release_cluster() -> None:
    """What mbarriers have been made is published by the next arrival at the cluster's barrier."""
    for partition in running().each():
        made = partition.clock.seen.get(partition.making, 0)
        partition.published = Clock({partition.making: made})


@export(HOPPER)
def _fence_async_shared(cluster: KernelValue = False) -> None:
    """What ordinary writes are known are visible to the async proxy from now on."""
    for partition in running().each():
        partition.clock.fence()
