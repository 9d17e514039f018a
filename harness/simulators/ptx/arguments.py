"""What a kernel is launched with: sizes, and arguments as memory and bytes."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from harness.simulators.ptx.formats import SIZE, Array, f32, f64, u8
from harness.simulators.ptx.program import Parameter

Shape = tuple[int, int, int]


class Region(NamedTuple):
    """
    Global memory that a kernel may touch.

    Attributes:
        name: What reports call it.
        contents: Its bytes; what the kernel stores is written back to them.
        lead: Bytes between the start of the allocation and the first one, which decide how
            accesses fall into sectors.
        continued: Whether it is another piece of the allocation of the region before it.
    """

    name: str
    contents: Array
    lead: int = 0
    continued: bool = False


class Pointer(NamedTuple):
    """The address of a byte of a region."""

    region: int
    offset: int


@dataclass(frozen=True, slots=True)
class TensorMap:
    """
    What ``cuTensorMapEncodeTiled`` describes.

    Attributes:
        array: An array in global memory, with gaps between its rows or without.
        box: Elements of a copy along each axis.
        swizzle: 0, 32, 64 or 128 bytes.
    """

    array: Array
    box: tuple[int, ...]
    swizzle: int = 0

    @property
    def contents(self) -> Array:
        """The bytes from the first element to the last, to be read and written in place."""
        pairs = zip(self.array.shape, self.array.strides, strict=True)
        size = sum((extent - 1) * stride for extent, stride in pairs) + self.array.itemsize
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self.array.ctypes.data))


@dataclass(slots=True)
class Arguments:
    """
    Arguments in the kernel's order, and the memory that their pointers lead to.

    Attributes:
        values: Bytes, pointers, tensor maps, numbers, or None for zeros.
        regions: Memory by number.
    """

    values: Sequence[object]
    regions: list[Region] = field(default_factory=list)

    @classmethod
    def of(cls, values: Sequence[object]) -> "Arguments":
        """Give every array among `values`, which is C-contiguous, a region of its own."""
        found: list[object] = []
        regions: list[Region] = []
        for number, value in enumerate(values):
            if isinstance(value, np.ndarray) and value.ndim:
                found.append(Pointer(len(regions), 0))
                regions.append(Region(f"argument {number}", value.reshape(-1).view(u8)))
            else:
                found.append(value)
        return cls(found, regions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """
    How a kernel is launched.

    Attributes:
        grid: Blocks along x, y, z.
        block: Threads of a block along x, y, z.
        shared_bytes: Dynamic shared memory of a block.
        cluster: Blocks of a cluster along x; 0 leaves it to the kernel.
        cooperative: Whether all blocks are there at once.
        schedule: None runs all threads in lockstep; a number lets one warp after the other run
            until it waits, in a random order of that seed.
        checked: Whether hazards are looked for.
        most_steps: Instructions of a wave of blocks, each for all threads that stand at it, after
            which a loop has no end.
    """

    grid: Shape
    block: Shape
    shared_bytes: int = 0
    cluster: int = 0
    cooperative: bool = False
    schedule: int | None = None
    checked: bool = True
    most_steps: int = 1_000_000


def packed(parameter: Parameter, value: Any) -> bytes:  # noqa: ANN401 -- a number, or its bytes
    """The bytes of an argument that is no pointer."""
    if value is None:
        return bytes(parameter.size)
    if not isinstance(value, bytes):
        floats = {"f32": f32, "f64": f64}
        kind = floats.get(parameter.type)
        if kind is None and isinstance(value, float):
            kind = {4: f32, 8: f64}[parameter.size]
        if kind is not None:
            value = np.array(value, kind).tobytes()
        else:
            value = int(value).to_bytes(parameter.size, "little", signed=value < 0)
    if len(value) != parameter.size:
        raise TypeError(f"{parameter.name}: expected {parameter.size} bytes, found {len(value)}")
    return value  # type: ignore[no-any-return]


def placed(at: int, parameter: Parameter) -> int:
    """Where the next parameter begins, the ones before it ending at `at`."""
    align = 64 if parameter.size >= 128 else min(8, SIZE[parameter.type])
    return -(-at // align) * align
