"""A limit that counts the CPU seconds of a test: a busy machine stops nobody."""

import math
import signal
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest

from harness.authoring.limits import AGAIN_SHARE, TIMES_SLOWEST
from harness.authoring.matrix import WRONG, names_of
from harness.plugin.run_limit import within_s
from harness.running.limits import TEST_LIMIT_S

AGAIN_S = 1.0  # to whoever catches everything


@dataclass(frozen=True, slots=True)
class Seconds:
    """What a test takes, or may take: computed by this process, and by the wall's clock."""

    cpu: float = 0.0
    wall: float = 0.0

    def within(self, least_s: float) -> "Seconds":
        """The limits of who needs about as long."""
        return Seconds(least_s + TIMES_SLOWEST * self.cpu, least_s + TIMES_SLOWEST * self.wall)


class CpuLimit:
    """
    Fails a test, or the import before it, once this process has computed so long for it.

    Processes that it started are not counted, nor is time in which nothing is computed. A wrong
    solution has as long as the reference's slowest test allows. Once that was too short for it, it
    is not waited for again: each of its other tests has as long as the same test of the reference
    allows.

    Args:
        limit_s: CPU seconds of one phase of a test.
        wall_s: Seconds by the wall's clock of a test; pytest-timeout keeps that limit.
        least_s: CPU seconds that each test of a wrong solution is given at least; 0 sets no limit
            of its own.
    """

    def __init__(self, limit_s: float, wall_s: float = 0.0, least_s: float = 0.0) -> None:
        self.most = Seconds(limit_s, wall_s or math.inf)
        self.least_s = least_s
        self.test, self.whose = "", ("", "")
        self.now = self.most
        self._reference: dict[str, dict[str, Seconds]] = defaultdict(dict)  # kata, test
        self._stopped: set[tuple[str, str]] = set()  # kata, implementation

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Choose the limit of one test, before pytest-timeout looks for it."""
        kata, impl, test = names_of(item.user_properties)
        self.now = self.most
        share = within_s(item) / TEST_LIMIT_S
        if impl.startswith(WRONG) and self.least_s and self._reference[kata]:
            allowed = self._allowed(kata, impl, test)
            share = min(share, allowed.cpu / self.most.cpu)
            self.now = Seconds(self.most.cpu, min(self.most.wall, allowed.wall))
        if share < 1.0:
            self.now = Seconds(share * self.most.cpu, self.now.wall)
            item.add_marker(pytest.mark.timeout(share * self.most.wall))
        return (yield)

    def _allowed(self, kata: str, impl: str, test: str) -> Seconds:
        known = self._reference[kata]
        if self.has_stopped(kata, impl):
            return known.get(test, Seconds()).within(AGAIN_SHARE * self.least_s)
        slowest = Seconds(
            max(one.cpu for one in known.values()), max(one.wall for one in known.values())
        )
        return slowest.within(self.least_s)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what the reference takes, and who was stopped or hung."""
        kata, impl, test = names_of(report.user_properties)
        if report.when != "call":
            return
        if impl == "solution" and report.passed:
            known: dict[str, Any] = dict(report.user_properties)
            self._reference[kata][test] = Seconds(known.get("own_cpu_s", 0.0), report.duration)
        # pytest-timeout's limit holds for the set-up, too
        if report.failed and report.duration > self.now.cpu / self.most.cpu * self.most.wall / 2:
            self.note_stop()

    def has_stopped(self, kata: str, impl: str) -> bool:
        """Whether a test of `impl` did not end by itself."""
        return (kata, impl) in self._stopped

    def note_stop(self) -> None:
        """Say that the test under way did not end by itself."""
        self._stopped.add(self.whose)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        """Limit what fixtures do; the file under test is imported here."""
        with self._limited(item):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """Limit the test itself."""
        with self._limited(item):
            return (yield)

    @contextmanager
    def _limited(self, item: pytest.Item) -> Generator[None, None, None]:
        self.test = str(dict(item.user_properties).get("test", item.name))
        self.whose = names_of(item.user_properties)[:2]
        before = signal.signal(signal.SIGPROF, self._stop)
        signal.setitimer(signal.ITIMER_PROF, self.now.cpu, AGAIN_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)

    def _stop(self, _signal: int, _frame: FrameType | None) -> None:
        self.note_stop()
        pytest.fail(f"stopped after {self.now.cpu:g} s of CPU time in {self.test}", pytrace=False)
