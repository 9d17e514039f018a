"""Read a TOML table key by key, gathering every problem before complaining once."""

from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from harness.base.errors import MetadataError, nearest

T = TypeVar("T")
type_names = {
    str: "text",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a table",
}


def read_toml(path: Path) -> dict[str, Any]:
    """Parse `path`; a syntax error or a missing file becomes a MetadataError naming it."""
    import tomllib  # a tenth of a short command, which finds its files parsed before

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MetadataError(f"{path}: expected a TOML file, found none.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise MetadataError(f"{path}: expected valid TOML, found {error}.") from None


class Problems:
    """The complaints about one file; leaving the `with` block raises them all at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[str] = []

    def add(self, key: str, expected: str, found: object) -> None:
        """Note that `key` should have been `expected` but was `found`; once for each key."""
        if not any(line.startswith(f"{key}: ") for line in self.lines):
            self.lines.append(f"{key}: expected {expected}, found {found}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None and self.lines:
            listed = "\n".join(f"  {line}" for line in self.lines)
            raise MetadataError(f"{self.path}: {len(self.lines)} problem(s):\n{listed}")


class Table:
    """One TOML table being read: each key is asked for once, what is left over is unknown."""

    def __init__(self, data: Mapping[str, Any], problems: Problems, where: str = "") -> None:
        self.data = dict(data)
        self.problems = problems
        self.where = where
        self.known: list[str] = []

    def take(self, key: str, kind: type[T], default: T | None = None) -> T:
        """
        Remove `key` and return its value, checked to be of `kind`.

        A missing or mistyped required key is noted and stands in as an empty value, so that
        reading can go on to the next problem.
        """
        self.known.append(key)
        if key not in self.data:
            if default is None:
                self.problems.add(self.where + key, type_names.get(kind, kind.__name__), "nothing")
                return kind()
            return default
        value = self.data.pop(key)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            self.problems.add(self.where + key, type_names.get(kind, kind.__name__), repr(value))
            return kind()
        return value

    def optional(self, key: str, kind: type[T]) -> T | None:
        """Like `take`, but an absent key is simply None."""
        if key in self.data:
            return self.take(key, kind)
        self.known.append(key)
        return None

    def texts(self, key: str, *, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Take a list of text."""
        values = self.take(key, list, None if default is None else list(default))
        if not all(isinstance(value, str) for value in values):
            self.problems.add(self.where + key, "a list of text", values)
            return ()
        return tuple(values)

    def choice(self, key: str, known: Collection[str], default: str | None = None) -> str:
        """Take a text that must be one of `known`."""
        value = self.take(key, str, default)
        if value and value not in known:
            expected = f"one of {', '.join(known)}"
            self.problems.add(self.where + key, expected, repr(value) + nearest(value, known))
        return value

    def tables(self, key: str) -> list["Table"]:
        """Take an optional array of tables; a single table stands for an array of one."""
        self.known.append(key)
        value = self.data.pop(key, [])
        rows = [value] if isinstance(value, dict) else value
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            self.problems.add(self.where + key, "an array of tables", repr(value))
            return []
        return [
            Table(row, self.problems, f"{self.where}{key}[{at}].") for at, row in enumerate(rows)
        ]

    def done(self) -> None:
        """Complain about every key that nobody asked for."""
        for key in self.data:
            expected = f"one of {', '.join(self.known)}"
            self.problems.add(
                self.where + key, expected, "an unknown key" + nearest(key, self.known)
            )
