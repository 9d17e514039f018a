"""
What comes between two instructions: a signal, or the turn of another thread.

    from harness.simulators.interruptions import interrupted

    for at in range(1, 101):
        came = interrupted(act, kata.__file__, at, lambda: signal.raise_signal(signal.SIGTERM))

Python may run a signal's handler, or another thread, between any two of its instructions. A test
that tries each place in turn meets the one that matters, on any machine, on every run.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def interrupted(
    act: Callable[[], object], file: str | None, at: int, interrupt: Callable[[], object]
) -> bool:
    """
    Call `act`, and in the middle of it `interrupt`, once.

    Args:
        act: On this thread.
        file: Whose instructions count; what it calls elsewhere is one with the call.
        at: Before which instruction of `act` the interruption comes, from 1.
        interrupt: Its own instructions do not count; what it raises comes out of `act`.

    Returns:
        Whether it came: not if `act` has fewer instructions.
    """
    ahead, before = at, sys.gettrace()

    def trace(frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401
        nonlocal ahead
        if frame.f_code.co_filename != file:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            ahead -= 1
            if ahead == 0:
                interrupt()
        return trace

    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return ahead <= 0
