"""Whose file is under test: asked once, answered by a value that is handed on."""

import traceback
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from harness.base.errors import MetadataError, UsageProblem, nearest
from harness.base.files import hash_of, sha256, write_atomically
from harness.base.schema import Problems, Table, read_toml
from harness.content.course import shown
from harness.content.kata import Kata
from harness.content.pristine import committed_stub, pristine_stub
from harness.content.subgoals import without_marks

Kind = Literal["yours", "stub", "solution", "wrong", "other"]
ANOTHER_WAY = "Another way:"  # how its docstring begins
APPROACH = "approach:"  # right, in another way than the reference
NAIVE = "wrong:naive"  # right as a rule, and slow


@dataclass(frozen=True, kw_only=True)
class Submission:
    """
    One implementation of one kata, as it was when somebody asked for it.

    Attributes:
        kata: What it implements.
        label: What ``--impl`` calls it, in any process: ``yours``, ``stub``, ``solution``,
            ``wrong:<name>``, ``approach:<name>`` or the whole path of the file.
        path: The file.
        kind: Whose it is; a copy of the reference is the reference under whatever name.
        code_hash: SHA-256 of the file; "" where there is none.
        half: SHA-256 of the half stub that the learner began with last; "" where they never did.
    """

    kata: Kata
    label: str
    path: Path
    kind: Kind
    code_hash: str
    half: str = ""

    @property
    def owner(self) -> str:
        """The name under which an attempt with it is kept: the reference is nobody's own."""
        return "solution" if self.kind == "solution" else self.label

    def is_unchanged(self) -> bool:
        """Whether the file is still what was asked for."""
        return _hash_of_file(self.path) == self.code_hash

    @cached_property
    def is_blank(self) -> bool:
        """Whether it was the stub as the project ships it, or half of one: nobody's work yet."""
        if self.kind not in ("yours", "stub"):
            return False
        if self.half and self.code_hash == self.half:
            return True
        stub = committed_stub(self.kata)
        return stub is not None and hash_of(stub) == self.code_hash

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
        file = self.kata.file if self.label in ("yours", "stub") else self.path
        function, _ = self.place_of(error)
        of_which = "" if function in ("", self.kata.name) else f".{function}"
        return f"{self.kata.name}{of_which} is still a stub: edit {shown(file, self.kata.root)}"


def reference_of(kata: Kata) -> Path:
    """
    The file of the reference.

    Raises:
        UsageProblem: there is none, as in a course that a teacher has released.
    """
    if not kata.solution.is_file():
        raise UsageProblem(
            f"{kata.name}: expected the reference in {shown(kata.solution, kata.root)}, found "
            "none. A course released by a teacher has no solutions."
        )
    return kata.solution


def resolve(kata: Kata, impl: str, cache: Path) -> Submission:
    """
    The one implementation that a value of ``--impl`` stands for.

    Args:
        kata: The kata it implements.
        impl: ``yours``, ``stub``, ``solution``, ``wrong:<name>`` or a path.
        cache: Folder for wrong solutions that are written as edits of the reference.

    Raises:
        UsageProblem: no such wrong solution or file, or as `reference_of`.
    """
    if impl == "yours":
        return _submission(kata, impl, kata.file, "yours")
    if impl == "stub":
        return _submission(kata, impl, _stub_file(kata, cache), "stub")
    if impl == "solution":
        return _submission(kata, impl, reference_of(kata), "solution")
    if impl.startswith("wrong:"):
        known = {wrong.label: wrong for wrong in wrong_solutions(kata, cache)}
        if impl not in known:
            raise UsageProblem(
                f"--impl: expected a wrong solution of {kata.name}, found {impl!r}."
                f"{nearest(impl, known) or ' Known: ' + ', '.join(known)}"
            )
        return known[impl]
    if impl.startswith(APPROACH):
        ways = {one.label: one for one in approaches(kata, cache)}
        if impl in ways:
            return ways[impl]
        known_ways = ", ".join(ways) or "none"
        raise UsageProblem(
            f"--impl: expected an approach to {kata.name}, found {impl!r}.{nearest(impl, ways)} "
            f"Known: {known_ways}"
        )
    path = Path(impl)
    if not path.is_file():
        known_names = "yours, solution or the path of a Python file"
        raise UsageProblem(f"--impl: expected {known_names}, found {impl!r}.")
    path = path.resolve()
    return _submission(kata, str(path), path, "other")


