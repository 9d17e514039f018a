"""
Half a stub: the first steps are given as the reference has them, the last are left to the learner.

Worked steps go from the end: backward fading, after Renkl and Atkinson (2003),
doi.org/10.1207/S15326985EP3801_3. As many steps are given as come nearest to half of the lines.
"""

import ast
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from harness.authoring.segments import Segment, declared_in, kernel_segments, segments_of
from harness.authoring.stub import BLANK, GIVE, LEAVE_OUT, OPEN, WIDTH, Cut, names_of, walk
from harness.base.errors import UsageProblem
from harness.base.files import read_file
from harness.content.kata import Kata
from harness.content.submission import reference_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """A stub with some of its steps done: its text, the steps that are given, and the others."""

    text: str
    given: tuple[str, ...]
    left: tuple[str, ...]


def half_stub(kata: Kata) -> Half:
    """
    Half of the kata's stub.

    Raises:
        UsageProblem: the kata names no steps, or there is no reference to take them from.
    """
    if not kata.subgoals:
        raise UsageProblem(
            f"--level half: expected a kata with named steps (`subgoals` of kata.toml), found "
            f"{kata.name}, which has none. Start it blank: kata start {kata.name}"
        )
    return halved(kata, read_file(reference_of(kata)).decode("utf-8"))


def halved(kata: Kata, source: str) -> Half:
    """Half of the stub of the reference `source` of `kata`, which names its steps."""
    halves = [_Half(source, kata, kata.subgoals[:count]) for count in range(1, len(kata.subgoals))]
    best = min(halves, key=lambda one: abs(one.size_given - one.size_left))
    return Half(text=best.text(), given=best.given, left=kata.subgoals[len(best.given) :])


