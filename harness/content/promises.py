"""What a kata declares in kata.toml and the harness tests: errors, and how memory is read."""

import builtins
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.base.schema import Table

# after each row, after each element of the last axis, or after each row such that all rows
# begin at a multiple of 16 bytes, as TMA asks for
GAPS = ("rows", "elements", "aligned")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Refusal:
    """
    A call that raises `error`, in words that begin with `names` and a colon; `says` is in them.

    It is the call of the first case of `function` (None: the kata's first one) with some
    arguments changed: `given` has a value for each, or
    a table of what changes in it (`shape`, `dtype`, `gaps`, `device`). A key may name several
    arguments, with blanks between.
    """

    names: str
    given: Mapping[str, Any]
    says: str | None
    error: str
    function: str | None = None

    def __repr__(self) -> str:
        """What is asked for, as a learner reads it beside a failed check."""
        saying = f", saying {self.says!r}" if self.says else ""
        return f"{self.label}: must raise {self.error} '{self.names}: …'{saying}"

    @property
    def label(self) -> str:
        """In a few words, as the name of a test."""
        changes = [
            _shown(change) if key.split()[0] == self.names else f"{key} {_shown(change)}"
            for key, change in self.given.items()
        ]
        of = f"{self.function}, " if self.function else ""
        return f"{of}{self.names}: {', '.join(changes)}"


def _shown(change: Any) -> str:  # noqa: ANN401
    if not isinstance(change, Mapping):
        return repr(change)
    words = [f"{key} {_size(value) if key == 'shape' else value}" for key, value in change.items()]
    return " ".join(words)


def _size(shape: list[int]) -> str:
    return "x".join(map(str, shape)) or "()"


def take_refusals(table: Table) -> tuple[Refusal, ...]:
    """The `refuses` of a kata.toml."""
    return tuple(_refusal(row) for row in table.tables("refuses"))


def _refusal(row: Table) -> Refusal:
    given = row.take("with", dict)
    first = next(iter(given), "").split()
    if not first:
        row.problems.add(f"{row.where}with", "an argument and what is wrong with it", "none")
    refusal = Refusal(
        names=row.take("names", str, first[0] if first else ""),
        given=given,
        says=row.optional("says", str),
        error=row.take("error", str, "ValueError"),
        function=row.optional("function", str),
    )
    kind = getattr(builtins, refusal.error, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        row.problems.add(f"{row.where}error", "one of Python's own exceptions", refusal.error)
    for name, change in refusal.given.items():
        if isinstance(change, Mapping):
            inner = Table(change, row.problems, f"{row.where}with.{name}.")
            inner.optional("shape", list)
            inner.optional("dtype", str)
            inner.optional("device", str)
            inner.choice("gaps", GAPS, GAPS[0])
            inner.done()
    row.done()
    return refusal


def take_in_place(table: Table) -> dict[str, str]:
    """The `in_place` of a kata.toml: arguments, and where their gaps are."""
    found = table.take("in_place", dict, {})
    row = Table(found, table.problems, "in_place.")
    return {name: row.choice(name, GAPS) for name in found}
