"""
The learner's file, which is never lost: a copy is kept before anything else takes its place.

Copies are stored under the hash of their content and never deleted. What stands in for the
learner's file is noted before it is put there, so that a crash between any two steps leaves either
the learner's own file in place or a swap that `restore` can undo.
"""

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from harness.base.errors import HarnessError, UsageProblem
from harness.base.files import (
    explained,
    from_json,
    hash_of,
    make_folder,
    read_file,
    read_json,
    sha256,
    utc_text,
    write_atomically,
)

HALF = "half stub"  # why a copy is kept of the stub that a learner began with


@dataclass(frozen=True, slots=True, kw_only=True)
class StashEntry:
    """One kept copy: when (UTC, ISO 8601), of which kata, the hash, why, how many lines."""

    time: str
    kata: str
    sha256: str
    why: str
    lines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapResult:
    """
    What `swap` did.

    Attributes:
        kept: Hash of the copy kept of what stood there before this call; None where that was the
            reference itself.
        original: Hash of what `restore` will bring back; `kept`, unless it was swapped already.
        already: Whether the reference, perhaps edited, stood there before.
    """

    kept: str | None
    original: str
    already: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """What `restore` did: the hash brought back, and of the copy of an edited reference, if any."""

    restored: str
    kept: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceResult:
    """What `reset` and `apply` did: the hash now in place, and of the copy of what was, if any."""

    placed: str
    kept: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """
    The swap of one kata, on record from just before the reference is put in place until it goes.

    Attributes:
        original: Hash of the learner's file.
        reference: Hash of the reference.
        during: While the file is being replaced, the hash that it has on the swapped side of that
            step. None between steps, when whatever stands there came from the reference.
    """

    original: str
    reference: str
    during: str | None

    def in_force(self, current: str) -> bool:
        """Whether a file with the hash `current` stands in for the learner's."""
        return self.during in (None, current)


