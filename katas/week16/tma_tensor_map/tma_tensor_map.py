"""Kata week16/tma_tensor_map: the descriptor of TMA, and what one thread moves with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.tensor_maps import BOX_UNIT, LONGEST_BOX, SWIZZLES

LARGEST_DIM = 2**32  # elements, this many included
STRIDE_END = 2**40  # bytes, strides are below
LARGEST_ELEM_STRIDE = 8
ITEM_BYTES = {
    "uint8": 1,
    "uint16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}
FLOATS = ("float16", "bfloat16", "float32", "float64")
PADDINGS = ("zero", "nan")


class GlobalMemory(Protocol):
    """Global memory; an access costs the 32-byte sectors that it touches."""

    def read(self, address: int, nbytes: int) -> bytes:
        """The bytes from `address` on."""

    def write(self, address: int, data: bytes) -> None:
        """Store bytes from `address` on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMap:
    """
    What TMA knows of a tensor and of the boxes that it moves. Dimension 0 is the innermost.

    `base` is the address of element (0, 0, …); `strides` has the bytes from one element to the next
    along dimension 1, 2, …; `box` counts elements of the tensor, of which every
    `elem_strides[d]`-th is moved.
    """

    base: int
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    elem_strides: tuple[int, ...]
    swizzle: int
    padding: str


def make_tensor_map(
    base: int,
    dtype: str,
    dims: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    elem_strides: Sequence[int],
    swizzle: int = 0,
    padding: str = "zero",
) -> TensorMap:
    """
    Check what the hardware cannot do, and keep the rest.

    Raises:
        ValueError: a limit is broken; the message begins with the name of the argument.
    """
    raise NotImplementedError  # TODO(kata): check, keep the arguments (about 35 lines)


def tx_bytes(tm: TensorMap) -> int:
    """What a load adds to the transaction count of its mbarrier."""
    raise NotImplementedError  # TODO(kata): bytes of a box (about 7 lines with helpers)


def tma_load(tm: TensorMap, gmem: GlobalMemory, coords: Sequence[int]) -> bytes:
    """
    A box as it arrives in shared memory, from a place aligned to 1024 bytes on.

    Args:
        tm: The tensor and its boxes.
        gmem: What the tensor lies in.
        coords: The element of the tensor at which the box begins; it may lie outside.

    Raises:
        ValueError: there is not one coordinate for each dimension.
    """
    # TODO(kata): check, runs inside the tensor, swizzle, copy the runs (about 25 lines with
    # helpers)
    raise NotImplementedError


def tma_store(tm: TensorMap, gmem: GlobalMemory, coords: Sequence[int], smem: bytes) -> None:
    """
    Write a box, swizzled as `tma_load` returns it; what lies outside the tensor is dropped.

    Raises:
        ValueError: there is not one coordinate for each dimension, or `smem` is not one box.
    """
    raise NotImplementedError  # TODO(kata): check, swizzle, copy the runs (about 5 lines)
