"""
CUDA threads as greenlets: run in an order of our choosing, stopped at barriers, never hung.

A thread runs until it waits or returns, then the next one runs: nothing is concurrent, so a
launch is repeatable, and a missing barrier shows as a wrong answer in one order or another.
Blocks run one after the other, unless a grid barrier keeps them all alive. A wait that can never
end is an error that names the thread, its block and its line.
"""

import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple, NoReturn, Protocol, get_args

import numpy as np
from greenlet import getcurrent, greenlet

from harness.errors import HarnessError, UsageProblem

Order = Literal["forward", "reversed", "random"]

MAX_BLOCK_THREADS = 1024
_HERE = str(Path(__file__).parent)


class SimtError(HarnessError):
    """A kernel does what hangs or has no defined result on a GPU."""

    exit_code = 1


class Dim3(NamedTuple):
    """An index or extent: `x` varies fastest."""

    x: int
    y: int
    z: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """
    How the simulated machine behaves.

    Attributes:
        order: In which order blocks run, and threads inside a block between two barriers.
        seed: Of the permutation, when `order` is "random".
        warp_size: Lanes of a warp: 32, or 64 as on CDNA.
        resident_blocks: How many blocks fit on the machine at once; what a grid barrier allows.
    """

    order: Order = "forward"
    seed: int = 0
    warp_size: int = 32
    resident_blocks: int = 64

    def __post_init__(self) -> None:
        """Refuse a machine that is not simulated."""
        if self.order not in get_args(Order):
            expected = ", ".join(get_args(Order))
            raise UsageProblem(f"order: expected {expected}, found {self.order!r}.")
        if self.warp_size not in (32, 64):
            raise UsageProblem(f"warp_size: expected 32 or 64, found {self.warp_size!r}.")
        if self.resident_blocks < 1:
            raise UsageProblem(f"resident_blocks: expected at least 1, found {self.resident_blocks}.")

    def permutation(self, count: int, salt: int = 0) -> Sequence[int]:
        """The numbers below `count` in running order; `salt` tells one shuffle from the next."""
        if self.order == "random":
            return random.Random(f"{self.seed}/{salt}").sample(range(count), count)
        return range(count) if self.order == "forward" else range(count)[::-1]


@dataclass(slots=True, kw_only=True)
class Tally:
    """
    What a launch did apart from loads and stores.

    Attributes:
        block_barriers: Barriers completed, for each block that ran.
        grid_barriers: Barriers of the whole grid completed.
        shuffles: Warp-wide shuffles: one for all lanes together.
        votes: Warp-wide votes, counted alike.
        warp_barriers: `syncwarp`, counted alike.
        global_atomics: Atomic operations on global arrays, one for each lane.
        shared_atomics: Atomic operations on shared arrays, one for each lane.
        exited_before_barrier: Threads that had returned when a barrier of their block completed.
        shared_bytes: Most shared memory of any block, static and dynamic.
    """

    block_barriers: list[int] = field(default_factory=list)
    grid_barriers: int = 0
    shuffles: int = 0
    votes: int = 0
    warp_barriers: int = 0
    global_atomics: int = 0
    shared_atomics: int = 0
    exited_before_barrier: int = 0
    shared_bytes: int = 0


class Wait(NamedTuple):
    """What a thread waits for; `mask` names the lanes when only a warp takes part."""

    what: str
    mask: int | None = None


BLOCK_BARRIER = Wait("syncthreads")
GRID_BARRIER = Wait("this_grid().sync")


class CurrentThread(Protocol):
    """The part of a kernel's `cuda` that changes from thread to thread."""

    threadIdx: Dim3  # noqa: N815 -- CUDA's names
    blockIdx: Dim3  # noqa: N815


class Thread:
    """One CUDA thread: a greenlet, its place in the grid, and what it waits for."""

    __slots__ = ("block", "greenlet", "index", "lane", "number", "rank", "wait", "warp")

    def __init__(self, block: "Block", number: int, rank: int, run: Callable[[], None]) -> None:
        launch = block.launch
        warp, self.lane = divmod(number, launch.settings.warp_size)
        self.block = block
        self.warp = block.warps[warp]
        self.index = _unravel(number, launch.block_dim)
        self.number = block.number * launch.block_threads + number  # within the grid
        self.rank = rank
        self.wait: Wait | None = None
        self.greenlet = greenlet(run)

    def __str__(self) -> str:
        return f"thread {tuple(self.index)} of block {tuple(self.block.index)}"

    @property
    def state(self) -> str:
        """What a reader of an error message needs to know about this thread."""
        if self.wait is None:
            return f"{self}, which has returned"
        return f"{self}, which waits at {self.wait.what} ({self.line})"

    @property
    def line(self) -> str:
        """`file.py:12`, where the suspended thread stands in its own code."""
        return _user_line(self.greenlet.gr_frame)


class Warp:
    """
    The lanes that shuffle and vote together.

    `epoch` counts the points all its live lanes have passed together: accesses of two epochs
    are never one request.
    """

    __slots__ = ("epoch", "lanes", "live", "meetings")

    def __init__(self) -> None:
        self.epoch = 0
        self.lanes: dict[int, Thread] = {}
        self.live = 0
        self.meetings: dict[Wait, dict[int, Any]] = {}

    def bring(self, thread: Thread, wait: Wait, value: object) -> dict[int, Any]:
        """Put the value of one lane on the table of a meeting and return the table."""
        table = self.meetings.setdefault(wait, {})
        table[thread.lane] = value
        return table

    def close(self, wait: Wait) -> list[Thread]:
        """End a meeting that every lane has come to; return its lanes."""
        met = [self.lanes[lane] for lane in self.meetings.pop(wait)]
        if len(met) == self.live:
            self.epoch += 1
        return met


