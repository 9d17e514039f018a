"""What one test of a learner's run may take: so that a hang is named, and costs no patience."""

import math
import os
import resource
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

import pytest

from harness.base.pace import PacedLimit, cpu_pace, measured_pace
from harness.running.limits import TEST_LIMIT_S

TICK_S = 1.0  # how often it is looked at, and said again to whoever catches everything
# a test in which nothing is computed for this share of its limit waits for ever
WAITING_SHARE = 1 / 3
IDLE_SHARE = 0.02  # of a core, on the thread of the test: looking at a clock is no computation
POLLING_SHARE = 0.5  # of what a core has to give just now, on all threads: looking all the time
WALL_SHARE = 2.0  # seconds by the wall's clock for one of CPU time
AGAIN_SHARE = 0.1  # of every limit, once a test has been stopped: the others will hang as well
MOST_STOPPED = 5  # tests, before the others are not even tried


def within_s(item: pytest.Item, most_s: float = TEST_LIMIT_S) -> float:
    """The limit that a test names for itself, ``@pytest.mark.within_s(3)``, or `most_s`."""
    marker = item.get_closest_marker("within_s")
    return most_s if marker is None else min(most_s, float(marker.args[0]))


class RunLimit:
    """
    Fails a test, or the set-up before it, that does not end by itself.

    It may compute for `limit_s`, in CPU seconds of this process, and take twice as long by the
    wall's clock; both follow the machine's pace. It may wait a third as long while nothing is
    computed here, by other threads least of all, and there is no other process to wait for. No
    pace lengthens that: even a small share of a processor shows as computation, and one too small
    to show is taken away more often than given up. Where `waits` is false that is left out, as on
    a GPU, which computes while this process waits.
    """

    def __init__(self, limit_s: float, *, waits: bool = True) -> None:
        self.limit_s = limit_s
        self.waits = waits
        self.stopped: set[str] = set()  # node ids of tests
        self.test = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        """Limit what fixtures do; the file under test is imported here."""
        if len(self.stopped) >= MOST_STOPPED:
            pytest.skip(f"not run, since {MOST_STOPPED} tests before it had to be stopped")
        with self._limited(item):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """Limit the test itself."""
        with self._limited(item):
            return (yield)

    @contextmanager
    def _limited(self, item: pytest.Item) -> Generator[None, None, None]:
        self.test = item.nodeid
        limit_s = within_s(item, self.limit_s) * (AGAIN_SHARE if self.stopped else 1.0)
        self._cpu = PacedLimit(limit_s, pace=cpu_pace)
        self._wall = PacedLimit(WALL_SHARE * limit_s)
        self._most_idle_s = WAITING_SHARE * limit_s if self.waits else math.inf
        self._began = (time.process_time(), time.monotonic())
        self._looked = time.thread_time()
        self._compute_from(self._began[0])
        before = signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _look(self, _signal: int, _frame: FrameType | None) -> None:
        cpu_s, wall_s = time.process_time(), time.monotonic()
        before_s, self._looked = self._looked, time.thread_time()
        if self._looked - before_s > IDLE_SHARE * TICK_S or _has_children():
            self._compute_from(cpu_s)
        else:
            self._idle_s += TICK_S  # a machine that slept has waited for no more than one look
        if self._idle_s >= self._most_idle_s and self._nobody_computes(cpu_s):
            self._stop(
                f"{self._idle_s:.3g} s in which nothing was computed",
                ": what it waits for does not come",
            )
        if self._cpu.is_over(cpu_s - self._began[0]):
            self._stop(f"{self._cpu.limit_s:.3g} s of CPU time")
        if self._wall.is_over(wall_s - self._began[1]):
            self._stop(f"{self._wall.limit_s:.3g} s")

    def _nobody_computes(self, cpu_s: float) -> bool:
        """Whether the other threads have not used what a core had to give; else wait on."""
        share = (cpu_s - self._computed_before_s) / self._idle_s
        given_up, taken = (
            now - then for now, then in zip(_switches(), self._switched_before, strict=True)
        )
        if share < IDLE_SHARE and taken <= given_up:
            return True
        if share >= IDLE_SHARE and share * measured_pace() < POLLING_SHARE:
            return True
        self._compute_from(cpu_s)
        return False

    def _compute_from(self, cpu_s: float) -> None:
        """Note that something was computed until now."""
        self._idle_s, self._computed_before_s = 0.0, cpu_s
        self._switched_before = _switches()

    def _stop(self, limit: str, why: str = "") -> None:
        self.stopped.add(self.test)
        pytest.fail(f"stopped after {limit}{why}", pytrace=False)


def _switches() -> tuple[int, int]:
    """How often this process has given up a processor, and how often one was taken from it."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_nvcsw, usage.ru_nivcsw


def _has_children() -> bool:
    """Whether other processes may be computing for this one; where nobody can say, they may."""
    if not hasattr(os, "waitid"):
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
