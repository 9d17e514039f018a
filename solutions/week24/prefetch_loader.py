"""Kata week24/prefetch_loader: items loaded ahead, in order, and how many workers that takes."""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any
from weakref import WeakSet


class PrefetchLoader:
    """
    Fetches items ahead of whoever iterates, in threads, and hands them over in order.

    Args:
        fetch: Loads the item of an index; called in several threads at a time.
        indices: Of one epoch; iterated again for each.
        workers: Threads of an epoch.
        depth: Items that may be ahead: under way, or fetched and not yet handed over.

    Raises:
        ValueError: ``workers`` or ``depth`` is below 1.
    """

    def __init__(
        self, fetch: Callable[[Any], Any], indices: Iterable[Any], workers: int, depth: int
    ) -> None:
        # check
        for name, number in (("workers", workers), ("depth", depth)):
            if number < 1:
                raise ValueError(f"{name}: expected 1 or more, found {number}")
        self._fetch = fetch
        self._indices = indices
        self._workers = workers
        self._depth = depth
        self._closed = False
        self._epochs: WeakSet[Any] = WeakSet()

    def __iter__(self) -> Iterator[Any]:
        """
        Begin an epoch; nothing is fetched before its first item is asked for.

        Raises:
            RuntimeError: the loader was closed.
        """
        # check
        if self._closed:
            raise RuntimeError("the loader was closed")
        # fetch ahead
        epoch = self._epoch()
        self._epochs.add(epoch)
        return epoch

    def __enter__(self) -> "PrefetchLoader":
        """Return the loader."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close, whatever happened."""
        self.close()

    def close(self) -> None:
        """End all epochs: what is not under way is never fetched, and no thread is left."""
        # clean up
        self._closed = True
        for epoch in list(self._epochs):
            epoch.close()

    def _epoch(self) -> Iterator[Any]:
        # fetch ahead
        source = iter(self._indices)
        ahead: deque[Future] = deque()
        pool = ThreadPoolExecutor(self._workers)
        try:
            ahead.extend(pool.submit(self._fetch, index) for index in islice(source, self._depth))
            # hand over in order
            while ahead:
                item = ahead.popleft().result()
                # before the item is handed over, so that this is fetched while it is used
                ahead.extend(pool.submit(self._fetch, index) for index in islice(source, 1))
                yield item
        finally:
            # clean up
            pool.shutdown(cancel_futures=True)


def stall_share(load_s: Sequence[float], step_s: float, workers: int, depth: int) -> float:
    """
    Share of the time in which the consumer waits, on a virtual clock.

    Args:
        load_s: How long each item takes to fetch.
        step_s: How long the consumer uses an item before it asks for the next.
        workers: Threads of the loader.
        depth: Items that may be ahead.

    Raises:
        ValueError: ``load_s`` is empty or has a negative time, ``step_s`` is not above 0, or
            ``workers`` or ``depth`` is below 1.
    """
    # check
    if not load_s or min(load_s) < 0:
        raise ValueError("load_s: expected at least one time, all of 0 or more")
    if step_s <= 0:
        raise ValueError(f"step_s: expected more than 0, found {step_s}")
    for name, number in (("workers", workers), ("depth", depth)):
        if number < 1:
            raise ValueError(f"{name}: expected 1 or more, found {number}")
    # virtual clock
    free_s = [0.0] * workers  # a heap: when each worker has nothing to do
    handed_s: list[float] = []
    now_s = 0.0
    for at, each_s in enumerate(load_s):
        allowed_s = handed_s[at - depth] if at >= depth else 0.0
        done_s = max(allowed_s, free_s[0]) + each_s
        heapq.heapreplace(free_s, done_s)
        handed_s.append(max(now_s, done_s))
        now_s = handed_s[-1] + step_s
    return (now_s - len(load_s) * step_s) / now_s


def workers_needed(
    load_s: Sequence[float], step_s: float, depth: int, max_stall: float = 0.05
) -> int | None:
    """
    Find the fewest workers with which the consumer waits at most this share of the time.

    None where no number of workers is enough: more than `depth` have nothing to do.

    Raises:
        ValueError: as `stall_share`, or ``max_stall`` is not in [0, 1).
    """
    # check
    if not 0 <= max_stall < 1:
        raise ValueError(f"max_stall: expected 0 or more and less than 1, found {max_stall}")
    # fewest workers
    if stall_share(load_s, step_s, max(1, depth), depth) > max_stall:
        return None
    too_few, enough = 0, depth
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if stall_share(load_s, step_s, middle, depth) > max_stall:
            too_few = middle
        else:
            enough = middle
    return enough
