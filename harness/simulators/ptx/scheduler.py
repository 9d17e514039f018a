"""
Which threads run next.

Threads that stand at the same instruction run together. Of the groups of a unit the one at the
smallest pc goes first, so that paths meet again where they join; a group that spins on memory
lets the others go on, as independent thread scheduling does. In lockstep all warps are one unit;
under a schedule each warp (each warpgroup, where the kernel has wgmma) is one of its own, and a
unit runs until it waits.
"""

from collections.abc import Callable

import numpy as np

from harness.simulators.ptx.formats import Array, u32
from harness.simulators.ptx.operands import Operands
from harness.simulators.ptx.program import Instruction, PtxError

Step = Callable[[], None]  # for all active threads; then comes the following instruction
Control = Callable[[int], int]  # given the pc: the next one, or GONE
Decoded = tuple[Step, None] | tuple[None, Control]

GONE = -1  # the threads wait, or have left
NEVER = 1 << 60
SPINS = 40  # signs of waiting after which others get a turn
TURN = 300  # instructions of such a turn


class Scheduler(Operands):
    """Groups of threads by pc, and those that wait."""

    def start_schedule(self) -> None:
        """Let every thread of the wave begin."""
        alive = ~self.exited
        if self.launch.schedule is None:
            self.units = [alive]
        else:
            size = 128 if any(ins.op == "wgmma" for ins in self.code) else 32
            number = self.thread // size
            self.units = [alive & (number == unit) for unit in range(-(-self.threads // size))]
        self.groups: list[dict[int, Array]] = [
            {0: unit} if unit.any() else {} for unit in self.units
        ]
        # who waits, by what for and where: for other lanes of the warp, the cluster, an mbarrier
        self.waiting: dict[str, dict[int, Array]] = {"lanes": {}, "cluster": {}, "mbarrier": {}}

    # ---- groups ----------------------------------------------------------------------------

    def push(self, unit: int, pc: int, mask: Array) -> None:
        """Let threads of a unit stand at `pc`."""
        group = self.groups[unit]
        group[pc] = group[pc] | mask if pc in group else mask

    def resume(self, pc: int, mask: Array) -> None:
        """Let threads of any unit stand at `pc`."""
        for number, members in enumerate(self.units):
            part = mask & members if len(self.units) > 1 else mask
            if part.any():
                self.push(number, pc, part)

    def wait(self, what: str, pc: int, mask: Array) -> None:
        """Let threads wait at `pc`."""
        waiting = self.waiting[what]
        waiting[pc] = waiting[pc] | mask if pc in waiting else mask

    def run_wave(self, random: np.random.Generator | None) -> None:
        """
        Run until every thread has left.

        Raises:
            PtxError: They wait for each other, or there is no end in sight.
        """
        plain, control, following = self.plain, self.control, self.following
        warps, threads = self.warp_executions, self.thread_executions
        steps = self.steps
        most = steps + self.launch.most_steps
        self.spin = 0
        while True:
            ready = [number for number, group in enumerate(self.groups) if group]
            if not ready:
                if self._unblock():
                    continue
                self.steps = steps
                return
            unit = ready[0]
            if len(ready) > 1 and random is not None:
                unit = int(random.choice(ready))
            groups = self.groups[unit]
            fair = self.spin > SPINS and len(groups) > 1
            pc, limit = (max(groups), steps + TURN) if fair else (min(groups), NEVER)
            mask = groups.pop(pc)
            stop = NEVER if fair else min(groups, default=NEVER)
            self.spin, others = 0, len(ready) > 1
            self.scheduled = unit
            self.set_mask(mask)
            count = int(np.count_nonzero(mask))
            while True:
                steps += 1
                warps[pc] += self.active_warps
                threads[pc] += count
                step = plain[pc]
                if step is not None:
                    step()
                    pc = following[pc]
                else:
                    pc = control[pc](pc)
                    if pc < 0:
                        break
                    if self.mask is not mask:
                        mask = self.mask
                        count = int(np.count_nonzero(mask))
                        stop = min(groups, default=NEVER)
                spins = self.spin > SPINS and limit == NEVER and (groups or others)
                if pc >= stop or steps > limit or spins:
                    self.push(unit, pc, self.mask)
                    break
                if steps > most:
                    self.steps = steps
                    limit = self.launch.most_steps
                    text = f"{self.who(self.active()[0])} still runs after {limit:,} steps"
                    self.report("endless", self.code[pc], text)
                    raise PtxError(text)

    def _unblock(self) -> bool:
        """Nobody can run: release what waits for those who exited; whether anybody can now."""
        waiting = self.waiting["lanes"]
        for pc, mask in list(waiting.items()):
            ready = self.ready_lanes(self.code[pc], mask, final=True)
            if ready.any():
                waiting[pc] = mask & ~ready
                self.resume(pc, ready)
        self.waiting["lanes"] = {pc: mask for pc, mask in waiting.items() if mask.any()}
        self.force()
        if any(self.groups):
            return True
        places = self.barrier_places() + [
            (pc, mask) for waits in self.waiting.values() for pc, mask in waits.items()
        ]
        if not places:
            return False
        gone = int((self.exited & ~self.never).sum())
        told = "; ".join(
            f"{int(mask.sum())} threads wait at line {self.line_of(pc)} ({self.code[pc].name})"
            for pc, mask in places
        )
        text = f"{told}; {gone} threads have exited"
        self.report("deadlock", self.code[places[0][0]], text)
        raise PtxError(text)

    # ---- what other parts fill in ----------------------------------------------------------

    plain: list[Step | None]
    control: list[Control]

    def force(self) -> None:
        """Complete what only completes when nobody can run."""
        raise NotImplementedError

    def barrier_places(self) -> list[tuple[int, Array]]:
        """Who waits at barriers of the block, and where."""
        raise NotImplementedError

    # ---- lanes that have to meet -----------------------------------------------------------

    def ready_lanes(self, ins: Instruction, mask: Array, *, final: bool = False) -> Array:
        """Which of `mask` have all that the instruction names beside them."""
        if ins.op == "wgmma":
            rows = (mask | self.exited).reshape(-1, 128).all(1) & mask.reshape(-1, 128).any(1)
            return np.repeat(rows, 128) & mask
        needed = self.members.get(ins.pc)
        lanes, exited = mask.reshape(-1, 32), self.exited.reshape(-1, 32)
        wanted = np.ones_like(lanes)
        if needed is not None:
            named = np.where(lanes, needed().reshape(-1, 32), u32(0))
            bits = np.bitwise_or.reduce(named, axis=1)
            wanted = (bits[:, None] >> np.arange(32, dtype=u32) & u32(1)).astype(bool)
        met = np.asarray((~wanted | lanes | exited).all(1) & lanes.any(1))
        if final and met.any():
            gone = wanted & exited & ~self.never.reshape(-1, 32) & met[:, None]
            self._report_missing(ins, gone.ravel())
        return np.repeat(met, 32) & mask

    def _report_missing(self, ins: Instruction, gone: Array) -> None:
        if gone.any():
            thread = int(np.flatnonzero(gone)[0])
            text = f"{ins.name} names {self.who(thread).removesuffix(':')}, which has exited"
            line = self.line_of(self.exit_pc[thread])
            self.report("lane-missing", ins, text, int(gone.sum()), line)

    def rendezvous(self, ins: Instruction, body: Step) -> Decoded:
        """A step that runs once every lane that it names is there."""

        def step(pc: int) -> int:
            needed = self.members.get(pc)
            if ins.op == "wgmma":
                complete = bool(self.ready_lanes(ins, self.mask)[self.active()].all())
            else:
                complete = self.whole_warps()
            if complete and (needed is None or bool((needed()[self.active()] == 0xFFFFFFFF).all())):
                body()
                return self.following[pc]
            ready = self._met(ins, pc)
            if not ready.any():
                return GONE
            if needed is not None:
                stray = ready & ((needed() >> self.lane.astype(u32) & u32(1)) == 0)
                if stray.any():
                    who = self.who(np.flatnonzero(stray)[0])
                    text = f"{who} executes {ins.name} but is not in the mask that it passes"
                    self.report("lane-not-in-mask", ins, text, int(stray.sum()))
            self.set_mask(ready)
            body()
            return self.following[pc]

        return None, step

    def _met(self, ins: Instruction, pc: int) -> Array:
        """Those who are complete, with those who have waited; the others wait."""
        mask, waiting = self.mask, self.waiting["lanes"]
        if pc in waiting:
            mine = waiting[pc] & self.units[self.scheduled]
            mask, waiting[pc] = mask | mine, waiting[pc] & ~mine
        ready = self.ready_lanes(ins, mask)
        late = mask & ~ready
        if late.any():
            self.wait("lanes", pc, late)
        elif pc in waiting and not waiting[pc].any():
            del waiting[pc]
        return ready

    members: dict[int, Callable[[], Array]]  # the lanes that take part, as masks, by pc
