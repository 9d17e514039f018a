"""Mechanical mutants of kernels in CUDA C++: one small change of the text in a kernel's body."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from harness.authoring.cuda_stub import KERNEL, closing_brace

NAME = re.compile(r"(\w+)\s*\(")
# what stands between spaces, and what stands in its place
OPERATORS = {
    "<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"),
    "==": ("!=",), "!=": ("==",), "&&": ("||",), "||": ("&&",),
    "+": ("-",), "-": ("+",), "*": ("+",), "/": ("*",), "%": ("/",),
    "&": ("|",), "|": ("&",), "^": ("|",), "<<": (">>",), ">>": ("<<",),
    "+=": ("-=",), "-=": ("+=",), "*=": ("+=",), "<<=": (">>=",), ">>=": ("<<=",),
}  # fmt: skip
OPERATOR = re.compile(
    rf"(?<=\s)({'|'.join(map(re.escape, sorted(OPERATORS, key=len, reverse=True)))})(?=\s)"
)
NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
WORDS = {"min": "max", "max": "min", "fminf": "fmaxf", "fmaxf": "fminf"}
WORD = re.compile(rf"\b({'|'.join(WORDS)})\b(?=\s*\()")
# a statement on one line that is nothing but a call, or assembly
CALL = re.compile(r"^\s*(?:asm\s+volatile\s*|[\w:.]+(?:<[^<>;]*>)?)\s*\([^;]*\)\s*;\s*$")
CONDITION = re.compile(r"\b(?:else\s+)?if\s*\(")
TEXT = re.compile(r'"(?:\\.|[^"\\])*"|//.*')  # strings and comments stay as they are


class Edit(NamedTuple):
    """A piece of a reference's text, of which kernel, and what stands in its place."""

    kernel: str
    start: int
    end: int
    text: str


def edits_of(reference: str, stub: str) -> Iterator[Edit]:
    """Every change of a kernel's body in `reference` that `stub` leaves to the learner."""
    end = 0
    for kernel in KERNEL.finditer(reference):
        if kernel.start() < end:
            continue
        end = closing_brace(reference, kernel.end())
        body = reference[kernel.end() : end]
        names = NAME.findall(kernel[0])
        if not names or body in stub:
            continue
        at = kernel.end()
        for line in body.splitlines(keepends=True):
            for start, stop, text in _of_line(line.rstrip("\n")):
                yield Edit(names[-1], at + start, at + stop, text)
            at += len(line)


def _of_line(line: str) -> Iterator[tuple[int, int, str]]:
    if line.strip().startswith("#"):  # the preprocessor's
        return
    # as long as before, so that places are the same
    code = TEXT.sub(lambda found: " " * len(found[0]), line)
    if CALL.match(code):
        yield len(line) - len(line.lstrip()), len(line), ";"
    for found in OPERATOR.finditer(code):
        for text in OPERATORS[found[0]]:
            yield *found.span(), text
    for found in NUMBER.finditer(code):
        yield *found.span(), str(int(found[0]) + 1)
    for found in WORD.finditer(code):
        yield *found.span(), WORDS[found[0]]
    for found in CONDITION.finditer(code):
        if (stop := _closed(code, found.end())) is not None:
            yield found.end(), stop, "true"
            yield found.end(), stop, "false"


def _closed(code: str, start: int) -> int | None:
    """Where the bracket stands that closes the one before `start`."""
    depth = 1
    for at, letter in enumerate(code[start:], start):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return at
    return None
