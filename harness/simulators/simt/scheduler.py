"""
CUDA threads as greenlets: run in an order of our choosing, stopped at barriers, never hung.

A thread runs until it waits or returns, then the next one runs. Nothing is concurrent, so a launch
repeats exactly, and a missing barrier gives a wrong answer in one order or another. Blocks run one
after the other, unless a grid barrier keeps them all alive. A wait that can never end is an error
that names the thread, its block and its line.
"""

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
from greenlet import getcurrent, greenlet

from harness.base.errors import HarnessError
from harness.simulators.simt.machine import Dim3, Settings, SimtError, Tally, unravel

MAX_BLOCK_THREADS = 1024
HERE = str(Path(__file__).parent)


class Wait(NamedTuple):
    """What a thread waits at; `mask` names the lanes where only a warp takes part."""

    what: str
    mask: int | None = None


BLOCK_BARRIER = Wait("syncthreads")
GRID_BARRIER = Wait("this_grid().sync")


class Thread:
    """One CUDA thread: a greenlet, its place in the grid, and what it waits at."""

    __slots__ = ("block", "greenlet", "index", "lane", "number", "wait", "warp")

    def __init__(self, block: "Block", number: int) -> None:
        launch = block.launch
        warp_size = launch.settings.warp_size
        warp, self.lane = divmod(number, warp_size)
        self.block = block
        self.warp = block.warps[warp]
        # in the grid, as if every warp were full: number // warp_size is the same for a warp only
        self.number = block.number * len(block.warps) * warp_size + number
        self.index = unravel(number, launch.block_dim)
        self.wait: Wait | None = None
        self.greenlet = greenlet(launch.body)

    def __str__(self) -> str:
        return f"thread {tuple(self.index)} of block {tuple(self.block.index)}"

    @property
    def line(self) -> str:
        """`kernel.py:12`, where the thread, suspended or running, stands in its own code."""
        frame: FrameType | None = self.greenlet.gr_frame or sys._getframe()
        while frame is not None and frame.f_code.co_filename.startswith(HERE):
            frame = frame.f_back
        assert frame is not None
        return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"

    def suspend(self, wait: Wait) -> None:
        """Let others run until this thread is resumed."""
        self.wait = wait
        self.block.launch.hub.switch()
        self.wait = None


class Warp:
    """
    The lanes that shuffle and vote together.

    `epoch` counts the points that all live lanes have passed together: accesses made in two
    epochs never belong to one request.
    """

    __slots__ = ("alive", "epoch", "lanes", "meetings")

    def __init__(self) -> None:
        self.lanes: dict[int, Thread] = {}
        self.alive = 0  # the mask of lanes that have not returned
        self.epoch = 0
        self.meetings: dict[Wait, dict[int, Any]] = {}

    def add(self, thread: Thread) -> None:
        """Take in the thread of one lane."""
        self.lanes[thread.lane] = thread
        self.alive |= 1 << thread.lane

    def missing(self, mask: int) -> str:
        """Say why a lane of `mask` will never come, or nothing when all still may."""
        gone = mask & ~self.alive
        if not gone:
            return ""
        lane = (gone & -gone).bit_length() - 1
        fate = "which has returned" if lane in self.lanes else "which the block does not have"
        return f"lane {lane}, {fate}"

    def close(self, wait: Wait) -> list[Thread]:
        """End a meeting that every lane of its mask has come to; return their threads."""
        if wait.mask == self.alive:
            self.epoch += 1
        return [self.lanes[lane] for lane in self.meetings.pop(wait)]


