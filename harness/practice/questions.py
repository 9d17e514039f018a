"""
A question of a quiz, what may be typed as its answer, and whether that is right.

Numbers may be typed as sums (``2 * 4096 * 128``), with SI or binary prefixes (``1.2 M``, ``16 Ki``)
and with their unit; each question says how near an answer has to be.
"""

import ast
import math
import operator
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

SMALL = 1000  # whole numbers up to here are counted, not estimated
NEAR = 0.02
FACTOR = {
    "": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip
TIMES = {"s": 1e6, "ms": 1e3, "µs": 1.0, "us": 1.0, "ns": 1e-3}  # in µs
UNITS = {"bytes": ("bytes", "byte", "B"), "FLOP": ("FLOP", "FLOPs", "flop", "flops")}
OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
MOST_DIGITS = 60  # of a power: nobody needs more


class Unreadable(ValueError):
    """What was typed is no answer to the question; the message says what would be one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """
    One question about one kata.

    Attributes:
        kata: Its name.
        kind: What it is about, such as "bytes".
        text: All that is asked, in lines.
        form: How it is answered: a "number", a "value" as Python writes it, or a "choice".
        unit: Of a number; "" where the text says it all.
        answer: The right one as it would be typed; of a choice its words.
        near: How far off a number may be, as a share; 0 is exact.
        choices: In the order in which they are shown.
        open: Those choices of which only the kata's tests can tell, on the wrong solution `wrong`.
        wrong: The wrong solution that it is about, if it is about one.
        derivation: Lines that lead to the answer.
    """

    kata: str
    kind: str
    text: str
    form: Literal["number", "value", "choice"]
    answer: str
    unit: str = ""
    near: float = 0.0
    choices: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    wrong: str = ""
    derivation: tuple[str, ...] = ()

    @property
    def rule(self) -> str:
        """What is taken for right, in words."""
        if self.form == "choice":
            return f"1 to {len(self.choices)}"
        near = f"within {self.near:.0%}" if self.near else "exactly"
        if self.form == "number":
            return f"in {self.unit}, {near}" if self.unit else near
        return f"as Python writes it, numbers {near}" if self.near else "as Python writes it"

    def read(self, given: str) -> str:
        """
        What was typed, in the form in which answers are compared.

        Raises:
            Unreadable: it is no answer to a question of this form.
        """
        given = given.strip()
        if self.form == "choice":
            return self._chosen(given)
        if self.form == "number":
            return repr(number(given, self.unit))
        value = _literal(given)
        # of one axis the brackets may be left out, as of several
        return repr([value] if self.kind == "shape" and isinstance(value, int) else value)

    def is_right(self, given: str) -> bool:
        """
        Whether `given` is the answer, as far as that is known without a test run.

        Raises:
            Unreadable: as `read`.
        """
        found = self.read(given)
        if self.form == "choice":
            return found == self.answer
        return alike(ast.literal_eval(_finite(found)), self.value, self.near)

    @property
    def value(self) -> object:
        """The answer as a number or value."""
        return ast.literal_eval(_finite(self.answer))

    def _chosen(self, given: str) -> str:
        if given in self.choices:
            return given
        if given.isdecimal() and 1 <= int(given) <= len(self.choices):
            return self.choices[int(given) - 1]
        raise Unreadable(f"expected a number from 1 to {len(self.choices)}, found {given!r}")


def _finite(text: str) -> str:
    """`text` so that `ast.literal_eval` reads infinity, which Python writes as a name."""
    return re.sub(r"\binf\b", "1e999", text)


def number(text: str, unit: str = "") -> float:
    """
    A number in `unit`, from digits, a sum, a prefix, a unit.

    Raises:
        Unreadable: there is none.
    """
    plain = re.sub(r"(?<=\d)[,_](?=\d\d\d)", "", text.strip())
    names = (*TIMES,) if unit == "µs" else UNITS.get(unit, (unit,) if unit else ())
    factor = 1.0
    for name in sorted(names, key=len, reverse=True):
        if plain.endswith(name) and plain != name:
            factor = TIMES.get(name, 1.0) if unit == "µs" else 1.0
            plain = plain.removesuffix(name).rstrip()
            break
    for prefix in ("Ki", "Mi", "Gi", "Ti", "k", "K", "M", "G", "T", "P"):
        if plain.endswith(prefix):
            factor *= FACTOR[prefix]
            plain = plain.removesuffix(prefix).rstrip()
            break
    try:
        found = _sum(ast.parse(plain.replace("^", "**"), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError):
        found = math.nan
    if math.isnan(found):
        what = "a number, as in 4096, 1.5e9, 16 Ki or 2 * 32 * 128"
        raise Unreadable(f"expected {what}{f' ({unit})' if unit else ''}, found {text.strip()!r}")
    value = found * factor
    return int(value) if float(value).is_integer() else value


def _sum(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.Name(id="inf"):
            return math.inf
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_sum(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            base, power = _sum(left), _sum(right)
            if abs(power) * math.log10(max(2.0, abs(base))) > MOST_DIGITS:
                raise OverflowError
            found: float = base**power
            return found
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            result: float = OPERATORS[type(op)](_sum(left), _sum(right))
            return result
    raise ValueError(ast.dump(node))


def _literal(text: str) -> object:
    """A value that was typed, its numbers as sums; what is none is a name and stands for itself."""
    with suppress(SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError):
        return _parts(ast.parse(text, mode="eval").body)
    with suppress(Unreadable):
        return number(text)
    if re.fullmatch(r"[\w .+-]+", text):
        return text
    raise Unreadable(f"expected a value, as in 12, [1, 2] or 'text', found {text!r}")


def _parts(node: ast.expr) -> object:
    match node:
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_parts(one) for one in parts]
        case ast.Dict(keys=keys, values=values):
            return {
                _parts(key): _parts(value)
                for key, value in zip(keys, values, strict=True)
                if key is not None
            }
        case ast.Constant(value=None | bool() | str() as value):
            return value
    return _sum(node)


def alike(found: object, wanted: object, near: float) -> bool:
    """Whether two values are the same, numbers up to a share `near`; lists and tuples are one."""
    if isinstance(wanted, bool) or isinstance(found, bool):
        return found is wanted
    if isinstance(wanted, (int, float)):
        return isinstance(found, (int, float)) and _near(found, wanted, near)
    if isinstance(wanted, (list, tuple)):
        return (
            isinstance(found, (list, tuple))
            and len(found) == len(wanted)
            and all(alike(one, other, near) for one, other in zip(found, wanted, strict=True))
        )
    if isinstance(wanted, dict):
        return (
            isinstance(found, dict)
            and found.keys() == wanted.keys()
            and all(alike(found[key], wanted[key], near) for key in wanted)
        )
    return found == wanted


def _near(found: float, wanted: float, near: float) -> bool:
    if math.isinf(wanted) or math.isinf(found):
        return found == wanted
    return abs(found - wanted) <= near * abs(wanted) + 1e-12


def tolerance_of(value: object) -> float:
    """How near an answer has to be: counts exactly, what is larger or broken within 2 %."""
    if isinstance(value, (list, tuple)):
        return max(map(tolerance_of, value), default=0.0)
    if isinstance(value, Mapping):
        return max(map(tolerance_of, value.values()), default=0.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0.0
    return 0.0 if abs(value) <= SMALL and value == int(value) else NEAR


def figure(value: float) -> str:
    """A number for people: whole ones in groups of three, others to four digits or whole."""
    if math.isfinite(value) and value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < math.inf else f"{value:,.4g}"
