"""What the lanes of a warp tell each other: shuffles, votes, matches, reductions."""

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.simulators.ptx.formats import Array, i64, u32
from harness.simulators.ptx.operands import Get
from harness.simulators.ptx.program import Instruction, Operand, Pair
from harness.simulators.ptx.scheduler import Decoded
from harness.simulators.ptx.values import Values

LANES = np.arange(32, dtype=u32)
REDUCTIONS: dict[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def packed_bits(bits: Array) -> Array:
    """Rows of 32 truth values as integers, the first one lowest."""
    return np.packbits(bits, axis=-1, bitorder="little").view(u32)


class Warp(Values):
    """Instructions that look at other lanes."""

    def named_lanes(self, ins: Instruction, operand: Operand) -> Get:
        """The mask of lanes that takes part, which also says who has to come."""
        get = self.source(operand, "b32")

        def members() -> Array:
            return self.each(get())

        self.members[ins.pc] = members
        return members

    def ballot(self, truth: Array) -> Array:
        """For each thread the lanes of its warp that are active and for which `truth` holds."""
        bits = (self.each(truth) & self.mask).reshape(-1, 32)
        return np.repeat(packed_bits(bits).ravel(), 32)

    def op_shfl(self, ins: Instruction) -> Decoded:
        """Values of other lanes."""
        mode, to = ins.mods[1], ins.args[0]
        value, valid = (to.first, to.second) if isinstance(to, Pair) else (to, None)
        put = self.destination(value, "b32")
        put_valid = self.destination(valid, "pred") if valid is not None else None
        what, by, clamp = (self.source(arg, "b32") for arg in ins.args[1:4])
        self.named_lanes(ins, ins.args[4])

        def body() -> None:
            values = self.each(what())
            lane, inside = self._partner(mode, by().astype(i64) & 31, clamp().astype(i64))
            source = (self.thread & ~31) + np.where(inside, lane, self.lane)
            if not self.full:
                self._check_sources(ins, source)
            self.tally(ins, {"shuffles": self.active_warps})
            put(values[source])
            if put_valid is not None:
                put_valid(self.each(inside))

        return self.rendezvous(ins, body)

    def _partner(self, mode: str, by: Array, clamp: Array) -> tuple[Array, Array]:
        """The lane that each lane reads, and whether it lies in its segment."""
        segment, limit = (clamp >> 8) & 31, clamp & 31
        last = (self.lane & segment) | (limit & ~segment)
        if mode == "up":
            return self.lane - by, self.lane - by >= last
        if mode == "down":
            return self.lane + by, self.lane + by <= last
        if mode == "bfly":
            return self.lane ^ by, (self.lane ^ by) <= last
        lane = (self.lane & segment) | (by & ~segment)
        return lane, lane <= last

    def _check_sources(self, ins: Instruction, source: Array) -> None:
        absent = self.mask & ~self.mask[source]
        if absent.any():
            thread = int(np.flatnonzero(absent)[0])
            lane = int(source[thread]) & 31
            text = f"{self.who(thread)} reads lane {lane}, which does not take part"
            self.report("shuffle-from-inactive-lane", ins, text, int(absent.sum()))

    def op_vote(self, ins: Instruction) -> Decoded:
        """Ballots, and whether a predicate holds for all or any."""
        kind = ins.mods[1] if ins.mods[0] == "sync" else ins.mods[0]
        put = self.destination(ins.args[0], "b32" if kind == "ballot" else "pred")
        predicate = self.source(ins.args[1], "pred")
        members = self.named_lanes(ins, ins.args[2]) if len(ins.args) > 2 else None

        def body() -> None:
            yes, here = self.ballot(predicate()), self.ballot(np.ones(1, bool))
            if members is not None:
                yes, here = yes & members(), here & members()
            self.tally(ins, {"votes": self.active_warps})
            outcomes: dict[str, Callable[[], Array]] = {
                "ballot": lambda: yes,
                "any": lambda: yes != 0,
                "all": lambda: yes == here,
                "uni": lambda: (yes == 0) | (yes == here),
            }
            put(outcomes[kind]())

        return self.rendezvous(ins, body)

    def op_activemask(self, ins: Instruction) -> Decoded:
        """The lanes that are here now."""
        put = self.destination(ins.args[0], "b32")
        return (lambda: put(self.ballot(np.ones(1, bool)))), None

    def op_match(self, ins: Instruction) -> Decoded:
        """The lanes that hold the same value."""
        to = ins.args[0]
        value, whole = (to.first, to.second) if isinstance(to, Pair) else (to, None)
        put = self.destination(value, "b32")
        put_whole = self.destination(whole, "pred") if whole is not None else None
        what, members = self.source(ins.args[1], ins.mods[-1]), self.named_lanes(ins, ins.args[2])

        def body() -> None:
            values, here = self.each(what()).reshape(-1, 32), self.mask.reshape(-1, 32)
            same = (values[:, :, None] == values[:, None, :]) & here[:, None, :]
            found = packed_bits(same).ravel() & members()
            if ins.mods[0] == "all":
                everybody = found == (self.ballot(np.ones(1, bool)) & members())
                found = np.where(everybody, found, u32(0))
                if put_whole is not None:
                    put_whole(everybody)
            put(found)

        return self.rendezvous(ins, body)

    def op_redux(self, ins: Instruction) -> Decoded:
        """A reduction of integers over lanes."""
        word, kind = ins.mods[1], ins.mods[-1]
        put, what = self.destination(ins.args[0], kind), self.source(ins.args[1], kind)
        members, reduced = self.named_lanes(ins, ins.args[2]), REDUCTIONS[word]

        def body() -> None:
            values = self.each(what()).reshape(-1, 32)
            limits = np.iinfo(values.dtype)
            neutral = {"min": limits.max, "max": limits.min, "and": -1 if kind[0] == "s" else None}
            start = neutral.get(word, 0)
            start = limits.max if start is None else start
            named = (members()[:, None] >> LANES & u32(1)).astype(bool).reshape(-1, 32, 32)
            takes = named & self.mask.reshape(-1, 1, 32)
            chosen = np.where(takes, values[:, None, :], values.dtype.type(start))
            put(reduced.reduce(chosen, axis=2).astype(values.dtype).ravel())

        return self.rendezvous(ins, body)

    def op_elect(self, ins: Instruction) -> Decoded:
        """One lane of those that are here."""
        to = ins.args[0]
        assert isinstance(to, Pair)
        put, put_chosen = self.destination(to.first, "b32"), self.destination(to.second, "pred")
        self.named_lanes(ins, ins.args[1])

        def body() -> None:
            first = np.repeat(self.mask.reshape(-1, 32).argmax(1), 32)
            put(first.astype(u32))
            put_chosen(first == self.lane)

        return self.rendezvous(ins, body)
