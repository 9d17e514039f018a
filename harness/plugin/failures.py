"""
What a failed test of a kata says, in one line: what was asked, expected and found, on which input.

Pytest's own words for a failed assertion fill a page and cut its first line short, so that two
sides may print alike. Here the statement is read from the test's source and its values from the
frame it failed in. Nothing of the learner's is called again.
"""

import ast
import inspect
import re
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

from harness.plugin.values import MOST_VALUE, compared, cut, shown

MOST_SOURCE, MOST_INPUT = 120, 300  # characters of an expression, and of all inputs together
WORDLESS = re.compile(r" object at 0x|generated data")  # values that do not say what they hold
ISCLOSE = re.compile(r"where False = <built-in function isclose>(\(.*\))$", re.M)
NO_MATCH = re.compile(r"^\s*Expected regex: (?P<want>.*)\n\s*Actual message: (?P<found>.*)", re.M)
NOT_RAISED = re.compile(r"DID NOT RAISE (?:ANY EXCEPTION|<class '(?P<want>[^']*)'>|(?P<any>.*))")
BOUND = re.compile(r"^expected (at most|less than|at least|more than) (.*), found (.*)$")
MIRRORED = {"at most": "at least", "less than": "more than",
            "at least": "at most", "more than": "less than"}  # fmt: skip
COMPARISONS = ("math.isclose", "torch.equal", "np.array_equal")
# what an expression may be made of to be worked out again: it calls nothing and changes nothing
HARMLESS = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop, ast.Name,
            ast.Attribute, ast.Constant, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Dict,
            ast.BinOp, ast.UnaryOp, ast.Compare)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """A statement of a test and the frame that it failed in."""

    frame: FrameType
    statement: ast.stmt
    function: ast.AST

    def value(self, node: ast.expr) -> Any:  # noqa: ANN401 -- whatever it stands for
        """What a harmless expression stands for; raises whatever working it out raises."""
        if not all(isinstance(part, HARMLESS) for part in ast.walk(node)):
            raise ValueError("it calls something")
        code = compile(ast.Expression(node), "<assertion>", "eval")
        return eval(code, self.frame.f_globals, self.frame.f_locals)

    def spelled_out(self, node: ast.expr) -> ast.expr:
        """What a name was last assigned before the statement; the expression itself otherwise."""
        if not isinstance(node, ast.Name):
            return node
        assigned = [
            (one.lineno, one.value)
            for one in ast.walk(self.function)
            if isinstance(one, ast.Assign)
            and one.lineno < self.statement.lineno
            and any(isinstance(target, ast.Name) and target.id == node.id for target in one.targets)
        ]
        return max(assigned, key=lambda found: found[0])[1] if assigned else node


@dataclass(frozen=True, slots=True)
class Told:
    """
    A failure in words.

    `words` is "" where the failure's own line says it; `asked` stands beside that line: what the
    test asked for instead. `inputs` is what it was met on.
    """

    words: str = ""
    asked: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def given(self) -> str:
        """The input in a line, cut short where it is long."""
        listed = ", ".join(f"{name} = {value}" for name, value in self.inputs.items())
        return cut(listed, MOST_INPUT)


def tell(
    error: BaseException, files: Sequence[Path], given: Collection[str], drawn: Mapping[str, Any]
) -> Told:
    """
    Say what a test failed at.

    Args:
        error: What it raised, with its traceback.
        files: The test's own source, and the oracle's: where its assertions stand.
        given: Names of fixtures, which are no input.
        drawn: Parameters of this test that its name does not show.
    """
    if isinstance(error, BaseExceptionGroup):
        each = [tell(one, files, given, drawn) for one in error.exceptions]
        return Told(_several(error.exceptions, each))
    frames = list(_frames(error, files))
    if not frames:
        return Told(inputs=_listed(drawn))
    # hypothesis wraps a test in a function of its name, which has none of what was drawn
    name = frames[0][0].f_code.co_name
    *_, outer = (found for found in frames if found[0].f_code.co_name == name)
    test, inner = _place(*outer), _place(*frames[-1])
    told = _told(error, inner)
    inputs = {**drawn, **dict(_arguments(test, given)), **dict(_handed(test, given))}
    return replace(told, inputs=_listed(inputs))


