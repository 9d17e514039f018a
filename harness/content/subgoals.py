"""
The named steps of a kata: in the same words in brief, TODOs, hints and the reference.

In the reference a step begins at a comment line that is its name and nothing else, ``# margin`` or
in CUDA C++ ``// margin``. Naming the steps of a worked solution helps learners to solve the next
problem: Margulieux, Morrison and Decker (2020), doi.org/10.1186/s40594-020-00222-7.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from harness.base.schema import Problems, Table

FEWEST, MOST, LONGEST = 3, 6, 40
LEAST_ANSWER = 80  # characters
RESERVED = ",:·"  # they part names from each other, and from what is said of them
STEPS = "Steps: "  # how the line of the brief begins that lists them


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """A question for a reason or a consequence that the code does not say, and its answer."""

    question: str
    answer: str


def marked_lines(source: str, names: Collection[str]) -> dict[int, str]:
    """The number, from 1, of each line of `source` that is a comment saying only a name."""
    known = {f"{sign} {name}": name for name in names for sign in ("#", "//")}
    lines = enumerate(source.splitlines(), start=1)
    return {number: known[text] for number, line in lines if (text := line.strip()) in known}


def without_marks(source: str, names: Collection[str]) -> str:
    """`source` without the comment lines that name steps."""
    marked = marked_lines(source, names)
    lines = source.splitlines(keepends=True)
    return "".join(line for number, line in enumerate(lines, start=1) if number not in marked)


def take_why(table: Table) -> Why | None:
    """The table ``[why]`` of a kata.toml, where there is one."""
    if "why" not in table.data:
        table.optional("why", dict)
        return None
    row = Table(table.take("why", dict), table.problems, "why.")
    why = Why(question=row.take("question", str), answer=row.take("answer", str))
    row.done()
    return why


def check_words(
    subgoals: tuple[str, ...], why: Why | None, hints: Iterable[str], problems: Problems
) -> None:
    """Note in `problems` what is wrong with the names and the question."""
    hints = list(hints)
    if subgoals and not FEWEST <= len(subgoals) <= MOST:
        problems.add("subgoals", f"{FEWEST} to {MOST} names of steps", len(subgoals))
    for name in subgoals:
        if not 0 < len(name) <= LONGEST or name != " ".join(name.split()):
            problems.add("subgoals", f"names of 1 to {LONGEST} characters", repr(name))
        if any(sign in name for sign in RESERVED):
            problems.add("subgoals", f"names without any of {RESERVED}", repr(name))
        if subgoals.count(name) > 1:
            problems.add("subgoals", "each name once", f"{name!r} twice")
    if why is None:
        if subgoals:
            problems.add("why", "a table [why] with question and answer", "none")
        return
    if not why.question.rstrip().endswith("?"):
        problems.add("why.question", "a question, ending with '?'", repr(why.question[-20:]))
    if len(why.answer.strip()) < LEAST_ANSWER:
        expected = f"at least {LEAST_ANSWER} characters"
        problems.add("why.answer", expected, len(why.answer.strip()))
    texts = {text for hint in hints for text in (hint, hint.partition(": ")[2])}
    if why.answer.strip() in {text.strip() for text in texts}:
        problems.add("why.answer", "something that no hint says", "the text of a hint")
