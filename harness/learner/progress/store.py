"""The history as one object: `Progress`."""

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TextIO
from uuid import uuid4

from harness.base.errors import HarnessError
from harness.base.files import make_folder, process_birth, utc_text
from harness.learner.progress import rows
from harness.learner.progress.exchange import merge_history, write_history
from harness.learner.progress.migrations import opened, prepare, scripts, written
from harness.learner.progress.records import (
    Attempt,
    Best,
    Check,
    ImportResult,
    Measurement,
    Note,
    Outline,
)

# a clock set back by less than this was corrected; by more, it had been wrong before
LARGEST_CORRECTION = timedelta(days=1)


class Progress:
    """
    The history in ``home/progress.db``.

    Each call opens a connection of its own, so an instance may be shared by threads and survives
    a fork. Times are the clock's, except that a small step back of the clock (less than
    `LARGEST_CORRECTION`) never makes a later row look earlier.

    Args:
        home: The folder to keep it in; created when missing.
        clock: Returns the time now, with its zone.

    Raises:
        HarnessError: From any method: the file is damaged, unwritable or of a newer version, the
            disk is full, or another process does not let go of it. Nothing is ever deleted.
    """

    def __init__(
        self, home: Path, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        steps = scripts()
        self.path = make_folder(home).resolve() / "progress.db"
        self.schema = len(steps)
        self._clock = clock
        prepare(self.path, steps)

    def start(
        self,
        kata: str,
        impl: str,
        code_hash: str,
        *,
        seed: int,
        device: str,
        profile: str,
        pid: int | None = None,
    ) -> str:
        """Record that an attempt begins, run by process `pid` (default: this one); its id."""
        pid = os.getpid() if pid is None else pid
        with written(self.path) as db:
            attempt = Attempt(
                id=uuid4().hex,
                kata=kata,
                impl=impl,
                code_hash=code_hash,
                started_at=self._now(db),
                finished_at=None,
                status="running",
                reason="",
                seed=seed,
                device=device,
                profile=profile,
                versions={},
                duration_s=0.0,
                hints_seen=rows.seen(db, kata, "hint_shown"),
                solution_seen=bool(rows.seen(db, kata, "solution_seen")),
                checks=(),
                measurements=(),
            )
            host = os.uname().nodename
            rows.insert_running(db, attempt, host=host, pid=pid, process=process_birth(pid))
        return attempt.id

    def finish(
        self,
        attempt_id: str,
        status: str,
        reason: str,
        *,
        checks: Iterable[Check],
        measurements: Iterable[Measurement],
        versions: Mapping[str, str],
        duration_s: float,
        seed: int | None = None,
        profile: str | None = None,
    ) -> Attempt:
        """
        Record how a running attempt ended, once and for all; return it as it was kept.

        `seed` and `profile` replace those of the start where the run itself chose them.

        Raises:
            HarnessError: There is no such attempt, or it has finished.
        """
        with written(self.path) as db:
            found = rows.load_attempts(db, [attempt_id])
            if not found or found[0].status != "running":
                state = f"one that is {found[0].status}" if found else "none"
                raise HarnessError(
                    f"attempt {attempt_id}: expected one that is running, found {state}. "
                    "What is finished stays as it is: run the kata again."
                )
            ended = replace(
                found[0],
                finished_at=max(self._now(db), found[0].started_at),
                status=status,
                reason=reason,
                checks=tuple(checks),
                measurements=tuple(measurements),
                versions=versions,
                duration_s=duration_s,
                seed=found[0].seed if seed is None else seed,
                profile=found[0].profile if profile is None else profile,
            )
            rows.complete(db, ended)
            return rows.load_attempts(db, [attempt_id])[0]

    def abort_orphans(self) -> int:
        """
        Close the attempts of this machine whose process is gone as aborted; return how many.

        A process is its id together with the moment it started, so that a later one which was
        given the same id keeps nothing alive.
        """
        with written(self.path) as db:
            gone = [
                key
                for key, pid, birth in rows.running_on(db, os.uname().nodename)
                if not birth or process_birth(pid) != birth
            ]
            for attempt in rows.load_attempts(db, gone):
                ended = replace(
                    attempt,
                    finished_at=max(self._now(db), attempt.started_at),
                    status="aborted",
                    reason="its process ended without a result",
                )
                rows.complete(db, ended)
        return len(gone)

    def attempts(
        self, kata: str | None = None, *, impl: str | None = None, limit: int | None = None
    ) -> list[Attempt]:
        """The attempts at one kata or all, oldest first; the newest `limit` of them."""
        with self._read() as db:
            return rows.load_attempts(db, rows.newest(db, kata=kata, impl=impl, limit=limit))

    def outlines(self, kata: str | None = None) -> list[Outline]:
        """The learner's own attempts at one kata or all, oldest first, without what was judged."""
        with self._read() as db:
            return rows.load_outlines(db, kata)

    def best(self) -> list[Best]:
        """The best that each kata was timed at, by profile and threshold."""
        with self._read() as db:
            return rows.load_best(db)

    def by_id(self, ids: Iterable[str]) -> dict[str, Attempt]:
        """Whole attempts by their ids; ids that are not here are left out."""
        with self._read() as db:
            return {attempt.id: attempt for attempt in rows.load_attempts(db, list(ids))}

    def latest(self, kata: str, *, impl: str | None = None) -> Attempt | None:
        """The newest attempt at a kata that has finished."""
        with self._read() as db:
            found = rows.load_attempts(db, rows.newest_finished(db, kata=kata, impl=impl))
        return found[0] if found else None

    def note(self, kind: str, kata: str, detail: str = "") -> None:
        """
        Record something besides an attempt.

        Kinds that mean something here: "hint_shown" (`detail` says which), "solution_seen", and
        "started", from which on hints and solution count as not seen yet. Others are just kept.
        """
        with written(self.path) as db:
            at = self._now(db)
            note = Note(id=uuid4().hex, at=at, kind=kind, kata=kata, detail=detail)
            rows.insert_note(db, note)

    def notes(self, kata: str | None = None) -> list[Note]:
        """The notes about one kata or all, oldest first."""
        with self._read() as db:
            return rows.load_notes(db, kata)

    def hints_seen(self, kata: str) -> int:
        """How many different hints were shown since the last "started" note, else ever."""
        with self._read() as db:
            return rows.seen(db, kata, "hint_shown")

    def solution_seen(self, kata: str) -> bool:
        """Whether the solution was shown since the last "started" note, else ever."""
        with self._read() as db:
            return bool(rows.seen(db, kata, "solution_seen"))

    def export(self, stream: TextIO, *, learner: str = "") -> int:
        """Write every attempt and note as JSON lines, and whose; return the number of attempts."""
        with self._read() as db:
            attempts = rows.load_attempts(db, rows.newest(db))
            notes = rows.load_notes(db)
        write_history(stream, [*attempts, *notes], schema=self.schema, learner=learner)
        return len(attempts)

    def import_(self, stream: TextIO) -> ImportResult:
        """
        Merge what `export` wrote, here or elsewhere, into this history.

        The order of imports does not matter and a second one changes nothing. An attempt that was
        running when it was exported is completed by a later export.

        Raises:
            HarnessError: The schema is newer, or lines are wrong or contradict what is kept; all
                of them are listed and nothing is written.
        """
        return merge_history(self.path, stream, schema=self.schema)

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        """A connection inside one read transaction: its queries see one and the same moment."""
        with opened(self.path) as db:
            db.execute("BEGIN")
            yield db

    def _now(self, db: sqlite3.Connection) -> str:
        """The time, after that of every row unless the clock was set back by a lot."""
        moment = self._clock()
        now = utc_text(moment)
        newest = rows.newest_time(db, before=utc_text(moment + LARGEST_CORRECTION))
        if newest is None or newest < now:
            return now
        return utc_text(datetime.fromisoformat(newest) + timedelta(microseconds=1))
