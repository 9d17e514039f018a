"""
How slow this machine is just now, so that time limits follow it.

A limit in seconds is meant for the machine that `REFERENCE_S` was measured on, idle. What a slower
or busier one needs on top is told by a fixed piece of pure Python on the wall's clock, which counts
a slow processor, busy neighbours and a small share of a core alike. A limit in CPU seconds needs
less, for a busy neighbour takes none of them.
"""

from collections.abc import Callable
from functools import cache
from time import perf_counter, process_time

STEPS = 1_000_000
REFERENCE_S = 0.125  # CPython 3.11, one idle core of an AMD EPYC of 2019


@cache
def pace() -> float:
    """How many times as long as the reference machine this one takes, once for each process."""
    return measured_pace()


def measured_pace() -> float:
    """Do as `pace` does, measured anew; never less than 1, which a faster machine has too."""
    start = perf_counter()
    _work()
    return max(1.0, (perf_counter() - start) / REFERENCE_S)


@cache
def cpu_pace() -> float:
    """How many times as many CPU seconds this machine needs, once for each process; at least 1."""
    start = process_time()
    _work()
    return max(1.0, (process_time() - start) / REFERENCE_S)


class PacedLimit:
    """
    A time limit that is lengthened once, by the machine's pace at the moment when it is passed.

    Then is when it matters, and whoever keeps to the limit pays for no measurement.

    `pace` is asked for that: `cpu_pace` for CPU seconds, by default `measured_pace`.

    Attributes:
        limit_s: What holds, in seconds: as given until it was passed, then times the pace.
    """

    def __init__(self, limit_s: float, pace: Callable[[], float] | None = None) -> None:
        self.limit_s = limit_s
        self._pace = pace
        self._lengthened = False

    def is_over(self, elapsed_s: float) -> bool:
        """Whether `elapsed_s` is too long even for this machine."""
        if elapsed_s > self.limit_s and not self._lengthened:
            self._lengthened = True
            self.limit_s *= (self._pace or measured_pace)()
        return elapsed_s > self.limit_s


def _work() -> int:
    """
    Compute what cannot be shortened, for longer than a slice of time that systems hand out.

    Linux gives a quota of a processor in slices of 0.1 s (CFS bandwidth control): shorter work
    could slip through between two of them.
    """
    state, seen = 1, {}
    for step in range(STEPS):
        state = (state * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
        seen[state & 1023] = step
    return len(seen)
