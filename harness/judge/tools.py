"""What verdicts rest on, remembered before any code under test is loaded, and put back after."""

import builtins
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

CLOCKS = ("perf_counter", "perf_counter_ns", "monotonic", "process_time", "time", "sleep")
# by module; one that is not loaded yet is looked at again later
FUNCTIONS = {
    "math": ("isclose", "isfinite", "isnan", "sqrt"),
    "numpy": ("allclose", "array_equal", "isclose", "shares_memory"),
    "numpy.testing": ("assert_allclose", "assert_array_equal", "assert_equal"),
    "pytest": ("approx", "fail", "raises", "skip"),
    "torch": (
        *("allclose", "as_tensor", "equal", "finfo", "from_numpy", "isclose", "isfinite", "isinf"),
        *("isnan", "maximum", "tensor", "unravel_index", "where"),
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


@dataclass(frozen=True, slots=True)
class Tool:
    """An attribute of a module or a class, as it was when it was first seen."""

    owner: Any
    name: str
    value: Any
    code: CodeType | None

    def intact(self) -> bool:
        """Whether it is still there, with the same code inside."""
        return stored(self.owner, self.name) is self.value and _code(self.value) is self.code

    def restore(self) -> None:
        """Put it back."""
        if stored(self.owner, self.name) is not self.value:
            setattr(self.owner, self.name, self.value)
        if self.code is not None:
            self.value.__code__ = self.code

    @property
    def title(self) -> str:
        """Where one finds it: ``torch.Tensor.norm``."""
        owner = self.owner
        if isinstance(owner, ModuleType):
            return f"{owner.__name__}.{self.name}"
        return f"{owner.__module__}.{owner.__qualname__}.{self.name}"


def stored(owner: Any, name: str) -> Any:  # noqa: ANN401 -- a module or a class
    """An attribute as it is kept, so that a class's functions stay unbound; None without it."""
    for place in getattr(owner, "__mro__", (owner,)):
        if name in vars(place):
            return vars(place)[name]
    return None


def _code(value: object) -> CodeType | None:
    return value.__code__ if isinstance(value, FunctionType) else None


class Toolbox:
    """The tools of this process; a module's are taken in when it is first seen."""

    def __init__(self) -> None:
        self._tools: list[Tool] = []
        self._owners: set[Any] = set()

    def take_in(self, *modules: ModuleType) -> None:
        """Remember what is loaded now, and all of `modules`."""
        loaded = dict(sys.modules)
        self._add(time, CLOCKS)
        self._add(statistics, ("fmean", "median"))
        self._add(builtins, _names(builtins))
        for name, functions in FUNCTIONS.items():
            if name in loaded:
                self._add(loaded[name], functions)
        if "torch" in loaded:
            self._add(loaded["torch"].Tensor, TENSOR_METHODS)
            self._add(loaded["torch"].cuda.Event, EVENT_METHODS)
        whole = [module for name, module in loaded.items() if name.startswith(WHOLE)]
        for module in (*whole, *modules):
            self._add(module, _names(module))
            for value in list(vars(module).values()):
                if isinstance(value, type) and value.__module__ == module.__name__:
                    self._add(value, _names(value))

    def _add(self, owner: Any, names: Iterable[str]) -> None:  # noqa: ANN401
        if owner in self._owners:
            return
        self._owners.add(owner)
        for name in names:
            value = stored(owner, name)
            if value is not None:
                self._tools.append(Tool(owner, name, value, _code(value)))

    def put_back(self) -> list[str]:
        """Put back what is not as it was, and return its names."""
        broken = [tool for tool in self._tools if not tool.intact()]
        for tool in broken:
            tool.restore()
        return [tool.title for tool in broken]


def _names(owner: Any) -> list[str]:  # noqa: ANN401 -- a module or a class
    return [name for name, value in vars(owner).items() if isinstance(value, KINDS)]


toolbox = Toolbox()
