"""
Records to rows and back.

Every function works in the transaction of the connection it is given, whose rows are `sqlite3.Row`.
"""

import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from numbers import Real

from harness.learner.progress.records import Attempt, Best, Check, Measurement, Note, Outline

_NEWEST = """
    SELECT id FROM attempts
    WHERE (:kata IS NULL OR kata = :kata) AND (:impl IS NULL OR impl = :impl)
    ORDER BY started_at DESC, id DESC LIMIT :limit"""

_NEWEST_FINISHED = """
    SELECT id FROM attempts
    WHERE status <> 'running' AND kata = :kata AND (:impl IS NULL OR impl = :impl)
    ORDER BY started_at DESC, id DESC LIMIT 1"""

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

# a check that failed at a threshold says what the measurement says: any test may hold one
_NEVER_PASSED_BUT_RIGHT = """
    SELECT id FROM attempts AS a
    WHERE impl = 'yours' AND status = 'failed'
      AND kata NOT IN (SELECT kata FROM attempts WHERE impl = 'yours' AND status = 'passed')
      AND EXISTS (SELECT 1 FROM checks WHERE attempt = a.id AND outcome = 'failed')
      AND NOT EXISTS (
        SELECT 1 FROM checks AS c WHERE attempt = a.id AND outcome = 'failed'
        AND NOT EXISTS (
          SELECT 1 FROM measurements WHERE attempt = a.id AND passed = 0
          AND instr(c.message, json_extract(detail, '$.message')) > 0))"""

# with the plus the index on time is walked in order; the one on impl would have to be sorted
_OUTLINES = """
    SELECT id, kata, started_at, finished_at, status, device, hints_seen, solution_seen
    FROM attempts WHERE +impl = 'yours' AND (:kata IS NULL OR kata = :kata)
    ORDER BY started_at, id"""

_BEST = """
    SELECT a.kata, a.profile, m.name, m.meter, max(m.value), m."limit"
    FROM measurements AS m JOIN attempts AS a ON a.id = m.attempt
    WHERE m.meter IN ('roofline', 'baseline') AND m.passed = 1
      AND a.impl = 'yours' AND a.status = 'passed' AND a.device <> 'cpu'
    GROUP BY a.kata, a.profile, m.name ORDER BY a.kata, a.profile, m.name"""

_CHECKS = """
    SELECT attempt, name, outcome, message
    FROM checks WHERE attempt IN (SELECT value FROM json_each(?)) ORDER BY attempt, position"""

_MEASUREMENTS = """
    SELECT attempt, name, meter, value, unit, "limit", relation, passed, detail
    FROM measurements WHERE attempt IN (SELECT value FROM json_each(?))
    ORDER BY attempt, position"""

_NOTES = """
    SELECT id, at, kind, kata, detail FROM notes
    WHERE :kata IS NULL OR kata = :kata ORDER BY at, id"""

_COMPLETE = """
    UPDATE attempts
    SET finished_at = :finished_at, status = :status, reason = :reason, seed = :seed,
        profile = :profile, versions = :versions, duration_s = :duration_s
    WHERE id = :id"""


def newest(
    db: sqlite3.Connection,
    *,
    kata: str | None = None,
    impl: str | None = None,
    limit: int | None = None,
) -> list[str]:
    """The ids of the newest `limit` attempts, else of all."""
    chosen = {"kata": kata, "impl": impl, "limit": -1 if limit is None else limit}
    return [key for (key,) in db.execute(_NEWEST, chosen)]


def newest_finished(db: sqlite3.Connection, *, kata: str, impl: str | None) -> list[str]:
    """The id of the newest attempt at `kata` that has finished, if one has."""
    return [key for (key,) in db.execute(_NEWEST_FINISHED, {"kata": kata, "impl": impl})]


def newest_time(db: sqlite3.Connection, *, before: str) -> str | None:
    """When the newest attempt started or the newest note was made, of those `before` a time."""
    found: str | None
    (found,) = db.execute(_NEWEST_BEFORE, {"horizon": before}).fetchone()
    return found


