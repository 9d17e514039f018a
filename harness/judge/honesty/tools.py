"""
What verdicts rest on, remembered before any code under test is loaded, and put back after.

This runs around every test, over some ten thousand attributes: what is compared lies in flat
lists, and is compared without a loop in Python, which takes a millisecond.
"""

import builtins
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from itertools import chain
from operator import attrgetter, call, is_, itemgetter
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

# ---- which they are ------------------------------------------------------------------------

CLOCKS = ("perf_counter", "perf_counter_ns", "monotonic", "process_time", "time", "sleep")
# by module; one that is not loaded yet is looked at again later
FUNCTIONS = {
    "gc": ("collect", "disable", "enable", "freeze"),
    "os": ("_exit", "fsdecode", "fspath", "getpid", "lstat", "readlink", "stat"),
    "sys": ("_current_frames", "_getframe", "addaudithook", "exc_info"),
    "threading": ("current_thread", "enumerate", "get_ident"),
    "torch._C._nn": ("gelu", "linear", "scaled_dot_product_attention", "silu"),
    "torch.cuda": ("Event", "current_stream", "synchronize"),
}
EVENT_METHODS = ("elapsed_time", "record", "synchronize")
# modules of which every function and class counts, but not what is in those classes
OUTER = (
    *("beartype", "jaxtyping", "math", "numpy", "numpy.linalg", "numpy.testing", "posixpath"),
    *("pytest", "torch", "torch.linalg", "torch.nn.functional", "torch.testing"),
    *("jax", "jax.nn", "jax.numpy", "onnx.checker", "onnx.reference", "onnxruntime"),
    *("pycute.int_tuple", "pycute.layout", "xdsl.interpreter", "xdsl.ir", "xdsl.parser"),
)
# modules and packages of which everything counts; the judge's own names in capitals as well
WHOLE = (
    *("_pytest.approx.", "_pytest.assertion.", "_pytest.fixtures.", "_pytest.main."),
    *("_pytest.nodes.", "_pytest.outcomes.", "_pytest.python.", "_pytest.raises."),
    *("_pytest.reports.", "_pytest.runner.", "_pytest.skipping.", "_pytest.unittest."),
    *("hypothesis.control.", "hypothesis.core.", "hypothesis.internal.conjecture.data."),
    *("hypothesis.internal.conjecture.engine.", "hypothesis.strategies._internal."),
    *("json.", "numpy.testing._private.", "pluggy."),
    *("torch.testing._comparison.", "torch.utils._python_dispatch."),
)
OURS = ("harness.", "_kata_oracle_")
# packages of which at least the code counts: what was registered with pytest is not looked up again
CODE = ("_pytest.", "hypothesis.")
# set by pytest for each test, and by PyTorch with its compiler or another default dtype
CHANGING = {
    "_pytest.assertion.util": {"_assertion_pass", "_reprcompare"},
    "torch": {"Storage", "manual_seed"},
}
KINDS = (ModuleType, classmethod, property, staticmethod)
CONTAINERS = (dict, list, set)
MISSING: Any = object()
CONTENT = attrgetter("cell_contents")


def _names(owner: Any) -> list[str]:  # noqa: ANN401 -- a module or a class
    """What is called or looked up there, whatever it is made of."""
    return [
        name
        for name, value in vars(owner).items()
        if callable(value) or issubclass(type(value), KINDS)
    ]


def _steady_names(module: ModuleType) -> list[str]:
    changing = CHANGING.get(module.__name__, ())
    return [name for name in _names(module) if name not in changing]


def _constants(module: ModuleType) -> list[str]:
    return [name for name in vars(module) if name.isupper()]


def _functions(value: object) -> Iterator[FunctionType]:
    """The Python functions that `value` stands for, also those that a decorator keeps in a cell."""
    if isinstance(value, FunctionType):
        yield value
        yield from map(CONTENT, _cells(value))
    elif isinstance(value, (classmethod, staticmethod)):
        yield from _functions(value.__func__)
    elif isinstance(value, property):
        yield from _functions(value.fget)


def _cells(function: FunctionType) -> list[CellType]:
    """Where a decorator keeps the function that it wraps."""
    filled = (cell for cell in function.__closure__ or () if cell != CellType())
    return [cell for cell in filled if isinstance(cell.cell_contents, FunctionType)]


