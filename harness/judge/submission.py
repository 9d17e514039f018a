"""The file under test: which one it is, and loading it under a private name."""

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.base.errors import MetadataError, SubmissionError, UsageProblem, nearest
from harness.base.files import write_atomically
from harness.base.schema import Problems, Table, read_toml
from harness.content.kata import Kata
from harness.content.pristine import pristine_stub


def load_module(path: Path) -> ModuleType:
    """
    Import the file at `path` under a name made from its path, so that no two files meet.

    Whatever the file itself raises passes through untouched.
    """
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    name = f"_kata_{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SubmissionError(f"{path}: expected a Python file, found none.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@dataclass(frozen=True)
class Submission:
    """
    One implementation of one kata.

    `label` is what the learner calls it: ``yours``, ``solution``, ``stub``, ``wrong:<name>`` or
    the file's path.
    """

    kata: Kata
    label: str
    path: Path

    @cached_property
    def module(self) -> ModuleType:
        """
        The loaded file.

        Raises:
            SubmissionError: a function that kata.toml names is missing.
        """
        module = load_module(self.path)
        for name in self.kata.functions:
            if not callable(found := getattr(module, name, None)):
                others = [other for other in vars(module) if not other.startswith(("__", name))]
                what = "none" if found is None else repr(found)
                raise SubmissionError(
                    f"{self.path}: expected a function `{name}` (kata.toml `functions`), found "
                    f"{what}.{nearest(name, others)}"
                )
        return module

    @property
    def entry(self) -> Callable[..., Any]:
        """The first of the kata's functions: the one the shared checks call."""
        return getattr(self.module, self.kata.functions[0])  # type: ignore[no-any-return]

    @property
    def code_hash(self) -> str:
        """SHA-256 of the file as it is now."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    def place_of(self, error: BaseException | None) -> tuple[str, int]:
        """The innermost function and line of the file that `error` came through; "", 0: none."""
        if error is None:
            return "", 0
        found = [
            (frame.f_code.co_qualname, line)
            for frame, line in traceback.walk_tb(error.__traceback__)
            if frame.f_code.co_filename == str(self.path)
        ]
        # a cause arose farther in
        cause = self.place_of(error.__cause__)
        return cause if cause[1] or not found else found[-1]

    def stub_message(self, error: NotImplementedError | None = None) -> str:
        """The one line a test prints when the code that raised `error` is not written yet."""
        shown = self.kata.file if self.label in ("yours", "stub") else self.path
        if shown.is_relative_to(self.kata.root):
            shown = shown.relative_to(self.kata.root)
        function, _ = self.place_of(error)
        of_which = "" if function in ("", self.kata.name) else f".{function}"
        return f"{self.kata.name}{of_which} is still a stub: edit {shown}"


def submissions(kata: Kata, spec: str, cache: Path) -> list[Submission]:
    """
    The implementations that one ``--impl`` value stands for.

    Args:
        kata: The kata they implement.
        spec: ``yours``, ``stub``, ``solution``, ``wrong`` (all), ``wrong:<name>`` or a path.
        cache: Folder for wrong solutions that are written as edits of the reference.

    Raises:
        UsageProblem: no such wrong solution or file.
    """
    if spec == "yours":
        return [Submission(kata, spec, kata.file)]
    if spec == "stub":
        return [Submission(kata, spec, _stub_file(kata, cache))]
    if spec == "solution":
        return [Submission(kata, spec, kata.solution)]
    if spec == "wrong":
        return list(wrong_solutions(kata, cache))
    if spec.startswith("wrong:"):
        known = {wrong.label: wrong for wrong in wrong_solutions(kata, cache)}
        if spec not in known:
            raise UsageProblem(
                f"--impl: expected a wrong solution of {kata.name}, found {spec!r}."
                f"{nearest(spec, known) or ' Known: ' + ', '.join(known)}"
            )
        return [known[spec]]
    path = Path(spec)
    if not path.is_file():
        known_specs = "yours, solution or the path of a Python file"
        raise UsageProblem(f"--impl: expected {known_specs}, found {spec!r}.")
    return [Submission(kata, spec, path.resolve())]


def _stub_file(kata: Kata, cache: Path) -> Path:
    """The blank stub: the file itself, or a copy of it once the learner has written over it."""
    stub = pristine_stub(kata)
    if stub is None or stub == kata.file.read_bytes():
        return kata.file
    return _cached(cache / "stub" / kata.id / kata.file.name, stub)


def _cached(path: Path, content: bytes) -> Path:
    if not path.is_file() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    return path


def wrong_solutions(kata: Kata, cache: Path) -> Iterator[Submission]:
    """Every wrong solution of `kata`: whole files first, then the edits of the reference."""
    for path in sorted(kata.wrong.glob("*.py")):
        yield Submission(kata, f"wrong:{path.stem}", path)
    edits = kata.wrong / "edits.toml"
    if not edits.is_file():
        return
    for name, text in edited_solutions(edits, kata.solution).items():
        path = _cached(cache / "wrong" / kata.id / f"{name}.py", text.encode())
        yield Submission(kata, f"wrong:{name}", path)


def edited_solutions(edits: Path, solution: Path) -> dict[str, str]:
    """
    Apply every edit in `edits` to the reference, name to source text.

    Raises:
        MetadataError: a `find` that is not in the reference exactly once.
    """
    reference = solution.read_text(encoding="utf-8")
    data = read_toml(edits)
    made = {}
    with Problems(edits) as problems:
        for name, body in data.items():
            if not isinstance(body, dict):
                problems.add(name, "a table with why, find, replace", repr(body))
                continue
            table = Table(body, problems, f"{name}.")
            why = table.take("why", str)
            rows = table.tables("edits") or [table]
            text = reference
            for row in rows:
                find, replace = row.take("find", str), row.take("replace", str)
                if text.count(find) != 1:
                    problems.add(
                        f"{row.where}find", "text found once in the reference", text.count(find)
                    )
                text = text.replace(find, replace)
                row.done()
            table.done()
            made[name] = f'"""Wrong on purpose: {why}."""\n\n{_without_docstring(text)}'
    return made


def _without_docstring(source: str) -> str:
    """Drop the module docstring, so that the reason for being wrong can take its place."""
    if not source.startswith('"""'):
        raise MetadataError("solution: expected a module docstring on the first line, found none.")
    return source[source.index('"""', 3) + 3 :].lstrip("\n")