class _Half(Cut):
    """One reference on its way to a stub in which the steps `given` are done."""

    def __init__(self, source: str, kata: Kata, given: tuple[str, ...]) -> None:
        super().__init__(source, kata.functions, kata.stub, kata.subgoals)
        self.given = given
        self.nodes = {
            name: node for name, node in walk(self.tree) if not isinstance(node, ast.ClassDef)
        }
        self.cuts: dict[int, tuple[Segment, str]] = {}  # by their first lines; whose they are
        self.kernels = kernel_segments(self.lines, self.marked)
        self.covered: set[int] = set()  # lines that are left to the learner
        named: set[int] = set()
        for name, one in self._segments():
            lines = set(range(one.first, one.last + 1))
            named |= lines
            if one.name not in given and one.first not in self.covered:
                self.cuts[one.first] = (one, name)
                self.covered |= lines
        self.size_left = len(self.covered)
        self.size_given = len(named - self.covered)
        self.needed = self._needed()

    def fate(self, name: str, node: ast.stmt) -> str:
        """As in the blank stub; but what the given lines use is there."""
        fate = self._fate_blank(name, node)
        if fate == LEAVE_OUT and self._called(name) in getattr(self, "needed", ()):
            is_class = isinstance(node, ast.ClassDef)
            return OPEN if is_class else BLANK if isinstance(node, ast.FunctionDef) else GIVE
        return fate

    def _fate_blank(self, name: str, node: ast.stmt) -> str:
        """What the blank stub does; methods of a class that is left out are left out."""
        return LEAVE_OUT if self.is_gone(name) else super().fate(name, node)

    def _called(self, name: str) -> str:
        """By what code calls it: a method of a class that is left out by the class."""
        owner, _, own = name.rpartition(".")
        return owner if self.is_gone(name) else own

    def blank(self, node: ast.FunctionDef, before: int, name: str) -> list[str]:
        """The function with the lines that are left to the learner cut out of it."""
        if self._whole(name) in self.given or self._goes_unnamed(name, node):
            return self.lines[before : node.end_lineno]
        if not self._has_marks(node):
            return super().blank(node, before, name)
        return self._with_cuts(before, node.end_lineno or before, node)

    def blank_text(self, node: ast.stmt, before: int, prefix: str) -> list[str]:
        """The text in CUDA C++ with the lines of its kernels cut out of it."""
        name = next(prefix + name for name in names_of(node))
        if self._whole(name) in self.given:
            return self.lines[before : node.end_lineno]
        if not self._has_marks(node):
            return super().blank_text(node, before, prefix)
        return self._with_cuts(before, node.end_lineno or before, node)

    def _segments(self) -> Iterator[tuple[str, Segment]]:
        """Each step and whose it is: functions, kernels, and what ``[stub.todo]`` names whole."""
        for name, node in self.nodes.items():
            fate = self._fate_blank(name, node)
            if fate not in (BLANK, LEAVE_OUT):
                continue
            own = range(node.lineno, (node.end_lineno or 0) + 1)
            if isinstance(node, ast.FunctionDef):
                yield from ((name, one) for one in segments_of(node, self.marked, self.lines))
            elif fate == BLANK:
                yield from ((name, one) for one in self.kernels if one.first in own)
            if fate == BLANK and (step := self._whole(name)):
                last = node.end_lineno or 0
                yield name, Segment(name=step, first=node.lineno, last=last, indent=0)

    def _whole(self, name: str) -> str:
        """The step that a function is as a whole; "" for none."""
        step = self.marks.todo.get(name, "")
        return step if step in self.subgoals else ""

    def _goes_unnamed(self, name: str, node: ast.FunctionDef) -> bool:
        """Whether a short function without steps is used by what is given."""
        unnamed = not self._has_marks(node) and not self._whole(name)
        called = self._called(name)
        return unnamed and (called == "__init__" or called in self.needed)

    def _has_marks(self, node: ast.stmt) -> bool:
        return any(node.lineno <= line <= (node.end_lineno or 0) for line in self.marked)

    def _needed(self) -> set[str]:
        """Names that the given lines use, and whatever those need."""
        used: set[str] = set()
        seen: set[str] = set()
        while True:
            before = len(used)
            for name, node in self.nodes.items():
                plain, fate = self._called(name), self._fate_blank(name, node)
                blank = fate in (BLANK, LEAVE_OUT) and isinstance(node, ast.FunctionDef)
                unnamed = not self._has_marks(node) and self._whole(name) not in self.given
                if name in seen or (fate == LEAVE_OUT and plain not in used):
                    continue
                if blank and fate == BLANK and unnamed and plain not in {*used, "__init__"}:
                    used |= _names_used(node.args) if isinstance(node, ast.FunctionDef) else set()
                    continue
                seen.add(name)
                used |= _names_used(node, self.covered)
            if len(used) == before:
                return used

    def _with_cuts(self, before: int, last: int, node: ast.stmt) -> list[str]:
        """The lines from `before` to `last`, with a TODO where a step is left out."""
        kept: list[str] = []
        for number in range(before + 1, last + 1):
            if number in self.cuts:
                kept += self._todo(*self.cuts[number], node)
            elif number not in self.covered:
                kept.append(self.lines[number - 1])
        return kept

    def _todo(self, cut: Segment, name: str, node: ast.stmt) -> list[str]:
        """What stands in place of a step: its name, its size, what it has to define."""
        indent = " " * cut.indent
        size = sum(
            bool(line.strip()) and not line.strip().startswith(("#", "//"))
            for line in self.lines[cut.first : cut.last]
        )
        named = {self.marked[at] for at in self.marked if cut.first <= at <= cut.last}
        steps = ", ".join(one for one in self.subgoals if one in named)
        words = f"TODO(kata): {steps} ({size} line{'s' if size != 1 else ''})"
        ends = cut.last + 1, (node.end_lineno or 0) + 1
        if not isinstance(node, ast.FunctionDef):
            kept = [self.lines[at - 1] for at in range(*ends) if at not in self.covered]
            defined = declared_in(self.lines, cut, kept)
        else:
            defined = _defined(cut, node, self.covered)
        if defined:
            words += f"; what follows uses {', '.join(defined)}"
        elif any(isinstance(part, ast.Return) for one in cut.body for part in ast.walk(one)):
            words += "; it returns"
        sign = "#" if isinstance(node, ast.FunctionDef) else "//"
        wrapped = textwrap.wrap(words, WIDTH - len(indent) - 3, break_on_hyphens=False)
        lines = [f"{indent}{sign} {part}" for part in wrapped]
        if isinstance(node, ast.FunctionDef):
            code = "pass" if self.is_kernel(node, name) else "raise NotImplementedError"
            lines.append(indent + code)
        return lines


def _defined(cut: Segment, function: ast.FunctionDef, covered: Iterable[int]) -> list[str]:
    """Names that `cut` binds and that given lines after it, or in its loop, read."""
    gone = set(covered)
    stored = dict.fromkeys(name for one in cut.body for name in _bound(one))
    loop = cut.loop
    again = range(loop.lineno, (loop.end_lineno or 0) + 1) if loop else range(0)
    read = {
        text
        for part in ast.walk(function)
        if isinstance(part, ast.Name | ast.Attribute)
        and isinstance(part.ctx, ast.Load)
        and part.lineno not in gone
        and (part.lineno > cut.last or part.lineno in again)
        for text in [ast.unparse(part)]
    }
    return [name for name in stored if name in read]


def _bound(statement: ast.stmt) -> Iterator[str]:
    """What a statement binds, attributes such as ``self.x`` too, in the order of its lines."""
    for part in ast.walk(statement):
        if isinstance(part, ast.FunctionDef):
            yield part.name
        elif isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Store):
            yield ast.unparse(part)


def _names_used(node: ast.AST, gone: Iterable[int] = ()) -> set[str]:
    """Names and attributes read in `node`, outside of the lines that are `gone`."""
    passed = set(gone)
    read = [part for part in ast.walk(node) if isinstance(part, ast.Name | ast.Attribute)]
    return {
        part.id if isinstance(part, ast.Name) else part.attr
        for part in read
        if part.lineno not in passed
    }