def homeless_codes(values: Iterable[object]) -> Iterator[CodeType]:
    """The code of those functions, and of the methods of those classes, that stand in no file."""
    for value in values:
        members = vars(value).values() if isinstance(value, type) else (value,)
        for function in chain.from_iterable(map(_functions, members)):
            if "__file__" not in function.__globals__:
                yield function.__code__


# ---- remembered ----------------------------------------------------------------------------


class Attributes:
    """Attributes of modules and classes, as they were when they were first seen."""

    def __init__(self) -> None:
        self._owners: list[Any] = []
        self._names: list[list[str]] = []
        self._reads: list[Callable[[Any], tuple[Any, ...]]] = []  # of all names of one owner
        self._values: list[Any] = []  # of all owners in a row
        self._absent: list[tuple[Any, frozenset[str]]] = []  # what a base class has

    def add(self, owner: Any, names: Iterable[str]) -> list[Any]:  # noqa: ANN401
        """Remember these attributes of `owner` itself; returns what they are."""
        present = {name: vars(owner)[name] for name in names if name in vars(owner)}
        absent = frozenset(names) - present.keys()
        if absent:
            self._absent.append((owner, absent))
        if present:
            self._owners.append(owner)
            # a getter of one item returns no tuple
            self._names.append(list(present) if len(present) > 1 else list(present) * 2)
            self._reads.append(itemgetter(*self._names[-1]))
            self._values += [present[name] for name in self._names[-1]]
        return list(present.values())

    def put_back(self) -> list[str]:
        """Put back what is not as it was, and return its names."""
        added = [one for one in self._absent if not one[1].isdisjoint(vars(one[0]))]
        if not added and self._all_as_they_were():
            return []
        replaced = []
        owners = zip(self._owners, self._names, strict=True)
        places = ((owner, name) for owner, names in owners for name in names)
        for (owner, name), value in zip(places, self._values, strict=True):
            if vars(owner).get(name, MISSING) is not value:
                replaced.append(_title(owner, name))
                setattr(owner, name, value)
        for owner, names in added:
            for name in names & vars(owner).keys():
                replaced.append(_title(owner, name))
                delattr(owner, name)
        return replaced

    def _all_as_they_were(self) -> bool:
        try:
            now = chain.from_iterable(map(call, self._reads, map(vars, self._owners)))
            return all(map(is_, now, self._values))
        except KeyError:  # deleted
            return False


def _title(owner: Any, name: str) -> str:  # noqa: ANN401 -- a module or a class
    """Where one finds it: ``torch.Tensor.norm``."""
    if isinstance(owner, ModuleType):
        return f"{owner.__name__}.{name}"
    return f"{owner.__module__}.{owner.__qualname__}.{name}"


class Settings:
    """Counts how often a function was given other code or defaults, which the interpreter tells."""

    def __init__(self) -> None:
        self.count = 0
        sys.addaudithook(self._hear)

    def _hear(self, event: str, _arguments: tuple[Any, ...]) -> None:
        if event == "object.__setattr__":
            self.count += 1


settings = Settings()


class Functions:
    """What functions do: their code, their defaults, and the functions that they close over."""

    def __init__(self) -> None:
        self._settings = settings.count
        self._codes: dict[FunctionType, CodeType] = {}
        self._defaults: dict[FunctionType, tuple[Any, ...]] = {}
        self._keywords: dict[FunctionType, dict[str, Any]] = {}
        self._keywords_then: list[dict[str, Any]] = []
        self._cells: list[CellType] = []
        self._contents: list[FunctionType] = []

    def add(self, values: Iterable[object]) -> None:
        """Remember all functions behind `values`."""
        for function in (one for value in values for one in _functions(value)):
            if function in self._codes:
                continue
            self._codes[function] = function.__code__
            if function.__defaults__:
                self._defaults[function] = function.__defaults__
            if function.__kwdefaults__:
                self._keywords[function] = function.__kwdefaults__
                self._keywords_then.append(dict(function.__kwdefaults__))
            self._cells += _cells(function)
            self._contents += map(CONTENT, _cells(function))

    def put_back(self) -> list[str]:
        """Put back what is not as it was, and return the functions' names."""
        replaced: list[str] = []
        # each look at one of these is told to all audit hooks
        if self._settings != settings.count:
            replaced += _each("__code__", self._codes)
            replaced += _each("__defaults__", self._defaults)
            replaced += _each("__kwdefaults__", self._keywords)
            self._settings = settings.count
        if list(self._keywords.values()) != self._keywords_then:
            replaced += self._put_back_keywords()
        if not all(map(is_, map(CONTENT, self._cells), self._contents)):
            replaced += self._put_back_contents()
        return replaced

    def _put_back_keywords(self) -> Iterator[str]:
        for (function, now), then in zip(self._keywords.items(), self._keywords_then, strict=True):
            if now != then:
                now.clear()
                now.update(then)
                yield _where(function)

    def _put_back_contents(self) -> Iterator[str]:
        for cell, content in zip(self._cells, self._contents, strict=True):
            if cell.cell_contents is not content:
                cell.cell_contents = content
                yield _where(content)


