"""How a quiz reads in a terminal."""

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.cli.screen import folded
from harness.practice.questions import Question, figure

if TYPE_CHECKING:
    from harness.practice.quiz import Answer

ABOUT = {
    "bytes": "bytes moved",
    "FLOP": "arithmetic",
    "intensity": "arithmetic intensity",
    "bound": "what bounds it",
    "time": "speed of light",
    "result": "what it returns",
    "shape": "shapes",
    "dtype": "dtypes",
    "refusal": "what is refused",
    "mistake": "find the mistake",
    "test": "which test notices",
    "limit": "which limit tells",
    "count": "what is counted",
    "line": "what a line costs",
}


def opening(seed: int) -> str:
    """How to have the same questions again, and what may be typed."""
    return f"The same again: --seed {seed}. Numbers may be sums: 2 * 4096"


def asked(number: int, count: int, question: Question) -> str:
    """A question with its choices, and how it is answered."""
    lines = [f"\n{number}/{count}  {question.kata}: {ABOUT[question.kind]}"]
    return "\n".join([*lines, *_asked(question), f"({question.rule})"])


def _asked(question: Question) -> list[str]:
    """The text and its choices, in lines of the screen."""
    lines = [folded(line) for line in question.text.splitlines()]
    return lines + [folded(f"  {at}  {text}", 5) for at, text in enumerate(question.choices, 1)]


def foretell(question: Question) -> str:
    """A question of `kata predict`."""
    lines = [f"\n{question.kata}: {ABOUT[question.kind]}"]
    return "\n".join([*lines, *_asked(question), f"({question.rule}; Enter passes)"])


def answered(one: "Answer") -> str:
    """Whether it was right, what is right, and how one comes to it."""
    return judged(one.question, one.given, one.right)


def judged(question: Question, given: str, right: bool) -> str:
    """As `answered`, of an answer that was held against the question."""
    lines = ["✓ right" if right else f"✗ it is {_told(question)}"]
    if right and (question.near or question.form == "choice"):
        lines[0] += f": {_shown(question)}"
    if right and question.form == "choice" and question.read(given) != question.answer:
        lines[0] = f"✓ right: {question.read(given)}, and so is {question.answer}"
    return "\n".join([*lines, *(folded(f"    {line}", 6) for line in question.derivation)])


def _told(question: Question) -> str:
    """The right answer; of a choice its number as well."""
    if question.form != "choice":
        return _shown(question)
    return f"{question.choices.index(question.answer) + 1}: {_shown(question)}"


def _shown(question: Question) -> str:
    if question.form != "number":
        return question.answer
    value = ast.literal_eval(question.answer.replace("inf", "1e999"))
    return f"{figure(value)} {question.unit}".rstrip()


def closing(answers: "Sequence[Answer]", passed: bool) -> str:
    """How many were right, and whether that is enough."""
    right = sum(one.right for one in answers)
    outcome = "passed" if passed else "not passed, which takes 4 of 5"
    return f"\n{right} of {len(answers)}: {outcome}"
