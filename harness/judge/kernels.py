"""Whether an answer came from the kernels: on a simulator they can be watched, and left out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import numpy as np


class Launch(NamedTuple):
    """A kernel and the grid it was launched on."""

    kernel: str
    grid: tuple[int, ...]


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
def left_out(backend: str, *, at_most: int) -> Iterator[list[Launch]]:
    """
    Make every launch inside the block do nothing, and each after the first `at_most` raise.

    The limit ends a function that launches until its kernels report an end. What would have been
    launched is told.
    """
    launches: list[Launch] = []
    owner, name = _launcher(backend)

    def nothing(kernel: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 -- a launch's own
        if len(launches) == at_most:
            raise EnoughLaunches
        launches.append(_launch_of(kernel, args, kwargs))

    with mock.patch.object(owner, name, nothing):
        yield launches


def _launch_of(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch:  # noqa: ANN401
    """What a launcher of `_launcher` was called with, in words."""
    if hasattr(kernel, "ptx"):  # CUDA C++: the kernel, its sizes, its arguments
        return Launch(kernel.name, args[0].grid)
    if "grid" not in kwargs:  # Numba's kernel is configured before it is called
        return Launch(kernel.fn.__name__, tuple(np.ravel(kernel.grid_dim).tolist()))
    from harness.simulators.triton_hooks import named_arguments

    grid = kwargs["grid"]
    grid = grid(named_arguments(kernel, args, kwargs)) if callable(grid) else grid
    return Launch(kernel.__name__, tuple(map(int, grid)))


def _launcher(backend: str) -> tuple[Any, str]:
    """The owner and the name of what every launch of a simulated kernel passes through."""
    if backend == "triton":
        from harness.simulators.triton_hooks import interpreter_classes

        _, function = interpreter_classes()
        return function, "run"
    if backend == "gluon":
        from triton.experimental.gluon._runtime import GluonJITFunction

        return GluonJITFunction, "run"
    if backend == "cuda":
        from harness.simulators.ptx import host as ptx_host

        return ptx_host, "_launch"
    from harness.simulators.simt import host

    return host, "_launch"
