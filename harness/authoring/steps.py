"""Whether a kata's steps bear the same names everywhere, and the line of the brief with them."""

import ast
import difflib
import textwrap
from collections.abc import Iterator

from harness.authoring.half import halved
from harness.authoring.segments import kernel_segments, segments_of
from harness.authoring.stub import LEAVE_OUT, Cut, walk
from harness.base.files import read_file
from harness.content.course import shown
from harness.content.kata import Kata
from harness.content.subgoals import FEWEST, MOST, STEPS

UNBROKEN = "\0"  # a space within a name, at which no line is broken
SMALL = 5  # lines of a blank that needs no name
BRIEF_WIDTH = 120  # characters of a line of the brief; a row of a table cannot be wrapped


def step_problems(kata: Kata) -> Iterator[str]:
    """Every way in which reference, ``[stub.todo]`` and brief differ from `subgoals`."""
    if not kata.subgoals:
        yield (
            f"subgoals: expected the names of {FEWEST} to {MOST} steps, and a question [why], "
            "found none. docs/contract.md says how: Subgoals"
        )
        return
    source = read_file(kata.solution).decode("utf-8", errors="replace")
    cut = Cut(source, kata.functions, kata.stub, kata.subgoals)
    cut.text()
    file = str(shown(kata.solution, kata.root))
    yield from _misplaced(cut, file)
    found = {name for blank in cut.blanks for name in blank.steps}
    for name in kata.subgoals:
        if name not in found:
            yield (
                f"{file}: expected a comment line '# {name}' where that step begins, in what the "
                "stub leaves to the learner, found none. Add it, or name the function that is "
                "that step as a whole in [stub.todo]."
            )
    for blank in cut.blanks:
        todo = kata.stub.todo.get(blank.name, "")
        if blank.marked and todo:
            yield (
                f"[stub.todo] {blank.name}: expected no words, since comments name its steps "
                f"({', '.join(blank.steps)}), found {todo!r}. Take the line out, or where the key "
                'is needed to leave a private function blank, write "".'
            )
        elif not blank.steps and blank.size > SMALL:
            yield (
                f"{file}:{blank.line}: expected {blank.name}, {blank.size} lines to write, to have "
                f"steps, found none. Begin each with a comment line of its name, or name the one "
                f"step that it is in [stub.todo]: {', '.join(kata.subgoals)}"
            )
    try:
        ast.parse(halved(kata, source).text)
    except SyntaxError as error:
        yield (
            f"{file}: expected half a stub that is Python, found {error}. Move the comments that "
            f"name steps; it is seen by: kata start {kata.name} --level half"
        )
    yield from _hint_problems(kata)
    yield from _brief_problems(kata)


def _misplaced(cut: Cut, file: str) -> Iterator[str]:
    """Comments with a step's name that begin nothing."""
    begun = {one.first for one in kernel_segments(cut.lines, cut.marked)}
    learners: set[int] = set()
    for name, node in walk(cut.tree):
        if isinstance(node, ast.ClassDef):
            continue
        lines = set(range(node.lineno, (node.end_lineno or 0) + 1))
        blank = name in {blank.name for blank in cut.blanks}
        if blank or cut.is_gone(name) or cut.fate(name, node) == LEAVE_OUT:
            learners |= lines
        if isinstance(node, ast.FunctionDef):
            begun |= {one.first for one in segments_of(node, cut.marked, cut.lines)}
    for line, name in cut.marked.items():
        if line not in learners:
            yield (
                f"{file}:{line}: expected the step {name!r} in what the stub leaves to the "
                "learner, found it in what is given. Move or reword the comment."
            )
        elif line not in begun:
            yield (
                f"{file}:{line}: expected a statement below the comment {name!r}, in the same "
                "block and indented as it is, found none. Move the comment to where the step "
                "begins."
            )


def _hint_problems(kata: Kata) -> Iterator[str]:
    """Each hint begins with the step that it is about, or is about the whole."""
    begun = [hint.partition(": ")[0] for hint in kata.hints if ": " in hint]
    for text in begun:
        close = difflib.get_close_matches(text.lower(), kata.subgoals, n=1, cutoff=0.75)
        if text not in kata.subgoals and close:
            yield f"hints: expected the name of a step, {close[0]!r}, found {text!r}. Mend it."
    if not set(begun) & set(kata.subgoals):
        yield (
            "hints: expected one at least that begins with the step it is about, as in "
            f"'{kata.subgoals[0]}: …', found none. Begin each with its step, or with none if it is "
            "about the whole."
        )


def steps_line(kata: Kata) -> str:
    """The paragraph of the brief that names the steps, in their order."""
    names = [name.replace(" ", UNBROKEN) for name in kata.subgoals]
    line = textwrap.fill(STEPS + " · ".join(names), BRIEF_WIDTH, break_on_hyphens=False)
    return line.replace(UNBROKEN, " ")


def brief_with_steps(kata: Kata, brief: str) -> str:
    """
    `brief` with the paragraph that names the steps: in place of the one there, or before the
    section on how the kata is judged, or at the end.
    """
    paragraphs = brief.strip("\n").split("\n\n")
    at = next((at for at, one in enumerate(paragraphs) if one.startswith(STEPS)), None)
    if at is not None:
        paragraphs[at] = steps_line(kata)
        return "\n\n".join(paragraphs) + "\n"
    judged = [at for at, one in enumerate(paragraphs) if one.startswith("## ") and "judged" in one]
    paragraphs.insert(judged[0] if judged else len(paragraphs), steps_line(kata))
    return "\n\n".join(paragraphs) + "\n"


def _brief_problems(kata: Kata) -> Iterator[str]:
    brief = kata.folder / "README.md"
    if f"\n\n{steps_line(kata)}\n" not in brief.read_text(encoding="utf-8"):
        yield (
            f"{shown(brief, kata.root)}: expected a paragraph {steps_line(kata)!r}, found none. "
            f"Write it: kata stub {kata.name} --write"
        )
