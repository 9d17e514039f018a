"""Values in a few words: as the message of a failed test shows them, two of them told apart."""

import reprlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from itertools import zip_longest
from typing import Any

MOST_VALUE = 100  # characters of one value
FEW = 8  # elements of an array that are shown
WORDS = {
    "==": "expected {right}, found {left}",
    "!=": "expected anything but {right}, found it",
    "<=": "expected at most {right}, found {left}",
    "<": "expected less than {right}, found {left}",
    ">=": "expected at least {right}, found {left}",
    ">": "expected more than {right}, found {left}",
    "is": "expected {right}, found {left}",
    "is not": "expected anything but {right}, found it",
    "in": "expected {left} to be in {right}",
    "not in": "expected {left} not to be in {right}",
}  # fmt: skip


class _Repr(reprlib.Repr):
    """Values as Python writes them, arrays by what they are, numbers without their type."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = 12
        self.maxdict = self.maxset = 8
        self.maxstring = self.maxother = MOST_VALUE
        self.maxlong, self.maxlevel = 60, 4

    def repr1(self, x: Any, level: int) -> str:  # noqa: ANN401
        if _is_array(x):
            return _array(x) if x.shape else f"{x.item()!r}"
        return super().repr1(x, level)


_REPR = _Repr()


def shown(value: object) -> str:
    """A value in one line, cut short where it is long."""
    return cut(" ".join(_REPR.repr(value).split()), 2 * MOST_VALUE)


def cut(text: str, most: int) -> str:
    """A text of at most so many characters, and a sign where there were more."""
    return text if len(text) <= most else f"{text[:most]}…"


def compared(op: str, left: Any, right: Any) -> str:  # noqa: ANN401
    """
    What a comparison that failed expected and found.

    Args:
        op: As Python writes it; the code under test stands on its left.
        left: What was found.
        right: What was expected.
    """
    found, want = shown(left), shown(right)
    if op == "is" and found == want:
        return f"expected {want} itself, found another like it"
    if op != "==":
        return WORDS.get(op, f"expected {{left}} {op} {{right}}").format(left=found, right=want)
    words = "" if found == want else f"expected {want}, found {found}"
    if words and max(len(found), len(want)) <= MOST_VALUE and "..." not in found + want:
        return words
    where, one, other = _difference(left, right)
    if not where:
        return words or f"expected {other}, found {one}"
    inner = f"first difference at {where}: expected {other}, found {one}"
    return f"{words}; {inner}" if words else inner


def _difference(left: Any, right: Any, where: str = "") -> tuple[str, str, str]:  # noqa: ANN401
    """The first place where two values that are not equal differ, and what stands there."""
    for key, one, other in _pairs(left, right):
        if not _same(one, other):
            return _difference(one, other, f"{where}{key}")
    found, want = shown(left), shown(right)
    if found == want:
        found, want = f"{found} ({_kind(left)})", f"{want} ({_kind(right)})"
    return where, found, want


def _pairs(left: Any, right: Any) -> list[tuple[str, Any, Any]]:  # noqa: ANN401
    """The parts of two values that belong together; none where they are of different kinds."""
    if _is_array(left) and _is_array(right):
        if left.shape != right.shape or not left.shape or left.dtype != right.dtype:
            return []
        return [
            (f"[{at}]", one, other) for at, (one, other) in enumerate(zip(left, right, strict=True))
        ]
    if type(left) is not type(right):
        return []
    if isinstance(left, (list, tuple)):
        both = zip_longest(left, right, fillvalue=NOTHING)
        return [(f"[{at}]", one, other) for at, (one, other) in enumerate(both)]
    if isinstance(left, Mapping):
        keys = dict.fromkeys([*right, *left])
        return [(f"[{key!r}]", left.get(key, NOTHING), right.get(key, NOTHING)) for key in keys]
    if is_dataclass(left):
        names = [one.name for one in fields(left)]
        return [(f".{name}", getattr(left, name), getattr(right, name)) for name in names]
    return []


class _Nothing:
    """Stands where one of two mappings has no such key."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING = _Nothing()


def _same(left: Any, right: Any) -> bool:  # noqa: ANN401
    if _is_array(left) and _is_array(right):
        if left.shape != right.shape or left.dtype != right.dtype:
            return False
        return bool((left == right).all())
    try:
        return bool(left == right)
    except ValueError:  # a list of arrays: no truth of its own, its elements have
        return False


def _is_array(value: object) -> bool:
    """Whether it is a tensor, an array, or a number of theirs."""
    return all(hasattr(value, name) for name in ("dtype", "shape", "tolist", "item"))


def _array(array: Any) -> str:  # noqa: ANN401
    dtype = str(array.dtype).removeprefix("torch.")
    size = 1
    for axis in array.shape:
        size *= axis
    if size <= FEW:
        return f"{array.tolist()} ({dtype})"
    return f"an array of shape {tuple(array.shape)}, {dtype}"


def _kind(value: Any) -> str:  # noqa: ANN401
    """What tells a value from another that prints alike."""
    if _is_array(value):
        return f"{type(value).__name__} of {str(value.dtype).removeprefix('torch.')}"
    return type(value).__qualname__
