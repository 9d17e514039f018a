"""What is right: everything kept and looked at again in every step; traces whose truth is known."""

from statistics import fmean, median

import numpy as np


class Recomputed:
    """Keeps every report of every rank, and decides anew in each step."""

    def __init__(self, world, window, rel_threshold=0.08, k_mad=5):
        self.world, self.window = world, window
        self.rel_threshold, self.k_mad = rel_threshold, k_mad
        self.step = 0
        self.reports = [[] for _ in range(world)]  # (step, excess, slow)
        self.since = {}

    def update(self, step_s, wait_s):
        own = {
            r: s - w for r, (s, w) in enumerate(zip(step_s, wait_s, strict=True)) if s - w == s - w
        }
        if own:
            middle = median(own.values())
            excess = {r: (one - middle) / middle if middle else 0.0 for r, one in own.items()}
            limit = max(self.rel_threshold, self.k_mad * median(abs(e) for e in excess.values()))
            for r, e in excess.items():
                self.reports[r].append((self.step, e, e > limit))
        self.step += 1
        alerts = []
        for r in range(self.world):
            last = self.reports[r][-self.window :]
            slow = [step for step, _, is_slow in last if is_slow]
            if len(slow) < self.window / 2:
                self.since.pop(r, None)
                continue
            since = self.since.setdefault(r, slow[0])
            alerts.append((r, fmean(e for step, e, _ in last if step >= since), since))
        return alerts


def steps_of(own, collective=0.01):
    """What ranks report: steps equally long, the difference waited."""
    whole = np.nanmax(own, axis=1, keepdims=True) + collective
    step = np.where(np.isnan(own), np.nan, whole)
    return step, step - own


def healthy(seed, world, steps, noise=0.02):
    """Own seconds of each step and rank: lognormal noise, slow first steps, checkpoints."""
    rng = np.random.default_rng(seed)
    own = 0.3 * np.exp(noise * rng.standard_normal((steps, world)))
    own[:5] *= np.linspace(4, 1, 5)[:, None]
    own[50::100] += 2.0
    return own


def busiest(intervals):
    """Tick by tick, on a grid of which all times are multiples."""
    busy = {}
    for rank, start, end, kind in intervals:
        ticks = busy.setdefault(rank, set())
        if kind != "wait":
            ticks.update(range(start, end))
    return min(busy, key=lambda rank: (-len(busy[rank]), rank))
