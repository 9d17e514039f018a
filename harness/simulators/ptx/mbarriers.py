"""mbarrier objects in shared memory, fences of the async proxy, and copies that arrive."""

from dataclasses import dataclass, field

import numpy as np

from harness.simulators.hazards import Mbarrier
from harness.simulators.ptx.clusters import Clusters
from harness.simulators.ptx.formats import Array, i32, i64, u32, u64
from harness.simulators.ptx.memory import first_of
from harness.simulators.ptx.operands import Get, Put
from harness.simulators.ptx.program import Address, Instruction, PtxError, Register, Unsupported
from harness.simulators.ptx.scheduler import GONE, Decoded

ARRIVALS = ("arrive", "arrive_drop")
KINDS = ("init", "inval", "expect_tx", "complete_tx", *ARRIVALS)


class WarpClock:
    """What is known of each warp of a cluster."""

    __slots__ = ("epochs",)

    def __init__(self, epochs: Array) -> None:
        self.epochs = epochs

    def copy(self) -> "WarpClock":
        """One that does not change with this."""
        return WarpClock(self.epochs.copy())

    def join(self, other: "WarpClock") -> None:
        """Know what `other` knows, too."""
        self.epochs = np.maximum(self.epochs, other.epochs)


@dataclass(slots=True)
class Transfer:
    """
    A bulk copy between global and shared memory.

    Attributes:
        ins: What issued it.
        thread: Who.
        source: Places among the bytes of global memory.
        inside: Which of them lie in the tensor.
        place: Places among the bytes of shared memory.
        granules: The same in granules.
        group: Of the thread's bulk stores.
    """

    ins: Instruction
    thread: int
    source: Array
    inside: Array
    place: Array
    granules: Array
    group: int


@dataclass(slots=True)
class Object:
    """
    An mbarrier, who made it (warp, epoch, pc), and what will come to it by itself.

    `transfers` bring bytes, `copiers` are threads that arrive once their copies have landed.
    """

    core: Mbarrier[WarpClock]
    warp: int
    epoch: int
    pc: int
    transfers: list[Transfer] = field(default_factory=list)
    copiers: list[int] = field(default_factory=list)


