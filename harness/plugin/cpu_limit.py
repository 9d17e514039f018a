"""A limit that counts the CPU seconds of a test: a busy machine stops nobody."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

import pytest

AGAIN_S = 1.0  # to whoever catches everything


class CpuLimit:
    """
    Fails a test, or the import before it, once this process has computed so long for it.

    Processes that it started are not counted, nor is time in which nothing is computed.

    Args:
        limit_s: CPU seconds of one phase of a test.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.test = ""

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
        before = signal.signal(signal.SIGPROF, self._stop)
        signal.setitimer(signal.ITIMER_PROF, self.limit_s, AGAIN_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)

    def _stop(self, _signal: int, _frame: FrameType | None) -> None:
        pytest.fail(f"stopped after {self.limit_s:g} s of CPU time in {self.test}", pytrace=False)
