"""Barriers of a block (bar, barrier) and of a warp."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.simulators.ptx.formats import Array, u32
from harness.simulators.ptx.program import Instruction
from harness.simulators.ptx.scheduler import GONE, Decoded, Scheduler


@dataclass(slots=True)
class Barrier:
    """
    A barrier that somebody has come to.

    Attributes:
        came: Who.
        count: Threads that it takes; None for all of the block.
        whole: Whether every thread of the block has to come (``__syncthreads``).
        at: Who of them waits where.
    """

    came: Array
    count: int | None
    whole: bool
    at: dict[int, Array] = field(default_factory=dict)


class Barriers(Scheduler):
    """bar.sync, bar.arrive, bar.red and bar.warp.sync."""

    def start_barriers(self) -> None:
        """Begin without anybody at a barrier."""
        self.barriers: dict[int, Barrier] = {}
        self.votes_of_barrier = self.nobody()

    def barrier_places(self) -> list[tuple[int, Array]]:
        """Who waits at barriers of the block, and where."""
        return [place for barrier in self.barriers.values() for place in barrier.at.items()]

    def _arrive(self, ins: Instruction, pc: int, number: int, count: int | None) -> None:
        """Let the active threads come to a barrier; all but those of an arrive wait."""
        barrier = self.barriers.get(number)
        if barrier is None:
            whole = count is None and ins.op == "bar"
            barrier = self.barriers[number] = Barrier(self.nobody(), count, whole)
        barrier.came = barrier.came | self.mask
        if "arrive" not in ins.mods:
            barrier.at[pc] = barrier.at.get(pc, self.nobody()) | self.mask
        self.release(number)

    def release(self, number: int) -> None:
        """Let blocks go on where everybody has come."""
        barrier = self.barriers.get(number)
        if barrier is None:
            return
        came = barrier.came.reshape(self.blocks, -1)
        if barrier.count is None:
            missing = ~came & ~self.exited.reshape(self.blocks, -1)
            go = came.any(1) & ~missing.any(1)
        else:
            # a warp has come when all of its lanes have: one may be late, out of a loop that waits
            lanes = came.reshape(self.blocks, self.block_warps, 32)
            gone = self.exited.reshape(lanes.shape)
            warps = ((lanes | gone).all(2) & lanes.any(2)).sum(1)
            go = warps * 32 >= barrier.count
        if not go.any():
            return
        rows = np.repeat(go, self.block_threads)
        pcs = [pc for pc, mask in barrier.at.items() if (mask & rows).any()]
        if barrier.whole and pcs:
            self._check_whole(barrier, rows, pcs)
        for block in np.flatnonzero(go):
            self._join_clocks(int(block), came[block])
        for pc in pcs:
            self.resume(self.following[pc], barrier.at[pc] & rows)
        barrier.came = barrier.came & ~rows
        barrier.at = {pc: mask & ~rows for pc, mask in barrier.at.items() if (mask & ~rows).any()}
        if not barrier.came.any():
            del self.barriers[number]

    def _check_whole(self, barrier: Barrier, rows: Array, pcs: list[int]) -> None:
        ins = self.code[pcs[0]]
        gone = self.exited & ~self.never & rows & ~barrier.came
        if gone.any():
            thread = int(np.flatnonzero(gone)[0])
            text = f"{self.who(thread)} had exited without coming to this barrier"
            line = self.line_of(self.exit_pc[thread])
            self.report("divergent-barrier", ins, text, int(gone.sum()), line)
        if len(pcs) > 1:
            text = "threads of one block meet at two different barriers"
            self.report("divergent-barrier", ins, text, 1, self.line_of(pcs[1]))

    def _join_clocks(self, block: int, came: Array) -> None:
        """Let every warp that came know what the others did before."""
        first = block % self.cluster * self.block_warps
        warps = np.flatnonzero(came.reshape(self.block_warps, 32).any(1)) + first
        clocks = self.clocks[block // self.cluster]
        clocks[warps] = clocks[warps].max(0)
        clocks[warps, warps] += 1

    # ---- instructions ----------------------------------------------------------------------

    def op_bar(self, ins: Instruction) -> Decoded:
        """bar and barrier, whatever follows."""
        if ins.mods[0] == "warp":
            return self._warp_barrier(ins)
        if ins.mods[0] == "cluster":
            return self.cluster_barrier(ins)
        words = [mod for mod in ins.mods if mod not in ("cta", "aligned", "sync")] or ["sync"]
        reduces = words[0] == "red"
        args = ins.args[1:] if reduces else ins.args
        number = self.source(args[0], "u32")
        rest = args[1:]
        vote: Any = None
        if reduces:
            vote = self._vote(ins, words)
            rest = rest[:-1]
        count = self.source(rest[0], "u32") if rest else None
        waits = words[0] != "arrive"

        def step(pc: int) -> int:
            self.tally(ins, {"barriers": self.active_warps})
            numbers, first = self.each(number()), int(self.active()[0])
            expected = self.int_of(count(), first) if count is not None else None
            if vote is not None:
                vote(int(numbers[first]))
            mask = self.mask
            present = np.unique(numbers[mask])
            for one in present:
                if len(present) > 1:
                    self.set_mask(mask & (numbers == one))
                self._arrive(ins, pc, int(one), expected)
            if waits:
                return GONE
            self.set_mask(mask)
            return self.following[pc]

        return None, step

    op_barrier = op_bar

    def _vote(self, ins: Instruction, words: list[str]) -> Any:  # noqa: ANN401 -- a function
        """What bar.red works out when the last thread has come."""
        how, kind = words[1], words[-1]
        put, predicate = self.destination(ins.args[0], kind), self.source(ins.args[-1], "pred")

        def vote(number: int) -> None:
            mask = self.mask
            self.votes_of_barrier[mask] = self.each(predicate())[mask]
            known = self.barriers.get(number)
            came = mask if known is None else known.came | mask
            votes = (self.votes_of_barrier & came).reshape(self.blocks, -1)
            result = {
                "popc": votes.sum(1),
                "and": (votes | ~came.reshape(self.blocks, -1)).all(1),
                "or": votes.any(1),
            }[how]
            self.set_mask(came)
            raw = bool if kind == "pred" else u32
            put(np.repeat(result, self.block_threads).astype(raw))
            self.set_mask(mask)

        return vote

    def _warp_barrier(self, ins: Instruction) -> Decoded:
        member = self.source(ins.args[0], "b32")
        self.members[ins.pc] = lambda: self.each(member())

        def sync() -> None:
            self.warp_syncs[self.warps_here] += 1
            self.tally(ins, {"warp_syncs": self.active_warps})

        return self.rendezvous(ins, sync)

    def cluster_barrier(self, ins: Instruction) -> Decoded:
        """barrier.cluster."""
        raise NotImplementedError
