"""Kata week16/tma_tensor_map: the descriptor of TMA, and what one thread moves with it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
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
    # check
    rank = len(dims)
    if not 1 <= rank <= 5:
        raise ValueError(f"dims: expected 1 to 5 dimensions, found {rank}")
    for name, values, length, least, most in (
        ("dims", dims, rank, 1, LARGEST_DIM),
        ("strides", strides, rank - 1, 0, STRIDE_END - 1),
        ("box", box, rank, 1, LONGEST_BOX),
        ("elem_strides", elem_strides, rank, 1, LARGEST_ELEM_STRIDE),
    ):
        if len(values) != length or not all(least <= one <= most for one in values):
            raise ValueError(f"{name}: expected {length} of {least} to {most}, found {values}")
    if base < 0 or base % BOX_UNIT:
        raise ValueError(f"base: expected a multiple of {BOX_UNIT} bytes, found {base}")
    if any(stride % BOX_UNIT for stride in strides):
        raise ValueError(f"strides: expected multiples of {BOX_UNIT} bytes, found {strides}")
    if dtype not in ITEM_BYTES:
        raise ValueError(f"dtype: expected one of {', '.join(ITEM_BYTES)}, found {dtype}")
    if swizzle not in SWIZZLES:
        raise ValueError(f"swizzle: expected one of {SWIZZLES}, found {swizzle}")
    row = box[0] * ITEM_BYTES[dtype]
    if row % BOX_UNIT or (swizzle and row > swizzle):
        raise ValueError(f"box: rows of {row} bytes, with a swizzle of {swizzle}")
    if padding not in PADDINGS or (padding == "nan" and dtype not in FLOATS):
        raise ValueError(f"padding: {padding} is none for {dtype}")
    # keep the arguments
    return TensorMap(
        base=base,
        dtype=dtype,
        dims=tuple(dims),
        strides=tuple(strides),
        box=tuple(box),
        elem_strides=tuple(elem_strides),
        swizzle=swizzle,
        padding=padding,
    )


def tx_bytes(tm: TensorMap) -> int:
    """What a load adds to the transaction count of its mbarrier."""
    # bytes of a box
    nbytes = ITEM_BYTES[tm.dtype]
    for moved in _shape(tm):
        nbytes *= moved
    return nbytes


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
    # copy the runs
    filler = b"\0" if tm.padding == "zero" else b"\xff"  # a NaN in every format
    image = bytearray(filler * tx_bytes(tm))
    for address, offset, nbytes in _runs(tm, coords):
        image[offset : offset + nbytes] = gmem.read(address, nbytes)
    # swizzle
    return _swizzled(image, tm.swizzle)


def tma_store(tm: TensorMap, gmem: GlobalMemory, coords: Sequence[int], smem: bytes) -> None:
    """
    Write a box, swizzled as `tma_load` returns it; what lies outside the tensor is dropped.

    Raises:
        ValueError: there is not one coordinate for each dimension, or `smem` is not one box.
    """
    # check
    if len(smem) != tx_bytes(tm):
        raise ValueError(f"smem: expected {tx_bytes(tm)} bytes, found {len(smem)}")
    # swizzle
    image = _swizzled(smem, tm.swizzle)
    # copy the runs
    for address, offset, nbytes in _runs(tm, coords):
        gmem.write(address, image[offset : offset + nbytes])


def _shape(tm: TensorMap) -> tuple[int, ...]:
    """How many elements arrive along each dimension; the first element stride is ignored."""
    outer = range(1, len(tm.box))
    return tm.box[0], *(-(-tm.box[d] // tm.elem_strides[d]) for d in outer)


def _runs(tm: TensorMap, coords: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Address, offset in the box and size of what each row of a box has inside the tensor."""
    # check
    if len(coords) != len(tm.dims):
        raise ValueError(f"coords: expected {len(tm.dims)}, found {len(coords)}")
    # runs inside the tensor
    shape, item = _shape(tm), ITEM_BYTES[tm.dtype]
    first = max(coords[0], 0)
    end = min(coords[0] + shape[0], tm.dims[0])
    if first >= end:
        return
    rows = product(*(range(moved) for moved in reversed(shape[1:])))
    for row, steps in enumerate(rows):
        address, inside = tm.base + first * item, True
        for d, step in enumerate(reversed(steps), start=1):
            index = coords[d] + step * tm.elem_strides[d]
            inside = inside and 0 <= index < tm.dims[d]
            address += index * tm.strides[d - 1]
        if inside:
            yield address, (row * shape[0] + first - coords[0]) * item, (end - first) * item


def _swizzled(image: bytes, span: int) -> bytes:
    """16-byte chunks in other places: their number xor that of their 128 bytes. Its own inverse."""
    mask = {0: 0, 32: 1, 64: 3, 128: 7}[span]
    chunks = [image[at : at + 16] for at in range(0, len(image), 16)]
    return b"".join(chunks[chunk ^ (chunk >> 3 & mask)] for chunk in range(len(chunks)))
