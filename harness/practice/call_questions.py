"""Questions about calls in a kata's tests: what is returned, of what shape, what is raised."""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from harness.content.kata import Kata
from harness.practice.facts import Call
from harness.practice.questions import Question, figure, tolerance_of
from harness.practice.roofline_questions import grouped

LONGEST = 40  # characters of a result that somebody types
MOST_ITEMS = 4
MOST_LINES = 28  # of the reference that lead to a result that is asked for
DTYPES = ("float16", "float32", "int64", "bfloat16", "float64", "int32", "uint8", "bool")
COMPUTED = "none: it returns a result"
# faults of an array that its dtype and shape do not show
UNSEEN = re.compile(
    r"contiguous|stride|overlap|shar|device|grad|finite|nan|inf\b|negative|sorted|order|distinct"
    r"|twice|out of|between|range|below|beyond|above|smaller|greater|less|from 0|permutation|align",
    re.IGNORECASE,
)


def returned(kata: Kata, calls: Sequence[Call], dice: Random, *, solved: bool) -> Question | None:
    """What a function of plain arguments returns."""
    known = [one for one in calls if _is_worth_asking(one) and _is_short(kata, one)]
    if not known:
        return None
    one = _one_of(known, dice)
    derivation = _derivation(kata, one) if solved else ()
    shared = {
        "kata": kata.name,
        "kind": "result",
        "text": f"{_about(kata, one)}What does this return?\n  {one.call}",
        "derivation": (*derivation, _told(one)),
    }
    if isinstance(one.value, str):
        others = {
            call.value
            for call in known
            if call.function == one.function and isinstance(call.value, str)
        } - {one.value}
        if len(others) < 2:
            return None
        choices = [one.value, *dice.sample(sorted(others), min(3, len(others)))]
        dice.shuffle(choices)
        return Question(**shared, form="choice", answer=one.value, choices=tuple(choices))  # type: ignore[arg-type]
    is_number = isinstance(one.value, (int, float))
    return Question(
        **shared,  # type: ignore[arg-type]
        form="number" if is_number else "value",
        answer=repr(one.value),
        near=tolerance_of(one.value),
    )


def _is_worth_asking(one: Call) -> bool:
    """Whether the result follows from what is shown, and can be typed."""
    value = one.value
    if one.raised or one.given or value is None or isinstance(value, bool):
        return False
    if isinstance(value, list):
        flat = _flat(value)
        if not flat or len(flat) > MOST_ITEMS or any(isinstance(part, bool) for part in flat):
            return False
        if not any(part for part in flat):
            return False
    return bool(value) and len(one.result or repr(value)) <= LONGEST


def _flat(value: object) -> list[object]:
    if isinstance(value, list):
        return [part for one in value for part in _flat(one)]
    return [value]


def shaped(
    kata: Kata, calls: Sequence[Call], dice: Random, *, anything: bool = False
) -> Question | None:
    """The shape of an array that is returned; with `anything` also one shaped as an argument."""
    known = [one for one in calls if one.arrays and one.given]
    # what is shaped like an argument says little
    telling = [
        one
        for one in known
        if any(got["shape"] not in [given["shape"] for given in one.given] for got in one.arrays)
    ]
    if not telling and not (anything and known):
        return None
    one = _one_of(telling or known, dice)
    at, which = _which_result(one, dice)
    shape = list(one.arrays[at]["shape"])
    return Question(
        kata=kata.name,
        kind="shape",
        text=f"{_about(kata, one)}{_called(one)}\nWhat is the shape of {which}? As in [2, 3].",
        form="value",
        answer=repr(shape),
        derivation=(_told(one),),
    )


def typed(kata: Kata, calls: Sequence[Call], dice: Random) -> Question | None:
    """The dtype of an array that a function returns, where it may be mistaken."""
    known = [
        one
        for one in calls
        if one.given
        and any(
            {got["dtype"]} != {given["dtype"] for given in one.given} or got["dtype"] in DTYPES[:1]
            for got in one.arrays
        )
    ]
    if not known:
        return None
    one = _one_of(known, dice)
    at, which = _which_result(one, dice)
    answer = one.arrays[at]["dtype"]
    likely = [given["dtype"] for given in one.given] + list(DTYPES)
    others = [name for name in dict.fromkeys(likely) if name != answer]
    choices = sorted([answer, *others[:3]])
    return Question(
        kata=kata.name,
        kind="dtype",
        text=f"{_about(kata, one)}{_called(one)}\nWhat is the dtype of {which}?",
        form="choice",
        answer=answer,
        choices=tuple(choices),
        derivation=(_told(one),),
    )


def refused(kata: Kata, calls: Sequence[Call], dice: Random) -> Question | None:
    """Which argument an error names, if there is one."""
    able = [one for one in calls if len(one.names) > 1]
    raised = [one for one in able if _named(one)]
    if not raised:
        return None
    functions = {one.function for one in raised}
    fine = [one for one in able if not one.raised and one.function in functions]
    one = _one_of(fine if fine and dice.random() < 0.25 else raised, dice)
    answer = _named(one) or COMPUTED
    others = [name for name in one.names if name != answer]
    picked = dice.sample(others, min(3 if answer == COMPUTED else 2, len(others)))
    names = sorted([*picked, *([] if answer == COMPUTED else [answer])], key=one.names.index)
    if len(names) < 2:
        return None
    told = f"{one.raised}: {one.message}" if one.raised else _told(one)
    return Question(
        kata=kata.name,
        kind="refusal",
        text=f"{_about(kata, one)}{_called(one)}\nIs it refused, and which argument does the "
        "error name?",
        form="choice",
        answer=answer,
        choices=(*names, COMPUTED),
        derivation=(told,),
    )


