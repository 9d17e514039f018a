"""What is right: the longest chain of a call, every mode tried, every choice of buckets."""

import csv
import math
from itertools import combinations
from pathlib import Path

CAPTURE = Path(__file__).with_name("data") / "gpt2_h200_launches.csv"


def gpt2():
    """(host_us, kernel_us, kind) of each kernel of one forward pass on an H200."""
    with CAPTURE.open(encoding="utf-8") as file:
        return [
            (float(row["host_us"]), float(row["kernel_us"]), row["kind"])
            for row in csv.DictReader(file)
        ]


def longest_chain(trace):
    """
    The end of the last kernel: some launch is the last that a kernel waits for, all behind it run
    without a gap. Whichever launch makes it latest. A wait begins a new call at that time.
    """
    start, behind = 0, 0
    for at, launch in enumerate(trace):
        if launch.wait or at == len(trace) - 1:
            part = trace[behind : at + 1]
            start += max(
                sum(x.host_us for x in part[: i + 1]) + sum(x.kernel_us for x in part[i:])
                for i in range(len(part))
            )
            behind = at + 1
    return start


def totals(histogram, call_us, costs, memory_bytes=math.inf):
    """Every mode that is possible, with the time of all calls, one call after the other."""
    found = {}
    for mode, cost in costs.items():
        seen, total, held = [], 0, 0
        for shape, count in histogram.items():
            for _ in range(count):
                if shape not in seen:
                    seen.append(shape)
                    held += cost.shape_bytes
                    # the second shape makes sizes dynamic: no compilation after that
                    total += cost.shape_us + (cost.compile_us if len(seen) <= 2 else 0)
                total += call_us(mode, shape)
        if held <= memory_bytes and total < math.inf:
            found[mode] = total
    return found


def padded_work(histogram, buckets):
    """All calls, each as long as the smallest bucket that holds it."""
    return sum(
        count * min(bucket for bucket in buckets if bucket >= length)
        for length, count in histogram.items()
        if count
    )


def least_work(histogram, max_graphs):
    """The least padded work of any choice of buckets; those that are no length only pad more."""
    lengths = sorted(length for length, count in histogram.items() if count)
    most = min(max_graphs, len(lengths))
    return min(
        padded_work(histogram, (*chosen, lengths[-1]))
        for chosen in combinations(lengths[:-1], most - 1)
    )
