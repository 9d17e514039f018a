"""Kata week24/prefetch_loader: items loaded ahead, in order, and how many workers that takes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any


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
        raise NotImplementedError  # TODO(kata): check (about 9 lines)

    def __iter__(self) -> Iterator[Any]:
        """
        Begin an epoch; nothing is fetched before its first item is asked for.

        Raises:
            RuntimeError: the loader was closed.
        """
        # TODO(kata): check, fetch ahead, hand over in order, clean up (about 15 lines with helpers)
        raise NotImplementedError

    def __enter__(self) -> "PrefetchLoader":
        """Return the loader."""
        raise NotImplementedError  # TODO(kata): one line (1 line)

    def __exit__(self, *error: object) -> None:
        """Close, whatever happened."""
        raise NotImplementedError  # TODO(kata): one line (1 line)

    def close(self) -> None:
        """End all epochs: what is not under way is never fetched, and no thread is left."""
        raise NotImplementedError  # TODO(kata): clean up (3 lines)


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
    raise NotImplementedError  # TODO(kata): check, virtual clock (about 15 lines)


def workers_needed(
    load_s: Sequence[float], step_s: float, depth: int, max_stall: float = 0.05
) -> int | None:
    """
    Find the fewest workers with which the consumer waits at most this share of the time.

    None where no number of workers is enough: more than `depth` have nothing to do.

    Raises:
        ValueError: as `stall_share`, or ``max_stall`` is not in [0, 1).
    """
    raise NotImplementedError  # TODO(kata): check, fewest workers (about 10 lines)