def _several(errors: Collection[BaseException], told: list[Told]) -> str:
    """Different failures that one property was found to have."""
    lines = []
    for number, (error, one) in enumerate(zip(errors, told, strict=True), start=1):
        own = "".join(traceback.format_exception_only(error)).partition("\n")[0]
        lines.append(
            f"({number}) {one.words or own}{f' | input: {one.given}' if one.given else ''}"
        )
    return f"{len(lines)} different failures: {'; '.join(lines)}"


# ---- where ---------------------------------------------------------------------------------


def _frames(error: BaseException, files: Sequence[Path]) -> Iterator[tuple[FrameType, int]]:
    """Frames and lines of `files` on the way to `error`, from the test itself inwards."""
    names = [str(file) for file in files]
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename in names:
            yield frame, line


def _place(frame: FrameType, line: int) -> Place:
    """The innermost statement around a line, and the function that it stands in."""
    tree = _parsed(frame.f_code.co_filename)
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or line)
    ]
    functions = [node for node in around if isinstance(node, ast.FunctionDef)]
    inner = min(around, key=lambda node: (node.end_lineno or 0) - node.lineno)
    return Place(frame, inner, functions[-1] if functions else tree)


@cache
def _parsed(file: str) -> ast.Module:
    return ast.parse(Path(file).read_text(encoding="utf-8"))


def _raises(place: Place) -> ast.With | None:
    """The ``with pytest.raises(…)`` that the statement is, or stands in."""
    line = place.statement.lineno
    found = [
        node
        for node in ast.walk(place.function)
        if isinstance(node, ast.With)
        and node.lineno <= line <= (node.end_lineno or line)
        and "pytest.raises(" in ast.unparse(node.items[0])
    ]
    return found[-1] if found else None


# ---- words ---------------------------------------------------------------------------------


def _told(error: BaseException, place: Place) -> Told:
    """The words for a failure at `place`."""
    block, statement = _raises(place), place.statement
    if block is not None:
        return _refused(error, block)
    if isinstance(error, AssertionError) and isinstance(statement, ast.Assert):
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if frame is place.frame:  # the assertion itself, and nothing that it called
            return Told(_asserted(str(error), statement, place))
    return Told()


def _refused(error: BaseException, block: ast.With) -> Told:
    """A call that was to raise: what it raised instead, or with which message."""
    text, subject = str(error), "; ".join(map(_source, block.body))
    if found := NO_MATCH.search(text):
        return Told(
            f"{subject}: expected a message that matches {found['want']}, found {found['found']}"
        )
    if found := NOT_RAISED.search(text):
        want = (found["want"] or found["any"] or "an error").rpartition(".")[2]
        return Told(f"{subject}: expected {want}, found no error")
    if isinstance(error, AssertionError):
        return Told()
    call = block.items[0].context_expr
    wanted = call.args[0] if isinstance(call, ast.Call) and call.args else call
    return Told(asked=f"expected {_source(wanted)} from {subject}")


def _asserted(text: str, statement: ast.Assert, place: Place) -> str:
    """Words for a failed ``assert``; `text` is what the rewritten one says."""
    test, message = statement.test, ""
    if statement.msg is not None:
        message = text.partition("\nassert ")[0]
        text = text.removeprefix(f"{message}\n")
    body = _compared(text, test, place)
    if message:
        # one that was written for its reader has the numbers as a rule
        told = re.search(r"\d", message) or "expected" in message or not body
        return message if told else f"{message}: {body}"
    if not body and isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return f"expected {_source(test.operand)} to be false or empty, found it is not"
    if not body:
        return f"expected {_source(test)}, found that it does not hold"
    return f"{_source(place.spelled_out(_under_test(test)))}: {body}"


def _under_test(test: ast.expr) -> ast.expr:
    """What an assertion is about, which stands on the left unless that is a bare number."""
    if isinstance(test, ast.Compare) and isinstance(test.left, ast.Constant):
        return test.comparators[0]
    sides = _sides(test)
    return sides[0] if sides else test


def _compared(text: str, test: ast.expr, place: Place) -> str:
    """Both sides of what was compared; "" where they are not known."""
    first = text.partition("\n")[0].removeprefix("assert ")
    if first.startswith(("expected ", "first difference ")):
        return _mirrored(first, test)
    if close := ISCLOSE.search(text):
        return _close(close[1])
    sides = _sides(test)
    if not sides or not isinstance(test, ast.Call):
        return ""
    try:
        return compared("==", *map(place.value, sides))
    except Exception:  # noqa: BLE001 -- what cannot be had is not worked out
        return f"expected {_shown(sides[1], place)}, found {_shown(sides[0], place)}"


