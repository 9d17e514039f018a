"""What a kata promises, checked without running it: files, names, signatures, metadata."""

import ast
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from harness.authoring.brief import brief_problems
from harness.authoring.cuda_stub import stray_hashes
from harness.authoring.steps import step_problems
from harness.authoring.stub import cut_stub
from harness.base.errors import HarnessError, nearest
from harness.content.course import shown
from harness.content.kata import ASYNCHRONOUS, STATIC_METERS, Kata
from harness.content.pristine import pristine_stub
from harness.content.submission import Submission, wrong_solutions
from harness.hardware.packages import missing_for
from harness.hardware.profiles import load_profiles

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
        *_stub_problems(kata),
        *_wrong_problems(kata, cache),
    ]


def can_be_run(kata: Kata, cache: Path) -> bool:
    """Whether there is enough of `kata` to run its tests, whatever else is missing."""
    try:
        return not any(_missing_files(kata)) and bool(list(wrong_solutions(kata, cache)))
    except HarnessError:
        return False


def _missing_files(kata: Kata) -> Iterator[str]:
    tests = kata.folder / f"test_{kata.name}.py"
    for path in (kata.file, kata.solution, kata.folder / "README.md", kata.oracle, tests):
        if not path.is_file() or not path.read_text(encoding="utf-8").strip():
            yield f"{shown(path, kata.root)}: expected a file with something in it, found none"


def _metadata_problems(kata: Kata) -> Iterator[str]:
    if kata.name in kata.requires:
        yield "requires: expected other katas, found itself"
    if not kata.covers:
        yield "covers: expected at least one id, found none"
    if missing := missing_for(kata):
        yield missing
    static = any(one.meter in STATIC_METERS for one in kata.cost)
    if kata.backend in ASYNCHRONOUS and not static:
        yield (
            "cost: expected an entry that compiles the kernels (spills, registers, ...), since a "
            "simulator takes more than the compiler does, found none"
        )
    yield from _profile_problems(kata)


def _profile_problems(kata: Kata) -> Iterator[str]:
    """Thresholds of GPUs that nobody knows."""
    asked = {name for one in kata.speed for name in one.profiles}
    if not asked:
        return
    profiles = load_profiles(kata.root / "hardware_profiles").values()
    known = {name for profile in profiles for name in profile.names}
    for name in sorted(asked - known):
        yield (
            f"speed.profiles: expected hardware profiles, architectures or generations, found "
            f"{name!r}.{nearest(name, known)}"
        )


def _author_problems(kata: Kata) -> Iterator[str]:
    """What a new kata marks as the author's to write."""
    for path in sorted([*kata.folder.iterdir(), kata.solution, *kata.wrong.iterdir()]):
        if path.suffix in TEXT:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                if "TODO(author)" in line:
                    yield f"{shown(path, kata.root)}:{number}: TODO(author) is left"


def _stub_problems(kata: Kata) -> Iterator[str]:
    """The stub is what is cut out of the reference, so that neither is written twice."""
    reference = f"the reference, {shown(kata.solution, kata.root)}"
    try:
        cut = cut_stub(kata)
    except HarnessError as error:
        yield error.message
        return
    yield from brief_problems(kata)
    yield from step_problems(kata)
    for number in stray_hashes(kata.solution.read_text(encoding="utf-8")):
        yield (
            f"{shown(kata.solution, kata.root)}:{number}: expected a comment in CUDA C++ to begin "
            "with //, found #. Mend it, then: "
            f"kata stub {kata.name} --write"
        )
    defined = {getattr(node, "name", "") for node in ast.parse(cut).body}
    for name in kata.functions:
        if name not in defined:
            yield f"functions: expected names that {reference}, defines, found {name!r}"
    found = (pristine_stub(kata) or b"").decode()
    lines = zip_longest(cut.splitlines(), found.splitlines())
    for number, (expected, line) in enumerate(lines, start=1):
        if expected != line:
            yield (
                f"{shown(kata.file, kata.root)}:{number}: expected "
                f"{_quoted(expected)}, as cut out of {reference}, found {_quoted(line)}. "
                f"Change the reference or [stub] of kata.toml, then: kata stub {kata.name} --write"
            )
            return


def _quoted(line: str | None) -> str:
    return "the end" if line is None else repr(line)


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