class Block:
    """The threads of one block, and which of them can go on."""

    def __init__(self, launch: "Launch", number: int) -> None:
        self.launch = launch
        self.number = number
        self.index = unravel(number, launch.grid_dim)
        self.warps = [Warp() for _ in range(launch.warps_per_block)]
        order = launch.settings.permutation(launch.block_threads, salt=number + 1)
        self.live = [Thread(self, at) for at in order]
        for thread in self.live:
            thread.warp.add(thread)
        self.ready = deque(self.live)  # in running order, as `live`
        self.arrived: dict[Thread, bool] = {}
        self.exited = 0
        self.barriers = 0
        self.shared: dict[object, Any] = {}
        self.shared_bytes = 0

    def run(self) -> None:
        """
        Run threads until all have returned or wait for the rest of the grid.

        A warp that has met goes on before another warp starts: what one warp may read of
        another's without a block barrier is not there yet.
        """
        while self.ready:
            thread = self.ready.popleft()
            self.launch.resume(thread)
            if thread.greenlet.dead:
                self._leave(thread)
        if any(thread.wait != GRID_BARRIER for thread in self.live):
            raise self._deadlock()

    def meet(self, thread: Thread, predicate: bool) -> Iterable[bool]:
        """Wait at the block's barrier; return the predicates of all who came."""
        table = self.arrived
        table[thread] = predicate
        self._complete_barrier()
        thread.suspend(BLOCK_BARRIER)
        return table.values()

    def meet_in_warp(self, thread: Thread, wait: Wait, value: object) -> dict[int, Any]:
        """Wait for the lanes in the mask of `wait`; return each lane's value."""
        assert wait.mask is not None
        warp = thread.warp
        if not wait.mask >> thread.lane & 1:
            raise _misnamed(
                thread, wait, f"the caller's own lane {thread.lane} in it, found it left out"
            )
        if missing := warp.missing(wait.mask):
            raise _misnamed(thread, wait, f"all its lanes to call, found {missing}")
        table = warp.meetings.setdefault(wait, {})
        table[thread.lane] = value
        if len(table) == wait.mask.bit_count():
            self.ready.extendleft(reversed(warp.close(wait)))
            self.launch.tally.warp_calls[wait.what] += 1
        thread.suspend(wait)
        return table

    def release(self) -> None:
        """Send all live threads on from a barrier."""
        self.ready = deque(self.live)
        for warp in self.warps:
            warp.epoch += 1

    def _complete_barrier(self) -> None:
        """Open the barrier if every thread that has not returned has come to it."""
        if self.arrived and len(self.arrived) == len(self.live):
            self.arrived = {}
            self.barriers += 1
            self.launch.tally.exited_before_barrier += self.exited
            self.exited = 0
            self.release()

    def _leave(self, thread: Thread) -> None:
        self.live.remove(thread)
        self.exited += 1
        thread.warp.alive &= ~(1 << thread.lane)
        for wait, table in thread.warp.meetings.items():
            assert wait.mask is not None
            if missing := thread.warp.missing(wait.mask):
                waiting = thread.warp.lanes[next(iter(table))]
                raise _misnamed(waiting, wait, f"all its lanes to call, found {missing}")
        self._complete_barrier()

    def _deadlock(self) -> SimtError:
        """Explain a wait that cannot end: warps first, for their waits hold up the barriers."""
        thread = min(
            self.live, key=lambda one: (one.wait == GRID_BARRIER, one.wait == BLOCK_BARRIER)
        )
        assert thread.wait is not None
        mask = thread.wait.mask
        partners = (
            self.live if mask is None else [thread.warp.lanes[lane] for lane in lanes_of(mask)]
        )
        other = next(one for one in partners if one.wait != thread.wait)
        assert other.wait is not None
        return SimtError(
            f"{thread.line}: {thread}: expected {other} at {thread.wait.what} too, found it "
            f"waiting at {other.wait.what} ({other.line}): they wait for each other for ever. Take "
            "all threads of the block, or all lanes of the mask, through the same calls."
        )


