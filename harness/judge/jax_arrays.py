"""Functions of JAX, called with NumPy's arrays and done when they return."""

from collections.abc import Callable
from typing import Any

import numpy as np


def given_numpy(fn: Callable[..., Any]) -> Callable[..., Any]:
    """
    `fn` with each array of NumPy among its arguments as one of JAX.

    Copied, since JAX takes its arrays for immutable and these are not; and waited for, since JAX
    returns before the work is done.
    """
    import jax

    def call(**arguments: object) -> Any:  # noqa: ANN401 -- fn's own
        own = {
            name: jax.numpy.array(value) if isinstance(value, np.ndarray) else value
            for name, value in arguments.items()
        }
        return jax.block_until_ready(fn(**own))

    return call
