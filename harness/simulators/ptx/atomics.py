"""Atomic operations: lanes that mean the same address take turns, in the order of threads."""

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.simulators.ptx.formats import INTS, READ, SIZE, WRITE, Array, i64
from harness.simulators.ptx.operands import Space, vector
from harness.simulators.ptx.program import Instruction, Sink, Unsupported
from harness.simulators.ptx.scheduler import Decoded
from harness.simulators.ptx.warp import Warp

Update = Callable[[Array, Array, Array | None], Array]
UPDATES: dict[str, Update] = {
    "add": lambda old, new, _: old + new,
    "min": lambda old, new, _: np.minimum(old, new),
    "max": lambda old, new, _: np.maximum(old, new),
    "and": lambda old, new, _: old & new,
    "or": lambda old, new, _: old | new,
    "xor": lambda old, new, _: old ^ new,
    "exch": lambda old, new, _: new,
    "cas": lambda old, wanted, new: np.where(old == wanted, new, old),  # type: ignore[arg-type]
    "inc": lambda old, top, _: np.where(old >= top, 0, old + 1).astype(old.dtype),
    "dec": lambda old, top, _: np.where((old == 0) | (old > top), top, old - 1).astype(old.dtype),
}


ACCUMULATED: dict[str, np.ufunc] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def updated(
    word: str, kind: str, view: Array, places: Array, new: Array, other: Array | None
) -> Array:
    """
    Let accesses to `view` take turns where they mean the same place; what each one found there.

    Args:
        word: The operation.
        kind: The type it is made in.
        view: Memory, as bits of that size; changed in place.
        places: Indices, in the order of turns.
        new: The operand of each access, as bits.
        other: And the second one, of a compare-and-swap.
    """
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    first = np.r_[True, ordered[1:] != ordered[:-1]]
    starts = np.flatnonzero(first)
    longest = int(np.diff(np.r_[starts, len(ordered)]).max())
    old = np.empty(len(places), view.dtype)
    exact = word in ("exch", "cas") or kind in INTS or kind in ("f32", "f64")
    known = word in ACCUMULATED or word in ("exch", "cas")
    if exact and known and len(starts) < longest:
        for start, stop in zip(starts, np.r_[starts[1:], len(ordered)], strict=True):
            some, place = order[start:stop], ordered[start]
            old[some], view[place] = _in_a_row(
                word, kind, view[place], new[some], None if other is None else other[some]
            )
        return old
    read, write, update = READ[kind], WRITE[kind], UPDATES[word]
    begun = np.maximum.accumulate(np.where(first, np.arange(len(ordered)), 0))
    turn = np.empty(len(ordered), i64)
    turn[order] = np.arange(len(ordered)) - begun
    for number in range(longest):
        now = np.flatnonzero(turn == number)
        old[now] = view[places[now]]
        third = read(other[now]) if other is not None else None
        view[places[now]] = write(update(read(old[now]), read(new[now]), third))
    return old


def _in_a_row(
    word: str,
    kind: str,
    held: Any,  # noqa: ANN401 -- a number
    new: Array,
    other: Array | None,
) -> tuple[Array, Any]:
    """What accesses to one place find there one after the other, and what they leave."""
    if word == "exch":
        return np.r_[np.array([held], new.dtype), new[:-1]], new[-1]
    if word == "cas":
        assert other is not None
        old, start = np.empty(len(new), new.dtype), 0
        while start < len(new):
            hits = np.flatnonzero(new[start:] == held)
            stop = start + int(hits[0]) + 1 if len(hits) else len(new)
            old[start:stop] = held
            held = other[stop - 1] if len(hits) else held
            start = stop
        return old, held
    chain = np.concatenate([np.array([held], new.dtype), new])
    bits = WRITE[kind](ACCUMULATED[word].accumulate(READ[kind](chain)))
    return bits[:-1], bits[-1]


class Atomics(Warp):
    """atom and red."""

    def op_atom(self, ins: Instruction) -> Decoded:
        """Read, change and write in one."""
        args = ins.args if ins.op == "red" else ins.args[1:]
        kind, space = ins.mods[-1], self.space_of(ins)
        word = next((mod for mod in ins.mods if mod in UPDATES), None)
        if word is None or len(vector(args[1])) > 1:
            raise Unsupported(ins.name)
        size = SIZE[kind]
        addresses, raw = self.address(args[0]), f"b{8 * size}"
        first = self.source(args[1], raw)
        second = self.source(args[2], raw) if word == "cas" else None
        wanted = ins.op == "atom" and not isinstance(ins.args[0], Sink)
        put = self.lanes(ins.args[0], kind) if wanted else None

        def act(memory: Any, threads: Array, where: Array) -> None:  # noqa: ANN401 -- a Space
            new = self.lanes_of(first(), threads)
            # what a loop may wait with
            self.spin += word in ("cas", "exch") or (ins.op == "atom" and not new.any())
            other = self.lanes_of(second(), threads) if second is not None else None
            at = self._place(ins, memory, threads, where, size)
            old = updated(word, kind, memory.views.by[size], at // size, new, other)
            self._count(ins, memory, threads, at)
            if put is not None:
                put(old)

        return (lambda: self.in_spaces(space, addresses(), act)), None

    op_red = op_atom

    def _place(
        self, ins: Instruction, memory: Space, threads: Array, where: Array, size: int
    ) -> Array:
        if memory is not self.shared:
            self.release_global(
                memory, where, fenced="release" in ins.mods or "acq_rel" in ins.mods
            )
            self.acquire(memory, where)
            at: Any = memory.locate(ins, threads, where, size)
            self.global_memory.count(ins, threads, at, size, "atomic")
            self.global_race(ins, threads, at, size, "atomic")
            return at  # type: ignore[no-any-return]
        _, at = self.shared.locate(ins, threads, where, size)
        if self.checked:
            pieces = self.shared.pieces(threads, at, size)
            self.shared.on_read(ins, *pieces, atomic=True)
            self.shared.on_write(ins, *pieces, atomic=True)
        return np.asarray(at)

    def _count(self, ins: Instruction, memory: Space, threads: Array, at: Array) -> None:
        _, same = np.unique((threads.astype(i64) >> 5 << 40) | at, return_counts=True)
        where = "shared" if memory is self.shared else "global"
        self.tally(
            ins,
            {
                f"{where}_atomics": len(threads),
                "atomic_distinct": len(same),
                "atomic_turns": int(same.max()) * self.active_warps,
            },
        )
