"""
The stub, cut out of the reference: signatures and docstrings stay, the answer goes.

What `functions` of kata.toml names is left to the learner, and so is the body of a kernel. Other
private functions go: how to divide the work is the learner's. Of a source in CUDA C++ the kernels'
bodies go. The rest is given, word for word. Where a kata wants it otherwise, ``[stub]`` of its
kata.toml says so.
"""

import ast
import textwrap
from collections.abc import Iterable, Iterator

from harness.authoring.cuda_stub import blank_kernels
from harness.base.errors import MetadataError, UsageProblem, nearest
from harness.base.files import read_file
from harness.content.kata import Kata, StubMarks

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
        return stub_of(source, kata.functions, kata.stub)
    except SyntaxError as error:
        raise UsageProblem(
            f"{kata.solution}: expected the reference in Python, found {error}. Write it first."
        ) from None


def stub_of(source: str, functions: Iterable[str], marks: StubMarks | None = None) -> str:
    """The stub of the reference `source`, whose `functions` are the learner's to write."""
    cut = _Cut(source, frozenset(functions), marks or StubMarks())
    return "\n".join(cut.block(cut.tree, 0)) + "\n"


class _Cut:
    """One reference on its way to a stub."""

    def __init__(self, source: str, functions: frozenset[str], marks: StubMarks) -> None:
        self.lines = source.splitlines()
        self.functions = functions
        self.marks = marks
        self.tree = ast.parse(source)
        known = {name for name, _ in _walk(self.tree)}
        for name in [*marks.give, *marks.leave_out, *marks.todo]:
            if name not in known:
                expected = "[stub] of kata.toml: expected names that the reference has"
                raise MetadataError(f"{expected}, found {name!r}.{nearest(name, known)}")
        classes = {name for name, node in _walk(self.tree) if isinstance(node, ast.ClassDef)}
        if named := sorted(classes & set(marks.todo)):
            inside = [one for one in known if one.startswith(f"{named[0]}.")]
            raise MetadataError(
                "[stub.todo] of kata.toml: expected functions, methods or values, found the class "
                f"{named[0]!r}, which would be given whole. Name its methods: {', '.join(inside)}"
            )
        # what the learner does not see, by the name that code calls it; each is counted once
        self.uncounted = {
            name.rpartition(".")[2]: node
            for name, node in _walk(self.tree)
            if self._fate(name, node) == LEAVE_OUT
        }

    def block(self, parent: ast.Module | ast.ClassDef, at: int, prefix: str = "") -> list[str]:
        """What the stub has of the lines of `parent` from `at` on."""
        kept: list[str] = []
        gap = 0  # empty lines that stood above what was left out
        for node in parent.body:
            before, at = at, node.end_lineno or at
            fates = {self._fate(prefix + name, node) for name in _names(node)} or {GIVE}
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
                kept += self._blank(node, before, prefix + node.name)
            elif fates == {BLANK} and not isinstance(node, ast.ClassDef):
                todo = " ".join(self.marks.todo.get(prefix + name, "") for name in _names(node))
                kept += blank_kernels("\n".join(self.lines[before:at]), todo).split("\n")
            elif LEAVE_OUT in fates:
                kept += [""] * blank_above + self._import(node, prefix)
            elif self.marks.docstring and node is self.tree.body[0] and _is_text(node):
                kept += f'"""{self.marks.docstring}"""'.splitlines()
            else:
                kept += self.lines[before:at]
        return kept

    def _fate(self, name: str, node: ast.stmt) -> str:
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

    def _blank(self, node: ast.FunctionDef, before: int, name: str) -> list[str]:
        """The lines after `before` up to the function's own code, and what to do instead of it."""
        documented = ast.get_docstring(node, clean=False) is not None
        above = node.body[0].end_lineno or before if documented else self._header(node)
        indent = " " * (node.col_offset + 4)
        size = _size(self._written(node, above), self._written_by_helpers(node))
        todo = " ".join(filter(None, ["TODO(kata):", self.marks.todo.get(name), size]))
        kept = self.lines[before:above]
        code = "pass" if _is_kernel(node) and name not in self.functions else None
        line = f"{indent}raise NotImplementedError  # {todo}"
        if code is None and len(line) <= WIDTH:
            return [*kept, line]
        wrapped = textwrap.wrap(todo, WIDTH - len(indent) - 2, break_on_hyphens=False)
        return [
            *kept,
            *(f"{indent}# {part}" for part in wrapped),
            indent + (code or "raise NotImplementedError"),
        ]

    def _import(self, node: ast.stmt, prefix: str) -> list[str]:
        """An import without the names that are left out."""
        assert isinstance(node, ast.Import | ast.ImportFrom)
        node.names = [
            alias
            for alias in node.names
            if self._fate(prefix + (alias.asname or alias.name), node) != LEAVE_OUT
        ]
        return [ast.unparse(node)]

    def _header(self, node: ast.FunctionDef) -> int:
        """The line on which the signature of a function without a docstring ends."""
        last = node.body[0].lineno - 1
        while not _is_code(self.lines[last - 1]):
            last -= 1
        return last

    def _written_by_helpers(self, node: ast.stmt) -> int:
        """Lines of what is left out and used here, or by what is; no helper counts twice."""
        found = 0
        for part in ast.walk(node):
            name = part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", None)
            helper = self.uncounted.pop(name, None) if name else None
            if helper is not None and not _is_import(helper):
                found += self._written(helper, helper.lineno - 1) + self._written_by_helpers(helper)
        return found

    def _written(self, node: ast.stmt, after: int) -> int:
        """Lines of code below the line `after`, docstrings apart."""
        texts = [part for part in ast.walk(node) if isinstance(part, ast.stmt) and _is_text(part)]
        passed = {line for part in texts for line in range(part.lineno, (part.end_lineno or 0) + 1)}
        numbers = range(after + 1, (node.end_lineno or after) + 1)
        return sum(_is_code(self.lines[at - 1]) for at in numbers if at not in passed)


def _walk(parent: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """Each name that a module or class binds, methods as ``Class.method``, and its statement."""
    for node in parent.body:
        for name in _names(node):
            yield prefix + name, node
        if isinstance(node, ast.ClassDef):
            yield from _walk(node, f"{prefix}{node.name}.")


def _names(node: ast.stmt) -> list[str]:
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