class Workspace:
    """
    The learner's files, with every copy of them under ``home/stash``.

    Args:
        home: The folder to keep copies in; created when first needed.
        clock: Returns the time now, with its zone.

    Raises:
        HarnessError: From any method: something cannot be read or written. The learner's file is
            then as it was, or can be restored.
    """

    def __init__(
        self, home: Path, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self.stash = home.resolve() / "stash"
        self._clock = clock

    def keep(self, kata: str, file: Path, why: str) -> str:
        """Store a copy of `file` and return its hash; doing it twice changes nothing."""
        with self._locked():
            return self._keep(kata, _learners(kata, file), why)

    def pristine(self, kata: str, file: Path) -> str:
        """Keep `file` as the blank stub of `kata`, unless one is; return the hash of the stub."""
        with self._locked():
            stubs = [entry.sha256 for entry in self.versions(kata) if entry.why == "stub"]
            return stubs[0] if stubs else self._keep(kata, _learners(kata, file), "stub")

    def half_of(self, kata: str) -> str:
        """The hash of the half stub that a learner began with last; "" where they never did."""
        halves = [entry.sha256 for entry in self.versions(kata) if entry.why == HALF]
        return halves[-1] if halves else ""

    def is_swapped(self, kata: str, file: Path) -> bool:
        """Whether the reference, or what the learner made of it, stands in for their own file."""
        return self._swap_in_force(kata, _hash_or_empty(file)) is not None

    def swap(self, kata: str, file: Path, solution: Path) -> SwapResult:
        """
        Keep the learner's file, then put the reference in its place.

        Where the reference stands already it is put there afresh, edits to it are kept, and
        `restore` still brings back what was there before the first swap.
        """
        with self._locked():
            reference, current = read_file(solution), _learners(kata, file)
            before = self._swap_in_force(kata, hash_of(current))
            key = hash_of(reference)
            kept: str | None = None
            if before is None:
                kept = original = self._keep(kata, current, "before swap")
            else:
                original = before.original
                if hash_of(current) != key:
                    kept = self._keep(kata, current, "edited reference")
            swap = Swap(original=original, reference=key, during=None if before else key)
            self._record(kata, swap)
            write_atomically(file, reference)
            self._record(kata, replace(swap, during=None))
        return SwapResult(kept=kept, original=original, already=before is not None)

    def restore(self, kata: str, file: Path) -> RestoreResult:
        """
        Bring back what was there before the swap; a reference that was edited is kept first.

        Raises:
            UsageProblem: Nothing is swapped.
        """
        with self._locked():
            swap = self._recorded_swap(kata)
            if swap is None:
                raise UsageProblem(
                    f"{kata}: expected the reference in place of {file}, found no swap to undo. "
                    f"`kata stash list {kata}` shows every copy that was kept."
                )
            original = self._copy(swap.original)
            edited = _hash_or_empty(file) not in ("", swap.reference, swap.original)
            kept = self._keep(kata, read_file(file), "edited reference") if edited else None
            self._end_swap(kata, file, original)
        return RestoreResult(restored=swap.original, kept=kept)

    def reset(self, kata: str, file: Path, stub: bytes) -> ReplaceResult:
        """Keep what is there, then put the blank stub in its place; a swap ends with that."""
        with self._locked():
            return self._replace(kata, file, stub, "before reset")

    def apply(self, kata: str, file: Path, prefix: str) -> ReplaceResult:
        """
        Keep what is there, then put a kept copy in its place; a swap ends with that.

        Raises:
            UsageProblem: No copy of this kata, or more than one, has a hash that starts so.
        """
        with self._locked():
            return self._replace(kata, file, self._copy(self._find(prefix, kata)), "before apply")

    def versions(self, kata: str | None = None) -> list[StashEntry]:
        """What was kept of one kata or of all, oldest first."""
        if not self._index.exists():
            return []
        entries = []
        for number, line in enumerate(read_file(self._index).splitlines(), start=1):
            try:
                entries.append(from_json(StashEntry, json.loads(line)))
            except ValueError as error:
                raise HarnessError(
                    f"{self._index}:{number}: expected a kept copy, {error}. Remove that line; "
                    f"the copies themselves are in {self.stash / 'objects'}."
                ) from error
        return [entry for entry in entries if kata in (None, entry.kata)]

    def read(self, prefix: str) -> bytes:
        """The kept copy whose hash starts with `prefix`; UsageProblem unless there is just one."""
        return self._copy(self._find(prefix))

    @property
    def _index(self) -> Path:
        return self.stash / "index.jsonl"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from changing files or the stash for the length of the block."""
        path = make_folder(self.stash) / "lock"
        with ExitStack() as stack:
            with explained(path, "a lock file"):
                file = stack.enter_context(path.open("a"))
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _keep(self, kata: str, data: bytes, why: str) -> str:
        key = hash_of(data)
        path = make_folder(self.stash / "objects") / key
        if not path.exists() or sha256(path) != key:
            write_atomically(path, data)
        newest = self.versions(kata)[-1:]
        if not newest or (newest[0].sha256, newest[0].why) != (key, why):
            time = utc_text(self._clock())
            lines = len(data.splitlines())
            entry = StashEntry(time=time, kata=kata, sha256=key, why=why, lines=lines)
            line = json.dumps(asdict(entry)) + "\n"
            # the whole index again, since a crash could tear an appended line
            kept = read_file(self._index) if self._index.exists() else b""
            write_atomically(self._index, kept + line.encode())
        return key

    def _copy(self, key: str) -> bytes:
        path = self.stash / "objects" / key
        data = read_file(path)
        if hash_of(data) != key:
            raise HarnessError(
                f"{path}: expected the copy that its name is the hash of, found a damaged one. "
                "`kata stash list` shows the other copies; nothing was changed."
            )
        return data

    def _find(self, prefix: str, kata: str | None = None) -> str:
        found = {entry.sha256 for entry in self.versions(kata) if entry.sha256.startswith(prefix)}
        if len(found) != 1:
            several = f"{len(found)}: {', '.join(sorted(key[:12] for key in found))}"
            raise UsageProblem(
                f"version {prefix!r}: expected the start of one kept hash, found "
                f"{several if found else 'none that starts so'}. `kata stash list` shows them."
            )
        return found.pop()

    def _replace(self, kata: str, file: Path, data: bytes, why: str) -> ReplaceResult:
        kept = self._keep(kata, read_file(file), why) if file.exists() else None
        self._end_swap(kata, file, data)
        return ReplaceResult(placed=hash_of(data), kept=kept)

    def _end_swap(self, kata: str, file: Path, data: bytes) -> None:
        """Put `data` in place; from that moment on, and no sooner, no swap is in force."""
        current = _hash_or_empty(file)
        swap = self._swap_in_force(kata, current)
        if swap is not None:
            self._record(kata, replace(swap, during=current))
        write_atomically(file, data)
        with explained(self._record_of(kata), "a record that can be removed"):
            self._record_of(kata).unlink(missing_ok=True)

    def _swap_in_force(self, kata: str, current: str) -> Swap | None:
        swap = self._recorded_swap(kata)
        return swap if swap is not None and swap.in_force(current) else None

    def _recorded_swap(self, kata: str) -> Swap | None:
        path = self._record_of(kata)
        if not path.exists():
            return None
        mend = f"Remove it; `kata stash list {kata}` shows your copies."
        swap: Swap = read_json(path, Swap, "the record of a swap", mend)
        return swap

    def _record(self, kata: str, swap: Swap) -> None:
        path = self._record_of(kata)
        make_folder(path.parent)
        write_atomically(path, json.dumps(asdict(swap)).encode())

    def _record_of(self, kata: str) -> Path:
        return self.stash / "swaps" / f"{kata}.json"


def _learners(kata: str, file: Path) -> bytes:
    if not file.exists():
        raise UsageProblem(
            f"{file}: expected the learner's file, found none. "
            f"`kata reset {kata}` puts the blank stub there."
        )
    return read_file(file)


def _hash_or_empty(file: Path) -> str:
    return hash_of(read_file(file)) if file.exists() else ""
