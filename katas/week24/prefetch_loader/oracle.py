"""A fetch that can be watched and held up, and the loader on a clock that ticks."""

import random
import threading
import time


def until(condition, seconds=10):
    """Wait for what another thread is to do; False if it does not."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.0005)
    return True


class Fetch:
    """
    Squares its index, and writes down when it began.

    An index of `held` waits until it is released.
    """

    def __init__(self, held=()):
        self.begun, self.ended = [], []
        self.threads = set()
        self._lock = threading.Lock()
        self._held = {index: threading.Event() for index in held}

    def __call__(self, index):
        with self._lock:
            self.begun.append(index)
            self.threads.add(threading.get_ident())
        if index in self._held and not self._held[index].wait(10):
            raise TimeoutError(f"fetch({index}) was held for 10 s")
        with self._lock:
            self.ended.append(index)
        return index * index

    def release(self, index):
        self._held[index].set()


def others(before):
    """Threads that are alive and were not there before."""
    return [thread for thread in threading.enumerate() if thread not in before]


def ticks(load, step, workers, depth):
    """Ticks in all, simulated tick by tick, for times in whole ticks."""
    todo = list(range(len(load)))
    busy, ready, handed = {}, set(), 0  # busy: ticks left of each item
    using, now = 0, 0
    while handed < len(load) or using:
        again = True
        while again:
            again = False
            while todo and len(busy) < workers and todo[0] < handed + depth:
                at = todo.pop(0)
                busy[at] = load[at]
            for at in [at for at, left in busy.items() if left == 0]:
                del busy[at]
                ready.add(at)
                again = True
            if not using and handed in ready:
                handed, using, again = handed + 1, step, True
        if not using and handed == len(load):
            break
        now += 1
        using = max(0, using - 1)
        busy = {at: left - 1 for at, left in busy.items()}
    return now


def trace(seed, n, mean, jitter):
    draw = random.Random(seed)
    return [max(0, mean + draw.randint(-jitter, jitter)) for _ in range(n)]
