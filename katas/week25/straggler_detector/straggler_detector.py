"""Kata week25/straggler_detector: the slow GPU, where every step takes all of them equally long.

A rank's step is its own work and then waiting for the others: the slow one waits least.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Alert:
    """A slow rank, by what share it takes longer than the median, and since which step."""

    rank: int
    slowdown: float
    since_step: int


class StragglerDetector:
    """
    Finds ranks that take longer than the median, in at least half of their last reports.

    Args:
        world: Ranks.
        window: Reports of each rank that count.
        rel_threshold: Share of the median by which a slow rank exceeds it.
        k_mad: Median absolute deviations by which it does so, too.

    Raises:
        ValueError: world or window below 1, another argument below 0; the message begins with the
            name and a colon.
    """

    def __init__(
        self, world: int, window: int, rel_threshold: float = 0.08, k_mad: float = 5.0
    ) -> None:
        raise NotImplementedError  # TODO(kata): check, ring of reports (about 15 lines)

    def update(self, step_s: Sequence[float], wait_s: Sequence[float]) -> list[Alert]:
        """
        Take one step's report of each rank, and return the current alerts, in order of rank.

        Args:
            step_s: Seconds of the whole step; NaN where a rank did not report.
            wait_s: How many of these it waited in collectives; NaN likewise.

        Raises:
            ValueError: a length is not `world`, or a time negative or infinite; a rank waited
                longer than the step took. Nothing has changed then.
        """
        # TODO(kata): check, own time, slow reports, ring of reports, alerts (about 35 lines with
        # helpers)
        raise NotImplementedError


def blame(intervals: Iterable[tuple[int, float, float, str]]) -> int:
    """
    Return the rank that was busy longest in a step, the lowest of equal ones.

    Args:
        intervals: Rank, start, end and kind; times by a clock of the rank's own. Busy is whatever
            is not a "wait", and what overlaps counts once. Read once, in any order.

    Raises:
        ValueError: there are none, or one ends before it begins.
    """
    raise NotImplementedError  # TODO(kata): own time (about 15 lines)


def throughput_loss(compute: Sequence[float]) -> float:
    """
    Return the share of all ranks' time that is spent waiting for the slowest of them.

    Args:
        compute: Seconds of each rank's own work; NaN where it did not report.

    Raises:
        ValueError: a time is negative or infinite, or no rank reported.
    """
    raise NotImplementedError  # TODO(kata): check, lost share (about 5 lines)
