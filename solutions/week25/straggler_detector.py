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
        # check
        for name, value, least in (
            ("world", world, 1),
            ("window", window, 1),
            ("rel_threshold", rel_threshold, 0),
            ("k_mad", k_mad, 0),
        ):
            if not value >= least:
                raise ValueError(f"{name}: expected at least {least}, found {value}.")
        # ring of reports
        self._world, self._window = world, window
        self._rel_threshold, self._k_mad = rel_threshold, k_mad
        self._step = 0
        # of each rank: its last reports, a ring, and how many there have been and are slow
        self._excess = np.zeros((window, world))
        self._slow = np.zeros((window, world), bool)
        self._steps = np.full((window, world), -1)
        self._reports = np.zeros(world, np.int64)
        self._slow_reports = np.zeros(world, np.int64)
        self._since = np.full(world, -1)

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
        # own time
        own = self._own_seconds(step_s, wait_s)
        here = np.flatnonzero(~np.isnan(own))
        # slow reports
        if len(here):
            self._report(here, own[here])
        self._step += 1
        # alerts
        active = 2 * self._slow_reports >= self._window
        self._since[~active] = -1
        for rank in np.flatnonzero(active & (self._since < 0)):
            self._since[rank] = self._steps[self._slow[:, rank], rank].min()
        return [self._alert(int(rank)) for rank in np.flatnonzero(active)]

    def _own_seconds(self, step_s: Sequence[float], wait_s: Sequence[float]) -> np.ndarray:
        # check
        step, wait = np.array(step_s, np.float64), np.array(wait_s, np.float64)
        for name, times in (("step_s", step), ("wait_s", wait)):
            if times.shape != (self._world,):
                raise ValueError(f"{name}: expected {self._world} times, found {times.shape}.")
            if (times < 0).any() or np.isinf(times).any():
                raise ValueError(f"{name}: expected finite times from 0 on, found {times}.")
        if (wait > step).any():
            raise ValueError(f"wait_s: expected no more than the step, {step}, found {wait}.")
        # own time
        return step - wait

    def _report(self, here: np.ndarray, own: np.ndarray) -> None:
        # slow reports
        middle = np.median(own)
        excess = own / middle - 1 if middle > 0 else np.zeros(len(own))
        noise = np.median(np.abs(excess))
        slow = excess > max(self._rel_threshold, self._k_mad * noise)
        # ring of reports
        at = self._reports[here] % self._window
        self._slow_reports[here] += slow.astype(np.int64) - self._slow[at, here]
        self._excess[at, here] = excess
        self._slow[at, here] = slow
        self._steps[at, here] = self._step
        self._reports[here] += 1

    def _alert(self, rank: int) -> Alert:
        # alerts
        since = int(self._since[rank])
        counted = self._excess[self._steps[:, rank] >= since, rank]
        return Alert(rank=rank, slowdown=float(counted.mean()), since_step=since)


def blame(intervals: Iterable[tuple[int, float, float, str]]) -> int:
    """
    Return the rank that was busy longest in a step, the lowest of equal ones.

    Args:
        intervals: Rank, start, end and kind; times by a clock of the rank's own. Busy is whatever
            is not a "wait", and what overlaps counts once. Read once, in any order.

    Raises:
        ValueError: there are none, or one ends before it begins.
    """
    # own time
    busy: dict[int, float] = {}
    until: dict[int, float] = {}
    for rank, start, end, kind in sorted(intervals):
        if not start <= end:
            raise ValueError(f"intervals: expected an end after {start}, found {end}.")
        busy.setdefault(rank, 0.0)
        if kind != "wait":
            begin = max(start, until.get(rank, start))
            busy[rank] += max(0.0, end - begin)
            until[rank] = max(end, begin)
    if not busy:
        raise ValueError("intervals: expected some, found none.")
    return max(busy, key=lambda rank: (busy[rank], -rank))


def throughput_loss(compute: Sequence[float]) -> float:
    """
    Return the share of all ranks' time that is spent waiting for the slowest of them.

    Args:
        compute: Seconds of each rank's own work; NaN where it did not report.

    Raises:
        ValueError: a time is negative or infinite, or no rank reported.
    """
    # check
    times = np.array(compute, np.float64)
    times = times[~np.isnan(times)]
    if not len(times) or (times < 0).any() or np.isinf(times).any():
        raise ValueError(f"compute: expected finite times from 0 on, at least one: {compute}.")
    # lost share
    return 1 - float(times.mean() / times.max()) if times.any() else 0.0
