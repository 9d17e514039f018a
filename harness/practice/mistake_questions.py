"""Questions about a kata's wrong solutions: what an edit does, which test and which limit tell."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from random import Random

from harness.base.schema import read_toml
from harness.content.functions import arguments_in, function_of
from harness.content.kata import CostThreshold, Kata
from harness.content.reached import reached
from harness.practice.questions import Question, figure, tolerance_of

MOST_LINES = 28  # of a difference that is shown
CONTEXT = 2
CHOICES = 4
NAIVE = "naive"
# of Python, and of CUDA C++ in a string: __global__ void name, __device__ float name
DEFINITION = re.compile(
    r"\s*(?:async )?(?:def|class) \w+"
    r"|\s*(?:(?:static|inline|extern \"C\"|__\w+__(?:\(\w+\))?) )+[\w:<>*& ]+(?=\()"
)
COUNTED = {
    "launches": "How many kernels does the reference launch?",
    "bytes_moved": "How many bytes does the reference load and store, in kernels and operators?",
    "sectors": "How many sectors of 32 bytes does the reference load and store?",
}


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A wrong solution that is written as edits of the reference: its name, why, and its text."""

    name: str
    why: str
    reference: str
    text: str

    @cached_property
    def diff(self) -> tuple[str, ...]:
        """The lines that differ, with a few around them, below the function that they are in."""
        return _difference(self.reference, self.text)

    @cached_property
    def lines(self) -> frozenset[int]:
        """The lines of the reference that are changed, or before which something is put in."""
        sides = (self.reference.splitlines(), self.text.splitlines())
        steps = difflib.SequenceMatcher(None, *sides).get_opcodes()
        changed = [range(a, max(b, a + 1)) for kind, a, b, _, _ in steps if kind != "equal"]
        return frozenset(at for one in changed for at in one)


def mistakes(kata: Kata) -> list[Mistake]:
    """Those of `kata` that are edits of its reference; none in a course without references."""
    edits = kata.wrong / "edits.toml"
    if not edits.is_file() or not kata.solution.is_file():
        return []
    return list(_mistakes(edits, kata.solution))


@cache
def _mistakes(edits: Path, solution: Path) -> tuple[Mistake, ...]:
    """Read once for all questions of a quiz."""
    reference = solution.read_text(encoding="utf-8")
    found = []
    for name, body in read_toml(edits).items():
        text = reference
        for row in body.get("edits") or [body]:
            text = text.replace(row["find"], row["replace"])
        why = " ".join(body["why"].split())
        found.append(Mistake(name=name, why=why, reference=reference, text=text))
    return tuple(found)


def readable(known: Sequence[Mistake], dice: Random) -> Iterator[Mistake]:
    """Those whose difference is short enough to be read, in random order."""
    for one in dice.sample(known, len(known)):
        if 0 < len(one.diff) <= MOST_LINES:
            yield one


def naive_why(kata: Kata) -> str:
    """What is naive about the naive version, if it is an edit or says so."""
    for one in mistakes(kata):
        if one.name == NAIVE:
            return one.why
    path = kata.wrong / f"{NAIVE}.py"
    if path.is_file():
        found = re.match(r'"""Wrong on purpose: (.*?)\.?(?:"""|\n\n)', path.read_text(), re.S)
        return " ".join(found[1].split()) if found else ""
    return ""


