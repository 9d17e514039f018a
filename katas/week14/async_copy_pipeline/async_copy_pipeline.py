"""Kata week14/async_copy_pipeline: a ring of shared-memory slots, filled by cp.async."""

from typing import Protocol


class CpAsyncMachine(Protocol):
    """
    What one thread of a block can do. All threads of the block do the same, each its share.

    Slots and tiles count from 0.
    """

    def cp_async(self, slot: int, tile: int) -> None:
        """Begin to copy this thread's share of a tile into a slot; that takes no time here."""

    def commit(self) -> None:
        """Close a group: all copies begun since the last commit, also if there are none."""

    def wait_group(self, n: int) -> None:
        """Wait until this thread's groups have landed, all but the newest `n`."""

    def sync(self) -> None:
        """Wait for all threads of the block; what each knows to have landed, all see now."""

    def compute(self, slot: int, tile: int) -> None:
        """Use all of a tile, the shares of all threads."""


def pipeline(m: CpAsyncMachine, num_tiles: int, stages: int) -> None:
    """
    Compute tiles 0 … `num_tiles` - 1 in this order while the copies of later tiles are in flight.

    Args:
        m: Whose calls are the pipeline.
        num_tiles: How many tiles there are.
        stages: How many slots there are.

    Raises:
        ValueError: `num_tiles` is below 0 or `stages` below 2; the message begins with its name.

    Source: PTX ISA, cp.async.commit_group and cp.async.wait_group.
    """
    # TODO(kata): check, fill the ring, wait and sync, refill, compute (about 15 lines with helpers)
    raise NotImplementedError


def steady_period(latency: int, copy: int, compute: int, stages: int) -> float:
    """
    Cycles from one tile to the next, in the long run.

    Args:
        latency: From when the copy engine is done with a tile to when it has landed.
        copy: What a tile takes of the copy engine.
        compute: What computing on a tile takes.
        stages: How many slots there are.

    Raises:
        ValueError: `latency` is below 0, `copy` or `compute` below 1, or `stages` below 2; the
            message begins with its name.
    """
    raise NotImplementedError  # TODO(kata): period and stages (about 7 lines with helpers)


def stages_needed(latency: int, copy: int, compute: int) -> int:
    """
    The fewest slots with which latency costs nothing in the long run, exact for any int.

    Raises:
        ValueError: `latency` is below 0, `copy` or `compute` below 1; the message begins with its
            name.
    """
    raise NotImplementedError  # TODO(kata): period and stages (2 lines)
