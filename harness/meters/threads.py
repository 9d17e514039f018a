"""
Threads that a metered block starts, pools' too, are metered like the block itself.

PyTorch's dispatch modes hold for one thread. While some meter is active `threading.Thread.start`
hands those of the starting thread on to the one that is started. A thread that was there before
the block, as an idle one of a pool, is not seen.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

Elsewhere = Callable[[], TorchDispatchMode]


class _Handing:
    """What each thread hands on, and how often `Thread.start` is asked to."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.blocks = 0
        self.local = threading.local()
        self.start = threading.Thread.start

    @property
    def mine(self) -> list[Elsewhere]:
        """Makers of what this thread hands on."""
        found: list[Elsewhere] = self.local.__dict__.setdefault("mine", [])
        return found


_handing = _Handing()


def hand_on(make: Elsewhere) -> None:
    """From now on, threads that this one starts have the mode that `make` returns."""
    _handing.mine.append(make)
    with _handing.lock:
        _handing.blocks += 1
        if _handing.blocks == 1:
            _handing.start = threading.Thread.start
            threading.Thread.start = _start  # type: ignore[assignment, method-assign]


def hand_on_no_more(make: Elsewhere) -> None:
    """Take back what `hand_on` was told by this thread."""
    _handing.mine.remove(make)
    with _handing.lock:
        _handing.blocks -= 1
        if _handing.blocks == 0 and threading.Thread.start is _start:
            threading.Thread.start = _handing.start  # type: ignore[method-assign]


def _start(thread: threading.Thread) -> None:
    """Start a thread that has what this one hands on."""
    if handed := [*_handing.mine]:
        run = thread.run

        def run_metered() -> None:
            thread.__dict__.pop("run", None)  # else the two keep each other
            _run(run, handed)

        thread.run = run_metered  # type: ignore[method-assign]
    _handing.start(thread)


def _run(run: Callable[[], Any], handed: Sequence[Elsewhere]) -> None:
    # the flags that entering a mode sets are the whole process's: they stay the block's
    _handing.mine.extend(handed)
    for make in handed:
        _push_mode(make())
    try:
        run()
    finally:
        for _ in handed:
            _pop_mode()
