"""Arrays of a Numba kata: NumPy's on the simulator, device arrays on a GPU."""

from typing import TypeVar

import numpy as np
from numba import cuda

Array = TypeVar("Array")


def empty(shape: int | tuple[int, ...], like: Array) -> Array:
    """Uninitialised array of the dtype of `like`, in the memory where `like` is."""
    if isinstance(like, np.ndarray):
        return np.empty(shape, like.dtype)  # type: ignore[return-value]
    return cuda.device_array(shape, like.dtype)  # type: ignore[no-any-return, attr-defined]


def beside(values: np.ndarray, like: Array) -> Array:
    """`values`, an array of the host, in the memory where `like` is."""
    return values if isinstance(like, np.ndarray) else cuda.to_device(values)  # type: ignore[return-value]
