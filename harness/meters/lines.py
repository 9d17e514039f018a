"""
Lines of Python run: what tells one pass from a loop in a loop, on any machine and at any load.

A function of C, such as a NumPy call, counts as the line that calls it.
"""

import contextlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

OWN = (__file__, contextlib.__file__)  # what leaving the block runs


@dataclass(slots=True)
class LineMeter:
    """`lines` run so far."""

    lines: int = 0


@contextmanager
def line_meter(limit: int | None = None) -> Iterator[LineMeter]:
    """
    Count the lines of Python run on this thread in functions that the block calls.

    Args:
        limit: Stop whoever runs more, instead of waiting for the end of a slow loop.

    Raises:
        AssertionError: the block ran more than `limit` lines, or put another tracer in place.
    """
    meter, before = LineMeter(), sys.gettrace()

    def trace(frame: FrameType, event: str, argument: object) -> Any:  # noqa: ANN401
        if frame.f_code.co_filename in OWN:
            return None
        if event == "line":
            meter.lines += 1
            if limit is not None and meter.lines > limit:
                sys.settrace(before)
                raise AssertionError(
                    f"expected at most {limit} lines of Python to be run, found more: is there a "
                    "loop in a loop?"
                )
        return trace

    sys.settrace(trace)
    try:
        yield meter
        assert sys.gettrace() is trace, "expected the lines to be counted to the end"
    finally:
        sys.settrace(before)
