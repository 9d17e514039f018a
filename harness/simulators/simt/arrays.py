"""Arrays as a kernel sees them: NumPy underneath, and no more of its methods than CUDA has."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(slots=True, kw_only=True, eq=False)
class Buffer:
    """
    An allocation.

    Attributes:
        space: Where it lives.
        array: The part of it the kernel was given.
        atomics: Atomic operations on it, one for each lane.
    """

    space: Literal["global", "shared"]
    array: Array
    atomics: int = 0

    def __post_init__(self) -> None:
        """Refuse elements that are not numbers."""
        if self.array.dtype.names is not None:
            raise TypeError(f"simt: expected an array of numbers, found {self.array.dtype}")

    @property
    def start(self) -> int:
        """Its address, which costs take for aligned to 256 bytes."""
        root = self.array
        while isinstance(root.base, np.ndarray):
            root = root.base
        return address(root)


class KernelArray:
    """
    An array inside a kernel: elements, slices, and what Numba's CUDA arrays offer besides.

    Args:
        raw: The elements.
        buffer: The allocation they lie in.
    """

    __slots__ = ("buffer", "raw")

    def __init__(self, raw: Array, buffer: Buffer) -> None:
        self.raw = raw
        self.buffer = buffer

    def view_of(self, raw: Array) -> "KernelArray":
        """Another array on the same buffer."""
        return type(self)(raw, self.buffer)

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401
        found = self.raw[index]
        return self.view_of(found) if isinstance(found, np.ndarray) else found

    def __setitem__(self, index: Any, value: Any) -> None:  # noqa: ANN401
        self.raw[index] = value.raw if isinstance(value, KernelArray) else value

    def __len__(self) -> int:
        return len(self.raw)

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self.raw.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes between neighbours along each axis."""
        return self.raw.strides

    @property
    def size(self) -> int:
        """Elements."""
        return self.raw.size

    @property
    def ndim(self) -> int:
        """Axes."""
        return self.raw.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self.raw.dtype

    @property
    def T(self) -> "KernelArray":  # noqa: N802 -- NumPy's name
        """The transpose, a view."""
        return self.view_of(self.raw.T)

    def reshape(self, *shape: Any) -> "KernelArray":  # noqa: ANN401
        """A view in another shape; ValueError where that needs a copy."""
        found = self.raw.reshape(*shape)
        if not np.may_share_memory(found, self.raw):
            raise ValueError(f"reshape to {shape}: expected contiguous elements, found gaps")
        return self.view_of(found)

    def ravel(self) -> "KernelArray":
        """A one-dimensional view."""
        return self.reshape(-1)

    def view(self, dtype: Any) -> "KernelArray":  # noqa: ANN401
        """The same bytes as elements of another type."""
        return self.view_of(self.raw.view(dtype))


def address(array: Array) -> int:
    """Where the first element lies."""
    start: int = array.__array_interface__["data"][0]
    return start


def poisoned(shape: int | tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Memory nobody has written: NaN for floats, all bits set for the rest."""
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8)[:] = 0xFF
    return array
