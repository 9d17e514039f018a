"""Kata week25/collective_watchdog: why does a collective not come back, and who is to blame?

Each rank notes what it is in, which costs it nothing. A thread beside it publishes the note now
and then, and when a rank has waited for too long all of them read the notes and agree on one
verdict, over a store, since collectives are what has failed.
"""

import json
import math
import threading
import time
from collections import Counter
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
    at = {rank: record.seq + record.done for rank, record in records.items()}
    held = min(at[rank] for rank in alive)
    dead = [rank for rank in records if rank not in alive and at[rank] <= held]
    waiting = {
        rank: record[1:4]
        for rank, record in records.items()
        if rank in alive and record.seq == held and not record.done
    }
    behind = [rank for rank in alive if at[rank] == held and rank not in waiting]
    kind, ranks = "stuck", [*waiting]
    if dead:
        kind, ranks = "dead", dead
    elif len(set(waiting.values())) > 1:
        (usual, most), (_, second) = Counter(waiting.values()).most_common(2)
        odd = [rank for rank, signature in waiting.items() if signature != usual]
        kind, ranks = "mismatch", odd if most > second else ranks
    elif len(behind) < len(alive):
        kind, ranks = ("missing", behind) if behind else (kind, ranks)
    return Diagnosis(kind, tuple(sorted(ranks)), held)


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
        # check
        if world < 1:
            raise ValueError(f"world: expected at least 1, found {world}")
        if not 0 <= rank < world:
            raise ValueError(f"rank: expected 0 to {world - 1}, found {rank}")
        if not poll_s > 0:
            raise ValueError(f"poll_s: expected more than 0, found {poll_s}")
        for name, value in (("timeout_s", timeout_s), ("silence_s", silence_s)):
            if not value > poll_s:
                raise ValueError(f"{name}: expected more than poll_s = {poll_s}, found {value}")
        self.verdict: Diagnosis | None = None
        self._store, self._rank, self._world = store, rank, world
        self._timeout_s, self._poll_s, self._silence_s = timeout_s, poll_s, silence_s
        self._clock = clock
        # record and deadline, replaced together: the thread sees both or neither
        self._current: tuple[Record, float] = NOTHING, math.inf
        self._beat = 0
        self._alarmed = False
        self._looked_at: float | None = None
        self._first_beats: dict[int, int] = {}
        self._known = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        """Begin to poll."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop polling; the thread has ended."""
        self._closing.set()
        self._thread.join()

    @contextmanager
    def guard(self, op: str, shape: Sequence[int], dtype: torch.dtype) -> Iterator[None]:
        """
        Stand around one collective. Does not touch the store.

        Raises:
            CollectiveTimeout: there is a verdict, at the beginning or at the end; or the
                collective has raised a RuntimeError, and now there is one.
        """
        # guard a collective
        self._raise_verdict()
        record = Record(self._current[0].seq + 1, op, tuple(shape), str(dtype), done=False)
        self._current = record, self._clock() + self._timeout_s
        try:
            yield
        except RuntimeError as error:
            self._current = record, -math.inf
            self._known.wait()
            raise CollectiveTimeout(self.verdict) from error
        except BaseException:
            self._current = record, math.inf  # given up, which is no reason for an alarm
            raise
        self._raise_verdict()
        self._current = record._replace(done=True), math.inf

    def poll(self) -> None:
        """Publish a sign of life; raise an alarm, or act on one. Does not wait."""
        # publish a beat
        if self.verdict is not None:
            return
        record, deadline = self._current
        self._beat += 1
        self._store.set(str(self._rank), pack(self._beat, record))
        # raise the alarm
        if not self._alarmed:
            if self._clock() >= deadline:
                self._store.set("alarm", "1")
            elif not self._store.check(["alarm"]):
                return
            self._alarmed = True
        # look and agree
        if self._store.check(["verdict"]):
            self._conclude(self._store.get("verdict"))
        else:
            self._look(record)

    def _look(self, own: Record) -> None:
        """Read what the others have published; conclude once nobody more can be expected."""
        # look and agree
        now = self._clock()
        if self._looked_at is None:
            self._looked_at = now
        records, alive = {self._rank: own}, {self._rank}
        for rank in set(range(self._world)) - {self._rank}:
            published = self._store.check([str(rank)])
            beat, records[rank] = unpack(self._store.get(str(rank))) if published else (0, NOTHING)
            # clocks of others say nothing here: what counts is that it goes on
            if beat > self._first_beats.setdefault(rank, beat):
                alive.add(rank)
        if len(alive) == self._world or now - self._looked_at >= self._silence_s:
            verdict = pack_verdict(diagnose(records, alive))
            self._conclude(self._store.compare_set("verdict", "", verdict))

    def _conclude(self, verdict: bytes) -> None:
        self.verdict = unpack_verdict(verdict)
        self._known.set()

    def _raise_verdict(self) -> None:
        if self.verdict is not None:
            raise CollectiveTimeout(self.verdict)

    def _run(self) -> None:
        while not self._closing.wait(self._poll_s):
            self.poll()
