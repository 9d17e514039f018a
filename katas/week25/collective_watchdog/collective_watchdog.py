"""Kata week25/collective_watchdog: why does a collective not come back, and who is to blame?

Each rank notes what it is in, which costs it nothing. A thread beside it publishes the note now
and then, and when a rank has waited for too long all of them read the notes and agree on one
verdict, over a store, since collectives are what has failed.
"""

import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol, Self

import torch
import torch.distributed as dist


class Record(NamedTuple):
    """The collective that a rank began last: which in order, from 1 on, what, and whether done."""

    seq: int
    op: str
    shape: tuple[int, ...]
    dtype: str
    done: bool


NOTHING = Record(0, "", (), "", True)  # of a rank that has not begun any


class Diagnosis(NamedTuple):
    """What holds a collective up: "dead", "mismatch", "missing" or "stuck"; by whom; which one."""

    kind: str
    ranks: tuple[int, ...]
    seq: int


class CollectiveTimeout(Exception):
    """A collective does not come back."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__(
            f"collective {diagnosis.seq}: {diagnosis.kind}, "
            f"rank {', '.join(map(str, diagnosis.ranks)) or 'unknown'}"
        )
        self.diagnosis = diagnosis


class Store(Protocol):
    """What this kata needs of a `torch.distributed.Store`, which is shared by the ranks."""

    def set(self, key: str, value: str) -> None:
        """Write."""

    def get(self, key: str) -> bytes:
        """Read; waits for ever if nothing has been written."""

    def check(self, keys: list[str]) -> bool:
        """Say whether all of `keys` have been written."""

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Write `desired` if `key` holds `expected`, or nothing and that is ""; return what is."""


def pack(beat: int, record: Record) -> str:
    """Write down what a rank publishes: how often it has done so, and its record."""
    return json.dumps([beat, *record])


def unpack(value: bytes) -> tuple[int, Record]:
    """Read what `pack` wrote."""
    beat, seq, op, shape, dtype, done = json.loads(value)
    return beat, Record(seq, op, tuple(shape), dtype, done)


def pack_verdict(diagnosis: Diagnosis) -> str:
    """Write a diagnosis down."""
    return json.dumps(diagnosis)


def unpack_verdict(value: bytes) -> Diagnosis:
    """Read what `pack_verdict` wrote."""
    kind, ranks, seq = json.loads(value)
    return Diagnosis(kind, tuple(ranks), seq)


def finish(work: dist.Work, dog: "Watchdog") -> None:
    """Wait within a guard for a collective to be done, or for a verdict that it will not be."""
    while dog.verdict is None and not work.is_completed():
        time.sleep(0.001)
    if dog.verdict is None:
        work.wait()


def diagnose(records: Mapping[int, Record], alive: Collection[int]) -> Diagnosis:
    """
    Say who holds the others up, and at which collective.

    Args:
        records: The last known record of each rank.
        alive: The living ranks, at least one; the records of the others may be old.
    """
    raise NotImplementedError  # TODO(kata): who holds up whom (about 20 lines)


class Watchdog:
    """
    Watches the collectives of one group on one rank.

    As a context manager it polls in a thread. `verdict` is None while all is well.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world: int,
        *,
        timeout_s: float,
        poll_s: float,
        silence_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Watch nothing yet; writes nothing to the store.

        Args:
            store: This group's alone.
            rank: In the group.
            world: How many ranks the group has.
            timeout_s: How long a collective may take.
            poll_s: Between two polls of the thread.
            silence_s: How long after an alarm a rank without a sign of life counts as dead.
            clock: This rank's; the others' may show another time.

        Raises:
            ValueError: `world` is below 1, `rank` not from 0 to world - 1, `poll_s` not above 0,
                or `timeout_s` or `silence_s` not above `poll_s`.
        """
        raise NotImplementedError  # TODO(kata): check (about 25 lines with helpers)

    def __enter__(self) -> Self:
        """Begin to poll."""
        raise NotImplementedError  # TODO(kata): start the thread (2 lines)

    def __exit__(self, *_: object) -> None:
        """Stop polling; the thread has ended."""
        raise NotImplementedError  # TODO(kata): stop the thread, and wait for its end (2 lines)

    @contextmanager
    def guard(self, op: str, shape: Sequence[int], dtype: torch.dtype) -> Iterator[None]:
        """
        Stand around one collective. Does not touch the store.

        Raises:
            CollectiveTimeout: there is a verdict, at the beginning or at the end; or the
                collective has raised a RuntimeError, and now there is one.
        """
        raise NotImplementedError  # TODO(kata): guard a collective (about 15 lines with helpers)

    def poll(self) -> None:
        """Publish a sign of life; raise an alarm, or act on one. Does not wait."""
        # TODO(kata): publish a beat, raise the alarm, look and agree (about 30 lines with helpers)
        raise NotImplementedError