class Mbarriers(Clusters):
    """mbarrier instructions."""

    def start_mbarriers(self) -> None:
        """Begin without a barrier."""
        self.objects: dict[int, Object] = {}

    def force(self) -> None:
        """Complete what only completes when nobody can run."""
        for number in list(self.barriers):
            self.release(number)
        self.complete_clusters()
        if not any(self.groups) and self.waiting["mbarrier"]:
            for one in list(self.objects.values()):
                self.force_object(one)

    # ---- fences ----------------------------------------------------------------------------

    def op_fence(self, ins: Instruction) -> Decoded:
        """fence.proxy.async orders ordinary writes before reads of the async proxy."""
        if not any(mod.startswith("async") for mod in ins.mods):
            return (lambda: self.fence_global(ins)), None
        return self._fence_proxy, None

    def op_membar(self, ins: Instruction) -> Decoded:
        """``__threadfence``."""
        return (lambda: self.fence_global(ins)), None

    def fence_global(self, ins: Instruction) -> None:
        """Order what the active threads have stored before what they store next."""

    def _fence_proxy(self) -> None:
        shared = self.shared
        granules = np.flatnonzero(shared.unfenced)
        if not len(granules):
            return
        many = self.clock_warps
        writer = shared.writer[granules] >> 5
        for warp in np.flatnonzero(self.warps_here):
            known = self.clocks[warp // many, warp % many, writer % many]
            seen = (writer // many == warp // many) & (known >= shared.write_epoch[granules])
            shared.unfenced[granules[seen]] = False

    def check_fenced(self, ins: Instruction, thread: int, granules: Array) -> None:
        """The async proxy reads for `thread`: ordinary writes have to be fenced."""
        unfenced = self.shared.unfenced[granules]
        if unfenced.any():
            first = granules[first_of(unfenced)]
            text = (
                "the async proxy reads shared memory that ordinary stores or cp.async have "
                "written, with no fence.proxy.async in between"
            )
            line = self.line_of(self.shared.write_pc[first])
            who = self.who(thread)
            self.report("missing-fence", ins, f"{who} {text}", int(unfenced.sum()), line)

    # ---- objects ---------------------------------------------------------------------------

    def places(self, ins: Instruction, addresses: Array) -> tuple[Array, Array]:
        """The active threads, and the place of the mbarrier that each one names."""
        threads = self.active()
        return threads, self.shared.locate(ins, threads, addresses, 8)[1]

    def object_at(self, ins: Instruction, thread: int, place: int) -> Object:
        """The mbarrier at a place."""
        found = self.objects.get(int(place))
        if found is None:
            text = f"{self.who(thread)} uses an mbarrier that was never initialised"
            self.report("barrier-not-initialised", ins, text)
            raise PtxError(text)
        warp, many = thread >> 5, self.clock_warps
        if self.checked and warp != found.warp:
            known = self.clocks[warp // many, warp % many, found.warp % many]
            if known < found.epoch:
                text = f"{self.who(thread)} nothing orders its use after its initialisation"
                line = self.line_of(found.pc)
                self.report("barrier-not-initialised", ins, text, 1, line)
        return found

    def _initialise(self, ins: Instruction, thread: int, place: int, count: int) -> None:
        warp, many = thread >> 5, self.clock_warps
        epoch = int(self.clocks[warp // many, warp % many, warp % many])
        where = f"mbarrier at shared byte {place % self.shared.size}"
        clock = WarpClock(np.zeros(many, i32))
        core = Mbarrier(label=where, count=count, start=clock)
        self.objects[place] = Object(core, warp, epoch, ins.pc)

    def changed(self, phase: int, one: Object) -> None:
        """Wake who waits, if a phase is complete since `phase`."""
        if one.core.phase != phase:
            waiting, self.waiting["mbarrier"] = self.waiting["mbarrier"], {}
            for pc, mask in waiting.items():
                self.resume(pc, mask)

    def op_mbarrier(self, ins: Instruction) -> Decoded:
        """mbarrier, whatever follows."""
        kind = ins.mods[0]
        if kind in ("test_wait", "try_wait"):
            return self._wait_for(ins, blocks=kind == "try_wait")
        if kind not in KINDS:
            raise Unsupported(ins.name)
        at = next(number for number, arg in enumerate(ins.args) if isinstance(arg, Address))
        addresses = self.address(ins.args[at])
        extra = self.source(ins.args[at + 1], "u32") if len(ins.args) > at + 1 else None
        first = ins.args[0]
        put = self.destination(first, "b64") if isinstance(first, Register) else None

        def step() -> None:
            threads, places = self.places(ins, addresses())
            counts = np.ones(len(threads), u32)
            if extra is not None:
                counts = self.each(extra())[threads]
            if kind in ("init", "inval"):
                for thread, place, count in zip(threads, places, counts, strict=True):
                    self.objects.pop(int(place), None)
                    if kind == "init":
                        self._initialise(ins, int(thread), int(place), int(count))
                return
            self._signal(ins, threads, places, counts, put)

        return step, None

    def _signal(
        self, ins: Instruction, threads: Array, places: Array, counts: Array, put: Put | None
    ) -> None:
        """Arrivals and announced bytes, thread by thread."""
        kind, announces = ins.mods[0], "expect_tx" in ins.mods
        state = np.zeros(self.threads, u64)
        clocks: dict[int, Array] = {}
        if kind in ARRIVALS:
            self.tally(ins, {"mbarrier_arrivals": len(threads)})
            warps = np.unique(threads >> 5)
            clocks = dict(zip(warps.tolist(), self.publish(warps), strict=True))
        for thread, place, count in zip(
            threads.tolist(), places.tolist(), counts.tolist(), strict=True
        ):
            one = self.object_at(ins, thread, place)
            core, phase = one.core, one.core.phase
            state[thread] = phase
            if announces:
                core.expect(count)
            if kind == "complete_tx":
                core.land(count, core.start)
            if kind == "arrive_drop":
                core.count -= 1
            if kind in ARRIVALS:
                clock = WarpClock(clocks[thread >> 5])
                if core.arrive(1 if announces else count, clock):
                    text = f"{self.who(thread)} {core.label} expects {core.count} arrivals a phase"
                    self.report("too-many-arrivals", ins, text)
            self.changed(phase, one)
        if put is not None:
            put(state)

    def force_object(self, one: Object) -> None:
        """Let what a barrier still waits for come in."""
        core, phase = one.core, one.core.phase
        if one.copiers and core.pending <= len(one.copiers):
            mask, owners = self.mask, self.nobody()
            owners[one.copiers] = True
            self.set_mask(owners)
            self.land_copies(None)
            self.set_mask(mask)
            known = self.publish(np.unique(np.array(one.copiers) >> 5)).max(0)
            arrivals, one.copiers = len(one.copiers), []
            core.arrive(min(arrivals, core.pending), WarpClock(known))
        if not core.pending or core.phase != phase:
            transfers, one.transfers = one.transfers, []
            for transfer in transfers:
                self.land(transfer, one)
        self.changed(phase, one)

    def land(self, transfer: Transfer, one: Object) -> None:
        """Let a bulk copy land."""
        raise NotImplementedError

    # ---- waits -----------------------------------------------------------------------------

    def _wait_for(self, ins: Instruction, *, blocks: bool) -> Decoded:
        by_parity = "parity" in ins.mods
        put, addresses = self.destination(ins.args[0], "pred"), self.address(ins.args[1])
        wanted = self.source(ins.args[2], "u32" if by_parity else "u64")

        def step(pc: int) -> int:
            passed = self._passed(ins, addresses, wanted, by_parity=by_parity, blocks=blocks)
            if not blocks:
                self.spin += 1
                put(passed)
                return self.following[pc]
            mask = self.mask
            late = mask & ~passed
            if late.any():
                self.wait("mbarrier", pc, late)
                if not (mask & passed).any():
                    return GONE
                self.set_mask(mask & passed)
            put(np.ones(self.threads, bool))
            return self.following[pc]

        return None, step

    def _passed(
        self, ins: Instruction, addresses: Get, wanted: Get, *, by_parity: bool, blocks: bool
    ) -> Array:
        """Which threads find their phase complete; they know what came before it."""
        threads, places = self.places(ins, addresses())
        values = self.each(wanted())[threads]
        passed, many = self.nobody(), self.clock_warps
        waits: dict[int, Object] = {}
        for thread, place, value in zip(
            threads.tolist(), places.tolist(), values.tolist(), strict=True
        ):
            one = self.object_at(ins, thread, place)
            if not blocks:
                self.force_object(one)
            core = one.core
            passed[thread] = core.passes(value) if by_parity else core.phase > value
            if passed[thread]:
                cluster, warp = (thread >> 5) // many, (thread >> 5) % many
                known = np.maximum(self.clocks[cluster, warp], core.released.epochs)
                self.clocks[cluster, warp] = known
                waits[thread >> 5] = one
        for warp, one in waits.items():
            self._count_wait(ins, warp, one)
        return passed

    def _count_wait(self, ins: Instruction, warp: int, one: Object) -> None:
        if not one.core.expected_before:
            return  # no wait for data
        block = warp // self.block_warps
        left = sum(
            len(transfer.place)
            for place, held in self.objects.items()
            if place // self.shared.size == block
            for transfer in held.transfers
        )
        self.count_wait(ins, 1, left + one.core.expected_before, left)

    def copies_arrive(self, ins: Instruction) -> Decoded:
        """cp.async.mbarrier.arrive: once a thread's copies so far have landed, it arrives."""
        addresses, counted = self.address(ins.args[0]), "noinc" in ins.mods

        def step() -> None:
            threads, places = self.places(ins, addresses())
            for thread, place in zip(threads.tolist(), places.tolist(), strict=True):
                one = self.object_at(ins, thread, place)
                one.core.pending += not counted
                one.copiers.append(thread)

        return step, None


def distinct(numbers: Array, limit: int) -> Array:
    """The distinct ones of small non-negative integers, ten times faster than by sorting."""
    seen = np.zeros(limit, bool)
    seen[numbers] = True
    return np.flatnonzero(seen).astype(i64)