class Launch:
    """
    One launch of a kernel.

    Args:
        kernel: What every thread calls.
        grid_dim: Blocks.
        block_dim: Threads of a block.
        settings: The machine.

    Raises:
        SimtError: CUDA would refuse the configuration.
    """

    def __init__(
        self, kernel: Callable[..., object], grid_dim: Dim3, block_dim: Dim3, settings: Settings
    ) -> None:
        self.kernel = kernel
        self.grid_dim = grid_dim
        self.block_dim = block_dim
        self.settings = settings
        self.blocks = math.prod(grid_dim)
        self.block_threads = math.prod(block_dim)
        if self.blocks < 1 or not 1 <= self.block_threads <= MAX_BLOCK_THREADS:
            raise SimtError(
                f"launch [{tuple(grid_dim)}, {tuple(block_dim)}]: expected at least one block of 1 "
                f"to {MAX_BLOCK_THREADS} threads, found {self.blocks} of {self.block_threads}. "
                "CUDA refuses it."
            )
        self.warps_per_block = math.ceil(self.block_threads / settings.warp_size)
        self.tally = Tally()
        self.resident: list[Block] = []
        self.hub = getcurrent()
        self.arguments: Sequence[object] = ()
        self.thread: Thread  # the one that runs

    def body(self) -> None:
        """What each greenlet runs; GPU arithmetic raises no warnings."""
        with np.errstate(all="ignore"):
            self.kernel(*self.arguments)

    def run(self, arguments: Sequence[object]) -> None:
        """
        Run every thread of the grid to its end.

        Args:
            arguments: What every thread calls the kernel with.

        Raises:
            SimtError: Threads wait for ever, or name lanes that cannot come.
            Exception: The kernel's own, its message opened by thread and block.
        """
        self.arguments = arguments
        try:
            for number in self.settings.permutation(self.blocks, salt=0):
                self._admit(number)
            while self.resident:
                self._open_grid_barrier()
                for block in list(self.resident):
                    self._advance(block)
        finally:
            for block in self.resident:
                for thread in block.live:
                    if thread.greenlet:  # started: its context managers must be left
                        thread.greenlet.throw()

    def resume(self, thread: Thread) -> None:
        """Run `thread` until it waits, returns or raises."""
        self.thread = thread
        try:
            thread.greenlet.switch()
        except HarnessError:
            raise
        except Exception as error:
            where = f"tid={list(thread.index)} ctaid={list(thread.block.index)}"
            error.args = (f"{where}: {error}" if str(error) else where,)
            raise

    def _admit(self, number: int) -> None:
        if len(self.resident) == self.settings.resident_blocks:
            waiting = self.resident[0].live[0]
            raise SimtError(
                f"{waiting.line}: {waiting}: expected room for all {self.blocks} blocks at "
                f"{GRID_BARRIER.what}, found room for {len(self.resident)}. Launch fewer blocks."
            )
        self.resident.append(Block(self, number))
        self._advance(self.resident[-1])

    def _advance(self, block: Block) -> None:
        block.run()
        if not block.live:
            self.resident.remove(block)
            self.tally.block_barriers.append(block.barriers)
            self.tally.shared_bytes = max(self.tally.shared_bytes, block.shared_bytes)

    def _open_grid_barrier(self) -> None:
        waiting = [thread for block in self.resident for thread in block.live]
        gone = self.blocks * self.block_threads - len(waiting)
        if gone:
            raise SimtError(
                f"{waiting[0].line}: {waiting[0]}: expected every thread of the grid at "
                f"{GRID_BARRIER.what}, found {gone} that have returned. Nobody may leave before it."
            )
        self.tally.grid_barriers += 1
        for block in self.resident:
            block.release()


def lanes_of(mask: int) -> list[int]:
    """The lanes a mask names, lowest first."""
    return [lane for lane in range(mask.bit_length()) if mask >> lane & 1]


def _misnamed(thread: Thread, wait: Wait, problem: str) -> SimtError:
    return SimtError(
        f"{thread.line}: {thread}: {wait.what} with mask {wait.mask:#x}: expected {problem}. Make "
        "the call before any lane leaves or turns aside, or name only the lanes that make it."
    )
