"""Whether code keeps something from one call for another."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass
from enum import Enum
from types import ModuleType
from typing import Any

from harness.plugin.values import shown

Call = Callable[[ModuleType], Any]


def assert_stateless(kata: ModuleType, fresh: Callable[[], ModuleType], *calls: Call) -> None:
    """
    Fail unless each call gives what it gives to a file that has just been imported.

    The calls are made one after the other, there and back, and later ones must not change what
    earlier ones gave.

    Args:
        kata: The module under test.
        fresh: Imports it anew.
        calls: Each is given a module and returns what is compared: no generator, but its list.

    Raises:
        AssertionError: with the call, what was expected and what was found.
    """
    __tracebackhide__ = True
    alone = [deepcopy(call(fresh())) for call in calls]
    order = [*range(len(calls)), *reversed(range(len(calls)))]
    made: list[tuple[int, Any]] = []
    for at in order:
        made.append((at, calls[at](kata)))
        for number, (which, found) in enumerate(made, start=1):
            now = "" if number == len(made) else f", after call {len(made)}"
            assert alike(found, alone[which]), (
                f"call {number}{now}: expected {shown(alone[which])}, as from a file that has just "
                f"been imported, found {shown(found)}: something is kept from one call for another"
            )


def alike(left: Any, right: Any) -> bool:  # noqa: ANN401
    """Whether two values are the same, where their classes come from two imports of a file."""
    if type(left).__qualname__ != type(right).__qualname__:
        return False
    if isinstance(left, Enum):
        return bool(left.name == right.name)
    if is_dataclass(left):
        names = [field.name for field in fields(left)]
        return all(alike(getattr(left, name), getattr(right, name)) for name in names)
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(alike(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(alike, left, right))
    if hasattr(left, "tolist") and hasattr(left, "shape"):
        return left.dtype == right.dtype and alike(left.tolist(), right.tolist())
    return bool(left == right or (left != left and right != right))
