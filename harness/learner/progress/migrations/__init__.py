"""The progress database: how it is opened, and its schema as numbered steps.

A step is never edited once released.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from harness.base.errors import DiskFull, HarnessError
from harness.base.files import on_local_disk

BUSY_TIMEOUT_S = 20.0

_DAMAGED = (
    "a history",
    "a damaged file",
    "It was left as it is. Move it aside to start afresh and `kata import` your last export; "
    "`sqlite3 FILE .recover` may save the rest.",
)
_UNWRITABLE = (
    "a file that can be written",
    "none",
    "Make it and its folder writable, or set KATA_HOME to a folder that is.",
)
_CAUSES = {
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_READONLY: _UNWRITABLE,
    sqlite3.SQLITE_CANTOPEN: _UNWRITABLE,
    sqlite3.SQLITE_PERM: _UNWRITABLE,
    sqlite3.SQLITE_FULL: (
        "room to write",
        "a full disk",
        "What was kept before is intact: free some space and try again.",
    ),
    sqlite3.SQLITE_IOERR: (
        "a disk that works",
        "an error reading or writing",
        "What was kept before is intact: check the disk and its free space, then try again.",
    ),
    sqlite3.SQLITE_BUSY: (
        f"its lock within {BUSY_TIMEOUT_S:.0f} s",
        "another process holding it",
        "End that process, then try again.",
    ),
}
# a write that comes to nothing is told as the one or the other, by the file system
_NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def scripts() -> list[str]:
    """Every step in order; the n-th leads to version n of the schema."""
    files = [file for file in Path(__file__).parent.iterdir() if file.suffix == ".sql"]
    return [file.read_text(encoding="utf-8") for file in sorted(files, key=lambda file: file.name)]


def prepare(path: Path, steps: Sequence[str]) -> None:
    """
    Create the database at `path` or bring it up to version ``len(steps)``.

    Raises:
        HarnessError: It is newer than that or of another kind, or cannot be read or written.
    """
    with opened(path, mode="rwc") as db:
        version = version_of(db)
        if version > len(steps):
            raise HarnessError(
                f"{path}: expected version {len(steps)} or older, found version {version}, "
                "written by a newer release. Update this project; the file was left as it is."
            )
        _refuse_foreign(db, path)
        _choose_journal(db, path.parent)
        migrate(db, steps)


@contextmanager
def opened(path: Path, mode: str = "rw") -> Iterator[sqlite3.Connection]:
    """
    A connection to the database at `path` for the length of the block.

    It is in autocommit mode: begin transactions by hand. What SQLite cannot do for a reason the
    user can mend becomes a HarnessError; a vanished file is one of them, unless `mode` is "rwc".
    """
    try:
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode={mode}", uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None
        )
        with closing(connection) as db:
            db.row_factory = sqlite3.Row
            yield db
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # extended codes keep the cause here
        if code not in _CAUSES:
            raise
        expected, found, way_out = _CAUSES[code]
        kind = DiskFull if code in _NO_ROOM else HarnessError
        raise kind(f"{path}: expected {expected}, found {found} ({error}). {way_out}") from error


@contextmanager
def written(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection inside one write transaction: all of the block is kept, or nothing of it."""
    with opened(path) as db, db:
        # a plain BEGIN takes the lock only when it writes, too late to wait for another writer
        db.execute("BEGIN IMMEDIATE")
        yield db


def version_of(db: sqlite3.Connection) -> int:
    """The version of the schema that a database is at; 0 for a new one."""
    found: int = db.execute("PRAGMA user_version").fetchone()[0]
    return found


def migrate(db: sqlite3.Connection, steps: Sequence[str]) -> None:
    """
    Bring `db`, a connection in autocommit mode, up to version ``len(steps)``.

    Each step is one transaction together with its version number: a process killed in the middle
    leaves the version before it. Of several processes that migrate at once, one does the work.
    """
    while (version := version_of(db)) < len(steps):
        with db:
            db.execute("BEGIN IMMEDIATE")
            if version_of(db) == version:
                for statement in _statements(steps[version]):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {version + 1}")


def _refuse_foreign(db: sqlite3.Connection, path: Path) -> None:
    """A new database has no tables, and a history has one of attempts."""
    names = "SELECT name FROM sqlite_master WHERE type = 'table'"
    with db:
        db.execute("BEGIN")  # another process may be making it: both are read of one moment
        version = version_of(db)
        tables = [name for (name,) in db.execute(names)]
    if ("attempts" in tables) != (version > 0) or (tables and not version):
        shown = f"one with the tables {', '.join(tables[:5])}" if tables else "one without tables"
        raise HarnessError(
            f"{path}: expected a history, found a database of another kind: {shown}. It was left "
            "as it is: move it aside, or set KATA_HOME to another folder."
        )


def _choose_journal(db: sqlite3.Connection, folder: Path) -> None:
    """Let readers go on during a write where that is safe: WAL shares memory between processes."""
    wanted = "wal" if on_local_disk(folder) else "delete"
    (found,) = db.execute("PRAGMA journal_mode").fetchone()
    if wanted == "wal" != found:
        # refused while somebody else has it open, or for good: the other mode is as safe
        with suppress(sqlite3.OperationalError):
            db.execute("PRAGMA journal_mode = wal")
    elif wanted != found:
        db.execute("PRAGMA journal_mode = delete")


def _statements(script: str) -> Iterator[str]:
    """The statements of `script`; a trigger's body is part of its statement."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        yield statement
