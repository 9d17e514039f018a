"""
The stub, cut out of the reference: signatures and docstrings stay, the answer goes.

What `functions` of kata.toml names is left to the learner, and so is the body of a kernel. Other
private functions go: how to divide the work is the learner's. Of a source in CUDA C++ the kernels'
bodies go. The rest is given, word for word. Where a kata wants it otherwise, ``[stub]`` of its
kata.toml says so. What is to be done in a blank is said by the names of its steps, the `subgoals`
of kata.toml, where comments of the reference begin them.
"""

import ast
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from harness.authoring.cuda_stub import blank_kernels
from harness.base.errors import MetadataError, UsageProblem, nearest
from harness.base.files import read_file
from harness.content.kata import Kata, StubMarks
from harness.content.subgoals import marked_lines

WIDTH = 100  # of a line, as pyproject.toml has it for ruff
GIVE, LEAVE_OUT, BLANK, OPEN = "give", "leave out", "blank", "open"


def cut_stub(kata: Kata) -> str:
    """
    The stub of the kata's reference.

    Raises:
        UsageProblem: the reference cannot be read as Python.
        MetadataError: ``[stub]`` names what the reference does not have, or ``[stub.todo]`` a
            class.
    """
    source = read_file(kata.solution).decode("utf-8", errors="replace")
    try:
        return stub_of(source, kata.functions, kata.stub, kata.subgoals)
    except SyntaxError as error:
        raise UsageProblem(
            f"{kata.solution}: expected the reference in Python, found {error}. Write it first."
        ) from None


def stub_of(
    source: str,
    functions: Iterable[str],
    marks: StubMarks | None = None,
    subgoals: Sequence[str] = (),
) -> str:
    """The stub of the reference `source`, whose `functions` are the learner's to write."""
    return Cut(source, functions, marks or StubMarks(), subgoals).text()


@dataclass(frozen=True, slots=True, kw_only=True)
class Blank:
    """
    What is left to the learner in one place.

    Attributes:
        name: The function, method or value; "A.go" for a method.
        line: Where it begins in the reference.
        size: Lines of code that the reference has there, helpers that are gone included.
        steps: The names of its steps, in the order of kata.toml.
        marked: Whether comments say them, and not ``[stub.todo]``.
    """

    name: str
    line: int
    size: int
    steps: tuple[str, ...]
    marked: bool