def _named(one: Call) -> str:
    """The argument that an error names in its first word, where what is shown tells why."""
    found = re.match(r"(\w+)\b[^:]*: ", one.message) if one.raised else None
    if found is None or found[1] not in one.names or f"{found[1]}=" not in one.call:
        return ""
    # of several faults the one that is looked for first is named, and nobody need know it
    if sum(value <= 0 for name, value in one.numbers.items() if name != found[1]) > 1:
        return ""
    return "" if one.given and UNSEEN.search(one.message) else found[1]


def _told(one: Call) -> str:
    """What came back; a number of many digits in groups."""
    alone = isinstance(one.value, (int, float)) and not isinstance(one.value, bool)
    return f"it returns {figure(one.value) if alone else one.result or 'a result'}"


def _one_of(calls: Sequence[Call], dice: Random) -> Call:
    """One call, of one function: each function is as likely, however often it was called."""
    function = dice.choice(sorted({one.function for one in calls}))
    return dice.choice([one for one in calls if one.function == function])


def _which_result(one: Call, dice: Random) -> tuple[int, str]:
    """The place of one returned array, and its name in words."""
    at = dice.randrange(len(one.arrays))
    if len(one.arrays) == 1:
        return at, "the array that it returns"
    return at, f"array {at + 1} of the {len(one.arrays)} that it returns"


def _called(one: Call) -> str:
    return f"  {one.call}"


def _about(kata: Kata, one: Call) -> str:
    """The first sentence of the function's docstring, on a line before the question."""
    said = summaries(kata.solution).get(one.function, "")
    return f"{one.function}: {said}\n" if said else ""


@cache
def summaries(path: Path) -> dict[str, str]:
    """Functions of a file to the first paragraph of their docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.name: " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }


def _derivation(kata: Kata, one: Call) -> tuple[str, ...]:
    """What the reference does on this call, and its result in numbers."""
    bodies = _bodies(kata.solution, one.function)
    lines = tuple(line for body in bodies for line in body.lines)
    if not bodies or bodies[0].result is None:
        return lines
    numbers = ast.unparse(_with_numbers(bodies[0].result, one))
    return (*lines, f"with these numbers: {grouped(numbers)}") if _is_plain(numbers) else lines


def _is_short(kata: Kata, one: Call) -> bool:
    """Whether somebody can go through it in a quiz: few lines, those that it calls among them."""
    return sum(len(body.lines) for body in _bodies(kata.solution, one.function)) <= MOST_LINES


@dataclass(frozen=True, slots=True)
class _Body:
    """A function's lines without its docstring, under its head where it is not the one asked."""

    lines: tuple[str, ...]
    result: ast.expr | None  # what it returns in the end


@cache
def _bodies(path: Path, name: str) -> list[_Body]:
    """
    A function of a file and those of the file that it names, each after those who name it.

    Those that return nothing, as checks of arguments do, lead to no result and are left out.
    """
    text = path.read_text(encoding="utf-8")
    source, tree = text.splitlines(), ast.parse(text)
    there = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    telling = {one for one in there if any(map(_gives, ast.walk(there[one])))}
    names = [name] if name in there else []
    for one in names:  # which grows
        used = {node.id for node in ast.walk(there[one]) if isinstance(node, ast.Name)}
        names += sorted(used & telling - set(names))
    found = []
    for one in names:
        body = there[one].body[ast.get_docstring(there[one]) is not None :]
        if not body:
            continue
        first, last, end = body[0].lineno, body[-1].end_lineno or body[-1].lineno, body[-1]
        head = (f"{one}({', '.join(arg.arg for arg in there[one].args.args)}):",) * (one != name)
        lines = tuple(line for line in source[first - 1 : last] if line.strip())
        result = end.value if isinstance(end, ast.Return) else None
        found.append(_Body((*head, *lines), result))
    return found


def _gives(node: ast.AST) -> bool:
    return isinstance(node, (ast.Yield, ast.YieldFrom)) or (
        isinstance(node, ast.Return) and node.value is not None
    )


def _is_plain(expression: str) -> bool:
    """Whether only functions are left to be known."""
    tree = ast.parse(expression)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return all(id(node) in called for node in names)


def _with_numbers(node: ast.expr, one: Call) -> ast.expr:
    """`node` with the call's numbers in place of their names."""

    class Put(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            return ast.Constant(one.numbers[name.id]) if name.id in one.numbers else name

        def visit_Attribute(self, attribute: ast.Attribute) -> ast.AST:
            full = ast.unparse(attribute)
            if full in one.numbers:
                return ast.Constant(one.numbers[full])
            return self.generic_visit(attribute)

        def visit_Call(self, call: ast.Call) -> ast.expr:
            call.args = [self.visit(one) for one in call.args]
            return call

    copied = ast.parse(ast.unparse(node), mode="eval").body
    put: ast.expr = Put().visit(copied)
    return put
