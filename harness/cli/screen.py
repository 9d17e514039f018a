"""
What fits the reader's screen, and data for another program.

A terminal has a width, and so has whoever sets COLUMNS; a pipe and a file have none, and get whole
lines.
"""

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
GOES_ON = "      ↳ "  # before what is left of a line
NARROWEST = 40  # no text is folded to less


def width() -> int | None:
    """Characters in a line; None where nothing limits it."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked):
        return max(NARROWEST, int(asked))
    if sys.stdout.isatty():
        return max(NARROWEST, shutil.get_terminal_size().columns)
    return None


def cut(text: str) -> str:
    """`text` in one line of the screen, with an ellipsis for what does not fit."""
    room = width()
    return text if room is None or len(text) <= room else f"{text[: room - 1].rstrip()}…"


def folded(text: str, indent: int = 4) -> str:
    """`text` in lines of the screen, all but the first of them indented."""
    room = width()
    if room is None or len(text) <= room:
        return text
    return textwrap.fill(
        text,
        room,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def beside(told: str, source: str) -> Iterator[str]:
    """`told` with a line of source behind it, or below it where the screen is too narrow."""
    room = width()
    if room is None or len(told) + 4 + len(source) <= room:
        yield f"{told}    {source}"
    else:
        yield told
        yield cut(f"      {source}")


def broken(line: str, room: int) -> Iterator[str]:
    """
    A line of a figure in parts of at most `room` characters, as it is where it fits.

    It is broken at the last gap of several blanks, so that what stands in a column stays together,
    else at a blank, else anywhere.
    """
    while len(line) > room:
        least = max(len(line) - len(line.lstrip()), room // 3)
        gaps = [
            [gap for gap in re.finditer(blanks, line) if least < gap.start() <= room]
            for blanks in (r" {2,}", " ")
        ]
        end, then = next((found[-1].span() for found in gaps if found), (room, room))
        yield line[:end]
        rest = line[then:].strip()
        if not rest:
            return
        line = f"{GOES_ON}{rest}"
    yield line


def as_json(found: object) -> None:
    """Print data for another program; a generator is written as a list."""
    plain = list(found) if isinstance(found, Iterator) else found
    click.echo(json.dumps(plain, indent=2))


def json_option(command: F) -> F:
    """The option --json, as every command that lists or judges has it."""
    option = click.option("--json", "as_json", is_flag=True, help="As JSON, for another program.")
    return option(command)