class Cut:
    """
    One reference on its way to a stub.

    Attributes:
        blanks: What was left to the learner, once `text` has been made.
    """

    def __init__(
        self, source: str, functions: Iterable[str], marks: StubMarks, subgoals: Sequence[str]
    ) -> None:
        self.lines = source.splitlines()
        self.functions = frozenset(functions)
        self.marks = marks
        self.subgoals = tuple(subgoals)
        self.marked = marked_lines(source, subgoals)
        self.blanks: list[Blank] = []
        self.tree = ast.parse(source)
        known = {name for name, _ in walk(self.tree)}
        for name in [*marks.give, *marks.leave_out, *marks.todo]:
            if name not in known:
                expected = "[stub] of kata.toml: expected names that the reference has"
                raise MetadataError(f"{expected}, found {name!r}.{nearest(name, known)}")
        classes = {name for name, node in walk(self.tree) if isinstance(node, ast.ClassDef)}
        if named := sorted(classes & set(marks.todo)):
            inside = [one for one in known if one.startswith(f"{named[0]}.")]
            raise MetadataError(
                "[stub.todo] of kata.toml: expected functions, methods or values, found the class "
                f"{named[0]!r}, which would be given whole. Name its methods: {', '.join(inside)}"
            )
        # what the learner does not see, by the name that code calls it; each is counted once
        self.uncounted = {
            name.rpartition(".")[2]: node
            for name, node in walk(self.tree)
            if self.fate(name, node) == LEAVE_OUT
        }

    def text(self) -> str:
        """The whole stub."""
        return "\n".join(self.block(self.tree, 0)) + "\n"

    def is_gone(self, name: str) -> bool:
        """Whether a method belongs to a class that is left out."""
        owner, _, _ = name.rpartition(".")
        return owner in self.marks.leave_out

    def block(self, parent: ast.Module | ast.ClassDef, at: int, prefix: str = "") -> list[str]:
        """What the stub has of the lines of `parent` from `at` on."""
        kept: list[str] = []
        gap = 0  # empty lines that stood above what was left out
        for node in parent.body:
            before, at = at, node.end_lineno or at
            fates = {self.fate(prefix + name, node) for name in names_of(node)} or {GIVE}
            blank_above = _leading_blanks(self.lines[before:at])
            if fates == {LEAVE_OUT} or (LEAVE_OUT in fates and not _is_import(node)):
                gap = max(gap, blank_above)
                continue
            kept += [""] * (gap - blank_above)
            gap = 0
            if isinstance(node, ast.ClassDef) and fates == {OPEN}:
                kept += self.lines[before : node.lineno]
                kept += self.block(node, node.lineno, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef) and fates == {BLANK}:
                kept += self.blank(node, before, prefix + node.name)
            elif fates == {BLANK} and not isinstance(node, ast.ClassDef):
                kept += self.blank_text(node, before, prefix)
            elif LEAVE_OUT in fates:
                kept += [""] * blank_above + self._import(node, prefix)
            elif self.marks.docstring and node is self.tree.body[0] and _is_text(node):
                kept += f'"""{self.marks.docstring}"""'.splitlines()
            else:
                kept += self.lines[before:at]
        return kept

    def fate(self, name: str, node: ast.stmt) -> str:
        """Whether what `node` binds as `name` is given, left out, blank, or a class to go into."""
        for fate, named in (
            (LEAVE_OUT, self.marks.leave_out),
            (GIVE, self.marks.give),
            (BLANK, self.marks.todo),
        ):
            if name in named:
                return fate
        if isinstance(node, ast.ClassDef):
            return OPEN
        if not isinstance(node, ast.FunctionDef):
            return BLANK if "__global__" in ast.unparse(node) else GIVE
        owner, _, own = name.rpartition(".")
        if owner and owner not in self.functions:
            return GIVE
        if name in self.functions or _is_kernel(node) or own == "__init__":
            return BLANK
        if own.startswith("_"):
            return LEAVE_OUT
        return BLANK if owner else GIVE

    def blank(self, node: ast.FunctionDef, before: int, name: str) -> list[str]:
        """The lines after `before` up to the function's own code, and what to do instead of it."""
        documented = ast.get_docstring(node, clean=False) is not None
        above = node.body[0].end_lineno or before if documented else self._header(node)
        indent = " " * (node.col_offset + 4)
        helpers = self._helpers_of(node)
        own = self._written(node, above)
        by_helpers = sum(self._written(one, one.lineno - 1) for one in helpers)
        steps = self._steps([node, *helpers])
        words = self._words(name, node, own + by_helpers, steps)
        todo = " ".join(filter(None, ["TODO(kata):", words, _size(own, by_helpers)]))
        kept = self.lines[before:above]
        code = "pass" if self.is_kernel(node, name) else None
        line = f"{indent}raise NotImplementedError  # {todo}"
        if code is None and len(line) <= WIDTH:
            return [*kept, line]
        wrapped = textwrap.wrap(todo, WIDTH - len(indent) - 2, break_on_hyphens=False)
        last = [] if code and documented else [indent + (code or "raise NotImplementedError")]
        return [*kept, *(f"{indent}# {part}" for part in wrapped), *last]

    def blank_text(self, node: ast.stmt, before: int, prefix: str) -> list[str]:
        """The lines after `before` of a text in CUDA C++, its kernels blank."""
        text = "\n".join(self.lines[before : node.end_lineno])
        name = next(prefix + name for name in names_of(node))
        steps = self._steps([node])
        todo = self._words(name, node, (node.end_lineno or before) - before, steps)
        return blank_kernels(text, todo, self.subgoals).split("\n")

    def is_kernel(self, node: ast.FunctionDef, name: str) -> bool:
        """Whether `node` is a kernel in Python that a launcher calls, and no test."""
        return _is_kernel(node) and name not in self.functions

    def _steps(self, nodes: Iterable[ast.stmt]) -> set[str]:
        """What comments within `nodes` name."""
        return {
            name
            for node in nodes
            for line, name in self.marked.items()
            if node.lineno <= line <= (node.end_lineno or 0)
        }

    def _words(self, name: str, node: ast.stmt, size: int, found: set[str]) -> str:
        """What to do in a blank: its steps, else what ``[stub.todo]`` says."""
        todo = self.marks.todo.get(name, "")
        steps = tuple(one for one in self.subgoals if one in found or one == todo)
        marked = bool(found)
        blank = Blank(name=name, line=node.lineno, size=size, steps=steps, marked=marked)
        self.blanks.append(blank)
        return ", ".join(steps) or todo

    def _import(self, node: ast.stmt, prefix: str) -> list[str]:
        """An import without the names that are left out."""
        assert isinstance(node, ast.Import | ast.ImportFrom)
        node.names = [
            alias
            for alias in node.names
            if self.fate(prefix + (alias.asname or alias.name), node) != LEAVE_OUT
        ]
        return [ast.unparse(node)]

    def _header(self, node: ast.FunctionDef) -> int:
        """The line on which the signature of a function without a docstring ends."""
        last = node.body[0].lineno - 1
        while not _is_code(self.lines[last - 1]):
            last -= 1
        return last

    def _helpers_of(self, node: ast.stmt) -> list[ast.stmt]:
        """What is left out and used here, or by what is; no helper counts twice."""
        found = []
        for part in ast.walk(node):
            name = part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", None)
            helper = self.uncounted.pop(name, None) if name else None
            if helper is not None and not _is_import(helper):
                found += [helper, *self._helpers_of(helper)]
        return found

    def _written(self, node: ast.stmt, after: int) -> int:
        """Lines of code below the line `after`, docstrings apart."""
        texts = [part for part in ast.walk(node) if isinstance(part, ast.stmt) and _is_text(part)]
        passed = {line for part in texts for line in range(part.lineno, (part.end_lineno or 0) + 1)}
        numbers = range(after + 1, (node.end_lineno or after) + 1)
        return sum(_is_code(self.lines[at - 1]) for at in numbers if at not in passed)


