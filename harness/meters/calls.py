"""
How often a function is called: what tells a search from trying everything, at any load.

    with evaluations(module, "step_time") as e:   # e.calls
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Counted(Generic[P, R]):
    """
    A callable that counts in `calls` how often it was called, failed calls included.

    Args:
        function: What is called.
        limit: Stop whoever calls more often, instead of waiting for the end of a long search.
    """

    def __init__(self, function: Callable[P, R], limit: int | None = None) -> None:
        self.function = function
        self.limit = limit
        self.calls = 0

    @property
    def count(self) -> int:
        """The same as `calls`."""
        return self.calls

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Count, then call; AssertionError past the limit."""
        self.calls += 1
        if self.limit is not None and self.calls > self.limit:
            name = getattr(self.function, "__name__", "the function")
            raise AssertionError(f"expected at most {self.limit} calls of {name}, found more")
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., R]:
        """Bind like a function, so that a method stays one while it is counted."""
        return self if instance is None else MethodType(self, instance)


def counting(function: Callable[P, R], *, limit: int | None = None) -> Counted[P, R]:
    """Wrap `function` in a counter of its calls, that lets `limit` of them through."""
    return Counted(function, limit)


@contextmanager
def evaluations(owner: object, name: str) -> Iterator[Counted[..., Any]]:
    """
    Count the calls of `owner.name` (module, class or instance) inside the `with` block.

    Only calls that look the name up on `owner` are seen: a function imported elsewhere by name
    is another reference. AttributeError when there is no such attribute.
    """
    counted: Counted[..., Any] = Counted(getattr(owner, name))
    raw = inspect.getattr_static(owner, name)
    bound_already = isinstance(owner, type) and isinstance(raw, staticmethod | classmethod)
    own = name in vars(owner)
    setattr(owner, name, staticmethod(counted) if bound_already else counted)
    try:
        yield counted
    finally:
        if own:
            setattr(owner, name, raw)
        else:
            delattr(owner, name)