def _mirrored(words: str, test: ast.expr) -> str:
    """The words for ``1 <= found`` and ``1 <= found <= 8``, where the bound stands on the left."""
    bound = BOUND.match(words)
    if not (bound and isinstance(test, ast.Compare) and isinstance(test.left, ast.Constant)):
        return words
    relation, right, left = bound.groups()
    if left != shown(test.left.value):
        return words
    return f"expected {MIRRORED[relation]} {left}, found {right}"


def _sides(test: ast.expr) -> list[ast.expr]:
    """What an assertion compares, the code under test first; none where it is no comparison."""
    if isinstance(test, ast.Compare):
        return [test.left, *test.comparators] if len(test.ops) == 1 else []
    if not isinstance(test, ast.Call):
        return []
    if _source(test.func) in COMPARISONS:
        return test.args[:2]
    if isinstance(test.func, ast.Attribute) and test.func.attr == "all":
        inner = test.func.value
        if isinstance(inner, ast.Compare) and isinstance(inner.ops[0], ast.Eq):
            return [inner.left, inner.comparators[0]]
    return []


def _shown(node: ast.expr, place: Place) -> str:
    """The value of an expression, or its source where it would have to be called for."""
    try:
        return shown(place.value(node))
    except Exception:  # noqa: BLE001 -- as above
        return _source(node)


def _close(arguments: str) -> str:
    """Words for a failed ``math.isclose``, read from its arguments as pytest prints them."""
    try:
        call = ast.parse(f"isclose{arguments}", mode="eval").body
    except SyntaxError:
        return ""
    if not isinstance(call, ast.Call) or len(call.args) != 2:
        return ""
    found, want = (_number(one) for one in call.args)
    limits = ", ".join(f"{one.arg} {ast.unparse(one.value)}" for one in call.keywords)
    return f"expected {want}{f' ({limits})' if limits else ''}, found {found}"


def _number(node: ast.expr) -> str:
    """A number; NumPy writes its type around it."""
    return ast.unparse(node.args[0] if isinstance(node, ast.Call) and node.args else node)


def _source(node: ast.AST) -> str:
    return cut(" ".join(ast.unparse(node).split()), MOST_SOURCE)


# ---- inputs --------------------------------------------------------------------------------


def _arguments(place: Place, given: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Arguments of the function that failed which are no fixtures: hypothesis drew them."""
    code, known = place.frame.f_code, place.frame.f_locals
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return ((name, known[name]) for name in names if name not in given and name in known)


def _handed(place: Place, given: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Local names that the statement hands to what it calls, or what it asserts came from."""
    known = place.frame.f_locals
    parts: list[ast.AST] = [place.statement]
    if isinstance(place.statement, ast.With):
        parts = list(place.statement.body)
    elif isinstance(place.statement, ast.Assert):
        test = place.statement.test
        parts = [place.spelled_out(side) for side in _sides(test)] or [test]
    calls = [node for part in parts for node in ast.walk(part) if isinstance(node, ast.Call)]
    for call in calls:
        for one in [*call.args, *(keyword.value for keyword in call.keywords)]:
            for node in ast.walk(one):
                if not isinstance(node, ast.Name) or node.id in given or node.id not in known:
                    continue
                if "kata." not in _source(place.spelled_out(node)):  # no answer of theirs
                    yield node.id, known[node.id]


def _listed(inputs: Mapping[str, Any]) -> dict[str, str]:
    """Inputs in words: no tools of the test, and nothing whose words say nothing."""
    words = {name: shown(value) for name, value in inputs.items() if _is_data(value)}
    return {
        name: cut(text, MOST_VALUE) for name, text in words.items() if not WORDLESS.search(text)
    }


def _is_data(value: object) -> bool:
    tool = isinstance(value, (ModuleType, type)) or callable(value) or inspect.isgenerator(value)
    return not tool


# ---- pytest --------------------------------------------------------------------------------

JUDGING = pytest.StashKey[bool]()  # whether the test that runs is a kata's


def pytest_assertrepr_compare(
    config: pytest.Config, op: str, left: object, right: object
) -> list[str] | None:
    """Both sides of a comparison that failed in a kata's test, in a line."""
    if not config.stash.get(JUDGING, False):
        return None
    try:
        return [compared(op, left, right)]
    except Exception:  # noqa: BLE001 -- values of the learner's own types may refuse to be looked at
        return None
