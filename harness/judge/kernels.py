"""Whether an answer came from the kernels: on a simulator they can be watched, and left out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

SIMULATED = ("triton", "numba")  # backends whose kernels this module can get hold of


class EnoughLaunches(Exception):
    """Ends a function that goes on launching because its kernels do nothing."""


@contextmanager
def failures_noted(backend: str) -> Iterator[list[str]]:
    """Collect what launches inside the block raise, even where the caller hides it."""
    failures: list[str] = []
    owner, name = _launcher(backend)
    launch: Callable[..., Any] = getattr(owner, name)

    def watched(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 -- a launch's own
        try:
            return launch(*args, **kwargs)
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}")
            raise

    with mock.patch.object(owner, name, watched):
        yield failures


@contextmanager
def left_out(backend: str, *, at_most: int) -> Iterator[None]:
    """
    Make every launch inside the block do nothing, and each after the first `at_most` raise.

    The limit ends a function that launches until its kernels report an end.
    """
    launches = 0
    owner, name = _launcher(backend)

    def nothing(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 -- a launch's own
        nonlocal launches
        launches += 1
        if launches > at_most:
            raise EnoughLaunches

    with mock.patch.object(owner, name, nothing):
        yield


def _launcher(backend: str) -> tuple[Any, str]:
    """The owner and the name of what every launch of a simulated kernel passes through."""
    if backend == "triton":
        from harness.simulators.triton_hooks import interpreter_classes

        _, function = interpreter_classes()
        return function, "run"
    from harness.simulators.simt import host

    return host, "_launch"