def _difference(before: str, after: str) -> tuple[str, ...]:
    """A unified difference without its heads, each hunk below the name of its function."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=CONTEXT)
    shown: list[str] = []
    source = before.splitlines()
    for line in lines:
        if line.startswith(("---", "+++")):
            continue
        if found := re.match(r"@@ -(\d+)", line):
            shown.append(f"@@ {_function_at(source, int(found[1]) - 1 + CONTEXT)}")
        else:
            shown.append(line)
    while shown and not shown[-1].strip():
        shown.pop()
    return tuple(shown)


def _function_at(lines: list[str], at: int) -> str:
    """The definition that the line `at` is in, or the module at the top of the file."""
    for line in reversed(lines[: at + 1]):
        if found := DEFINITION.match(line):
            return " ".join(found[0].split())
    return "module"


def described(kata: Kata, dice: Random) -> Question | None:
    """Which of four mistakes an edit of the reference makes."""
    known = mistakes(kata)
    whys = sorted({one.why for one in known})
    if len(whys) < CHOICES:
        return None
    one = next(readable(known, dice), None)
    if one is None:
        return None
    # what is wrong in the same lines and dies of the same test may be as true of this one
    kills = own_kills(kata)
    like = {
        other.why
        for other in known
        if other.lines & one.lines
        and not set(kills.get(other.name, ())).isdisjoint(kills.get(one.name, ()))
    }
    apart = [why for why in whys if why not in {one.why, *like}]
    if len(apart) < CHOICES - 1:
        return None
    others = dice.sample(apart, CHOICES - 1)
    choices = [one.why, *others]
    dice.shuffle(choices)
    return Question(
        kata=kata.name,
        kind="mistake",
        text="\n".join(["This edit was made to the reference.", *_indented(one.diff),
                        "What is wrong with it?"]),
        form="choice",
        answer=one.why,
        choices=tuple(choices),
        wrong=one.name,
        derivation=tuple(f"{test} fails on it" for test in kills.get(one.name, ())),
    )  # fmt: skip


def noticed(kata: Kata, dice: Random) -> Question | None:
    """Which test fails on an edit of the reference; of the others only a run can tell."""
    kills = own_kills(kata)
    known = [one for one in mistakes(kata) if one.name in kills]
    tests = own_tests(kata)
    one = next(readable(known, dice), None)
    if one is None or len(tests) < CHOICES:
        return None
    failing = kills[one.name]
    others = dice.sample([name for name in tests if name not in failing], k=min(
        CHOICES - 1, len(tests) - len(failing)))  # fmt: skip
    if len(others) < CHOICES - 1:
        return None
    answer = dice.choice(failing)
    choices = sorted([answer, *others], key=tests.index)
    return Question(
        kata=kata.name,
        kind="test",
        text="\n".join(["This edit was made to the reference.", *_indented(one.diff),
                        "Which of these tests fails then? If several do, each of them is right."]),
        form="choice",
        answer=answer,
        choices=tuple(choices),
        open=tuple(others),
        wrong=one.name,
        derivation=(f"the mistake: {one.why}", f"{answer} fails on it"),
    )  # fmt: skip


def missed(kata: Kata, dice: Random) -> Question | None:
    """Which counted limit the naive version does not keep, and how far it is from it."""
    why, figures = naive_why(kata), reached(kata)
    if not why:
        return None
    limits = {one.name: one for one in kata.cost if one.bound is None and one.name in figures}
    naive = {
        name: figures[name]["naive"]
        for name in limits
        # nothing is counted of what calls no kernel
        if figures[name].get("naive") or figures[name] == {"reference": 0, "naive": 0}
    }
    over = [name for name, value in naive.items() if not _holds(limits[name], value)]
    kept = [name for name, value in naive.items() if _holds(limits[name], value)]
    if not over or not kept:
        return None
    answer = dice.choice(over)
    picked = [answer, *dice.sample(kept, min(CHOICES - 1, len(kept)))]
    names = [name for name in limits if name in picked]
    words = {name: _limit_in_words(limits[name]) for name in names}
    return Question(
        kata=kata.name,
        kind="limit",
        text=f"The naive version of {kata.name}: {why}.\nWhich limit does it not keep?",
        form="choice",
        answer=words[answer],
        choices=tuple(words.values()),
        wrong=NAIVE,
        derivation=tuple(_reached_in_words(name, figures[name]) for name in names),
    )


def counted(kata: Kata, dice: Random) -> Question | None:
    """What the reference comes to at a threshold that is counted on a case of its own."""
    figures = reached(kata)
    known = [
        one
        for one in kata.cost
        if one.case is not None
        and one.meter in COUNTED
        # what moves more than it must depends on tiles that nobody knows by heart
        and (one.meter == "launches" or one.bound is not None)
        and figures.get(one.name, {}).get("reference")
    ]
    if not known:
        return None
    one = dice.choice(known)
    assert one.case is not None
    value = figures[one.name]["reference"]
    sizes = ", ".join(f"{name} = {size}" for name, size in arguments_in(one.case).items())
    limit = (
        f"the limit is {one.bound:g} times the least that is possible"
        if one.bound is not None
        else f"the limit is {_limit_in_words(one)}"
    )
    told = _reached_in_words(one.name, figures[one.name])
    return Question(
        kata=kata.name,
        kind="count",
        text=f"{function_of(one.case) or kata.functions[0]} is called on the case {sizes}.\n"
        f"{COUNTED[one.meter]}",
        form="number",
        answer=f"{value:.10g}",
        unit="" if one.meter in ("launches", "sectors") else "bytes",
        near=tolerance_of(value),
        derivation=(told, limit),
    )


def _holds(limit: CostThreshold, value: float) -> bool:
    if limit.at_most is not None:
        return value <= limit.at_most
    if limit.at_least is not None:
        return value >= limit.at_least
    return value == limit.exactly


def _limit_in_words(limit: CostThreshold) -> str:
    relation, value = next(
        (words, value)
        for words, value in (
            ("at most", limit.at_most),
            ("at least", limit.at_least),
            ("exactly", limit.exactly),
        )
        if value is not None
    )
    meter, name = limit.meter.replace("_", " "), _spoken(limit.name)
    about = name if meter in name else f"{name} ({meter})"
    return f"{about}: {relation} {value:,.10g}"


def _reached_in_words(name: str, values: Mapping[str, float]) -> str:
    told = ", ".join(f"{who} {figure(value)}" for who, value in sorted(values.items()))
    return f"{_spoken(name)}: {told}"


def _spoken(name: str) -> str:
    """A threshold's name without underscores; those of a target stay."""
    first, at, target = name.partition("@")
    return f"{first.replace('_', ' ')}{at}{target}"


def own_tests(kata: Kata) -> list[str]:
    """The kata's own tests, in the order of the file."""
    return re.findall(r"^def (test_\w+)\(", kata.tests.read_text(encoding="utf-8"), re.M)


def own_kills(kata: Kata) -> dict[str, list[str]]:
    """Wrong solutions to those of the kata's own tests that are known to fail on them."""
    path = kata.wrong / "kills.toml"
    if not path.is_file():
        return {}
    tests = own_tests(kata)
    found = {
        wrong: [one for one in dict.fromkeys(name.partition("[")[0] for name in names)
                if one in tests]
        for wrong, names in read_toml(path).items()
    }  # fmt: skip
    return {wrong: names for wrong, names in found.items() if names}


def _indented(lines: tuple[str, ...]) -> list[str]:
    return [f"  {line}" for line in lines]
