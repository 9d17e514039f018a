"""Whether a kata's steps bear the same names in its reference, hints and `[stub.todo]`."""

import ast
import difflib
from collections.abc import Iterator

from harness.authoring.half import halved
from harness.authoring.segments import kernel_segments, segments_of
from harness.authoring.stub import LEAVE_OUT, Cut, walk
from harness.base.files import read_file
from harness.content.course import shown
from harness.content.kata import Kata
from harness.content.subgoals import FEWEST, MOST

SMALL = 5  # lines of a blank that needs no name


def step_problems(kata: Kata) -> Iterator[str]:
    """Every way in which reference, hints and ``[stub.todo]`` differ from `subgoals`."""
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
