"""TOML files that were parsed before: parsing them takes longer than all else that a list does."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.base.errors import HarnessError
from harness.base.files import make_folder, write_atomically
from harness.base.schema import read_toml


class Shelf:
    """
    What TOML files say, kept in one JSON file from call to call.

    A file is parsed again when its size or its time of change is another. Whoever can write the
    JSON file decides what is read, so that nothing is judged by it.

    Args:
        file: Where it is kept; without a place to write each call parses afresh.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._known: dict[str, Any] = {}
        self._changed = False
        with suppress(OSError, ValueError):
            kept = json.loads(file.read_bytes())
            self._known = kept if isinstance(kept, dict) else {}

    def read(self, path: Path) -> dict[str, Any]:
        """
        What `path` says.

        Raises:
            MetadataError: there is no such file, or it is no TOML.
        """
        try:
            found = path.stat()
        except OSError:
            return read_toml(path)  # says so
        stamp = f"{found.st_mtime_ns} {found.st_size}"
        match self._known.get(str(path)):
            case [kept, dict(data)] if kept == stamp:
                return data
        data = read_toml(path)
        self._known[str(path)] = [stamp, data]
        self._changed = True
        return data

    def save(self) -> None:
        """Keep what was parsed for the next call, where that can be written."""
        if not self._changed:
            return
        # TOML knows dates, which JSON does not
        with suppress(HarnessError, TypeError):
            make_folder(self.file.parent)
            write_atomically(self.file, json.dumps(self._known).encode())
        self._changed = False
