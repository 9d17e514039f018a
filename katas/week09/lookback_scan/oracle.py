"""
What is right, what to feed, what it costs, and a GPU on which programs wait for each other.

Triton's interpreter runs one program after another, to the end: whoever looks back finds a
finished block, and whoever waits for a later one waits for ever. Here every interpreted launch
runs its programs together, on threads of which one moves at a time, from one access to memory to
the next. Which one is drawn, as are the order in which programs start and how fast each is; as on
a GPU only some are there at once. A wait that nobody can end is told, and so is what one program
writes plainly and another reads.
"""

import math
import random
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from harness.hardware import Cost

REPEATS = 2  # of an access, while nothing that was read has changed: the program waits
GRACE = 5  # more accesses of each, once all wait, before that is believed


def make_inputs(*, n, dtype, device, seed, stride=1, residents=4, **block):
    """
    N(0, 1), `stride` elements apart, NaN between; `block` goes to the function as it is.

    `residents` is how many programs of the launches that follow are there at once.
    """
    GPU.plan = Plan(seed=seed, residents=residents)
    generator = torch.Generator().manual_seed(seed)
    x = torch.full((n * stride,), torch.nan)
    x[::stride] = torch.randn(n, generator=generator)
    return {"x": x.to(dtype).to(device)[::stride], **block}


def reference(*, x, **_):
    return x.double().cumsum(0)


def same_precision(*, x, **_):
    """One float32 sum from the first element to the last, rounded at each."""
    sums = np.cumsum(x.float().cpu().numpy(), dtype=np.float32)
    return torch.from_numpy(sums).to(x.dtype)


def cost(*, x, **_):
    """One read and one write of each element."""
    return Cost(flops=x.numel(), bytes=2 * x.numel() * x.element_size())


def copy(*, x, **_):
    return x.clone()


def library(*, x, **_):
    return torch.cumsum(x, 0)


# ---- programs that run together ------------------------------------------------------------


class Deadlock(AssertionError):
    """Every program that is there waits for something that none of them will do."""


class Race(AssertionError):
    """A program reads or writes what another may be writing at the same time."""


