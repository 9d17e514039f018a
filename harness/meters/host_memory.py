"""
Bytes that Python and NumPy hold on the host: what tells a running sum from a list of everything.

What PyTorch's operators allocate is not among them; the dispatch meter counts that.
"""

import _tracemalloc
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from typing import NoReturn
from unittest import mock

from harness.base.errors import SubmissionError

# with these the code under test would take back what was counted
COUNTS = ("clear_traces", "reset_peak", "start", "stop")


@dataclass(slots=True)
class HostMemory:
    """`peak_bytes` held at once so far of what was allocated since the block began."""

    peak_bytes: int = 0

    def look(self) -> int:
        """Bring `peak_bytes` up to date, and return it."""
        _, self.peak_bytes = tracemalloc.get_traced_memory()
        return self.peak_bytes


@contextmanager
def host_memory_meter() -> Iterator[HostMemory]:
    """
    Trace what is allocated while the block runs.

    Raises:
        SubmissionError: the block changes the count itself.
    """

    def refuse(*_: object) -> NoReturn:
        raise SubmissionError(
            f"tracemalloc: expected it to be left alone while it counts, found one of "
            f"{', '.join(COUNTS)} called."
        )

    memory, start, stop = HostMemory(), tracemalloc.start, tracemalloc.stop
    with ExitStack() as closed:
        for owner, name in product((tracemalloc, _tracemalloc), COUNTS):
            closed.enter_context(mock.patch.object(owner, name, refuse))
        start()
        try:
            yield memory
            memory.look()
        finally:
            stop()
