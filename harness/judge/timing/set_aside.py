"""
Cold caches stay cold: no part of a GPU's L2 cache is set aside for lines that shall stay in it.

Writing twice the cache between two timed calls pushes out every line but those that an access
policy holds in a part set aside for them (CUDA Programming Guide, "L2 cache control"). With nothing
set aside there is no such part.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness.base.errors import SubmissionError

DRIVER = "libcuda.so.1"
PERSISTING_L2_CACHE_SIZE = 0x06  # CUlimit: bytes of L2 for persisting lines


@contextmanager
def nothing_set_aside() -> Iterator[None]:
    """
    Give back what is set aside of the L2 cache, and refuse a block that sets some aside.

    Where no CUDA driver is loaded, or the device has no such part, nothing is asked.

    Raises:
        SubmissionError: more is set aside after the block than before it.
    """
    driver = _driver()
    if driver is None:
        yield
        return
    driver.cuCtxSetLimit(PERSISTING_L2_CACHE_SIZE, ctypes.c_size_t(0))
    driver.cuCtxResetPersistingL2Cache()
    before = _bytes_set_aside(driver)
    yield
    if (found := _bytes_set_aside(driver)) > before:
        raise SubmissionError(
            "expected an L2 cache that forgets between two timed calls, found "
            f"{found:,} bytes of it set aside for lines that stay."
        )


def _driver() -> Any:  # noqa: ANN401 -- a library has no type
    try:
        return ctypes.CDLL(DRIVER)
    except OSError:
        return None


def _bytes_set_aside(driver: Any) -> int:  # noqa: ANN401
    size = ctypes.c_size_t(0)
    answered = driver.cuCtxGetLimit(ctypes.byref(size), PERSISTING_L2_CACHE_SIZE) == 0
    return size.value if answered else 0
