"""
Races between blocks in global memory.

Blocks of a grid run in no order. Two of them may touch the same bytes, one of them writing, only
where one has published and the other has seen it: the publisher stores, fences
(``__threadfence``, or a release) and then writes a flag by an atomic or volatile access; the
other reads that flag the same way. The barrier of a cluster does both for its blocks, unless they
arrive relaxed. What a block knows of others is kept for the block as a whole:
``__syncthreads`` between the stores and the fence is taken for granted. Copies by TMA, and a
second write of the same value, are not looked at.
"""

from typing import Any

import numpy as np

from harness.simulators.ptx.formats import SIZE, Array, i32
from harness.simulators.ptx.mbarriers import Mbarriers
from harness.simulators.ptx.memory import GUARD, GlobalMemory, first_of
from harness.simulators.ptx.program import Instruction

NOBODY, SEVERAL = -1, -2
MOST_UNITS = 1 << 23  # of global memory: more are not looked at
STRONG = {"volatile", "acquire", "relaxed", "release", "mmio"}
BLOCKS_OWN = "cta"  # a fence that says nothing to other blocks


class GlobalOrder(Mbarriers):
    """
    Who last wrote and read each unit of global memory, and what blocks know of each other.

    A unit is the smallest piece that the kernel touches. A block's epoch grows with each of its
    fences; what it stores belongs to the current one.
    """

    def start_order(self) -> None:
        """Begin a launch; what happened in a wave of blocks stays known in those after it."""
        sizes = [
            SIZE.get(ins.mods[-1], 4)
            for ins in self.code
            if ins.op in ("ld", "st", "atom", "red") and self.space_of(ins) in (None, "global")
        ]
        self._unit = min([4, *sizes])
        units = self.global_memory.size // self._unit + 1
        self._ordered = self.checked and self.grid_blocks > 1 and units <= MOST_UNITS
        if not self._ordered:
            return
        self._writer, self._reader = (np.full(units, NOBODY, i32) for _ in range(2))
        self._write_epoch, self._read_epoch = (np.zeros(units, i32) for _ in range(2))
        self._write_pc, self._read_pc = (np.zeros(units, i32) for _ in range(2))
        self._epoch = np.ones(self.grid_blocks, i32)
        self._known: dict[int, dict[int, int]] = {}  # by block: epochs of others
        self._published: dict[int, dict[int, int]] = {}  # the same by the address of a flag
        self._arrived = np.zeros(self.grid_blocks, i32)  # epochs at the barrier of the cluster

    # ---- accesses --------------------------------------------------------------------------

    def global_race(
        self,
        ins: Instruction,
        threads: Array,
        at: Array,
        size: int,
        what: str,
        same: Array | None = None,
    ) -> None:
        """Look for accesses of other blocks to the same bytes that nothing orders."""
        if not self._ordered or at[0] < GUARD:  # what went astray has been reported
            return
        count = max(1, size // self._unit)
        units, blocks = at // self._unit, self.block_ids[threads // self.block_threads]
        if count > 1:
            units = (units[:, None] + np.arange(count)).ravel()
            blocks = np.repeat(blocks, count)
            same = np.repeat(same, count) if same is not None else None
        if what != "atomic" and STRONG.isdisjoint(ins.mods):
            self._judge(ins, units, blocks, what, same)
            if what == "load":
                self._note_read(ins, units, blocks)
                return
        elif what == "load":
            return
        self._writer[units], self._write_pc[units] = blocks, ins.pc
        self._write_epoch[units] = self._epoch[blocks]

    def _note_read(self, ins: Instruction, units: Array, blocks: Array) -> None:
        reader = self._reader[units]
        alone = (reader == NOBODY) | (reader == blocks)
        self._reader[units] = np.where(alone, blocks, SEVERAL)
        self._read_epoch[units], self._read_pc[units] = self._epoch[blocks], ins.pc

    def _judge(
        self, ins: Instruction, units: Array, blocks: Array, what: str, same: Array | None
    ) -> None:
        verb = "reads" if what == "load" else "writes"
        writer = self._writer[units]
        other = (writer != blocks) & (writer != NOBODY)
        if same is not None:
            other &= ~same
        if other.any():
            epochs, pcs = self._write_epoch[units], self._write_pc[units]
            self._report(ins, units, blocks, other, writer, epochs, pcs, f"{verb}|wrote")
        if what == "load":
            return
        reader = self._reader[units]
        other = (reader != blocks) & (reader != NOBODY)
        if same is not None:
            other &= ~same
        if other.any():
            epochs, pcs = self._read_epoch[units], self._read_pc[units]
            self._report(ins, units, blocks, other, reader, epochs, pcs, f"{verb}|read")

    def _report(
        self,
        ins: Instruction,
        units: Array,
        blocks: Array,
        other: Array,
        before: Array,
        epochs: Array,
        pcs: Array,
        words: str,
    ) -> None:
        """Report those of the `other` accesses that the blocks before have not published."""
        pairs = np.unique(np.stack([blocks, before])[:, other], axis=1).T
        verb, did = words.split("|")
        for mine, theirs in pairs.tolist():
            known = self._known.get(mine, {})
            # of several readers it is not known which: having heard of any will do
            seen = known.get(theirs, 0) if theirs != SEVERAL else max(known.values(), default=0)
            late = other & (blocks == mine) & (before == theirs) & (epochs > seen)
            if not late.any():
                continue
            first = first_of(late)
            whom = f"block {theirs}" if theirs != SEVERAL else "other blocks"
            where = self.global_memory.name_of(int(units[first]) * self._unit)
            text = f"block {mine} {verb} {where}, which {whom} {did}, and nothing orders the two"
            line = self.line_of(pcs[first])
            self.report("global-race", ins, text, int(late.sum()), line)

    # ---- publishing ------------------------------------------------------------------------

    def fence_global(self, ins: Instruction) -> None:
        """Order what the active blocks have stored before what they store next."""
        if self._ordered and BLOCKS_OWN not in ins.mods:
            blocks = np.unique(self.block_ids[self.active() // self.block_threads])
            self._epoch[blocks] += 1

    def publish_to_cluster(self) -> None:
        """What the active blocks have done until now counts once their cluster has met."""
        if self._ordered:
            blocks = np.unique(self.block_ids[self.active() // self.block_threads])
            self._arrived[blocks] = self._epoch[blocks]
            self._epoch[blocks] += 1

    def learn_from_cluster(self, clusters: Array) -> None:
        """Let the blocks of clusters that have met know of each other."""
        if not self._ordered:
            return
        for blocks in self.block_ids.reshape(-1, self.cluster)[clusters].tolist():
            told: dict[int, int] = {}
            for block in blocks:
                told[block] = int(self._arrived[block])
                for other, epoch in self._known.get(block, {}).items():
                    told[other] = max(told.get(other, 0), epoch)
            for block in blocks:
                known = self._known.setdefault(block, {})
                for other, epoch in told.items():
                    known[other] = max(known.get(other, 0), epoch)

    def _flags(self, addresses: Array) -> list[tuple[int, int]]:
        """Each active block with each of its addresses, once."""
        blocks = self.block_ids[self.active() // self.block_threads]
        return list(dict.fromkeys(zip(blocks.tolist(), addresses.tolist(), strict=False)))

    def release_global(self, memory: Any, addresses: Array, *, fenced: bool) -> None:  # noqa: ANN401
        """Publish at these addresses what the active blocks have fenced."""
        if not self._ordered or not isinstance(memory, GlobalMemory):
            return
        for block, address in self._flags(addresses):
            self._epoch[block] += fenced
            told = self._published.setdefault(address, {})
            told[block] = int(self._epoch[block]) - 1
            for other, epoch in self._known.get(block, {}).items():
                told[other] = max(told.get(other, 0), epoch)

    def acquire(self, memory: Any, addresses: Array) -> None:  # noqa: ANN401
        """Let the active blocks know what was published at these addresses."""
        if not self._ordered or not self._published or not isinstance(memory, GlobalMemory):
            return
        for block, address in self._flags(addresses):
            known = self._known.setdefault(block, {})
            for other, epoch in self._published.get(address, {}).items():
                known[other] = max(known.get(other, 0), epoch)
