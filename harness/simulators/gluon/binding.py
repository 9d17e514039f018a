"""
A kernel's own code with its globals exchanged: what Triton's builtins mean in it is meant here.

Neither the code nor Triton is changed. A function's code object is run with another dictionary of
globals, so that its lines stay what they are.
"""

import builtins
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import triton.language as tl
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import ampere, hopper
from triton.runtime.jit import ConstexprFunction, JITCallable

from harness.simulators.gluon import elementwise, language, reductions
from harness.simulators.gluon.clusters import CLUSTER
from harness.simulators.gluon.context import not_modelled
from harness.simulators.gluon.copies import CP_ASYNC, TMA
from harness.simulators.gluon.mbarriers import HOPPER, MBARRIER
from harness.simulators.gluon.products import AMPERE
from harness.simulators.gluon.tensors import GL, Table, Tensor, running
from harness.simulators.gluon.values import KernelValue, unwrap

FILLED = (elementwise, language, reductions)  # loading them fills GL
# what each module's names mean in a kernel
MODULES: dict[types.ModuleType, Table] = {
    gl: GL,
    gl._core: GL,
    tl: GL,
    tl.core: GL,
    hopper: HOPPER,
    ampere: AMPERE,
    hopper.tma: TMA,
    hopper.mbarrier: MBARRIER,
    ampere.mbarrier: MBARRIER,
    ampere.async_copy: CP_ASYNC,
}
if hasattr(hopper, "cluster"):  # from Triton 3.7 on
    MODULES[hopper.cluster] = CLUSTER
KNOWN: dict[int, Callable[..., Any]] = {
    id(getattr(module, name)): fn
    for module, table in MODULES.items()
    for name, fn in table.items()
    if hasattr(module, name)
}


def _range(*bounds: KernelValue) -> Iterator[Tensor]:
    """A loop's counter is a scalar of the kernel's."""
    for value in range(*(int(unwrap(bound)) for bound in bounds)):
        running().tick()
        yield Tensor(np.int32(value), tl.int32)


class Namespace:
    """A module as a kernel sees it: what is simulated, and everything else as it is."""

    def __init__(self, module: types.ModuleType, binder: "Binder") -> None:
        self._module, self._binder = module, binder
        self._table = MODULES.get(module, {})

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- whatever the module has
        found = getattr(self._module, name)  # a name of another version of Triton is none here
        if name in self._table:
            return self._table[name]
        short = self._module.__name__.rpartition(".")[2]
        return self._binder.bind(found, f"{short}.{name}")


class Binder:
    """Binds the functions of one launch; closures and recursion find each other in it."""

    def __init__(self) -> None:
        self._functions: dict[Callable[..., Any], types.FunctionType] = {}
        self._aggregates: dict[type, type] = {}

    def bind(self, value: KernelValue, name: str = "") -> Any:  # noqa: ANN401
        """What a global of a kernel means here."""
        if id(value) in KNOWN:
            return KNOWN[id(value)]
        if isinstance(value, types.ModuleType):
            return Namespace(value, self)
        if isinstance(value, tl.constexpr):
            return value.value
        if isinstance(value, ConstexprFunction):
            return lambda *args, **kwargs: unwrap(value(*args, **kwargs))
        if isinstance(value, JITCallable):
            return self.function(value.fn)
        if getattr(value, "__triton_aggregate__", False):
            return self._aggregate(value)
        if tl.core.is_builtin(value) and not isinstance(value, type):
            return _missing(name or getattr(value, "__name__", str(value)))
        return value

    def function(self, fn: Any) -> types.FunctionType:  # noqa: ANN401 -- a Python function
        """The Python function under a @gluon.jit, its globals bound."""
        if fn in self._functions:
            return self._functions[fn]
        names, todo = set(), [fn.__code__]
        while todo:
            code = todo.pop()
            names.update(code.co_names)
            todo += [one for one in code.co_consts if isinstance(one, types.CodeType)]
        env: dict[str, Any] = {"__builtins__": builtins, "range": _range}
        closure = fn.__closure__ and tuple(
            types.CellType(self.bind(cell.cell_contents)) for cell in fn.__closure__
        )
        defaults = tuple(map(unwrap, fn.__defaults__ or ()))
        bound = types.FunctionType(fn.__code__, env, fn.__name__, defaults, closure)
        bound.__kwdefaults__ = fn.__kwdefaults__
        self._functions[fn] = bound
        # last, since a function may call itself
        known = fn.__globals__
        env.update({name: self.bind(known[name], name) for name in names if name in known})
        return bound

    def _aggregate(self, wrapped: Any) -> type:  # noqa: ANN401 -- Triton's wrapper of a class
        """A plain twin of an @aggregate class: its methods, without Triton's typed fields."""
        if wrapped not in self._aggregates:
            make = wrapped.__new__
            cells = dict(zip(make.__code__.co_freevars, make.__closure__, strict=True))
            twin = type(wrapped.__name__, (), {})
            self._aggregates[wrapped] = twin
            for name, member in inspect.getmembers(cells["cls"].cell_contents):
                raw = member.fn if isinstance(member, JITCallable) else member
                if inspect.isfunction(raw):
                    setattr(twin, name, self.function(raw))
        return self._aggregates[wrapped]


def _missing(name: str) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> None:
        raise not_modelled(name)

    return refuse
