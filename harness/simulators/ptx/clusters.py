"""Clusters: ranks, remote shared memory, their barrier, and what is left behind at an exit."""

import numpy as np

from harness.simulators.ptx.formats import Array, i32, i64, u32, u64
from harness.simulators.ptx.program import Instruction
from harness.simulators.ptx.scheduler import GONE, Decoded
from harness.simulators.ptx.shared import RANK_BIT
from harness.simulators.ptx.wmma import Wmma

FOREVER = np.iinfo(i64).max


class Clusters(Wmma):
    """What blocks of a cluster do together."""

    def start_clusters(self) -> None:
        """Begin without an arrival."""
        clusters = self.blocks // self.cluster
        self.cluster_came = np.zeros(self.threads, i64)  # arrivals of each thread
        self.cluster_done = np.zeros(clusters, i64)  # barriers that are complete
        self.cluster_seen = np.zeros((clusters, self.clock_warps, self.clock_warps), i32)
        self.cluster_known = np.zeros((clusters, self.clock_warps), i32)

    def op_mapa(self, ins: Instruction) -> Decoded:
        """The address of the same place in another block's shared memory."""
        kind = ins.mods[-1]
        put, where = self.destination(ins.args[0], kind), self.source(ins.args[1], kind)
        rank = self.source(ins.args[2], "u32")

        def step() -> None:
            ranks = self.each(rank())
            if (ranks[self.mask] >= self.cluster).any():
                asked = int(ranks[self.mask].max())
                text = f"a cluster of {self.cluster} has no block of rank {asked}"
                self.report("bad-cluster-rank", ins, text)
            address = where()
            raw = address.dtype.type
            place = address & ~raw(0xFF << RANK_BIT)
            put(place | ((ranks + u32(1)).astype(address.dtype) << raw(RANK_BIT)))

        return step, None

    def op_getctarank(self, ins: Instruction) -> Decoded:
        """The rank of the block that an address means."""
        put = self.destination(ins.args[0], "u32")
        where = self.source(ins.args[1], ins.mods[-1])

        def step() -> None:
            rank = (where().astype(u64) >> u64(RANK_BIT)) & u64(0xFF)
            own = self.special["%cluster_ctarank"]
            put(np.where(rank > 0, rank - u64(1), own).astype(u32))

        return step, None

    # ---- the barrier -----------------------------------------------------------------------

    def cluster_barrier(self, ins: Instruction) -> Decoded:
        """barrier.cluster.arrive and .wait."""
        if "arrive" in ins.mods:

            def arrive() -> None:
                self.tally(ins, {"cluster_barriers": self.active_warps})
                if "relaxed" not in ins.mods:
                    self.publish_to_cluster()
                self.cluster_came = self.cluster_came + self.mask
                warps = np.flatnonzero(self.warps_here)
                cluster, warp = warps // self.clock_warps, warps % self.clock_warps
                self.cluster_seen[cluster, warp] = self.publish(warps)
                self.complete_clusters()

            return arrive, None

        def wait(pc: int) -> int:
            done = self._cluster_passed()
            ready, late = self.mask & done, self.mask & ~done
            if late.any():
                self.wait("cluster", pc, late)
            if not ready.any():
                return GONE
            self.set_mask(ready)
            warps = np.flatnonzero(self.warps_here)
            cluster, warp = warps // self.clock_warps, warps % self.clock_warps
            known = np.maximum(self.clocks[cluster, warp], self.cluster_known[cluster])
            self.clocks[cluster, warp] = known
            return self.following[pc]

        return None, wait

    def publish_to_cluster(self) -> None:
        """Publish what the active blocks have done to global memory: see `GlobalOrder`."""

    def learn_from_cluster(self, clusters: Array) -> None:
        """Let the blocks of these clusters know what was published."""

    def _cluster_passed(self) -> Array:
        done = np.repeat(self.cluster_done, self.clock_warps * 32)
        return np.asarray(self.cluster_came <= done)

    def complete_clusters(self) -> None:
        """Complete the barriers that every living thread of a cluster has come to."""
        came = np.where(self.exited, FOREVER, self.cluster_came)
        least = came.reshape(len(self.cluster_done), -1).min(1)
        go = (least > self.cluster_done) & (least < FOREVER)
        if go.any():
            self.cluster_done[go] = least[go]
            self.cluster_known[go] = self.cluster_seen[go].max(1)
            self.learn_from_cluster(go)
        passed, waiting = self._cluster_passed(), self.waiting["cluster"]
        for pc, mask in list(waiting.items()):
            if (mask & passed).any():
                waiting[pc] = mask & ~passed
                self.resume(pc, mask & passed)
        self.waiting["cluster"] = {pc: mask for pc, mask in waiting.items() if mask.any()}

    # ---- exits -----------------------------------------------------------------------------

    def left(self, ins: Instruction, gone: Array) -> None:
        """A block may leave only when nobody can still read its shared memory."""
        if self.cluster == 1 or not self.checked:
            return
        empty = self.exited.reshape(self.blocks, -1).all(1)
        for block in np.flatnonzero(gone.reshape(self.blocks, -1).any(1) & empty):
            self._check_readers(ins, int(block))

    def _check_readers(self, ins: Instruction, block: int) -> None:
        shared, rank = self.shared, block % self.cluster
        first = rank * self.block_warps
        clocks = self.clocks[block // self.cluster]
        known = clocks[first : first + self.block_warps].max(0)
        home = block * shared.granules
        epochs = shared.read_stamp[:, home : home + shared.granules] >> 32
        others = np.arange(self.clock_warps) // self.block_warps != rank
        late = (epochs > known[:, None]) & others[:, None]
        if late.any():
            warp, granule = (int(one[0]) for one in np.nonzero(late))
            reader = (block // self.cluster * self.clock_warps + warp) * 32
            who = self.who(reader).removesuffix(":")
            text = (
                f"block {self.block_ids[block]} may exit while {who} reads its shared memory: no "
                "barrier of the cluster stands after the last read"
            )
            line = self.line_of(shared.read_pc[warp, home + granule])
            self.report("exit-before-remote-read", ins, text, int(late.sum()), line)
