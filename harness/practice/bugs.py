"""
What can be hunted: references with a small fault in them, known by name and by reason.

The faults are those that prove a kata's tests: its wrong solutions, as far as they differ from the
reference in a few lines, and mechanical mutants of what the learner is to write.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cached_property
from random import Random

from harness.authoring.matrix import remembered_kills
from harness.authoring.mutants import Mutant
from harness.authoring.mutate import equivalents, kata_mutants
from harness.content.kata import Kata
from harness.content.submission import applied_edits, reference_of
from harness.practice.plain import plain

MOST_LINES = 6  # that a fault changes
WRONG_SHARE = 0.75  # of draws that are wrong solutions; the rest are mutants
# what no one would write, so that it is seen at once
UNLIKELY = re.compile(
    r"\b(?:if|elif|while)\s*\(?(?:True|False|true|false)\b"
    r"|\band 1(?:\.0)?(?![\w.]| *[<=>])|^(?:;|pass)$"
)
SAID = re.compile(r'^"""Wrong on purpose: (.*?)\.?"""', re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Bug:
    """
    A reference with one fault.

    Attributes:
        key: What it is called: ``edit:NAME``, ``file:NAME`` or, of a mutant, where and what.
        why: What is wrong, in words.
        text: The file, laid out as `plain` does.
        reference: The reference, laid out in the same way.
        tests: Tests that are known to fail on it.
    """

    key: str
    why: str
    text: str
    reference: str
    tests: tuple[str, ...] = ()

    @cached_property
    def changes(self) -> list[tuple[range, range]]:
        """Lines of the reference, and those that stand in their place: indices from 0."""
        one, other = self.reference.splitlines(), self.text.splitlines()
        found = SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
        return [
            (range(a, b), range(c, d))
            for kind, a, b, c, d in found
            if kind != "equal" and any(line.strip() for line in [*one[a:b], *other[c:d]])
        ]

    @property
    def size(self) -> int:
        """How many lines the fault changes."""
        one, other = self.reference.splitlines(), self.text.splitlines()
        return sum(
            max(sum(bool(one[at]) for at in a), sum(bool(other[at]) for at in b))
            for a, b in self.changes
        )

    @property
    def lines(self) -> list[int]:
        """
        The numbers of the lines of `text` that are at fault, from 1.

        Where something is missing these are its neighbours.
        """
        text = self.text.splitlines()
        found: set[int] = set()
        for _, here in self.changes:
            written = [at for at in here if text[at].strip()]
            above = next((at for at in reversed(range(here.start)) if text[at].strip()), None)
            below = next((at for at in range(here.stop, len(text)) if text[at].strip()), None)
            found |= set(written or [at for at in (above, below) if at is not None])
        return sorted(at + 1 for at in found)

    @property
    def is_fair(self) -> bool:
        """Whether it may be hunted: something is changed, but not much, and nothing unlikely."""
        text = self.text.splitlines()
        changed = [text[at].strip() for _, here in self.changes for at in here]
        return 0 < self.size <= MOST_LINES and not any(map(UNLIKELY.search, changed))


def bugs_of(kata: Kata, random: Random | None = None) -> Iterator[Bug]:
    """
    The wrong solutions of `kata` that may be hunted, each made when it is asked for.

    Those of ``edits.toml`` come first, then whole files; `random` shuffles them. Nothing is run.

    Raises:
        UsageProblem: there is no reference.
        MetadataError: ``edits.toml`` or ``kills.toml`` is wrong.
    """
    source = reference_of(kata).read_text(encoding="utf-8")
    reference, kills = plain(source), remembered_kills(kata)
    edits = kata.wrong / "edits.toml"
    made = applied_edits(edits, kata.solution, kata.subgoals) if edits.is_file() else {}
    raw = [("edit", name, why, text) for name, (why, text) in made.items()]
    for path in sorted(kata.wrong.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if said := SAID.match(text):
            raw.append(
                ("file", path.stem, " ".join(said[1].split()), _with_docstring(text, source))
            )
    if random:
        random.shuffle(raw)
    for kind, name, why, text in raw:
        yield from _bug(f"{kind}:{name}", why, text, reference, kills.get(name, ()))


def drawn_bugs(kata: Kata, random: Random, *, not_this: str = "") -> Iterator[Bug]:
    """
    What may be hunted, in the order in which it should be tried; wrong solutions mostly.

    They carry a concept each, mutants an accident. When the ones are used up the others are left.

    Args:
        kata: Whose reference has the fault.
        random: What draws.
        not_this: The key of one that comes last, as it was hunted before.
    """
    bugs, mutants = bugs_of(kata, random), mutants_of(kata, random)
    last = []
    while True:
        first, then = (bugs, mutants) if random.random() < WRONG_SHARE else (mutants, bugs)
        bug = next(first, None) or next(then, None)
        if bug is None:
            break
        if bug.key == not_this:
            last.append(bug)
        else:
            yield bug
    yield from last


def mutants_of(kata: Kata, random: Random, function: str = "") -> Iterator[Bug]:
    """
    Mechanical mutants of what the learner is to write, those apart that no test can kill.

    Of one `function` or method alone, where it is named.
    """
    reference = plain(reference_of(kata).read_text(encoding="utf-8"))
    marked = equivalents(kata)
    mutants = [
        one
        for one in kata_mutants(kata)
        if one.key not in marked and function in ("", one.function.rpartition(".")[2])
    ]
    random.shuffle(mutants)
    for mutant in mutants:
        for bug in _bug(_key(mutant), "", mutant.source, reference, ()):
            yield replace(bug, why=f"in {mutant.function}, {_words(bug)}")


def _key(mutant: Mutant) -> str:
    return "mutant:" + "|".join(map(str, mutant.key))


def _words(bug: Bug) -> str:
    """What was changed, in words, as the lines are laid out."""
    sides = (bug.reference.splitlines(), bug.text.splitlines())
    right, wrong = (
        " ".join(lines[at].strip() for change in bug.changes for at in change[side])
        for side, lines in enumerate(sides)
    )
    if not wrong:
        return f"`{right}` is missing"
    return f"`{wrong}` stands where `{right}` should"


def _bug(
    key: str, why: str, text: str, reference: str, tests: list[str] | tuple[str, ...]
) -> list[Bug]:
    """The fault, if it can be hunted."""
    try:
        laid_out = plain(text)
    except SyntaxError:
        return []
    bug = Bug(key=key, why=why, text=laid_out, reference=reference, tests=tuple(tests))
    return [bug] if bug.is_fair else []


def _with_docstring(text: str, source: str) -> str:
    """`text` with the module docstring of `source` in place of its own."""
    own, other = (ast.parse(one).body[0].end_lineno or 0 for one in (text, source))
    return "\n".join([*source.splitlines()[:other], *text.splitlines()[own:], ""])