def running_on(db: sqlite3.Connection, host: str) -> list[tuple[str, int, str]]:
    """The running attempts of a machine: their id, process id and birth of that process."""
    query = "SELECT id, pid, process FROM attempts WHERE status = 'running' AND host = ?"
    return [(key, pid, birth) for key, pid, birth in db.execute(query, (host,))]


def seen(db: sqlite3.Connection, kata: str, kind: str) -> int:
    """How many different notes of a kind there are since the last "started" note, else ever."""
    (count,) = db.execute(_SEEN, {"kata": kata, "kind": kind}).fetchone()
    return int(count)


def load_attempts(db: sqlite3.Connection, ids: Sequence[str]) -> list[Attempt]:
    """The attempts with these ids, oldest first, in three queries however many there are."""
    wanted = (json.dumps(ids),)
    checks = _checks(db, wanted)
    measurements = _measurements(db, wanted)
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


def load_outlines(db: sqlite3.Connection, kata: str | None = None) -> list[Outline]:
    """The learner's own attempts at one kata or all, oldest first, without what was judged."""
    right = {key for (key,) in db.execute(_NEVER_PASSED_BUT_RIGHT)}
    rows = db.cursor()
    rows.row_factory = None  # plain tuples
    return [
        Outline._make((*row[:-1], bool(row[-1]), row[0] in right))
        for row in rows.execute(_OUTLINES, {"kata": kata})
    ]


def load_best(db: sqlite3.Connection) -> list[Best]:
    """The best measurement on a GPU's clock of each kata, profile and threshold."""
    return [Best(*row) for row in db.execute(_BEST)]


def load_notes(db: sqlite3.Connection, kata: str | None = None) -> list[Note]:
    """The notes about one kata or all, oldest first."""
    return [Note(**dict(row)) for row in db.execute(_NOTES, {"kata": kata})]


def insert_running(
    db: sqlite3.Connection, attempt: Attempt, *, host: str = "", pid: int = 0, process: str = ""
) -> None:
    """Insert the part of `attempt` that is known at its start; without a host it is no orphan."""
    begun = replace(attempt, status="running", finished_at=None, reason="", versions={},
                    duration_s=0.0)  # fmt: skip
    row = _columns(begun)
    del row["checks"], row["measurements"]
    _insert(db, "attempts", {**row, "host": host, "pid": pid, "process": process})


def complete(db: sqlite3.Connection, attempt: Attempt) -> None:
    """Fill in how a running attempt ended; after this its rows cannot be touched."""
    for position, check in enumerate(attempt.checks):
        _insert(db, "checks", {"attempt": attempt.id, "position": position, **_columns(check)})
    for position, found in enumerate(attempt.measurements):
        key = {"attempt": attempt.id, "position": position}
        _insert(db, "measurements", {**key, **_columns(found)})
    row = _columns(attempt)
    del row["checks"], row["measurements"]
    db.execute(_COMPLETE, row)


def insert_note(db: sqlite3.Connection, note: Note) -> None:
    """Insert `note`."""
    _insert(db, "notes", _columns(note))


def _checks(db: sqlite3.Connection, wanted: tuple[str]) -> dict[str, list[Check]]:
    """The checks of each attempt in order; equal ones are one object."""

    @cache  # most rows only repeat that the same test passed
    def check(name: str, outcome: str, message: str) -> Check:
        return Check(name=name, outcome=outcome, message=message)

    found: dict[str, list[Check]] = defaultdict(list)
    for attempt, name, outcome, message in db.execute(_CHECKS, wanted):
        found[attempt].append(check(name, outcome, message))
    return found


def _measurements(db: sqlite3.Connection, wanted: tuple[str]) -> dict[str, list[Measurement]]:
    """The measurements of each attempt in order."""
    found: dict[str, list[Measurement]] = defaultdict(list)
    query = db.execute(_MEASUREMENTS, wanted)
    for attempt, name, meter, value, unit, limit, relation, passed, detail in query:
        found[attempt].append(
            Measurement(
                name=name,
                meter=meter,
                value=math.nan if value is None else value,  # SQLite has no NaN
                unit=unit,
                limit=limit,
                relation=relation,
                passed=None if passed is None else bool(passed),
                detail={} if detail == "{}" else json.loads(detail),
            )
        )
    return found


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
