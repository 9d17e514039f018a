"""Histories as JSON lines: written whole, and merged into another whole or not at all."""

import json
import math
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from harness.base.errors import HarnessError
from harness.base.files import from_json
from harness.learner.progress.migrations import written
from harness.learner.progress.records import Attempt, ImportResult, Note
from harness.learner.progress.rows import (
    complete,
    insert_note,
    insert_running,
    load_attempts,
    load_notes,
)

EXPORT_FORMAT = "gpu-katas history"
MOST_PROBLEMS_SHOWN = 20
MOST_NESTED = 20  # objects and lists around a value; an attempt's own have four
# a meter may find that there is no number
MEASURED = re.compile(r"attempt\.measurements\.\d+\.(value|limit)")


def write_history(
    stream: TextIO, records: Iterable[Attempt | Note], *, schema: int, learner: str = ""
) -> None:
    """Write a header with the version `schema` and who it is of, then a line for each record."""
    header = {
        "format": EXPORT_FORMAT,
        "schema": schema,
        **({"learner": learner} if learner else {}),
    }
    lines = [header, *(_exported(record) for record in records)]
    stream.writelines(json.dumps(line) + "\n" for line in lines)


def learner_of(stream: TextIO) -> str:
    """Whose history an export says it is; "" where it does not say."""
    try:
        name = json.loads(stream.readline())["learner"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return name.strip() if isinstance(name, str) else ""


def merge_history(path: Path, stream: TextIO, *, schema: int) -> ImportResult:
    """
    Merge what `write_history` wrote into the database at `path`, in one transaction.

    Raises:
        HarnessError: It was written at a newer version than `schema`, or lines are wrong or
            contradict what is kept; all of them are listed and nothing is written.
    """
    name = str(getattr(stream, "name", "import"))
    problems: list[str] = []
    records = list(_parsed(stream, name, schema, problems))
    with written(path) as db:
        result = _merge(db, records, problems)
        if problems:
            raise HarnessError(_listed(name, problems))
    return result


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
            ((kind, value),) = _decoded(line).items()
            yield number, from_json(kinds[kind], value)
        except (ValueError, KeyError, AttributeError) as error:
            problems.append(f"line {number}: expected an attempt or a note, found {error}")


def _decoded(line: str) -> Any:  # noqa: ANN401 -- whatever JSON says
    """
    What a line of JSON says.

    Raises:
        ValueError: It is no JSON, or holds what no history does and no database keeps: text with
            NUL, a number that is none (except as what was measured), values nested too deep.
    """
    try:
        value = json.loads(line)
    except RecursionError:
        raise ValueError(f"values nested more than {MOST_NESTED} deep") from None
    _refuse_unfit(value, ())
    return value


def _refuse_unfit(value: object, place: tuple[str, ...]) -> None:
    where = ".".join(place)
    if len(place) > MOST_NESTED:
        raise ValueError(f"values nested more than {MOST_NESTED} deep")
    if isinstance(value, str) and "\0" in value:
        raise ValueError(f"{where}: text with NUL")
    if isinstance(value, float) and not math.isfinite(value) and not MEASURED.fullmatch(where):
        raise ValueError(f"{where}: {value}, which is no number")
    if isinstance(value, dict):
        for key, member in value.items():
            _refuse_unfit(key, place)
            _refuse_unfit(member, (*place, key))
    if isinstance(value, list):
        for at, item in enumerate(value):
            _refuse_unfit(item, (*place, str(at)))


def _check_header(name: str, line: str, newest: int) -> None:
    try:
        header = json.loads(line)
        schema = header["schema"] if header["format"] == EXPORT_FORMAT else None
    except (ValueError, KeyError, TypeError, RecursionError):
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
    kept: dict[str, Attempt | Note] = {note.id: note for note in load_notes(db)}
    ids = [record.id for _, record in records if isinstance(record, Attempt)]
    kept.update((attempt.id, attempt) for attempt in load_attempts(db, ids))
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
        insert_note(db, record)
        return True
    if not begun:
        insert_running(db, record)
    if not running:
        complete(db, record)
    return True


def _canonical(record: Attempt | Note) -> str:
    return json.dumps(_exported(record), sort_keys=True)  # text, since NaN equals nothing


def _listed(name: str, problems: Sequence[str]) -> str:
    shown = [f"  {problem}" for problem in problems[:MOST_PROBLEMS_SHOWN]]
    if len(problems) > len(shown):
        shown.append(f"  … and {len(problems) - len(shown)} more")
    return "\n".join(
        [f"{name}: {len(problems)} problem(s), nothing was imported. Fix or delete these lines:"]
        + shown
    )
