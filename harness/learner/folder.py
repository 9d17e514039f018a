"""
A learner's own folder: placed out of what is shipped, and brought up to date losing no line.

A file has three sides: what was placed last, whose hash is kept; what the release ships now; and
what is there. Only a file that is as it was placed is replaced or removed. Where both sides have
changed, what is there stays and the new one is put beside it.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path

from harness.base.errors import UsageProblem
from harness.base.files import (
    explained,
    hash_of,
    make_folder,
    read_file,
    read_json,
    write_atomically,
)
from harness.content.course import PLACED, is_placed, shipped

OUTSIDE = Path(__file__).with_name("outside")  # what such a folder has and a clone has not
BESIDE = ".new"  # ending of what was put beside a file that both sides have changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """
    What was put into a folder, and by which release.

    Attributes:
        version: The release that placed it.
        files: Path inside the folder to the SHA-256 of what was placed there.
        beside: The same of what was put beside a file.
    """

    version: str
    files: Mapping[str, str]
    beside: Mapping[str, str]


@dataclass(slots=True, kw_only=True)
class Update:
    """
    What was done to a folder: paths inside it, each in one list at most.

    Attributes:
        before: The release that had placed it; "" for a new folder.
        after: The release that is placed now.
        added: New.
        restored: Were missing, and are put back.
        replaced: Were as placed, and have changed in the release.
        removed: Were as placed, and are no longer shipped.
        kept: Edited, and unchanged in the release.
        dropped: Edited, and no longer shipped: kept.
        both: Edited, and changed in the release as well: kept; to where the release's one is.
    """

    before: str
    after: str
    added: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    both: dict[str, str] = field(default_factory=dict)


def shipped_files() -> dict[str, Path]:
    """What this release puts into a learner's folder: path inside it to where it is shipped."""
    course = shipped()
    found = [*(course / "katas").rglob("*"), *(course / "hardware_profiles").glob("*.toml")]
    files = {
        path.relative_to(course).as_posix(): path
        for path in found
        if path.is_file() and "__pycache__" not in path.parts
    }
    return {
        **files,
        "README.md": OUTSIDE / "README.md",
        "Makefile": OUTSIDE / "Makefile",
        ".gitignore": OUTSIDE / "gitignore",
    }


def create(folder: Path, files: Mapping[str, Path], version: str) -> Update:
    """
    Make `folder` a learner's own; what is in it already stays.

    Raises:
        UsageProblem: it is one already, lies inside one, or is a clone.
        HarnessError: something cannot be read or written.
    """
    if is_placed(folder):
        raise UsageProblem(
            f"{folder}: expected a folder without katas, found one made by `kata init`. "
            "To bring it up to date: kata update"
        )
    around = next(filter(is_placed, folder.parents), None)
    if around is not None:
        raise UsageProblem(
            f"{folder}: expected a folder outside others made by `kata init`, found one inside "
            f"{around}. Work there, or name a folder elsewhere."
        )
    if (folder / "harness").is_dir() and (folder / "katas").is_dir():
        raise UsageProblem(
            f"{folder}: expected a folder without katas, found a clone of the project. "
            "Work in it as it is, or name another folder."
        )
    return _place(folder, Placed(version="", files={}, beside={}), files, version)


def update(folder: Path, files: Mapping[str, Path], version: str) -> Update:
    """
    Bring a learner's folder up to what `files` has; doing it twice changes nothing.

    Raises:
        UsageProblem: ``kata init`` did not make it.
        HarnessError: something cannot be read or written. Files done by then are whole, and the
            next call does the rest.
    """
    return _place(folder, placed(folder), files, version)


def placed(folder: Path) -> Placed:
    """
    What was put into `folder` last.

    Raises:
        UsageProblem: it is no folder made by ``kata init``.
        HarnessError: the record is damaged.
    """
    path = folder / PLACED
    if not path.is_file():
        raise UsageProblem(
            f"{folder}: expected a folder made by `kata init`, found none. "
            "In a clone: git pull. For a new folder: kata init DIR"
        )
    mend = "Remove it, then run `kata init` there again: what is in the folder stays."
    found: Placed = read_json(path, Placed, "what `kata init` wrote", mend)
    return found


def _place(folder: Path, before: Placed, files: Mapping[str, Path], version: str) -> Update:
    found = Update(before=before.version, after=version)
    now: dict[str, str] = {}
    beside = {name: key for name, key in before.beside.items() if (folder / name).is_file()}
    for name in sorted(before.files.keys() | files.keys()):
        old = before.files.get(name)
        if name in files:
            new = read_file(files[name])
            now[name] = hash_of(new)
            _bring(folder, name, old, new, found, beside)
        else:
            _withdraw(folder, name, old, found)
    record = Placed(version=version, files=now, beside=beside)
    make_folder((folder / PLACED).parent)
    write_atomically(folder / PLACED, (json.dumps(asdict(record), indent=1) + "\n").encode())
    return found


def _bring(
    folder: Path, name: str, old: str | None, new: bytes, found: Update, beside: dict[str, str]
) -> None:
    """Put `new` where nothing else, or what was placed there, stands; else keep what does."""
    path, key = folder / name, hash_of(new)
    if not _is_taken(path):
        make_folder(path.parent)
        write_atomically(path, new)
        (found.added if old is None else found.restored).append(name)
        return
    current = hash_of(read_file(path)) if path.is_file() else None
    if current == key:
        return
    if current is not None and current == old:
        write_atomically(path, new)
        found.replaced.append(name)
    elif key == old:
        found.kept.append(name)
    else:
        found.both[name] = spare = _free_name(folder, name, key, beside)
        write_atomically(folder / spare, new)
        beside[spare] = key


def _free_name(folder: Path, name: str, key: str, beside: Mapping[str, str]) -> str:
    """Where beside `name` something may be put: no file, or one that is as it was put there."""
    for number in count(1):
        spare = f"{name}{'' if number == 1 else f'.{number}'}{BESIDE}"
        path = folder / spare
        if not _is_taken(path):
            return spare
        if path.is_file() and hash_of(read_file(path)) in (key, beside.get(spare)):
            return spare
    raise AssertionError("numbers do not end")


def _withdraw(folder: Path, name: str, old: str | None, found: Update) -> None:
    """Remove what is no longer shipped, if it is as it was placed, and folders left empty."""
    path = folder / name
    if not path.is_file():
        return
    if hash_of(read_file(path)) != old:
        found.dropped.append(name)
        return
    with explained(path, "a file that can be removed"):
        path.unlink()
    found.removed.append(name)
    with suppress(OSError):  # not empty
        for parent in path.relative_to(folder).parents[:-1]:
            (folder / parent).rmdir()


def _is_taken(path: Path) -> bool:
    """Whether anything has this name, a link that leads nowhere as well."""
    return path.exists() or path.is_symlink()
