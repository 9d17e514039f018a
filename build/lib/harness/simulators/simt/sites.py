"""Where in the source a call or an access stands."""

from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple


class Site(NamedTuple):
    """An expression of a function."""

    code: CodeType
    line: int

    def __str__(self) -> str:
        return f"{Path(self.code.co_filename).name}:{self.line}"


class Sites:
    """
    Numbers for the expressions that running frames stand at.

    Expressions are told apart by their lines and columns: CPython moves the instruction pointer of
    one and the same access once it has specialised it.
    """

    def __init__(self) -> None:
        self.known: list[Site] = []
        self._of_instruction: dict[tuple[int, int], int] = {}
        self._of_position: dict[tuple[int, tuple[int | None, ...]], int] = {}

    def number(self, frame: FrameType) -> int:
        """The number of the expression that `frame` is evaluating."""
        key = (id(frame.f_code), frame.f_lasti)  # a known site keeps the code, and so its id, alive
        number = self._of_instruction.get(key)
        if number is None:
            number = self._of_instruction[key] = self._find(frame)
        return number

    def _find(self, frame: FrameType) -> int:
        position: tuple[int | None, ...] = next(
            islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
        )
        if None in position:  # python -X no_debug_ranges
            position = (frame.f_lasti,)
        key = (id(frame.f_code), position)
        if key not in self._of_position:
            self._of_position[key] = len(self.known)
            self.known.append(Site(frame.f_code, frame.f_lineno))
        return self._of_position[key]