class Ended(BaseException):
    """Another program of the launch failed."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """
    How programs take turns.

    The program that is the `stalled`-th to change memory stands still after `after` changes, until
    the others have ended or wait; `held_up` is then called with them. `even` gives the turn to
    one of those that have changed memory least often.
    """

    seed: int = 0
    residents: int = 4
    stalled: int | None = None
    after: int = 1
    held_up: object = None
    even: bool = False


@dataclass(eq=False)
class Program:
    index: tuple
    body: object
    number: int
    pace: int
    clock: dict = field(default_factory=dict)  # of each program, up to when its writes are seen
    changes: int = 0
    ended: bool = False
    seen: set = field(default_factory=set)  # accesses since something it reads changed
    watched: set = field(default_factory=set)  # addresses of these
    repeats: int = 0
    turn: threading.Lock = field(default_factory=threading.Lock)
    thread: threading.Thread | None = None


class Gpu:
    """Runs the programs of a launch together, one access at a time."""

    def __init__(self):
        self.plan = Plan()
        self.now = None

    def run(self, bodies):
        """Run `bodies`, pairs of the place in the grid and what to call, until all have ended."""
        self.draw = random.Random(self.plan.seed)
        self.programs = [
            Program(index, body, number, pace=self.draw.choice((1, 1, 4, 16)))
            for number, (index, body) in enumerate(bodies)
        ]
        self.waiting, self.there = self.draw.sample(self.programs, len(bodies)), []
        self.changers, self.standing, self.failure, self.grace = [], None, None, 0
        self.stores, self.published, self.clocks = [], {}, {}
        self.done = threading.Lock()
        self.done.acquire()
        try:
            self._pass_on()
            self.done.acquire()
        finally:
            self.failure = self.failure or Ended()
            for program in self.programs:
                if program.thread:
                    if program.turn.locked():
                        program.turn.release()
                    program.thread.join(timeout=5)
            self.now = None
        if not isinstance(self.failure, Ended):
            raise self.failure

    # ---- whose turn it is

    def _pass_on(self):
        """Give the turn to a program that is there; start another where there is room."""
        while self.waiting and len(self.there) < self.plan.residents:
            self._start(self.waiting.pop())
        able = [p for p in self.there if p is not self.standing and p.repeats < REPEATS]
        if not able and self.grace < GRACE * len(self.there):
            self.grace += 1
            able = [p for p in self.there if p is not self.standing]
        if not able and self.standing is not None:
            able, self.standing, self.grace = [self.standing], None, 0
            if self.plan.held_up:
                self.plan.held_up([p for p in self.programs if p is not able[0]])
        if self.plan.even:
            least = min((p.changes for p in able), default=0)
            able = [p for p in able if p.changes == least]
        if able:
            self.now = self.draw.choices(able, [p.pace for p in able])[0]
            interpreter.interpreter_builder.grid_idx = self.now.index
            self.now.turn.release()
        elif self.there:
            ranks = ", ".join(str(p.index[0]) for p in self.there)
            raise Deadlock(
                f"a wait without end: programs {ranks} wait, {len(self.waiting)} have not started. "
                f"Only {self.plan.residents} are there at once, and they start in any order."
            )
        else:
            self.done.release()

    def _start(self, program):
        program.turn.acquire()
        program.thread = threading.Thread(target=self._live, args=(program,), daemon=True)
        self.there.append(program)
        program.thread.start()

    def _live(self, program):
        program.turn.acquire()
        try:
            if self.failure is None:
                program.body()
        except Ended:
            return
        except BaseException as error:  # noqa: BLE001 -- the launch raises it
            self._fail(error)
            return
        if self.failure is None:
            program.ended = True
            self.there.remove(program)
            if self.standing is program:
                self.standing = None
            try:
                self._pass_on()
            except BaseException as error:  # noqa: BLE001
                self._fail(error)

    def _fail(self, error):
        if self.failure is None:
            self.failure = error
            self.done.release()

    def pause(self, does, addresses):
        """Let another program move before this access; whoever repeats himself waits."""
        if self.failure is not None:
            raise Ended
        me, access = self.now, (does, *addresses)
        me.repeats += access in me.seen
        me.seen.add(access)
        me.watched.update(addresses)
        self._pass_on()
        me.turn.acquire()
        if self.failure is not None:
            raise Ended

    def _changed(self, addresses):
        for program in self.there:
            if program is self.now or not program.watched.isdisjoint(addresses):
                program.repeats = 0
                program.seen.clear()
                program.watched.clear()
        me, self.grace = self.now, 0
        if not me.changes:
            self.changers.append(me)
        me.changes += 1
        if self.changers.index(me) == self.plan.stalled and me.changes == self.plan.after:
            self.standing = me

    # ---- who may read what

    def plain_store(self, addresses):
        me = self.now
        self._see_stores(addresses, "writes")
        self.stores.append((me.number, me.clock.get(me.number, 0), set(addresses)))
        self._changed(addresses)

    def load(self, addresses, volatile):
        me = self.now
        self._see_stores(addresses, "reads")
        for address in () if volatile else self.published.keys() & set(addresses):
            number, at = self.published[address]
            if number != me.number and me.clock.get(number, -1) < at:
                raise Race(
                    f"program {me.index[0]} reads with a plain tl.load what another may just be "
                    "writing by an atomic: load it with volatile=True, or by an atomic."
                )

    def _see_stores(self, addresses, does):
        me, mine = self.now, set(addresses)
        for number, at, stored in self.stores:
            if number != me.number and me.clock.get(number, -1) < at and mine & stored:
                raise Race(
                    f"program {me.index[0]} {does} what another wrote with a plain tl.store, and "
                    "nothing orders the two: write it by an atomic in one piece, or release after "
                    "it and acquire before it is read."
                )

    def atomic(self, addresses, sem, before, after):
        me = self.now
        self._see_stores(addresses, "updates")
        for address in addresses:
            if "ACQ" in sem:
                for number, at in self.clocks.get(address, {}).items():
                    me.clock[number] = max(me.clock.get(number, -1), at)
            if sem == "RELEASE" or sem == "ACQUIRE_RELEASE":
                seen = self.clocks.setdefault(address, {})
                for number, at in {**me.clock, me.number: me.clock.get(me.number, 0)}.items():
                    seen[number] = max(seen.get(number, -1), at)
        if before != after:
            self.published.update(dict.fromkeys(addresses, (me.number, me.clock.get(me.number, 0))))
            self._changed(addresses)
        if sem in ("RELEASE", "ACQUIRE_RELEASE"):
            me.clock[me.number] = me.clock.get(me.number, 0) + 1


GPU = Gpu()


@contextmanager
def planned(**plan):
    """Launches inside the block take turns by this plan."""
    outer, GPU.plan = GPU.plan, Plan(**plan)
    try:
        yield
    finally:
        GPU.plan = outer


# ---- hooks inside Triton's interpreter -----------------------------------------------------


class Together(interpreter.GridExecutor):
    """Collects the programs of a launch as the interpreter calls them, and runs them together."""

    @property
    def grid(self):
        self.bodies = []  # asked for once the arguments are ready: programs follow
        return self._grid

    @grid.setter
    def grid(self, grid):
        self._grid, self.bodies = grid, None

    @property
    def fn(self):
        return self._fn if self.bodies is None else self._collect

    @fn.setter
    def fn(self, fn):
        self._fn = fn

    def _collect(self, **arguments):
        builder = interpreter.interpreter_builder
        self.bodies.append((builder.grid_idx, lambda: self._fn(**arguments)))
        if len(self.bodies) == math.prod(builder.grid_dim):
            GPU.run(self.bodies)


def _active(pointers, mask):
    data, mask = np.broadcast_arrays(pointers.data, np.asarray(mask, dtype=bool))
    return data[mask].astype(np.int64).tolist()


def install():
    """Run every interpreted launch of this process on `GPU`; a second call changes nothing."""
    builder = interpreter.InterpreterBuilder
    if getattr(builder, "runs_together", False):
        return
    builder.runs_together = True
    interpreter.GridExecutor = Together
    load, store = builder.create_masked_load, builder.create_masked_store
    rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas

    def loaded(self, ptrs, mask, other, cache, eviction, volatile):
        addresses = _active(ptrs, mask.data)
        GPU.pause("loads", addresses)
        GPU.load(addresses, volatile)
        return load(self, ptrs, mask, other, cache, eviction, volatile)

    def stored(self, ptrs, value, mask, cache, eviction):
        addresses = _active(ptrs, mask.data)
        GPU.pause("stores", addresses)
        GPU.plain_store(addresses)
        return store(self, ptrs, value, mask, cache, eviction)

    def peek(self, ptrs, mask):
        return load(self, ptrs, mask, None, None, None, None).data.tolist()

    def updated(self, op, ptr, val, mask, sem, scope):
        addresses = _active(ptr, mask.data)
        GPU.pause("updates", addresses)
        before = peek(self, ptr, mask)
        result = rmw(self, op, ptr, val, mask, sem, scope)
        GPU.atomic(addresses, sem.name, before, peek(self, ptr, mask))
        return result

    def swapped(self, ptr, cmp, val, sem, scope):
        addresses = _active(ptr, True)
        GPU.pause("swaps", addresses)
        everywhere = interpreter.TensorHandle(np.ones_like(ptr.data, dtype=bool), tl.int1)
        before = peek(self, ptr, everywhere)
        result = cas(self, ptr, cmp, val, sem, scope)
        after = peek(self, ptr, everywhere)
        GPU.atomic(addresses, sem.name, before, after)
        return result

    builder.create_masked_load, builder.create_masked_store = loaded, stored
    builder.create_atomic_rmw, builder.create_atomic_cas = updated, swapped


if isinstance(tl.cdiv, interpreter.InterpretedFunction):
    install()
