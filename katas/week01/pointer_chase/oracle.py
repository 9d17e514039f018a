"""Walks in Python, ladders whose knees are known, and clocks for real ones."""

import time

import numpy as np
from numba import cuda, njit

LINE_BYTES = {"cpu": 64, "cuda": 128}


def laps(nxt):
    """Slots in the order in which a walk from slot 0 visits them, until it meets one again."""
    seen, at = {}, 0
    while at not in seen:
        seen[at] = len(seen)
        at = int(nxt[at])
    return list(seen), at


def ladder(levels, *, noise, steps=(), disturbed=(), seed=0):
    """
    Sizes, latencies and knees of a memory.

    Args:
        levels: Latency in ns and number of sizes of each level; sizes double from 4 KiB on.
        noise: Share by which a latency may deviate either way.
        steps: Levels (by position) that end in a size on the step to the next.
        disturbed: Sizes (by position) that take twice as long.
        seed: Of the noise.
    """
    ns, knees = [], []
    for at, (latency, count) in enumerate(levels):
        ns += [latency] * count
        if at + 1 < len(levels):
            knees.append(4096 << (len(ns) - 1))
            if at in steps:
                ns.append((latency * levels[at + 1][0]) ** 0.5)
    sizes = [4096 << at for at in range(len(ns))]
    spread = np.random.default_rng(seed).uniform(1 - noise, 1 + noise, len(ns))
    spread[list(disturbed)] *= 2
    return sizes, (np.array(ns) * spread).tolist(), knees


# ---- clocks --------------------------------------------------------------------------------


def one_slot_a_line(nxt, line_bytes):
    """The cycle of `nxt` with its slots a cache line apart; the rest of each line is not read."""
    stride = line_bytes // 4
    spread = np.zeros(len(nxt) * stride, dtype=np.int32)
    spread[::stride] = nxt * np.int32(stride)
    return spread


def cpu_ns_per_line(chase, nxt, steps=50_000, tries=5):
    """
    Fastest nanoseconds per load of a chase, and per line of a sum, of the same memory.

    The clock is that of this thread, which stands still while others have the processor.
    """
    walk, slots = njit(chase), one_slot_a_line(nxt, LINE_BYTES["cpu"])
    at = walk(slots, 0, min(len(nxt), steps))  # compiles, and warms what a cache can hold
    chased, summed = [], []
    for _ in range(tries):
        start = time.thread_time()
        at = walk(slots, at, steps)  # on from where it was: no line is visited twice
        chased.append(time.thread_time() - start)
        start = time.thread_time()
        slots.sum(dtype=np.int32)
        summed.append(time.thread_time() - start)
    return 1e9 * min(chased) / steps, 1e9 * min(summed) / len(nxt)


def walker(chase):
    """A kernel of one thread that chases and stores where it ends."""
    walk = cuda.jit(device=True)(chase)

    @cuda.jit
    def kernel(nxt, start, steps, out):
        out[0] = walk(nxt, start, steps)

    return kernel


def gpu_ns_per_load(chase, nxt, steps=50_000):
    """Nanoseconds per load of one thread on a GPU."""
    kernel = walker(chase)
    slots = cuda.to_device(one_slot_a_line(nxt, LINE_BYTES["cuda"]))
    out = cuda.to_device(np.zeros(1, dtype=np.int32))
    # compiles, and once around whatever a cache can hold
    kernel[1, 1](slots, 0, min(len(nxt), 2**18), out)
    at = int(out.copy_to_host()[0])
    start, stop = cuda.event(), cuda.event()
    start.record()
    kernel[1, 1](slots, at, steps, out)
    stop.record()
    stop.synchronize()
    return 1e6 * cuda.event_elapsed_time(start, stop) / steps
