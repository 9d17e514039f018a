"""
Shared memory with what happened to it.

Each granule (the smallest piece that the kernel touches) knows its last writer and, for each warp
of the cluster, its last reader, with their epochs. An access is a race where the clock of the warp
that makes it does not know of the other's epoch: in whatever order the two happened to run.
Stamps of readers hold the epoch, the count of __syncwarp and the lane (SEVERAL: more than one).
"""

import numpy as np

from harness.simulators.ptx.banks import wavefronts
from harness.simulators.ptx.formats import Array, i32, i64
from harness.simulators.ptx.memory import SHARED_WINDOW, UNWRITTEN, Views, first_of
from harness.simulators.ptx.program import Instruction
from harness.simulators.ptx.view import View

SEVERAL = 99  # lanes of a warp
TRASH = 16  # bytes at the end, for accesses that went astray
RANK_BIT = 24  # of a shared address: from here on the block of the cluster, plus 1
MOST_LINES = 4  # that one access is told to conflict with


class SharedMemory:
    """Shared memory of all blocks of a wave, side by side."""

    def __init__(self, state: View) -> None:
        self.state, self.size, self.granule = state, state.shared_size, state.granule
        self.valid = state.shared_valid
        self.all_valid = bool(self.valid.all())
        self.astray = False  # whether any access went to the trash
        self.views = Views(state.blocks * self.size, UNWRITTEN)
        self.granules = self.size // self.granule  # of a block
        total = state.blocks * self.granules
        self.writer, self.write_epoch, self.write_syncs, self.write_pc = (
            np.full(total, -1, i32) for _ in range(4)
        )
        self.write_atomic = np.zeros(total, bool)
        self.in_flight = np.zeros(total, bool)  # an asynchronous copy may yet fill it
        self.unfenced = np.zeros(total, bool)  # written by other means than the async proxy
        self.being_read = np.zeros(total, i32)  # by wgmma and bulk stores
        self.read_stamp = np.zeros((state.clock_warps, total), i64)
        self.read_pc = np.zeros((state.clock_warps, total), i32)

    # ---- where -----------------------------------------------------------------------------

    def locate(
        self, ins: Instruction, threads: Array, addresses: Array, size: int
    ) -> tuple[Array, Array]:
        """Offsets of the addresses in their block's memory, and among all bytes."""
        state = self.state
        offset, block = addresses.astype(i64), threads // state.block_threads
        if int(offset.min()) >= SHARED_WINDOW:
            offset = offset & 0xFFFFFFFF
        if int(offset.max()) >= 1 << RANK_BIT:
            offset, block = self._remote(ins, threads, offset, block, size)
        low, high = int(offset.min()), int(offset.max())
        inside = low >= 0 and high + size <= self.size
        if not inside or not (self.all_valid or self._all_valid(offset, size)):
            offset = self._out_of_bounds(ins, threads, offset, size)
        if size > 1 and (offset & (size - 1)).any():
            bad = (offset & (size - 1)) != 0
            first = first_of(bad)
            text = f"{state.who(threads[first])} {size}-byte access at byte {int(offset[first])}"
            state.report("misaligned", ins, f"{text} of shared memory", int(bad.sum()))
            offset = self._thrown_away(bad, offset)
        return offset, offset + block * self.size

    def _all_valid(self, offset: Array, size: int) -> bool:
        return bool(self.valid[offset].all() and self.valid[offset + size - 1].all())

    def _thrown_away(self, bad: Array, offset: Array) -> Array:
        self.astray = True
        return np.where(bad, self.size - TRASH, offset)

    def _out_of_bounds(self, ins: Instruction, threads: Array, offset: Array, size: int) -> Array:
        inside = (offset >= 0) & (offset + size <= self.size)
        at = np.where(inside, offset, 0)
        bad = ~(inside & self.valid[at] & self.valid[np.minimum(at + size, self.size) - 1])
        first = first_of(bad)
        text = f"{self.state.who(threads[first])} {size}-byte access at byte {int(offset[first])}"
        known = f"of the {self.state.shared_bytes} bytes of shared memory"
        self.state.report("smem-out-of-bounds", ins, f"{text} {known}", int(bad.sum()))
        return self._thrown_away(bad, offset)

    def _remote(
        self, ins: Instruction, threads: Array, offset: Array, block: Array, size: int
    ) -> tuple[Array, Array]:
        """What is in another block of the cluster: mapa puts its rank into the address."""
        state = self.state
        rank = offset >> RANK_BIT
        far = (rank > 0) & (rank <= state.cluster)
        home = block
        block = np.where(far, home // state.cluster * state.cluster + rank - 1, home)
        offset = np.where(far, offset & ((1 << RANK_BIT) - 1), offset)
        far &= block != home
        state.tally(ins, {"dsmem_bytes": int(far.sum()) * size})
        gone = far & np.asarray(state.exited.reshape(state.blocks, -1).all(1))[block]
        if gone.any():
            first = first_of(gone)
            text = f"touches memory of block {state.block_ids[block[first]]}, which has exited"
            who = state.who(threads[first])
            state.report("dsmem-after-exit", ins, f"{who} {text}", int(gone.sum()))
        return offset, block

    def pieces(self, threads: Array, at: Array, size: int) -> tuple[Array, Array]:
        """The granules that accesses touch, and whose each is."""
        if self.astray:
            keep = at % self.size < self.size - TRASH
            at, threads = at[keep], threads[keep]
        count = max(1, size // self.granule)
        first = at // self.granule
        if count == 1:
            return first, threads
        return (first[:, None] + np.arange(count)).ravel(), np.repeat(threads, count)

    def byte_of(self, granule: int) -> int:
        """Where in its block's memory a granule begins."""
        return int(granule) % self.granules * self.granule

    # ---- loads and stores ------------------------------------------------------------------

    def load(
        self,
        ins: Instruction,
        threads: Array,
        addresses: Array,
        size: int,
        count: int,
        *,
        counted: bool = True,
    ) -> list[Array]:
        """`count` numbers of `size` bytes for each thread."""
        offset, at = self.locate(ins, threads, addresses, size * count)
        if self.state.checked:
            self.on_read(ins, *self.pieces(threads, at, size * count))
        if counted:
            self.count(ins, threads, offset, size * count, "load")
        at = at // size
        view = self.views.by[size]
        return [view[at + number] for number in range(count)]

    def store(
        self, ins: Instruction, threads: Array, addresses: Array, size: int, values: list[Array]
    ) -> None:
        """Store the values of each thread side by side."""
        offset, at = self.locate(ins, threads, addresses, size * len(values))
        view, place = self.views.by[size], at // size
        if self.state.checked:
            same = np.ones(len(threads), bool)  # what is there already harms nobody
            for number, value in enumerate(values):
                same &= view[place + number] == value
            repeats = max(1, size * len(values) // self.granule)
            kept = None if self.astray or not same.any() else np.repeat(same, repeats)
            self.on_write(ins, *self.pieces(threads, at, size * len(values)), same=kept)
        self.count(ins, threads, offset, size * len(values), "store")
        for number, value in enumerate(values):
            view[place + number] = value
            if self.state.checked:
                self._check_alone(ins, threads, offset, view[place + number] != value)

    def _check_alone(self, ins: Instruction, threads: Array, offset: Array, lost: Array) -> None:
        """Lanes that store different values to one place at once."""
        lost = lost & (offset < self.size - TRASH)
        if lost.any():
            first = first_of(lost)
            where = f"shared byte {int(offset[first])}"
            text = f"{self.state.who(threads[first])} and others store different values to {where}"
            self.state.report("race", ins, f"{text} at once", int(lost.sum()), ins.line)

    def count(self, ins: Instruction, threads: Array, offset: Array, size: int, what: str) -> None:
        """Count the wavefronts of an access."""
        state = self.state
        pattern = (int(offset[0]) & 3, (offset - offset[0]).tobytes(), len(offset))
        key = (ins.pc, what, pattern, state.mask_key())
        cost = state.remembered.get(key)
        if cost is None:
            cost = state.remembered[key] = wavefronts(threads, offset, size)
        state.tally(
            ins,
            {
                f"shared_{what}_requests": cost.requests,
                f"shared_{what}_wavefronts": cost.wavefronts,
                f"shared_{what}_ideal": cost.ideal,
                "shared_bytes": len(offset) * size,
            },
        )

    # ---- what happened before --------------------------------------------------------------

    def on_read(
        self, ins: Instruction, granules: Array, threads: Array, *, atomic: bool = False
    ) -> None:
        """Look at a read of each granule, by the thread beside it, and remember it."""
        state = self.state
        writer = self.writer[granules]
        if (flying := self.in_flight[granules]).any():
            first = first_of(flying)
            where = f"shared byte {self.byte_of(granules[first])}"
            text = f"reads {where}, which an asynchronous copy may not have filled yet"
            line = state.line_of(self.write_pc[granules[first]])
            who = state.who(threads[first])
            state.report("missing-wait", ins, f"{who} {text}", int(flying.sum()), line)
        fresh = writer < 0
        if fresh.any():
            first = first_of(fresh)
            text = f"reads shared byte {self.byte_of(granules[first])}, which nobody wrote"
            who = state.who(threads[first])
            state.report("uninitialised-smem", ins, f"{who} {text}", int(fresh.sum()))
        other = (writer != threads) & ~fresh
        if atomic:
            other &= ~self.write_atomic[granules]
        if other.any():
            self._judge_after_write(ins, granules, threads, other, "reads")
        self._remember_readers(ins, granules, threads)

    def _remember_readers(self, ins: Instruction, granules: Array, threads: Array) -> None:
        state = self.state
        warp = threads >> 5
        number = np.arange(state.warps)
        own_epoch = state.clocks.reshape(-1)[
            number * state.clock_warps + number % state.clock_warps
        ]
        stamp = own_epoch.astype(i64) << 32 | state.warp_syncs.astype(i64) << 8
        at = warp % state.clock_warps * self.writer.size + granules
        new = stamp.take(warp) + (threads & 31) + 1
        old = self.read_stamp.reshape(-1).take(at)
        again = ((old ^ new) >> 8 == 0) & (old != new)  # by another lane since the last sync
        new[again] = (new[again] & ~0xFF) | SEVERAL
        self.read_stamp.reshape(-1)[at] = new
        self.read_pc.reshape(-1)[at] = ins.pc

    def on_write(
        self,
        ins: Instruction,
        granules: Array,
        threads: Array,
        *,
        atomic: bool = False,
        landing: bool = False,
        proxied: bool = False,
        same: Array | None = None,
    ) -> None:
        """
        Look at a write of each granule, and remember it.

        Args:
            ins: What writes.
            granules: What is written.
            threads: By whom, for each granule.
            atomic: Whether other atomic operations are in order with it.
            landing: A copy that was looked at when it was issued.
            proxied: Whether the async proxy writes.
            same: Where the value is there already.
        """
        state = self.state
        if not landing:
            writer = self.writer[granules]
            other = (writer != threads) & (writer >= 0)
            if same is not None:
                other &= ~same
            if atomic:
                other &= ~self.write_atomic[granules]
            if other.any():
                self._judge_after_write(ins, granules, threads, other, "overwrites")
            self._check_async(ins, granules, threads)
            if not atomic:
                self._judge_after_reads(ins, granules, threads)
        warp = threads >> 5
        cluster, within = warp // state.clock_warps, warp % state.clock_warps
        self.writer[granules] = threads
        self.write_epoch[granules] = state.clocks[cluster, within, within]
        self.write_syncs[granules] = state.warp_syncs[warp]
        self.write_pc[granules] = ins.pc
        self.write_atomic[granules], self.unfenced[granules] = atomic, not proxied

    def _check_async(self, ins: Instruction, granules: Array, threads: Array) -> None:
        state = self.state
        if (flying := self.in_flight[granules]).any():
            first = first_of(flying)
            text = f"{state.who(threads[first])} writes bytes that a copy may still fill"
            line = state.line_of(self.write_pc[granules[first]])
            state.report("missing-wait", ins, text, int(flying.sum()), line)
        if (read := self.being_read[granules]).any():
            first = first_of(read != 0)
            text = "overwrites what an unfinished wgmma or bulk store still reads"
            line = self._reader_line(granules[first])
            who = state.who(threads[first])
            state.report("reused-too-early", ins, f"{who} {text}", int((read != 0).sum()), line)

    def _reader_line(self, granule: int) -> int | None:
        """The line of the last read of a granule."""
        warp = int(self.read_stamp[:, granule].argmax())
        stamped = self.read_stamp[warp, granule] > 0
        return self.state.line_of(self.read_pc[warp, granule]) if stamped else None

    def _judge_after_write(
        self, ins: Instruction, granules: Array, threads: Array, other: Array, verb: str
    ) -> None:
        self._judge(
            ins, granules, threads, other, self.writer[granules], self.write_epoch[granules],
            self.write_syncs[granules], self.write_pc[granules], f"{verb}|written by",
        )  # fmt: skip

    def _judge_after_reads(self, ins: Instruction, granules: Array, threads: Array) -> None:
        first = threads // (self.state.clock_warps * 32) * (self.state.clock_warps * 32)
        for warp in range(self.state.clock_warps):
            stamp = self.read_stamp[warp].take(granules)
            if not stamp.any():
                continue
            epoch, lane = stamp >> 32, stamp & 0xFF
            reader = first + warp * 32 + np.where(lane == SEVERAL, 0, lane - 1)
            other = (epoch > 0) & ((reader != threads) | (lane == SEVERAL))
            if other.any():
                self._judge(
                    ins, granules, threads, other, reader, epoch, stamp >> 8 & 0xFFFFFF,
                    self.read_pc[warp].take(granules), "overwrites|read by",
                )  # fmt: skip

    def _judge(
        self,
        ins: Instruction,
        granules: Array,
        threads: Array,
        other: Array,
        previous: Array,
        epochs: Array,
        syncs: Array,
        pcs: Array,
        words: str,
    ) -> None:
        """Report which of the `other` accesses nothing orders after the previous ones."""
        state = self.state
        warp, earlier = threads >> 5, previous >> 5
        clocks, many = state.clocks.reshape(-1), state.clock_warps
        race = (clocks.take(warp * many + earlier % many) < epochs) & other
        within = (earlier == warp) & other
        within &= (epochs >= clocks.take(warp * many + warp % many)) & (
            syncs == state.warp_syncs[warp]
        )
        verb, how = words.split("|")
        for name, bad, what in (
            ("race", race, "barrier"),
            ("race-in-warp", within, "__syncwarp"),
        ):
            for pc in np.unique(pcs[bad])[:MOST_LINES] if bad.any() else ():
                hit = bad & (pcs == pc)
                first = first_of(hit)
                mine, theirs = int(threads[first]), int(previous[first])
                whom = state.who(theirs) if theirs != mine else f"other lanes of warp {mine // 32}"
                where = f"shared byte {self.byte_of(granules[first])}"
                text = f"{state.who(mine)} {verb} {where} {how} {whom.removesuffix(':')}"
                state.report(
                    name, ins, f"{text}, with no {what} in between", int(hit.sum()),
                    state.line_of(pc),
                )  # fmt: skip
