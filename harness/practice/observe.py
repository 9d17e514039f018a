"""
What a kata's functions were called with and what they returned, noted while its tests run.

A plugin of pytest, for a child process: ``-p harness.practice.observe --observed FILE``. A line of
JSON is written for each call that a test makes of one of the kata's functions and that can be told
in a line: numbers, texts, lists of few of them, dataclasses; of an array its dtype and shape.
"""

import dataclasses
import functools
import inspect
import json
import math
import os
import types
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

MOST_CALLS = 60  # of a function
MOST_PARTS = 8  # of a list that is told whole
MOST_TEXT = 170
LONGEST_NAME = 24
DIGITS = 6
ROUND = (1000, 1024)
# left out: what says nothing about answers, takes long, or replaces parts of the kata
PASSED_OVER = frozenset({"monkeypatch", "compiled", "benchmark", "ranks", "cost_threshold",
                         "speed_threshold", "swept_cases", "scheduled_case"})  # fmt: skip


class Untold(Exception):
    """A value that a line cannot hold."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where to write."""
    parser.addoption("--observed", default=None, metavar="FILE")


def pytest_configure(config: pytest.Config) -> None:
    """Begin."""
    if path := config.getoption("--observed"):
        config.pluginmanager.register(Observer(Path(path)), "kata-observer")


class Observer:
    """Wraps the functions of a kata as soon as its file is loaded, and writes at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.process = os.getpid()
        self.depth = 0
        self.rows: dict[str, dict[str, Any]] = {}  # by what was called, as text
        self.counts: dict[str, int] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out the tests whose calls say nothing."""
        items[:] = [one for one in items if not PASSED_OVER & set(getattr(one, "fixturenames", ()))]

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        """Watch what the fixture `kata` has loaded."""
        found = yield
        if fixturedef.argname == "kata" and isinstance(found, types.ModuleType):
            for name in request.getfixturevalue("submission").kata.functions:
                function = getattr(found, name)
                if inspect.isfunction(function) and not hasattr(function, "_observed"):
                    setattr(found, name, self._watched(name, function))
        return found

    def pytest_sessionfinish(self) -> None:
        """Write what was seen."""
        if os.getpid() == self.process:
            lines = [json.dumps(row) for row in self.rows.values() if "unsure" not in row]
            self.path.write_text("\n".join(lines), encoding="utf-8")

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def called(*args: object, **kwargs: object) -> object:
            row = None
            full = self.counts.get(name, 0) >= MOST_CALLS
            if not self.depth and not full and os.getpid() == self.process:
                row = _call(name, signature, args, kwargs)
            self.depth += 1
            try:
                result = function(*args, **kwargs)
            except Exception as error:
                self._keep(row, raised=type(error).__name__, message=str(error)[:MOST_TEXT])
                raise
            finally:
                self.depth -= 1
            if row is not None:
                with suppress(Untold):
                    self._keep(row, result=told(result), value=plain(result), arrays=arrays(result))
            return result

        called._observed = True  # type: ignore[attr-defined]
        return called

    def _keep(self, row: dict[str, Any] | None, **what: object) -> None:
        if row is None:
            return
        known, found = self.rows.get(row["call"]), {**row, **what}
        if known is None:
            self.rows[row["call"]] = found
            self.counts[row["function"]] = self.counts.get(row["function"], 0) + 1
        elif known != found:  # what the line does not show has a say
            known["unsure"] = True


def _call(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any] | None:
    """A call as it would be typed; None where a line cannot hold it."""
    try:
        bound = signature.bind(*args, **kwargs)
        shown = {key: told(value) for key, value in bound.arguments.items()}
    except (TypeError, Untold):
        return None
    text = f"{name}({', '.join(f'{key}={value}' for key, value in shown.items())})"
    if len(text) > MOST_TEXT:
        return None
    return {
        "function": name,
        "call": text,
        "numbers": _numbers(bound.arguments),
        "names": list(signature.parameters),
        "given": [one for value in bound.arguments.values() for one in arrays(value)],
    }


def _numbers(arguments: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among arguments, by name; of dataclasses those of their fields."""
    found: dict[str, float] = {}
    for name, value in arguments.items():
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
            found |= {f"{name}.{key}": number for key, number in _numbers(fields).items()}
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[name] = value
    return found


def told(value: Any) -> str:  # noqa: ANN401 -- whatever a test hands on
    """
    A value in a line.

    Raises:
        Untold: it does not fit, or has no form that people read.
    """
    match value:
        case None | bool():
            return repr(value)
        case int() | float() if type(value) in (int, float):
            return _told_number(value)
        case str() if len(value) <= LONGEST_NAME and value.isprintable() and "/" not in value:
            return repr(value)
        case list() | tuple() | set() | frozenset() | range() if len(value) <= MOST_PARTS:
            return _told_parts(value)
        case dict() if len(value) <= MOST_PARTS:
            parts = ", ".join(f"{told(key)}: {told(one)}" for key, one in value.items())
            return f"{{{parts}}}"
    if (found := array(value)) is not None:
        return f"<{found['dtype']} {found['shape']}>"
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return str(value)
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        return told(value.item())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _told_fields(value)
    raise Untold


def _told_number(value: float) -> str:
    if isinstance(value, int):
        size = abs(value)
        if size >= 10**DIGITS and all(size % one for one in ROUND) and size & (size - 1):
            raise Untold
        return repr(value)
    if math.isfinite(value) and float(f"{value:.{DIGITS}g}") != value:
        raise Untold
    return repr(value)


def _told_parts(value: Any) -> str:  # noqa: ANN401 -- any collection
    if isinstance(value, range):
        return repr(value)
    parts = ", ".join(map(told, value))
    if isinstance(value, list):
        return f"[{parts}]"
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        if fields:
            named = ", ".join(
                f"{name}={told(one)}" for name, one in zip(fields, value, strict=True)
            )
            return f"{type(value).__name__}({named})"
        return f"({parts}{',' if len(value) == 1 else ''})"
    raise Untold  # a set has no order to tell it in


def _told_fields(value: Any) -> str:  # noqa: ANN401 -- any dataclass
    parts = []
    for one in dataclasses.fields(value):
        found = getattr(value, one.name)
        if one.default is not dataclasses.MISSING and found == one.default:
            continue
        parts.append(f"{one.name}={told(found)}")
    return f"{type(value).__name__}({', '.join(parts)})"


def plain(value: Any) -> object:  # noqa: ANN401 -- whatever a function returns
    """A result as JSON holds it, if it is made of numbers and texts alone; else None."""
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        found = [plain(one) for one in value]
        simple = all(
            one is not None or other is None for one, other in zip(found, value, strict=True)
        )
        return found if simple else None
    return None


def array(value: Any) -> dict[str, Any] | None:  # noqa: ANN401 -- whatever there is
    """The dtype and shape of a tensor or array; None of anything else."""
    if type(value).__module__.partition(".")[0] not in ("torch", "numpy", "jax", "jaxlib"):
        return None
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is None or shape is None or not hasattr(value, "ndim"):
        return None
    return {"dtype": str(dtype).removeprefix("torch."), "shape": [int(size) for size in shape]}


def arrays(value: Any) -> list[dict[str, Any]]:  # noqa: ANN401 -- whatever a function returns
    """The arrays that a value is or, as a list or tuple, consists of."""
    if (found := array(value)) is not None:
        return [found]
    if isinstance(value, (list, tuple)):
        return [one for part in value for one in arrays(part)]
    return []
