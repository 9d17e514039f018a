"""
What the learner has done: every attempt and every note, kept for good in one SQLite file.

An attempt is written when it starts and when it ends, and never again: triggers in the database
refuse it. Nothing derived is stored; mastery is worked out from these rows.
"""

import json
import math
import os
import socket
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from numbers import Real
from pathlib import Path
from typing import Any, TextIO
from uuid import uuid4

from harness.errors import HarnessError
from harness.files import from_json, make_folder, process_birth, utc_text
from harness.migrations import opened, prepare, scripts, written

STATUSES = ("running", "passed", "failed", "crashed", "timed_out", "aborted", "error")
OUTCOMES = ("passed", "failed", "skipped", "ambiguous", "not_graded")
RELATIONS = ("<=", ">=")
EXPORT_FORMAT = "gpu-katas history"

# a clock set back by less than this was corrected; by more, it had been wrong before
LARGEST_CORRECTION = timedelta(days=1)
MOST_PROBLEMS_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was judged; `message` is one line."""

    name: str
    outcome: str
    message: str = ""

    def __post_init__(self) -> None:
        _expect_one_of(OUTCOMES, outcome=self.outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A counter or a time, with the threshold it was held against, if any."""

    name: str
    meter: str
    value: float
    unit: str = ""
    limit: float | None = None
    relation: str = "<="
    passed: bool | None = None
    detail: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _expect_one_of(RELATIONS, relation=self.relation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """
    One run of one implementation of one kata.

    Attributes:
        id: Made at the start; the key under which histories merge.
        impl: "yours", "solution" or a path.
        code_hash: SHA-256 of the file that was judged.
        started_at: UTC, ISO 8601 with microseconds; so is `finished_at`, None while running.
        status: One of `STATUSES`; `reason` says it in words.
        versions: Package to version.
        hints_seen: What `Progress.hints_seen` was at the start; so with `solution_seen`.
    """

    id: str
    kata: str
    impl: str
    code_hash: str
    started_at: str
    finished_at: str | None
    status: str
    reason: str
    seed: int
    device: str
    profile: str
    versions: Mapping[str, str]
    duration_s: float
    hints_seen: int
    solution_seen: bool
    checks: tuple[Check, ...]
    measurements: tuple[Measurement, ...]

    def __post_init__(self) -> None:
        _expect_one_of(STATUSES, status=self.status)
        _expect_utc(started_at=self.started_at)
        if self.finished_at is not None:
            _expect_utc(finished_at=self.finished_at)
        if (self.status == "running") != (self.finished_at is None):
            raise ValueError("finished_at: expected a time, and none only while running")


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something besides attempts that happened at the time `at`, such as a hint shown."""

    id: str
    at: str
    kind: str
    kata: str
    detail: str = ""

    def __post_init__(self) -> None:
        _expect_utc(at=self.at)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """How many attempts an import added or completed, and how many were here already."""

    added: int
    already_there: int


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
                hints_seen=_hints_seen(db, kata),
                solution_seen=_solution_seen(db, kata),
                checks=(),
                measurements=(),
            )
            host = socket.gethostname()
            _insert_running(db, attempt, host=host, pid=pid, process=process_birth(pid))
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
            found = _load(db, [attempt_id])
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
            _complete(db, ended)
            return _load(db, [attempt_id])[0]

    def abort_orphans(self) -> int:
        """
        Close the attempts of this machine whose process is gone as aborted; return how many.

        A process is its id together with the moment it started, so that a later one which was
        given the same id keeps nothing alive.
        """
        with written(self.path) as db:
            rows = db.execute(
                "SELECT id, pid, process FROM attempts WHERE status = 'running' AND host = ?",
                (socket.gethostname(),),
            )
            gone = [key for key, pid, birth in rows if not birth or process_birth(pid) != birth]
            for attempt in _load(db, gone):
                ended = replace(
                    attempt,
                    finished_at=max(self._now(db), attempt.started_at),
                    status="aborted",
                    reason="its process ended before it could say how it went",
                )
                _complete(db, ended)
        return len(gone)

    def attempts(
        self, kata: str | None = None, *, impl: str | None = None, limit: int | None = None
    ) -> list[Attempt]:
        """The attempts at one kata or all, oldest first; the newest `limit` of them."""
        with self._read() as db:
            return _load(db, _ids(db, _NEWEST, kata=kata, impl=impl, limit=limit))

    def latest(self, kata: str, *, impl: str | None = None) -> Attempt | None:
        """The newest attempt at a kata that has finished."""
        with self._read() as db:
            found = _load(db, _ids(db, _NEWEST_FINISHED, kata=kata, impl=impl))
        return found[0] if found else None

    def latest_by_kata(self, *, impl: str | None = None) -> dict[str, Attempt]:
        """The newest finished attempt at each kata that was ever tried."""
        with self._read() as db:
            found = _load(db, _ids(db, _NEWEST_FINISHED, kata=None, impl=impl))
        return {attempt.kata: attempt for attempt in found}

    def note(self, kind: str, kata: str, detail: str = "") -> None:
        """
        Record something besides an attempt.

        Kinds that mean something here: "hint_shown" (`detail` says which), "solution_seen", and
        "started", from which on hints and solution count as not seen yet. Others are just kept.
        """
        with written(self.path) as db:
            at = self._now(db)
            note = Note(id=uuid4().hex, at=at, kind=kind, kata=kata, detail=detail)
            _insert(db, "notes", _columns(note))

    def notes(self, kata: str | None = None) -> list[Note]:
        """The notes about one kata or all, oldest first."""
        with self._read() as db:
            return _load_notes(db, kata)

    def hints_seen(self, kata: str) -> int:
        """How many different hints were shown since the last "started" note, else ever."""
        with self._read() as db:
            return _hints_seen(db, kata)

    def solution_seen(self, kata: str) -> bool:
        """Whether the solution was shown since the last "started" note, else ever."""
        with self._read() as db:
            return _solution_seen(db, kata)

    def export(self, stream: TextIO) -> int:
        """Write every attempt and note as JSON lines; return the number of attempts."""
        with self._read() as db:
            attempts = _load(db, _ids(db, _NEWEST))
            records: list[Attempt | Note] = [*attempts, *_load_notes(db)]
        header = {"format": EXPORT_FORMAT, "schema": self.schema}
        lines = [header, *(_exported(record) for record in records)]
        stream.writelines(json.dumps(line) + "\n" for line in lines)
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
        name = str(getattr(stream, "name", "import"))
        problems: list[str] = []
        records = list(_parsed(stream, name, self.schema, problems))
        with written(self.path) as db:
            result = _merge(db, records, problems)
            if problems:
                raise HarnessError(_listed(name, problems))
        return result

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
        horizon = utc_text(moment + LARGEST_CORRECTION)
        (newest,) = db.execute(_NEWEST_BEFORE, {"horizon": horizon}).fetchone()
        if newest is None or newest < now:
            return now
        return utc_text(datetime.fromisoformat(newest) + timedelta(microseconds=1))


_NEWEST = """
    SELECT id FROM attempts
    WHERE (:kata IS NULL OR kata = :kata) AND (:impl IS NULL OR impl = :impl)
    ORDER BY started_at DESC, id DESC LIMIT :limit"""

_NEWEST_FINISHED = """
    SELECT id FROM (
        SELECT id, row_number() OVER (PARTITION BY kata ORDER BY started_at DESC, id DESC) AS place
        FROM attempts
        WHERE status <> 'running'
          AND (:kata IS NULL OR kata = :kata) AND (:impl IS NULL OR impl = :impl))
    WHERE place = 1"""

_NEWEST_BEFORE = """
    SELECT max(at) FROM (
        SELECT max(started_at) AS at FROM attempts WHERE started_at < :horizon
        UNION ALL SELECT max(at) FROM notes WHERE at < :horizon)"""

_SEEN = """
    SELECT count(DISTINCT detail) FROM notes
    WHERE kata = :kata AND kind = :kind AND at > coalesce(
        (SELECT max(at) FROM notes WHERE kata = :kata AND kind = 'started'), '')"""

_ATTEMPTS = """
    SELECT id, kata, impl, code_hash, started_at, finished_at, status, reason, seed, device,
           profile, versions, duration_s, hints_seen, solution_seen
    FROM attempts WHERE id IN (SELECT value FROM json_each(?)) ORDER BY started_at, id"""

_CHECKS = """
    SELECT attempt, name, outcome, message
    FROM checks WHERE attempt IN (SELECT value FROM json_each(?)) ORDER BY attempt, position"""

_MEASUREMENTS = """
    SELECT attempt, name, meter, value, unit, "limit", relation, passed, detail
    FROM measurements WHERE attempt IN (SELECT value FROM json_each(?))
    ORDER BY attempt, position"""

_COMPLETE = """
    UPDATE attempts
    SET finished_at = :finished_at, status = :status, reason = :reason, seed = :seed,
        profile = :profile, versions = :versions, duration_s = :duration_s
    WHERE id = :id"""


def _ids(
    db: sqlite3.Connection,
    query: str,
    *,
    kata: str | None = None,
    impl: str | None = None,
    limit: int | None = None,
) -> list[str]:
    chosen = {"kata": kata, "impl": impl, "limit": -1 if limit is None else limit}
    return [key for (key,) in db.execute(query, chosen)]


def _load(db: sqlite3.Connection, ids: Sequence[str]) -> list[Attempt]:
    """The attempts with these ids, oldest first, in three queries however many there are."""
    wanted = (json.dumps(ids),)
    checks: dict[str, list[Check]] = defaultdict(list)
    for attempt, name, outcome, message in db.execute(_CHECKS, wanted):
        checks[attempt].append(Check(name=name, outcome=outcome, message=message))
    measurements: dict[str, list[Measurement]] = defaultdict(list)
    for row in db.execute(_MEASUREMENTS, wanted):
        kept = dict(row)
        measurements[kept.pop("attempt")].append(_measurement(kept))
    return [
        Attempt(
            **{
                **dict(row),
                "versions": json.loads(row["versions"]),
                "solution_seen": bool(row["solution_seen"]),
                "checks": tuple(checks[row["id"]]),
                "measurements": tuple(measurements[row["id"]]),
            }
        )
        for row in db.execute(_ATTEMPTS, wanted)
    ]


def _measurement(kept: dict[str, Any]) -> Measurement:
    kept["value"] = math.nan if kept["value"] is None else kept["value"]  # SQLite has no NaN
    kept["passed"] = None if kept["passed"] is None else bool(kept["passed"])
    kept["detail"] = json.loads(kept["detail"])
    return Measurement(**kept)


def _load_notes(db: sqlite3.Connection, kata: str | None = None) -> list[Note]:
    query = """
        SELECT id, at, kind, kata, detail FROM notes
        WHERE :kata IS NULL OR kata = :kata ORDER BY at, id"""
    return [Note(**dict(row)) for row in db.execute(query, {"kata": kata})]


def _hints_seen(db: sqlite3.Connection, kata: str) -> int:
    (count,) = db.execute(_SEEN, {"kata": kata, "kind": "hint_shown"}).fetchone()
    return int(count)


def _solution_seen(db: sqlite3.Connection, kata: str) -> bool:
    (count,) = db.execute(_SEEN, {"kata": kata, "kind": "solution_seen"}).fetchone()
    return bool(count)


def _insert_running(
    db: sqlite3.Connection, attempt: Attempt, *, host: str = "", pid: int = 0, process: str = ""
) -> None:
    """Insert the part of `attempt` that is known at its start; without a host it is no orphan."""
    begun = replace(attempt, status="running", finished_at=None, reason="", versions={},
                    duration_s=0.0)  # fmt: skip
    row = _columns(begun)
    del row["checks"], row["measurements"]
    _insert(db, "attempts", {**row, "host": host, "pid": pid, "process": process})


def _complete(db: sqlite3.Connection, attempt: Attempt) -> None:
    """Fill in how a running attempt ended; after this its rows cannot be touched."""
    for position, check in enumerate(attempt.checks):
        _insert(db, "checks", {"attempt": attempt.id, "position": position, **_columns(check)})
    for position, found in enumerate(attempt.measurements):
        key = {"attempt": attempt.id, "position": position}
        _insert(db, "measurements", {**key, **_columns(found)})
    row = _columns(attempt)
    del row["checks"], row["measurements"]
    db.execute(_COMPLETE, row)


def _insert(db: sqlite3.Connection, table: str, row: Mapping[str, object]) -> None:
    names = ", ".join(f'"{name}"' for name in row)
    marks = ", ".join("?" * len(row))
    query = f"INSERT INTO {table} ({names}) VALUES ({marks})"  # noqa: S608 -- no name is a user's
    db.execute(query, tuple(row.values()))


def _columns(record: Check | Measurement | Attempt | Note) -> dict[str, object]:
    """The fields of `record` as SQLite takes them."""
    return {each.name: _stored(getattr(record, each.name)) for each in fields(record)}


def _stored(value: object) -> object:
    if isinstance(value, str):
        # output that was not UTF-8 comes with surrogates, which cannot be stored
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        return json.dumps(dict(value))
    if isinstance(value, Real) and not isinstance(value, int):
        return float(value)  # a NumPy scalar would silently become its bytes
    return value


def _exported(record: Attempt | Note) -> dict[str, object]:
    return {type(record).__name__.lower(): asdict(record)}


def _parsed(
    stream: TextIO, name: str, schema: int, problems: list[str]
) -> Iterator[tuple[int, Attempt | Note]]:
    """The records of an export with their line numbers; what is wrong goes to `problems`."""
    try:
        lines = [(number, line) for number, line in enumerate(stream, start=1) if line.strip()]
    except UnicodeDecodeError as error:
        raise HarnessError(f"{name}: expected UTF-8, found {error}. Export it again.") from error
    _check_header(name, lines[0][1] if lines else "", schema)
    kinds = {"attempt": Attempt, "note": Note}
    for number, line in lines[1:]:
        try:
            ((kind, value),) = json.loads(line).items()
            yield number, from_json(kinds[kind], value)
        except (ValueError, KeyError, AttributeError) as error:
            problems.append(f"line {number}: expected an attempt or a note, found {error}")


def _check_header(name: str, line: str, newest: int) -> None:
    try:
        header = json.loads(line)
        schema = header["schema"] if header["format"] == EXPORT_FORMAT else None
    except (ValueError, KeyError, TypeError):
        schema = None
    if type(schema) is not int:
        raise HarnessError(
            f"{name}: expected a first line with the format {EXPORT_FORMAT!r} and its schema, "
            f"found {line.strip()[:60]!r}. Import what `kata export` wrote, whole."
        )
    if schema > newest:
        raise HarnessError(
            f"{name}: expected schema {newest} or older, found {schema}, written by a newer "
            "release. Update this project, then import it again."
        )


def _merge(
    db: sqlite3.Connection, records: Sequence[tuple[int, Attempt | Note]], problems: list[str]
) -> ImportResult:
    """Add what is not there yet; what contradicts the rows that are goes to `problems`."""
    kept: dict[str, Attempt | Note] = {note.id: note for note in _load_notes(db)}
    ids = [record.id for _, record in records if isinstance(record, Attempt)]
    kept.update((attempt.id, attempt) for attempt in _load(db, ids))
    added = 0
    for number, record in records:
        try:
            if _add(db, record, kept.get(record.id)):
                kept[record.id] = record
                added += isinstance(record, Attempt)
        except (ValueError, OverflowError) as error:
            problems.append(f"line {number}: {record.id}: {error}")
    return ImportResult(added=added, already_there=len(ids) - added)


def _add(db: sqlite3.Connection, record: Attempt | Note, kept: Attempt | Note | None) -> bool:
    """Insert or complete one imported record; return whether that changed anything."""
    running = isinstance(record, Attempt) and record.status == "running"
    begun = isinstance(kept, Attempt) and kept.status == "running"
    if kept is not None and (running or not begun):
        if not running and _canonical(kept) != _canonical(record):
            raise ValueError("expected what is kept under this id, found something else")
        return False
    if isinstance(record, Note):
        _insert(db, "notes", _columns(record))
        return True
    if not begun:
        _insert_running(db, record)
    if not running:
        _complete(db, record)
    return True


def _canonical(record: Attempt | Note) -> str:
    return json.dumps(_exported(record), sort_keys=True)  # text, since NaN equals nothing


def _listed(name: str, problems: Sequence[str]) -> str:
    shown = [f"  {problem}" for problem in problems[:MOST_PROBLEMS_SHOWN]]
    if len(problems) > len(shown):
        shown.append(f"  … and {len(problems) - len(shown)} more")
    return "\n".join(
        [f"{name}: {len(problems)} problem(s), nothing was imported. Mend or drop these lines:"]
        + shown
    )


def _expect_one_of(known: Sequence[str], **given: str) -> None:
    for name, value in given.items():
        if value not in known:
            raise ValueError(f"{name}: expected one of {', '.join(known)}, found {value!r}")


def _expect_utc(**given: str) -> None:
    for name, value in given.items():
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None or utc_text(moment) != value:
            raise ValueError(
                f"{name}: expected UTC as in 2026-01-31T12:00:00.000000+00:00, found {value}"
            )
