"""
A file laid out in one way throughout, without comments.

What was changed in a reference cannot be told from the rest by its layout then, nor by a comment
that speaks of what is no longer there.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise

WIDTH = 100  # of a line, as pyproject.toml has it for ruff
GAP, KEPT = "_gap_", "_kept_"  # names that stand for an empty line, and for a text of several
MARK = re.compile(rf"^(\s*){KEPT}(\d+)_$")
DEVICE_CODE = re.compile(r"__(?:global|device)__")
# strings first, so that what looks like a comment inside of one stays
CPP = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
STRING = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""")
OPENING, CLOSING = "([{", ")]}"


def plain(source: str) -> str:
    """
    `source` without comments, its statements laid out anew.

    Docstrings, numbers as written, empty lines between statements and texts of several lines stay;
    of CUDA C++ only the comments go. A `pass` beside other statements goes as well.

    Raises:
        SyntaxError: it is no Python.
    """
    written = source.splitlines()
    lines: list[str] = []
    end = 0
    for start, stop in _segments(ast.parse(source)):
        if lines and any(not line.strip() for line in written[end:start]):
            lines.append("")
        lines += _laid_out("\n".join(written[start:stop]))
        end = stop
    return "\n".join(_spaced(lines)) + "\n"


def _segments(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """The lines of what stands at the top of a module; what shares a line stays together."""
    start, stop = 0, 0
    for node in tree.body:
        decorators = getattr(node, "decorator_list", [])
        first = min(one.lineno for one in [node, *decorators]) - 1
        if first < stop:
            stop = node.end_lineno or stop
            continue
        if stop:
            yield start, stop
        start, stop = first, node.end_lineno or first
    if stop:
        yield start, stop


@lru_cache(2048)  # of many faults of one file each changes one function
def _laid_out(source: str) -> tuple[str, ...]:
    """The lines of one part of a module."""
    marked = _Marked(source)
    lines: list[str] = []
    for line in ast.unparse(marked.tree).splitlines():
        if line.strip() == GAP:
            line = ""
        if found := MARK.match(line):
            lines += marked.kept[int(found[2])]
        elif line or (lines and lines[-1]):
            lines += _folded(line)
    return tuple(lines)


class _Marked(ast.NodeTransformer):
    """A tree in which names stand for what unparsing would lose."""

    def __init__(self, source: str) -> None:
        self.source = source.splitlines()
        self.kept: list[list[str]] = []
        self.tree = self.visit(ast.parse(source))

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Leave a number as it is written: 0xFF, 1_000 or 1e-6."""
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            return node
        line = self.source[node.lineno - 1].encode()
        return ast.Name(line[node.col_offset : node.end_col_offset].decode())

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Of a number's own methods the brackets around it have to stay."""
        return node if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        """Where something stands in an f-string is told by no version before 3.12."""
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Mark gaps and long texts in every block of statements."""
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                setattr(node, name, list(self._block(block)))
        return super().generic_visit(node)

    def _block(self, block: list[ast.stmt]) -> Iterator[ast.stmt]:
        useful = [one for one in block if not isinstance(one, ast.Pass)] or block[:1]
        before = None
        for node in useful:
            if before is not None and self._is_apart(before, node):
                yield ast.Expr(ast.Name(GAP))
            before = node
            yield self._long_text(node) or node

    def _is_apart(self, before: ast.stmt, node: ast.stmt) -> bool:
        between = self.source[before.end_lineno or 0 : node.lineno - 1]
        return any(not line.strip() for line in between)

    def _long_text(self, node: ast.stmt) -> ast.stmt | None:
        """What stands for a statement that has a text over several lines, docstrings apart."""
        if not isinstance(node, ast.Assign | ast.AnnAssign | ast.Expr | ast.Return):
            return None
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return None
        if not any(_is_long(part) for part in ast.walk(node)):
            return None
        lines = self.source[node.lineno - 1 : node.end_lineno]
        text = "\n".join(lines)
        if DEVICE_CODE.search(text):
            lines = list(_without_comments(text))
        self.kept.append(lines)
        return ast.Expr(ast.Name(f"{KEPT}{len(self.kept) - 1}_"))


def _is_long(node: ast.AST) -> bool:
    """Whether a string is written over several lines."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return False
    return "\n" in node.value and node.end_lineno != node.lineno


def _without_comments(text: str) -> Iterator[str]:
    """The lines of a text in C++ without its comments, nor the lines that held nothing else."""
    bare = CPP.sub(lambda found: found[0] if found[0].startswith('"') else "", text)
    for line, before in zip(bare.split("\n"), text.split("\n"), strict=False):
        if line.strip() or not before.strip():
            yield line.rstrip()


def _spaced(lines: Iterable[str]) -> Iterator[str]:
    """Two empty lines around what is defined at the top, one empty line at most elsewhere."""
    lines = list(lines)
    for at, line in enumerate(lines):
        above = lines[at - 1] if at else ""
        opens = re.match(r"(?:def|class|@)", line) and not above.startswith("@")
        if opens and at:
            yield from [""] * (1 if not above else 2)
        elif not above and line and not line.startswith(" ") and _closes(lines, at - 2):
            yield ""
        yield line


def _closes(lines: list[str], at: int) -> bool:
    """Whether a function or a class ends with this line."""
    return at >= 0 and lines[at].startswith(" ") and not lines[at].lstrip().startswith(CLOSING)


def _folded(line: str) -> list[str]:
    """A line in several where it is too long: broken inside its longest brackets."""
    if len(line) <= WIDTH:
        return [line]
    # what a string holds is no bracket
    code = STRING.sub(lambda found: "_" * len(found[0]), line)
    groups = list(_groups(code))
    if not groups:
        return [line]
    start, end = max(groups, key=lambda group: group[1] - group[0])
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    inside = line[start + 1 : end]
    if len(indent + inside) <= WIDTH:
        middle = [indent + inside]
    else:
        cuts = [start, *_commas(code, start, end), end]
        pieces = [line[a + 1 : b].strip() for a, b in pairwise(cuts)]
        middle = _joined(pieces, indent)
    folded = [line[: start + 1], *middle, indent[4:] + line[end:]]
    return folded if _same(line, folded) else [line]


def _joined(pieces: list[str], indent: str) -> list[str]:
    """Pieces with commas between them, as many in a line as it has room for."""
    lines: list[str] = []
    for at, piece in enumerate(pieces):
        text = piece + ("," if at < len(pieces) - 1 else "")
        if lines and len(lines[-1]) + 1 + len(text) <= WIDTH:
            lines[-1] += f" {text}"
        else:
            lines += [indent + text]
    return [part for one in lines for part in _folded(one)]


def _groups(code: str) -> Iterator[tuple[int, int]]:
    """Where the outermost brackets of a line open and close."""
    depth, start = 0, 0
    for at, letter in enumerate(code):
        if letter in OPENING:
            if not depth:
                start = at
            depth += 1
        elif letter in CLOSING:
            depth -= 1
            if not depth:
                yield start, at


def _commas(code: str, start: int, end: int) -> Iterator[int]:
    """The commas of a group that lie in no other one."""
    depth = 0
    for at in range(start + 1, end):
        depth += (code[at] in OPENING) - (code[at] in CLOSING)
        if code[at] == "," and not depth:
            yield at


def _same(line: str, folded: list[str]) -> bool:
    """Whether a line in several says what it said, as far as it stands alone."""
    bare = line.strip()
    tail = " pass" if bare.endswith(":") else ""
    head = "if True: pass\n" if bare.startswith(("elif ", "else")) else ""
    try:
        one, other = (ast.dump(ast.parse(head + text + tail)) for text in (bare, _dedented(folded)))
    except SyntaxError:  # a piece of a longer line, a decorator: its brackets tell enough
        return not any("f'" in text or 'f"' in text for text in folded)
    return one == other


def _dedented(lines: list[str]) -> str:
    return "\n".join([lines[0].strip(), *lines[1:]])