def resolve_all(kata: Kata, impls: Iterable[str], cache: Path) -> list[Submission]:
    """What several values of ``--impl`` stand for; ``wrong`` is every wrong solution."""
    return [
        found
        for impl in impls
        for found in (
            wrong_solutions(kata, cache) if impl == "wrong" else [resolve(kata, impl, cache)]
        )
    ]


def wrong_solutions(kata: Kata, cache: Path) -> Iterator[Submission]:
    """Every wrong solution of `kata`: whole files first, then the edits of the reference."""
    for path in sorted(kata.wrong.glob("*.py")):
        yield _submission(kata, f"wrong:{path.stem}", path, "wrong")
    edits = kata.wrong / "edits.toml"
    if not edits.is_file():
        return
    for name, text in edited_solutions(edits, kata.solution, kata.subgoals).items():
        path = _cached(cache / "wrong" / kata.id / f"{name}.py", text.encode())
        yield _submission(kata, f"wrong:{name}", path, "wrong")


def approaches(kata: Kata, cache: Path) -> Iterator[Submission]:
    """
    Other right ways to solve `kata`, which ``kata explain`` shows beside the reference.

    Whole files, ``approaches/*.py`` beside the wrong solutions, and the edits of the reference in
    ``approaches.toml``, written like ``edits.toml``.

    Raises:
        MetadataError: an edit that does not fit.
    """
    for path in sorted(kata.wrong.glob("approaches/*.py")):
        yield _submission(kata, f"{APPROACH}{path.stem}", path, "other")
    edits = kata.wrong / "approaches.toml"
    if not edits.is_file():
        return
    for name, (why, text) in applied_edits(edits, kata.solution, kata.subgoals).items():
        whole = f'"""{ANOTHER_WAY} {why}."""\n\n{_without_docstring(text)}'
        path = _cached(cache / "wrong" / kata.id / "approaches" / f"{name}.py", whole.encode())
        yield _submission(kata, f"{APPROACH}{name}", path, "other")


def _submission(kata: Kata, label: str, path: Path, kind: Kind) -> Submission:
    code_hash = _hash_of_file(path)
    if code_hash and code_hash == _hash_of_file(kata.solution):
        kind = "solution"
    return Submission(kata=kata, label=label, path=path, kind=kind, code_hash=code_hash)


def _hash_of_file(path: Path) -> str:
    return sha256(path) if path.is_file() else ""


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


def edited_solutions(edits: Path, solution: Path, subgoals: Collection[str] = ()) -> dict[str, str]:
    """
    Apply every edit in `edits` to the reference, name to source text, the reason on top of it.

    Raises:
        MetadataError: a `find` that is not in the reference exactly once.
    """
    return {
        name: f'"""Wrong on purpose: {why}."""\n\n{_without_docstring(text)}'
        for name, (why, text) in applied_edits(edits, solution, subgoals).items()
    }


def applied_edits(
    edits: Path, solution: Path, subgoals: Collection[str] = ()
) -> dict[str, tuple[str, str]]:
    """
    Every edit in `edits`: name to why it is wrong, and to the reference with nothing else changed.

    The lines that name one of `subgoals` are taken out first, so that they part no `find`.

    Raises:
        MetadataError: as of `edited_solutions`.
    """
    reference = without_marks(solution.read_text(encoding="utf-8"), subgoals)
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
            made[name] = why, text
    return made


def _without_docstring(source: str) -> str:
    """Drop the module docstring, so that the reason for being wrong can take its place."""
    if not source.startswith('"""'):
        raise MetadataError("solution: expected a module docstring on the first line, found none.")
    return source[source.index('"""', 3) + 3 :].lstrip("\n")
