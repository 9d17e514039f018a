"""Whether the brief lists what there is to write, as the stub has it, and the steps behind it."""

import ast
import re
import textwrap
from collections.abc import Iterator

from harness.authoring.cuda_stub import kernel_names
from harness.authoring.stub import Cut, walk
from harness.base.files import read_file
from harness.content.course import shown
from harness.content.kata import Kata
from harness.content.subgoals import STEPS

TO_WRITE = "## To write"
TABLE = "| | |\n|---|---|\n"  # how the table below that heading begins
CODE = re.compile(r"`([^`]+)`")
CALLED = re.compile(r"(?:with )?\.?([A-Za-z_][\w.]*)\(")
UNBROKEN = "\0"  # a space within a name, at which no line is broken
WIDTH = 120  # characters of a line of the brief; a row of a table cannot be wrapped


def brief_problems(kata: Kata) -> Iterator[str]:
    """Every way in which the brief breaks the contract."""
    path = kata.folder / "README.md"
    brief, file = path.read_text(encoding="utf-8"), str(shown(path, kata.root))
    for number, line in enumerate(brief.splitlines(), start=1):
        if len(line) > WIDTH and not line.startswith("|"):
            yield (
                f"{file}:{number}: expected at most {WIDTH} characters, found {len(line)}. "
                "Wrap the line."
            )
    yield from _table_problems(kata, brief, file)
    if kata.subgoals and brief_with_steps(kata, brief) != brief:
        yield (
            f"{file}: expected the paragraph {steps_line(kata)!r} behind the table below "
            f"'{TO_WRITE}', found another, or none there. Write it: kata stub {kata.name} --write"
        )


def steps_line(kata: Kata) -> str:
    """The paragraph of the brief that names the steps, in their order."""
    names = [name.replace(" ", UNBROKEN) for name in kata.subgoals]
    line = textwrap.fill(STEPS + " · ".join(names), WIDTH, break_on_hyphens=False)
    return line.replace(UNBROKEN, " ")


def brief_with_steps(kata: Kata, brief: str) -> str:
    """`brief` with the steps named where they belong: behind the table of what is to be written."""
    paragraphs = [one for one in brief.strip("\n").split("\n\n") if not one.startswith(STEPS)]
    at = paragraphs.index(TO_WRITE) + 1 if TO_WRITE in paragraphs else len(paragraphs)
    if paragraphs[at : at + 1] and paragraphs[at].startswith(TABLE):
        at += 1
    paragraphs.insert(at, steps_line(kata))
    return "\n\n".join(paragraphs) + "\n"


def _table_problems(kata: Kata, brief: str, file: str) -> Iterator[str]:
    """What the table lists and the stub has not, and the reverse."""
    _, found, rest = brief.partition(f"\n{TO_WRITE}\n\n{TABLE}")
    if not found:
        yield (
            f"{file}: expected '{TO_WRITE}', and below it a table of what is to be written that "
            f"begins {TABLE.splitlines()}, found none. A row for each: `name(argument)`, and what "
            "it does."
        )
        return
    rows = rest.partition("\n\n")[0].splitlines()
    source = read_file(kata.solution).decode("utf-8", errors="replace")
    cut = Cut(source, kata.functions, kata.stub, kata.subgoals)
    stub = cut.text()
    had = {name.rpartition(".")[2] for name, _ in walk(ast.parse(stub))} | set(kernel_names(stub))
    for row in rows:
        for code in CODE.findall(row.split("|")[1]):
            called = CALLED.match(code)
            if called and called[1].rpartition(".")[2] not in had:
                yield (
                    f"{file}: '{TO_WRITE}': expected functions, classes and methods of the stub, "
                    f"found {called[1]!r}. Mend the row, or [stub] of kata.toml, then: "
                    f"kata stub {kata.name} --write"
                )
    told = {word for row in rows for code in CODE.findall(row) for word in re.findall(r"\w+", code)}
    for name in _left_blank(cut):
        if name not in told:
            yield (
                f"{file}: '{TO_WRITE}': expected {name!r}, which the stub leaves blank, in code in "
                "the table, found it in no row. Add it."
            )


def _left_blank(cut: Cut) -> Iterator[str]:
    """What the table has to name: a class stands for its special methods."""
    nodes = dict(walk(cut.tree))
    for blank in cut.blanks:
        node = nodes[blank.name]
        owner, _, own = blank.name.rpartition(".")
        if not isinstance(node, ast.FunctionDef):
            yield from kernel_names("\n".join(cut.lines[node.lineno - 1 : node.end_lineno]))
        else:
            yield owner if own.startswith("__") else own
