"""cp.async: copies that land at the wait that forces them, and not before."""

from dataclasses import dataclass

import numpy as np

from harness.simulators.ptx.atomics import Atomics
from harness.simulators.ptx.formats import Array, i64, u8
from harness.simulators.ptx.memory import UNWRITTEN
from harness.simulators.ptx.operands import immediate
from harness.simulators.ptx.program import Instruction, Unsupported
from harness.simulators.ptx.scheduler import Decoded


@dataclass(slots=True)
class Copy:
    """
    The copies of one instruction.

    Attributes:
        ins: The instruction.
        threads: Who copies.
        at: Where to, among all bytes of shared memory.
        content: What.
        group: The group of each thread's copy.
        real: Whether it copies anything, and does not only fill with zeros.
        landed: Whether it has.
    """

    ins: Instruction
    threads: Array
    at: Array
    content: Array
    group: Array
    real: Array
    landed: Array

    @property
    def places(self) -> Array:
        """Each byte's place: [copy, byte]."""
        return self.at[:, None] + np.arange(self.content.shape[1])


class Copies(Atomics):
    """Asynchronous copies that threads make."""

    def start_copies(self) -> None:
        """Begin without a copy in flight."""
        self.copies: list[Copy] = []
        self.copy_groups = np.zeros(self.threads, i64)

    def op_cp(self, ins: Instruction) -> Decoded:
        """cp.async with all that follows."""
        words = ins.mods[:2]
        if words == ["async", "commit_group"]:
            return self._commit, None
        if words == ["async", "wait_group"]:
            left = immediate(ins.args[0])
            return (lambda: self._wait(ins, left)), None
        if words == ["async", "wait_all"]:
            return (lambda: self._wait(ins, None)), None
        if words == ["async", "bulk"]:
            return self.bulk(ins)
        if words == ["async", "mbarrier"]:
            return self.copies_arrive(ins)
        if words[0] != "async" or words[1] not in ("ca", "cg"):
            raise Unsupported(ins.name)
        return self._copy(ins)

    def _commit(self) -> None:
        self.copy_groups = self.copy_groups + self.mask

    def _wait(self, ins: Instruction, left: int | None) -> None:
        before = self._in_flight()
        self.land_copies(left)
        self.count_wait(ins, self.active_warps, before, self._in_flight())

    def _in_flight(self) -> int:
        """Bytes that copies of the active threads still have to bring, for a whole block each."""
        flying = sum(
            int(np.count_nonzero(self.mask[copy.threads] & ~copy.landed)) * copy.content.shape[1]
            for copy in self.copies
        )
        return int(flying * self.block_warps)

    def count_wait(self, ins: Instruction, warps: int, before: int, after: int) -> None:
        """Count waits of warps for data, and bytes in flight when they begin and return."""
        self.tally(
            ins,
            {"data_waits": warps, "bytes_in_flight": before, "bytes_left_in_flight": after},
        )

    def _copy(self, ins: Instruction) -> Decoded:
        size = immediate(ins.args[2])
        to, source = self.address(ins.args[0]), self.address(ins.args[1])
        given = self.source(ins.args[3], "u32") if len(ins.args) > 3 else None

        def step() -> None:
            threads, shared = self.active(), self.shared
            offset, at = shared.locate(ins, threads, to(), size)
            count = np.full(len(threads), size, i64)
            if given is not None:
                count = np.minimum(size, self.lanes_of(given(), threads).astype(i64))
            content = self._content(ins, threads, source(), count, size)
            shared.count(ins, threads, offset, size, "store")
            self.tally(ins, {"cp_async_bytes": len(threads) * size})
            pieces = shared.pieces(threads, at, size)
            if self.checked:
                shared.on_write(ins, *pieces)
                shared.in_flight[pieces[0]] = True
            group, none = self.copy_groups[threads], np.zeros(len(threads), bool)
            copy = Copy(ins, threads, at, content, group, count > 0, none)
            shared.views.bytes[copy.places] = UNWRITTEN
            self.copies.append(copy)

        return step, None

    def _content(
        self, ins: Instruction, threads: Array, source: Array, count: Array, size: int
    ) -> Array:
        """What is copied, zeros where a copy asks for fewer bytes."""
        content = np.zeros((len(threads), size), u8)
        memory = self.global_memory
        for chosen, least in ((count == size, size), ((count > 0) & (count < size), 1)):
            some = np.flatnonzero(chosen)
            if len(some):
                start = memory.locate(ins, threads[some], source[some], least)
                content[some] = memory.views.bytes[start[:, None] + np.arange(size)]
                memory.count(ins, threads[some], start, size, "load")
                self.global_race(ins, threads[some], start, size, "load")
        content[np.arange(size) >= count[:, None]] = 0
        return content

    def land_copies(self, left: int | None) -> None:
        """Let copies of the active threads land, but for their newest `left` groups; None: all."""
        shared = self.shared
        for copy in self.copies:
            go = self.mask[copy.threads] & ~copy.landed
            if left is not None:
                go &= copy.group < self.copy_groups[copy.threads] - left
            if not go.any():
                continue
            shared.views.bytes[copy.places[go]] = copy.content[go]
            copy.landed |= go
            if self.checked:
                size = copy.content.shape[1]
                granules, threads = shared.pieces(copy.threads[go], copy.at[go], size)
                shared.in_flight[granules] = False
                shared.on_write(copy.ins, granules, threads, landing=True)
        self.copies = [copy for copy in self.copies if not copy.landed.all()]

    def check_landed(self) -> None:
        """Report copies that nobody waited for."""
        for copy in self.copies:
            left = ~copy.landed & copy.real
            if left.any():
                who = self.who(copy.threads[np.flatnonzero(left)[0]])
                text = f"{who} its copy was in flight when the kernel ended"
                self.report("load-not-waited", copy.ins, text, int(left.sum()))

    def bulk(self, ins: Instruction) -> Decoded:
        """cp.async.bulk."""
        raise NotImplementedError

    def copies_arrive(self, ins: Instruction) -> Decoded:
        """cp.async.mbarrier.arrive."""
        raise NotImplementedError
