"""
The least cost of a case of a kata, printed as JSON; it runs in a process of its own.

``python -m harness.judge.worksheet FOLDER CASE`` prints the cost; with ``--explained CASES`` a list
of cases is given, and for each the cost, the arguments and the terms of the formula are printed, or
null where the oracle refuses the case.
"""

import ast
import inspect
import json
import math
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from harness.content.functions import function_of, in_oracle
from harness.content.kata import Kata, load_kata
from harness.hardware.roofline import Cost
from harness.judge.loading import load_module
from harness.judge.trial import ARRAY_BACKENDS, case_arguments

TERMS = ("flops", "bytes", "special")
LONGEST_TERM = 100
MOST_TOLD = 8  # integers of an array that are told one by one
Call = Callable[..., Any]


def cost_of(folder: Path, case: dict[str, Any]) -> Cost:
    """What the kata in `folder` must do at least on `case`; its tensors take no memory."""
    return _on_inputs(load_kata(folder), case, lambda least, inputs: least(**inputs))  # type: ignore[no-any-return]


def explained(folder: Path, cases: list[dict[str, Any]]) -> list[dict[str, Any] | None]:
    """
    For each case the `cost`, the arguments `given` in words, and the `terms` of the formula.

    A term is the oracle's expression and the same with numbers in place of its names. What the
    oracle refuses, for whatever reason, is None: some drawn sizes do not go together. So is a case
    whose cost depends on the values that are drawn, or may depend on integers that are not told,
    since nobody can tell it from sizes.
    """
    kata = load_kata(folder)
    found: list[dict[str, Any] | None] = []
    for case in cases:
        try:
            told, again = (_on_inputs(kata, case, _explained, seed) for seed in (0, 1))
            found.append(told if told["cost"] == again["cost"] and told.pop("whole") else None)
        except Exception:  # noqa: BLE001 -- of a case that was drawn and may be impossible
            found.append(None)
    return found


def _on_inputs(
    kata: Kata,
    case: dict[str, Any],
    ask: Callable[[Call, dict[str, Any]], Any],
    seed: int = 0,
) -> Any:  # noqa: ANN401
    """What `ask` makes of the oracle's `cost` and the inputs of `case`, drawn by `seed`."""
    oracle, function = load_module(kata.oracle), function_of(case)
    least, make_inputs = (in_oracle(oracle, name, function) for name in ("cost", "make_inputs"))
    arguments = {**case_arguments(case, kata.backend), "device": "cpu", "seed": seed}
    if kata.backend in ARRAY_BACKENDS:
        return ask(least, make_inputs(**arguments))
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            return ask(least, make_inputs(**arguments))
    except RuntimeError:  # it reads values of what it draws
        return ask(least, make_inputs(**arguments))


def _explained(least: Call, inputs: dict[str, Any]) -> dict[str, Any]:
    frames: list[tuple[dict[str, Any], int]] = []

    def watch(frame: FrameType, event: str, _: object) -> None:
        if event == "return" and frame.f_code is getattr(least, "__code__", None):
            frames.append((dict(frame.f_locals), frame.f_lineno))

    sys.setprofile(watch)
    try:
        cost = least(**inputs)
    finally:
        sys.setprofile(None)
    names, line = frames[-1] if frames else ({}, 0)
    given = {name: _in_words(value) for name, value in inputs.items()}
    terms = {}
    with suppress(OSError, TypeError, SyntaxError):
        terms = _terms(least, line, names)
    whole = _depends_on_sizes(least, inputs, cost)
    return {"cost": asdict(cost), "given": given, "terms": terms, "whole": whole}


def _depends_on_sizes(least: Call, inputs: dict[str, Any], cost: Cost) -> bool:
    """Whether the cost is the same where the integers that are not told are others."""
    untold = {name: value for name, value in inputs.items() if _is_untold(value)}
    # a tensor without memory shows nothing but its size
    if not any(_known(value) is not None for value in untold.values()):
        return True
    with suppress(Exception):
        zeros = {name: value * 0 for name, value in untold.items()}
        return least(**{**inputs, **zeros}) == cost  # type: ignore[no-any-return]
    return False


def _terms(least: Call, line: int, names: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """The keywords of the `Cost` that the function returned at `line`."""
    lines, first = inspect.getsourcelines(least)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    ast.increment_lineno(tree, first - 1)
    space = {**getattr(least, "__globals__", {}), **names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
            last = node.end_lineno or node.lineno
            if node.lineno <= line <= last:
                made = _assigned(tree)
                full = {one.arg: _inlined(one.value, made) for one in node.value.keywords}
                return {
                    name: (ast.unparse(value), ast.unparse(_with_numbers(value, space)))
                    for name, value in full.items()
                    if name in TERMS
                }
    return {}


def _assigned(tree: ast.AST) -> dict[str, ast.expr]:
    """Names that are assigned once to what they were assigned."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found.setdefault(name, []).append(value)
            case ast.Name(id=name, ctx=ast.Store()):
                found.setdefault(name, []).append(node)
    # each name is met as a target as well
    return {name: values[0] for name, values in found.items() if _is_once(values)}


def _is_once(values: list[ast.expr]) -> bool:
    stores = sum(isinstance(one, ast.Name) for one in values)
    return stores == 1 and len(values) == stores + 1


def _inlined(node: ast.expr, made: dict[str, ast.expr]) -> ast.expr:
    """`node` with what its names were made of, as long as that stays a line."""

    class Inline(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            return made.get(name.id, name)

    full: ast.expr = Inline().visit(ast.parse(ast.unparse(node), mode="eval").body)
    return full if len(ast.unparse(full)) <= LONGEST_TERM else node


def _with_numbers(node: ast.expr, space: dict[str, Any]) -> ast.expr:
    """The sum `node` with a number in place of each part that is no sum itself."""
    if isinstance(node, ast.BinOp):
        left, right = (_with_numbers(one, space) for one in (node.left, node.right))
        return ast.BinOp(left=left, op=node.op, right=right)
    if isinstance(node, ast.Constant):
        return node
    with suppress(Exception):
        value = eval(ast.unparse(node), space)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return ast.Constant(value=value)
    return node


def _in_words(value: Any) -> str:  # noqa: ANN401 -- whatever the oracle feeds
    """An argument in a few words; "" for what has none."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        words = f"{str(dtype).removeprefix('torch.')} {list(map(int, shape))}"
        known = _known(value)
        told = _is_whole_numbers(value) and known is not None and not _is_untold(value)
        return f"{words} = {known.tolist()}" if told else words
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, float):
        return f"{value:.6g}"
    plain = value is None or isinstance(value, (bool, int, str))
    return repr(value) if plain else ""


def _known(value: Any) -> Any:  # noqa: ANN401
    """The array with its values; None of a tensor without memory, unless it is a constant."""
    return value.constant if isinstance(value, FakeTensor) else value


def _is_whole_numbers(value: Any) -> bool:  # noqa: ANN401
    """Whether it is an array of integers: places, lengths, tables."""
    return "int" in str(getattr(value, "dtype", "")) and hasattr(value, "shape")


def _is_untold(value: Any) -> bool:  # noqa: ANN401
    """Whether it is an array of more integers than are told."""
    return _is_whole_numbers(value) and math.prod(value.shape) > MOST_TOLD


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, *_, last = Path(sys.argv[1]), *sys.argv[2:]
    asked = json.loads(last)
    told = explained(folder, asked) if "--explained" in sys.argv else asdict(cost_of(folder, asked))
    print(json.dumps(told))  # noqa: T201
