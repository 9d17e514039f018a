"""What verdicts rest on, remembered before any code under test is loaded, and put back after."""

import builtins
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter, is_
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

CLOCKS = ("perf_counter", "perf_counter_ns", "monotonic", "process_time", "time", "sleep")
# by module; one that is not loaded yet is looked at again later
FUNCTIONS = {
    "math": ("isclose", "isfinite", "isnan", "sqrt"),
    "numpy": ("allclose", "array_equal", "isclose", "shares_memory", "unravel_index"),
    "numpy.testing": ("assert_allclose", "assert_array_equal", "assert_equal"),
    "pytest": ("approx", "fail", "raises", "skip"),
    "torch": (
        *("allclose", "as_tensor", "equal", "finfo", "from_numpy", "isclose", "isfinite", "isinf"),
        *("isnan", "maximum", "tensor", "where"),
    ),
    "torch.testing": ("assert_close",),
    "torch.cuda": ("Event", "current_stream", "synchronize"),
}
TENSOR_METHODS = (
    *("__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__ne__", "__sub__", "abs", "all", "any"),
    *("clone", "copy_", "cpu", "detach", "double", "fill_", "item", "max", "min", "nonzero"),
    *("norm", "numpy", "sum", "to", "view"),
)
EVENT_METHODS = ("elapsed_time", "record", "synchronize")
# modules of which every function and class counts
WHOLE = ("harness.", "_kata_oracle_", "_pytest.runner", "_pytest.reports")
KINDS = (
    BuiltinFunctionType,
    FunctionType,
    ModuleType,
    classmethod,
    property,
    staticmethod,
    type,
)
MISSING: Any = object()
CODE = attrgetter("__code__")


@dataclass(frozen=True, slots=True)
class Tools:
    """Attributes of one module or class, as they were when they were first seen."""

    owner: Any
    names: tuple[str, ...]
    values: tuple[Any, ...]  # MISSING where a base class has it
    functions: tuple[FunctionType, ...]
    codes: tuple[CodeType, ...]

    @classmethod
    def of(cls, owner: Any, names: Iterable[str]) -> "Tools":  # noqa: ANN401
        """Remember these attributes of `owner` itself."""
        names = tuple(names)
        values = tuple(vars(owner).get(name, MISSING) for name in names)
        functions = tuple(value for value in values if isinstance(value, FunctionType))
        return cls(owner, names, values, functions, tuple(map(CODE, functions)))

    def put_back(self) -> list[str]:
        """Put back what is not as it was, and return its names."""
        # this runs around every test: two passes without a Python-level loop
        now = map(vars(self.owner).get, self.names, repeat(MISSING))
        same = all(map(is_, now, self.values))
        if same and all(map(is_, map(CODE, self.functions), self.codes)):
            return []
        return [*self._put_back_values(), *self._put_back_codes()]

    def _put_back_values(self) -> list[str]:
        replaced = []
        for name, value in zip(self.names, self.values, strict=True):
            if vars(self.owner).get(name, MISSING) is value:
                continue
            replaced.append(self._title(name))
            if value is MISSING:
                delattr(self.owner, name)
            else:
                setattr(self.owner, name, value)
        return replaced

    def _put_back_codes(self) -> list[str]:
        replaced = []
        for function, code in zip(self.functions, self.codes, strict=True):
            if function.__code__ is not code:
                function.__code__ = code
                # the owner may only have imported it
                replaced.append(f"{function.__module__}.{function.__qualname__}")
        return replaced

    def _title(self, name: str) -> str:
        """Where one finds it: ``torch.Tensor.norm``."""
        if isinstance(self.owner, ModuleType):
            return f"{self.owner.__name__}.{name}"
        return f"{self.owner.__module__}.{self.owner.__qualname__}.{name}"


class Toolbox:
    """The tools of this process; a module's are taken in when it is first seen."""

    def __init__(self) -> None:
        self._tools: list[Tools] = []
        self._owners: set[Any] = set()
        self._seen: set[str] = set()
        self._add(time, CLOCKS)
        self._add(statistics, ("fmean", "median"))
        self._add(builtins, _names(builtins))

    def take_in(self, *modules: ModuleType) -> None:
        """Remember what is loaded now, and all of `modules`."""
        new = sys.modules.keys() - self._seen
        self._seen |= new
        for name in FUNCTIONS.keys() & new:
            self._add(sys.modules[name], FUNCTIONS[name])
        if "torch" in new:
            torch = sys.modules["torch"]
            self._add_methods(torch.Tensor, TENSOR_METHODS)
            self._add_methods(torch.cuda.Event, EVENT_METHODS)
        whole = [sys.modules[name] for name in sorted(new) if name.startswith(WHOLE)]
        for module in (*whole, *modules):
            self._add(module, _names(module))
            for value in list(vars(module).values()):
                if isinstance(value, type) and value.__module__ == module.__name__:
                    self._add(value, _names(value))

    def _add(self, owner: Any, names: Iterable[str]) -> None:  # noqa: ANN401
        if owner not in self._owners:
            self._owners.add(owner)
            self._tools.append(Tools.of(owner, names))

    def _add_methods(self, owner: type, names: Iterable[str]) -> None:
        """Remember methods wherever they stand, and that no nearer class has them."""
        missing = tuple(names)
        for place in owner.__mro__:
            self._add(place, missing)
            missing = tuple(name for name in missing if name not in vars(place))

    def put_back(self) -> list[str]:
        """Put back what is not as it was, and return its names."""
        return [name for tools in self._tools for name in tools.put_back()]


def _names(owner: Any) -> list[str]:  # noqa: ANN401 -- a module or a class
    return [name for name, value in vars(owner).items() if isinstance(value, KINDS)]


toolbox = Toolbox()
