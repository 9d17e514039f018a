"""Where the named steps of a reference begin and end, in Python and in CUDA C++."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.authoring.cuda_stub import KERNEL, closing_brace

LOOPS = (ast.For, ast.While, ast.AsyncFor)
STRING = re.compile(r'"(?:\\.|[^"\\])*"|//.*')  # a brace in these opens nothing
DECLARED = r"[\w>*&]\s+[*&]?{}\s*(?:=[^=]|[\[;,{{])"
BLOCKS = ("body", "orelse", "finalbody")


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """
    The lines of one step, from the comment that names it to the end of its last statement.

    Attributes:
        name: The step's.
        first: Number of the comment's line.
        last: Number of the last line.
        indent: Spaces before the comment.
        body: Its statements; empty in CUDA C++.
        loop: The outermost loop that it stands in, if any.
    """

    name: str
    first: int
    last: int
    indent: int
    body: tuple[ast.stmt, ...] = ()
    loop: ast.stmt | None = None


def segments_of(
    function: ast.stmt, marked: Mapping[int, str], lines: Sequence[str]
) -> Iterator[Segment]:
    """
    The steps that comments name in a function, outer ones before those within them.

    Args:
        function: A function or method of the reference.
        marked: The names, by the numbers of the comments' lines.
        lines: The reference's.
    """
    yield from _Finder(marked, lines).within(function, None)


class _Finder:
    """Goes through the blocks of a function."""

    def __init__(self, marked: Mapping[int, str], lines: Sequence[str]) -> None:
        self.marked = marked
        self.lines = lines

    def within(self, node: ast.AST, loop: ast.stmt | None) -> Iterator[Segment]:
        """The steps that begin in the blocks of `node`."""
        if isinstance(node, LOOPS) and loop is None:
            loop = node
        pattern = getattr(node, "pattern", node)
        before = getattr(pattern, "lineno", 0)
        for field in BLOCKS:
            block = getattr(node, field, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield from self._block(block, before, loop)
                before = block[-1].end_lineno or before
        for part in [*getattr(node, "handlers", ()), *getattr(node, "cases", ())]:
            yield from self.within(part, loop)

    def _block(
        self, block: Sequence[ast.stmt], before: int, loop: ast.stmt | None
    ) -> Iterator[Segment]:
        starts: list[tuple[int, int]] = []  # line of the comment, place of the statement
        for at, statement in enumerate(block):
            above = range(before + 1, _first_line(statement))
            starts += [(line, at) for line in above if self._begins(line, statement)][-1:]
            before = statement.end_lineno or before
        ends = [at for _, at in starts[1:]] + [len(block)]  # one more where nothing starts
        for (line, at), end in zip(starts, ends, strict=False):
            body = tuple(block[at:end])
            yield Segment(
                name=self.marked[line],
                first=line,
                last=body[-1].end_lineno or line,
                indent=body[0].col_offset,
                body=body,
                loop=loop,
            )
        for statement in block:
            yield from self.within(statement, loop)

    def _begins(self, line: int, statement: ast.stmt) -> bool:
        """Whether the comment on `line` names the step that begins with `statement`."""
        if line not in self.marked:
            return False
        text = self.lines[line - 1]
        following = self.lines[statement.lineno - 1].lstrip()
        indent = len(text) - len(text.lstrip())
        return indent == statement.col_offset and not following.startswith("elif")


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(one.lineno for one in decorators)])


def kernel_segments(lines: Sequence[str], marked: Mapping[int, str]) -> list[Segment]:
    """
    The steps that comments name in the bodies of kernels in CUDA C++.

    Each ends before the next of its block, or before the brace that closes the block.

    Args:
        lines: The reference's, or those of them up to the end of its kernels.
        marked: The names, by the numbers of the comments' lines.
    """
    inside = _lines_of_kernels(lines)
    depths, lows = [0], []  # before each line, and at the least within it
    for line in lines:
        depth = low = depths[-1]
        for brace in re.findall(r"[{}]", STRING.sub("", line)):
            depth += 1 if brace == "{" else -1
            low = min(low, depth)
        depths.append(depth)
        lows.append(low)
    found = []
    for first, name in marked.items():
        if first not in inside:
            continue
        own, last = depths[first - 1], first
        while last < len(lines) and lows[last] >= own:
            if last + 1 in marked and depths[last] == own:
                break
            last += 1
        while last > first and not lines[last - 1].strip():
            last -= 1
        if last > first:
            text = lines[first - 1]
            indent = len(text) - len(text.lstrip())
            found.append(Segment(name=name, first=first, last=last, indent=indent))
    return found


def _lines_of_kernels(lines: Sequence[str]) -> set[int]:
    """The numbers of lines in the body of a kernel."""
    source = "\n".join(lines)
    inside: set[int] = set()
    for kernel in KERNEL.finditer(source):
        end = closing_brace(source, kernel.end())
        first = source.count("\n", 0, kernel.end()) + 1
        inside |= set(range(first + 1, source.count("\n", 0, end) + 1))
    return inside


def declared_in(lines: Sequence[str], cut: Segment, kept: Sequence[str]) -> list[str]:
    """Names that a step in CUDA C++ declares and that `kept`, what follows it, uses."""
    text = "\n".join(STRING.sub("", line) for line in lines[cut.first : cut.last])
    above = "\n".join(lines[: cut.first])
    after = "\n".join(STRING.sub("", line) for line in kept)
    words = dict.fromkeys(re.findall(r"[A-Za-z_]\w*", text))
    return [
        word
        for word in words
        if re.search(DECLARED.format(word), text)
        and re.search(rf"\b{word}\b", after)
        and not re.search(rf"\b{word}\b", above)
    ]