def walk(parent: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """Each name that a module or class binds, methods as ``Class.method``, and its statement."""
    for node in parent.body:
        for name in names_of(node):
            yield prefix + name, node
        if isinstance(node, ast.ClassDef):
            yield from walk(node, f"{prefix}{node.name}.")


def names_of(node: ast.stmt) -> list[str]:
    """What a statement binds."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [part.id for one in targets for part in ast.walk(one) if isinstance(part, ast.Name)]
    return []


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_code(line: str) -> bool:
    return not line.lstrip().startswith("#") and bool(line.strip())


def _is_kernel(node: ast.FunctionDef) -> bool:
    """Whether it is decorated with some `jit`, and not for use on the device alone."""
    decorators = map(ast.unparse, node.decorator_list)
    return any(".jit" in one and "device=True" not in one for one in decorators)


def _leading_blanks(lines: list[str]) -> int:
    return next((at for at, line in enumerate(lines) if line.strip()), 0)


def _size(own: int, by_helpers: int) -> str:
    """In words; a large one is rounded, since the learner's own will be another."""
    count = own + by_helpers
    count = count if count <= 10 else 5 * round(count / 5)
    about = "about " if count > 3 else ""
    helpers = " with helpers" if by_helpers else ""
    return f"({about}{count} line{'s' if count != 1 else ''}{helpers})"
