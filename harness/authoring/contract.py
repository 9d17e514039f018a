"""What a kata promises, checked without running it: files, names, signatures, metadata."""

import ast
from collections.abc import Iterator
from pathlib import Path

from harness.base.errors import HarnessError
from harness.content.kata import Kata
from harness.content.pristine import pristine_stub
from harness.hardware.environment import missing_extra
from harness.judge.submission import Submission, wrong_solutions

LEAST_WRONG = 3
TEXT = (".md", ".py", ".toml")
WRONG_OPENING = "Wrong on purpose:"


def contract_problems(kata: Kata, cache: Path) -> list[str]:
    """Every way in which `kata` breaks the contract, as sentences."""
    missing = list(_missing_files(kata))
    if missing:
        return missing
    return [
        *_metadata_problems(kata),
        *_author_problems(kata),
        *_signature_problems(kata),
        *_given_problems(kata),
        *_wrong_problems(kata, cache),
    ]


def _missing_files(kata: Kata) -> Iterator[str]:
    tests = kata.folder / f"test_{kata.name}.py"
    for path in (kata.file, kata.solution, kata.folder / "README.md", kata.oracle, tests):
        if not path.is_file() or not path.read_text(encoding="utf-8").strip():
            yield f"{path.relative_to(kata.root)}: expected a file with something in it, found none"


def _metadata_problems(kata: Kata) -> Iterator[str]:
    if kata.name in kata.requires:
        yield "requires: expected other katas, found itself"
    if not kata.covers:
        yield "covers: expected at least one id, found none"
    if missing := missing_extra(kata):
        yield missing


def _author_problems(kata: Kata) -> Iterator[str]:
    """What a new kata marks as the author's to write."""
    for path in sorted([*kata.folder.iterdir(), kata.solution, *kata.wrong.iterdir()]):
        if path.suffix in TEXT:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                if "TODO(author)" in line:
                    yield f"{path.relative_to(kata.root)}:{number}: TODO(author) is left"


def _signature_problems(kata: Kata) -> Iterator[str]:
    """A learner who keeps to the stub's signatures must fit wherever the reference fits."""
    stub = signatures((pristine_stub(kata) or b"").decode())
    solution = signatures(kata.solution.read_text(encoding="utf-8"))
    for name in kata.functions:
        if name not in stub:
            yield f"stub: expected `{name}` (kata.toml functions), found none"
        elif name not in solution:
            yield f"solution: expected `{name}` (kata.toml functions), found none"
        elif stub[name] != solution[name]:
            yield f"{name}: expected one signature, found {stub[name]} and {solution[name]}"


def _given_problems(kata: Kata) -> Iterator[str]:
    """What the stub gives away ready made is the reference's own, word for word."""
    given = parts((pristine_stub(kata) or b"").decode())
    solution = parts(kata.solution.read_text(encoding="utf-8"))
    for name, text in given.items():
        todo = "NotImplementedError" in text or "TODO(kata)" in text
        if not todo and solution.get(name) != text:
            found = "another text" if name in solution else "none"
            yield (
                f"{name}: expected what the stub gives to stand in the solution unchanged, found "
                f"{found}. Mark in the stub with TODO(kata) what the learner is to write."
            )


def parts(source: str) -> dict[str, str]:
    """Top-level functions, methods and named values of a module, name to source text."""
    found = {}
    for node in ast.parse(source).body:
        inside = (
            [(f"{node.name}.", item) for item in node.body]
            if isinstance(node, ast.ClassDef)
            else []
        )
        for prefix, item in inside or [("", node)]:
            if isinstance(item, ast.FunctionDef):
                found[prefix + item.name] = ast.get_source_segment(source, item) or ""
            elif isinstance(item, ast.Assign | ast.AnnAssign):
                target = item.targets[0] if isinstance(item, ast.Assign) else item.target
                found[prefix + ast.unparse(target)] = ast.get_source_segment(source, item) or ""
    return found


def signatures(source: str) -> dict[str, str]:
    """Top-level functions, and constructors and public methods of classes, name to signature."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = ast.unparse(node.args)
        elif isinstance(node, ast.ClassDef):
            methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
            public = [item for item in methods if item.name[0] != "_" or item.name == "__init__"]
            shown = [f"{item.name}({ast.unparse(item.args)})" for item in public]
            found[node.name] = "; ".join(sorted(shown))
    return found


def _wrong_problems(kata: Kata, cache: Path) -> Iterator[str]:
    try:
        wrong: list[Submission] = list(wrong_solutions(kata, cache))
    except HarnessError as error:
        yield error.message
        return
    if len(wrong) < LEAST_WRONG:
        yield f"tests/wrong/{kata.id}: expected at least {LEAST_WRONG}, found {len(wrong)}"
    for one in wrong:
        try:
            docstring = ast.get_docstring(ast.parse(one.path.read_text(encoding="utf-8"))) or ""
        except SyntaxError as error:
            yield f"{one.label}: expected Python, found {error}"
            continue
        if not docstring.startswith(WRONG_OPENING):
            yield f"{one.label}: expected a docstring '{WRONG_OPENING} <why>.', found {docstring!r}"
