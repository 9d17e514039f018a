"""The files of a kata as the beginning of another: its shape stays, its name goes."""

import ast
import re

from harness.base.errors import UsageProblem
from harness.content.kata import Kata

# keys of kata.toml that say what this kata is, and nothing of how it is judged
ITS_OWN = {
    "title", "teaches", "covers", "backend", "functions", "difficulty", "minutes", "requires",
    "hints", "sources", "subgoals",
}  # fmt: skip


class Likeness:
    """
    What a new kata `name` takes over from `kata`.

    That is reference, oracle and wrong solutions with the new name in them, what its test file has
    besides tests, and the tables of kata.toml.
    """

    def __init__(self, kata: Kata, week: str, name: str) -> None:
        self.kata = kata
        self.week = week
        self.name = name
        self.functions = [self._renamed(one) for one in kata.functions]

    @property
    def tables(self) -> str:
        """What follows the keys that every kata.toml has, but for [stub] and [why]."""
        text = (self.kata.folder / "kata.toml").read_text(encoding="utf-8")
        keys, *tables = re.split(r"^(?=\[)", text, flags=re.M)
        settings = re.split(r"^(?=\w+ *=)", keys, flags=re.M)
        kept = [one for one in settings if one.partition("=")[0].strip() not in {"", *ITS_OWN}]
        kept += [one for one in tables if not one.startswith(("[stub", "[why"))]
        return self._mark + self._renamed("".join(kept)).rstrip()

    @property
    def todo(self) -> str:
        """The first of its functions, or of their methods, that a stub leaves to the learner."""
        named = {
            getattr(node, "name", ""): node for node in ast.parse(self.text("solution.py")).body
        }
        for name in self.functions:
            node = named.get(name)
            if not isinstance(node, ast.ClassDef):
                return name
            for method in node.body:
                if isinstance(method, ast.FunctionDef):
                    return f"{name}.{method.name}"
        return self.functions[0]

    @property
    def _mark(self) -> str:
        return f"# TODO(author): made like {self.kata.name}\n"

    def text(self, file: str) -> str:
        """One of the files "oracle.py", "test.py", "solution.py" and "edits.toml"."""
        paths = {
            "oracle.py": self.kata.oracle,
            "test.py": self.kata.folder / f"test_{self.kata.name}.py",
            "solution.py": self.kata.solution,
            "edits.toml": self.kata.wrong / "edits.toml",
        }
        path = paths[file]
        if not path.is_file():
            raise UsageProblem(f"--like {self.kata.name}: expected {path}, found no such file.")
        text = path.read_text(encoding="utf-8")
        if file == "edits.toml":
            return self._mark + self._renamed(text)
        if file == "test.py":
            text = _without_tests(text)
        return _marked(self._renamed(text), self._mark)

    def _renamed(self, text: str) -> str:
        text = text.replace(
            f"week{self.kata.week:02d}/{self.kata.name}", f"week{self.week}/{self.name}"
        )
        return re.sub(rf"(?<![A-Za-z0-9]){self.kata.name}(?![A-Za-z0-9])", self.name, text)


def _marked(text: str, mark: str) -> str:
    """The module `text` with a comment below its docstring."""
    first = ast.parse(text).body[0]
    at = (first.end_lineno or 0) if isinstance(first, ast.Expr) else 0
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:at], "\n" if at else "", mark, *lines[at:]])


def _without_tests(text: str) -> str:
    """The test module `text` without its tests, and the comments that stand above them."""
    lines, kept, end = text.splitlines(keepends=True), [], 0
    for node in ast.parse(text).body:
        before, end = end, node.end_lineno or end
        if not (isinstance(node, ast.FunctionDef) and node.name.startswith("test_")):
            kept += lines[before:end]
    return "".join(kept)
