"""Where a line of CUDA C++ stands in the learner's file, and hazards told with such lines."""

import linecache
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from harness.simulators.hazards import Hazard, Place
from harness.simulators.ptx.parse import split_arguments
from harness.simulators.ptx.state import Found

HARNESS = str(Path(__file__).parents[2])


@dataclass(frozen=True, slots=True)
class Source:
    """
    A source of CUDA C++.

    Attributes:
        name: The kernel.
        lines: Its text, line by line.
        file: The Python file that holds it; "" where it was put together from pieces.
        before: Lines of that file above the first one.
    """

    name: str
    lines: tuple[str, ...]
    file: str = ""
    before: int = 0

    def place(self, line: int | None) -> Place | None:
        """A line of the source, counted from 1; None where the compiler gave none."""
        if not line or line > len(self.lines):
            return None
        text = self.lines[line - 1].strip()
        if self.file:
            return Place(file=self.file, line=self.before + line, source=text)
        return Place(file=f"{self.name}.cu", line=line, source=text)


def source_of(text: str, kernel: str) -> Source:
    """The source, and where it stands in the file of whoever launches."""
    lines = tuple(text.splitlines())
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(HARNESS):
        frame = frame.f_back
    if frame is None:
        return Source(kernel, lines)
    file = frame.f_code.co_filename
    content = "".join(linecache.getlines(file))
    at = content.find(text) if text.strip() else -1
    if at < 0:
        return Source(kernel, lines)
    return Source(kernel, lines, file, content[:at].count("\n"))


def parameter_names(text: str, kernel: str, count: int) -> list[str]:
    """What the source calls the kernel's parameters; numbers where it cannot be read."""
    name = re.escape(kernel.partition("<")[0])
    found = re.search(rf"__global__[^;{{]*?\b{name}\s*\((.*?)\)\s*\{{", text, re.DOTALL)
    parts = split_arguments(found[1]) if found else []
    names = [re.findall(r"[A-Za-z_]\w*", re.sub(r"\[.*?\]", "", part)) for part in parts]
    if len(names) != count or not all(names):
        return [f"argument {number}" for number in range(count)]
    return [words[-1] for words in names]


def hazards_of(found: Sequence[Found], source: Source) -> tuple[Hazard, ...]:
    """The machine's hazards with their lines in words; the first one says how many there are."""
    more = f"; {len(found) - 1} more hazards in this launch" if len(found) > 1 else ""
    return tuple(
        _hazard(one, source, more if number == 0 else "") for number, one in enumerate(found)
    )


def _hazard(found: Found, source: Source, more: str) -> Hazard:
    times = f" ({found.count} such accesses)" if found.count > 1 else ""
    text = f"{found.text}{times}{more}"
    return Hazard(found.name, text, source.place(found.line), source.place(found.before))
