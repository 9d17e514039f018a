"""Questions about what the lines of a reference's kernels cost on the kata's first case."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING

from harness.content.functions import arguments_in, function_of
from harness.content.kata import Kata
from harness.practice.questions import Question, figure

if TYPE_CHECKING:
    from harness.practice.facts import Line

CHOICES = 4
CLEAR = 1.3  # how many times as much the line costs as the next
ASKED = {
    "bytes": "moves the most bytes to or from global memory",
    "sectors": "touches the most sectors of 32 bytes of global memory, once for each request",
    "wavefronts": "takes the most passes through shared memory",
    "conflicts": "loses the most passes through shared memory to bank conflicts",
}
# where a compiler lays out tiles by itself, warps load the same again and go through shared memory
# as no line says: of Gluon what TMA moves can be told, of Triton nothing
BACKENDS = {"cuda": tuple(ASKED), "numba": tuple(ASKED), "gluon": ("bytes",)}
UNITS = {"wavefronts": "passes", "conflicts": "passes lost"}


def dearest(kata: Kata, lines: Sequence["Line"], dice: Random) -> Question | None:
    """Which of four lines costs the most of something."""
    names = BACKENDS.get(kata.backend, ())
    known = [(name, some) for name in names if (some := _comparable(lines, name))]
    if not known:
        return None
    name, some = dice.choice(known)
    first, *others = some
    picked = [first, *dice.sample(others, min(CHOICES - 1, len(others)))]
    shown = sorted(picked, key=lambda one: one.line)
    counts = {one.text: one.counts.get(name, 0) for one in shown}
    case = kata.cases[0]
    sizes = ", ".join(f"{key} = {value}" for key, value in arguments_in(case).items())
    called = function_of(case) or kata.functions[0]
    return Question(
        kata=kata.name,
        kind="line",
        text=f"The reference of {called} runs on the case {sizes}.\n"
        f"Which of these lines of its kernels {ASKED[name]}?",
        form="choice",
        answer=first.text,
        choices=tuple(counts),
        derivation=_in_words(counts, name),
    )


def _comparable(lines: Sequence["Line"], name: str) -> list["Line"]:
    """Lines by what they cost, dearest first, if the first is so by far; none where it is not."""
    once = {one.text: one for one in lines if sum(two.text == one.text for two in lines) == 1}
    # one that costs nothing is no line to choose
    found = [one for one in once.values() if one.counts.get(name)]
    found.sort(key=lambda one: (-one.counts[name], one.line))
    if len(found) < CHOICES - 1:
        return []
    most, next_most = (one.counts[name] for one in found[:2])
    return found if most >= CLEAR * next_most else []


def _in_words(counts: Mapping[str, int], name: str) -> tuple[str, ...]:
    unit = UNITS.get(name, name)
    return tuple(f"{figure(count)} {unit}: {text}" for text, count in counts.items())