class Block:
    """The threads of one block, and who of them can go on."""

    def __init__(self, launch: "Launch", number: int) -> None:
        self.launch = launch
        self.number = number
        self.index = _unravel(number, launch.grid_dim)
        self.barriers = 0
        self.shared: dict[object, Any] = {}
        self.shared_bytes = 0
        self.exited = 0
        warps = math.ceil(launch.block_threads / launch.settings.warp_size)
        self.warps = [Warp() for _ in range(warps)]
        order = launch.settings.permutation(launch.block_threads, salt=number + 1)
        self.live = [Thread(self, at, rank, launch.start) for rank, at in enumerate(order)]
        for thread in self.live:
            thread.warp.lanes[thread.lane] = thread
            thread.warp.live += 1
        self.ready = list(self.live)
        self.arrived: dict[Thread, bool] = {}
        self.predicates: list[bool] = []

    def run(self) -> None:
        """Let threads run until all have returned or wait for the rest of the grid."""
        while self.ready:
            batch, self.ready = sorted(self.ready, key=lambda thread: thread.rank), []
            for thread in batch:
                thread.wait = None
                if self.launch.resume(thread):
                    self._leave(thread)
        if any(thread.wait != GRID_BARRIER for thread in self.live):
            self._stuck()

    def at_barrier(self, thread: Thread, predicate: bool) -> list[bool]:
        """Wait for the live threads of the block; return what each of them brought."""
        self.arrived[thread] = predicate
        if len(self.arrived) == len(self.live):
            self._complete_barrier()
        self.launch.suspend(thread, BLOCK_BARRIER)
        return self.predicates

    def at_meeting(self, thread: Thread, wait: Wait, value: object) -> dict[int, Any]:
        """Wait for the lanes in the mask of `wait`; return what each of them brought."""
        assert wait.mask is not None
        table = thread.warp.bring(thread, wait, value)
        self._check_mask(thread, wait)
        if len(table) == wait.mask.bit_count():
            self.ready += thread.warp.close(wait)
        self.launch.suspend(thread, wait)
        return table

    def release(self) -> None:
        """Send all live threads on from a barrier of the block or the grid."""
        self.ready = list(self.live)
        for warp in self.warps:
            warp.epoch += 1

    def _complete_barrier(self) -> None:
        self.barriers += 1
        self.launch.tally.exited_before_barrier += self.exited
        self.exited = 0
        self.predicates = list(self.arrived.values())
        self.arrived = {}
        self.release()

    def _leave(self, thread: Thread) -> None:
        self.live.remove(thread)
        self.exited += 1
        thread.warp.live -= 1
        for wait, table in thread.warp.meetings.items():
            self._check_mask(thread.warp.lanes[next(iter(table))], wait)
        if self.arrived and len(self.arrived) == len(self.live):
            self._complete_barrier()

    def _check_mask(self, thread: Thread, wait: Wait) -> None:
        """Refuse a mask without the caller, or with lanes that can no longer come."""
        assert wait.mask is not None
        if not wait.mask >> thread.lane & 1:
            problem = f"to find the calling lane {thread.lane} in it"
        else:
            problem = self._absent(thread.warp, wait.mask)
        if problem:
            line = thread.line if thread.greenlet is not getcurrent() else _user_line(_frame())
            raise SimtError(
                f"{line}: {thread}: {wait.what} with mask {wait.mask:#x}: expected {problem}. "
                "Every lane in the mask must make the call, and no other: call it before any lane "
                "leaves, or name fewer lanes."
            )

    def _absent(self, warp: Warp, mask: int) -> str:
        for lane in _bits(mask):
            if lane not in warp.lanes:
                return f"lane {lane}, found a block of {self.launch.block_threads} threads"
            if warp.lanes[lane].greenlet.dead:
                return f"lane {lane}, found that it has returned"
        return ""

    def _stuck(self) -> NoReturn:
        """Explain a wait that cannot end, by the thread with the smallest circle of partners."""
        waits: Callable[[Thread], int] = lambda thread: (
            [None, BLOCK_BARRIER, GRID_BARRIER].index(thread.wait)
            if thread.wait in (BLOCK_BARRIER, GRID_BARRIER)
            else 0
        )
        thread = min(self.live, key=waits)
        raise _never(thread, next(one for one in self._partners(thread) if one.wait != thread.wait))

    def _partners(self, thread: Thread) -> Iterator[Thread]:
        if thread.wait is not None and thread.wait.mask is not None:
            return (thread.warp.lanes[lane] for lane in _bits(thread.wait.mask))
        return iter(self.live)


class Launch:
    """
    One launch of a kernel.

    Args:
        kernel: What every thread calls.
        grid_dim: Blocks.
        block_dim: Threads of a block.
        settings: The machine.
    """

    def __init__(
        self, kernel: Callable[[], None], grid_dim: Dim3, block_dim: Dim3, settings: Settings
    ) -> None:
        self.kernel = kernel
        self.grid_dim = grid_dim
        self.block_dim = block_dim
        self.settings = settings
        self.block_threads = math.prod(block_dim)
        self.blocks = math.prod(grid_dim)
        self.tally = Tally()
        self.thread: Thread
        self.cuda: CurrentThread
        if self.blocks < 1 or not 1 <= self.block_threads <= MAX_BLOCK_THREADS:
            raise SimtError(
                f"launch [{tuple(grid_dim)}, {tuple(block_dim)}]: expected at least one block of 1 "
                f"to {MAX_BLOCK_THREADS} threads, found {self.blocks} of {self.block_threads}. "
                "CUDA refuses such a launch."
            )
