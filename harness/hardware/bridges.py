"""
What installed packages that the project allows need done before they work beside each other.

One gap is known. numba-cuda up to 0.30.4 asks for ``numpy.row_stack`` when the first kernel is
launched; NumPy 2.5 has removed it ("Expired deprecations" of its release notes), and Numba, which
shares that file, looks for it below 2.5 only.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from packaging.version import Version

NO_ROW_STACK = Version("2.5.dev0")  # the first NumPy without it
LAUNCHER = "numba.cuda.np.arrayobj"  # what asks for it, once, while it is imported


def bridges() -> list[str]:
    """What is done on a GPU to what is installed, in words; told without importing any of it."""
    try:
        numpy, numba_cuda = version("numpy"), version("numba-cuda")
    except PackageNotFoundError:
        return []
    if Version(numpy) < NO_ROW_STACK:
        return []
    return [f"numpy {numpy} has no row_stack: provided to numba-cuda {numba_cuda} while that loads"]


@cache
def bridge_numba_cuda() -> None:
    """Load what Numba launches kernels with, where it needs help for that; else do nothing."""
    import numpy as np

    if not hasattr(np, "row_stack") and LAUNCHER not in sys.modules:
        with _lent_row_stack(np):
            import_module(LAUNCHER)


@contextmanager
def _lent_row_stack(numpy: Any) -> Iterator[None]:  # noqa: ANN401 -- a module, not imported here
    """Give NumPy a `row_stack`, which has always been `vstack`, inside the block only."""

    def row_stack(tup: Any) -> Any:  # noqa: ANN401 -- whatever vstack takes
        return numpy.vstack(tup)

    numpy.row_stack = row_stack
    try:
        yield
    finally:
        del numpy.row_stack
