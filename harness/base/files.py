"""
Files and processes of this machine, and how times and records are written in files.

Writing is atomic: a crash at any moment leaves the old content or the new, never a part of it.
"""

import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints
from uuid import uuid4

from harness.base.errors import DiskFull, HarnessError

# file systems of this machine alone; an unknown one is taken for a network file system
LOCAL_FILE_SYSTEMS = frozenset(
    ("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs")
    + ("xfs", "zfs")
)
PROC = Path("/proc")

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WAYS_OUT = {
    errno.ENOSPC: "Free some space and try again; nothing was lost.",
    errno.EDQUOT: "Free some of your quota and try again; nothing was lost.",
    errno.EFBIG: "Raise the limit on file sizes (ulimit -f) and try again; nothing was lost.",
    errno.ENOENT: "Check the path.",
    errno.ENOTDIR: "Check the path: a part of it is a file.",
}
_ASK_FOR_ACCESS = "Make it accessible to you (chmod, chown) and try again; nothing was lost."


@contextmanager
def explained(path: Path, expected: str) -> Iterator[None]:
    """
    Turn an OSError inside the block into a HarnessError: *path: expected …, found …*.

    For want of room it is a DiskFull.
    """
    try:
        yield
    except OSError as error:
        way_out = _WAYS_OUT.get(error.errno or 0, _ASK_FOR_ACCESS)
        kind = DiskFull if error.errno in NO_ROOM else HarnessError
        raise kind(
            f"{path}: expected {expected}, found: {error.strerror or error}. {way_out}"
        ) from error


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    return hash_of(read_file(path))


def hash_of(data: bytes) -> str:
    """The SHA-256 of `data`, in hex."""
    import hashlib  # OpenSSL with it: commands that only look need none

    return hashlib.sha256(data).hexdigest()


def read_file(path: Path) -> bytes:
    """The content of `path`."""
    with explained(path, "a file that can be read"):
        if path.is_fifo():  # nobody may ever write to it
            raise HarnessError(f"{path}: expected a file, found a named pipe. Put a file there.")
        return path.read_bytes()


def make_folder(path: Path) -> Path:
    """Create `path` and its parents where they are missing; return it."""
    with explained(path, "a folder to write in"):
        path.mkdir(parents=True, exist_ok=True)
    return path


def write_atomically(path: Path, data: bytes) -> None:
    """
    Replace the content of `path` with `data`, or create it.

    The bytes are on disk under another name before that name is moved over `path`, so a reader, a
    crash or a full disk sees the old file or the new one. Permissions are kept, and where `path`
    is a symbolic link its target is written.

    Raises:
        HarnessError: The folder is missing or not writable, or the disk is full.
    """
    target = path.resolve()
    spare = target.with_name(f".{uuid4().hex}.tmp")
    with explained(path, "a file that can be written"):
        try:
            _write_synced(spare, data, like=target)
            spare.replace(target)
        finally:
            spare.unlink(missing_ok=True)
        # the new content is in place; not every file system can sync a folder
        with suppress(OSError):
            _sync_folder(target.parent)


def _write_synced(path: Path, data: bytes, *, like: Path) -> None:
    with path.open("xb") as file:
        if like.exists():
            _copy_access(like, file.fileno())
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _copy_access(source: Path, descriptor: int) -> None:
    found = source.stat()
    # root in a container must not take the learner's file away; nobody else may give files away
    with suppress(PermissionError):
        os.fchown(descriptor, found.st_uid, found.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(found.st_mode))


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def on_local_disk(path: Path) -> bool:
    """Whether `path` lies on a file system known to be this machine's own; False when in doubt."""
    mounts = PROC / "self/mountinfo"
    return mounts.is_file() and _file_system(path.resolve(), mounts) in LOCAL_FILE_SYSTEMS


def _file_system(path: Path, mounts: Path) -> str:
    """The type of the file system mounted nearest above `path`; of two on one point, the later."""
    kinds: dict[Path, str] = {}
    for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        # id, parent, major:minor, root, mount point, options …, "-", type, source, options
        mount, _, source = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), mount.split()[4])
        kinds[Path(point)] = source.split()[0]
    return next((kinds[folder] for folder in (path, *path.parents) if folder in kinds), "unknown")


def process_birth(pid: int) -> str:
    """When a process started, told apart from every other with its id; "" when it is gone."""
    if not (PROC / "self/stat").is_file():
        return _birth_by_ps(pid)
    try:
        status = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    # after the name in brackets, which may hold anything: state, …, start in ticks since boot
    state, *values = status.rpartition(")")[2].split()
    boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    return "" if state in "ZX" else f"{boot} {values[18]}"


def _birth_by_ps(pid: int) -> str:
    """The same where there is no /proc, in a fixed zone and language."""
    import subprocess  # on few machines

    told = subprocess.run(
        ["ps", "-o", "stat=", "-o", "lstart=", "-p", str(pid)],
        env={"PATH": os.defpath, "TZ": "UTC", "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )
    state, _, start = told.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else start.strip()


def utc_text(moment: datetime) -> str:
    """`moment` in UTC as ISO 8601 with microseconds, so that text order is time order."""
    if moment.tzinfo is None:
        raise ValueError(f"time: expected one with a zone, found the naive {moment}")
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def read_json(path: Path, kind: Any, what: str, mend: str) -> Any:  # noqa: ANN401 -- as below
    """
    A file in JSON as the annotation `kind` asks for it.

    Raises:
        HarnessError: it is damaged: *path: expected `what`, …. `mend`*.
    """
    try:
        return from_json(kind, json.loads(read_file(path)))
    except ValueError as error:
        raise HarnessError(f"{path}: expected {what}, {error}. {mend}") from error


def from_json(kind: Any, value: object) -> Any:  # noqa: ANN401 -- decided by `kind`
    """
    A decoded JSON `value` as the annotation `kind` asks for it.

    Args:
        kind: A dataclass, a plain type, ``X | None``, ``tuple[X, ...]`` or ``Mapping[str, X]``.
        value: What json.loads returned.

    Raises:
        ValueError: It is of another kind; the message names the field.
    """
    if isinstance(kind, type) and is_dataclass(kind):
        return kind(**_members(kind, value))
    plain, arguments = get_origin(kind) or kind, get_args(kind)
    if plain is UnionType:
        return None if value is None else from_json(arguments[0], value)
    if plain is tuple and isinstance(value, list):
        return tuple(from_json(arguments[0], item) for item in value)
    if plain is float and type(value) is int:
        return float(value)
    if not isinstance(value, plain) or (plain is not bool and isinstance(value, bool)):
        raise ValueError(f"expected {getattr(kind, '__name__', kind)}, found {value!r}")
    return value


def _members(kind: type, value: object) -> dict[str, object]:
    hints = get_type_hints(kind)
    if not isinstance(value, dict) or value.keys() != hints.keys():
        found = ", ".join(value) if isinstance(value, dict) else repr(value)
        raise ValueError(f"expected the fields {', '.join(hints)}, found {found}")
    members: dict[str, object] = {}
    for name, member in value.items():
        try:
            members[name] = from_json(hints[name], member)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return members