def _each(name: str, values: Mapping[FunctionType, object]) -> Iterator[str]:
    for function, value in values.items():
        if getattr(function, name) is not value:
            setattr(function, name, value)
            yield _where(function)


def _where(function: FunctionType) -> str:
    """Where it stands; its owner may only have imported it."""
    return f"{function.__module__}.{function.__qualname__}"


class Contents:
    """What lies in the judge's own tables."""

    def __init__(self) -> None:
        self._tables: list[tuple[str, Any, Any]] = []

    def add(self, module: ModuleType, names: Iterable[str]) -> None:
        """Remember what is in those of these constants that could be written to."""
        for name in names:
            value = vars(module)[name]
            if isinstance(value, CONTAINERS):
                self._tables.append((f"{module.__name__}.{name}", value, copy(value)))

    def put_back(self) -> list[str]:
        """Put back what is not as it was, and return the names of the tables."""
        changed = [(title, table, was) for title, table, was in self._tables if table != was]
        for _, table, was in changed:
            table.clear()
            (table.extend if isinstance(table, list) else table.update)(was)
        return [title for title, _, _ in changed]


class Toolbox:
    """The tools of this process; a module's are taken in when it is first seen."""

    def __init__(self) -> None:
        self._attributes, self._functions, self._contents = Attributes(), Functions(), Contents()
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
        for name in sorted(new.intersection(OUTER)):
            self._add(sys.modules[name], _steady_names(sys.modules[name]))
        if "torch" in new:
            torch = sys.modules["torch"]
            self._add_methods(torch.Tensor, dir(torch.Tensor))
            self._add_methods(torch.cuda.Event, EVENT_METHODS)
        for name in sorted(new):
            if f"{name}.".startswith(WHOLE):
                self._add_whole(sys.modules[name])
            elif name.startswith(CODE):
                self._functions.add(vars(sys.modules[name]).values())
        ours = [sys.modules[name] for name in sorted(new) if name.startswith(OURS)]
        for module in (*ours, *modules):
            self._add_whole(module, _constants(module))

    def _add_whole(self, module: ModuleType, constants: Iterable[str] = ()) -> None:
        """Remember a module with the classes that stand in it."""
        if module in self._owners:
            return
        self._add(module, dict.fromkeys((*_steady_names(module), *constants)))
        self._contents.add(module, constants)
        for value in list(vars(module).values()):
            if issubclass(type(value), type) and value.__module__ == module.__name__:
                self._add(value, _names(value))

    def _add(self, owner: Any, names: Iterable[str]) -> None:  # noqa: ANN401
        if owner not in self._owners:
            self._owners.add(owner)
            self._functions.add(self._attributes.add(owner, names))

    def _add_methods(self, owner: type, names: Iterable[str]) -> None:
        """Remember methods wherever they stand, and that no nearer class has them."""
        missing = tuple(names)
        for place in owner.__mro__:
            self._add(place, missing)
            missing = tuple(name for name in missing if name not in vars(place))

    def put_back(self) -> list[str]:
        """Put back what is not as it was, and return its names."""
        return [
            *self._attributes.put_back(),
            *self._functions.put_back(),
            *self._contents.put_back(),
        ]


toolbox = Toolbox()
