"""What is right: elements gathered one by one with NumPy, the simulator's swizzle, a memory."""

import re

import numpy as np

from harness.simulators.ptx.bulk import swizzled

SECTOR_BYTES = 32


class Memory:
    """Bytes that count the sectors of each access, and refuse what lies outside."""

    def __init__(self, data):
        self.data = bytearray(data)
        self.read_sectors = self.written_sectors = 0

    def _sectors(self, address, nbytes):
        if nbytes == 0:
            return 0
        if nbytes < 0 or address < 0 or address + nbytes > len(self.data):
            raise IndexError(f"gmem: {nbytes} bytes at {address}, of {len(self.data)} bytes")
        return -(-(address + nbytes) // SECTOR_BYTES) - address // SECTOR_BYTES

    def read(self, address, nbytes):
        self.read_sectors += self._sectors(address, nbytes)
        return bytes(self.data[address : address + nbytes])

    def write(self, address, data):
        self.written_sectors += self._sectors(address, len(data))
        self.data[address : address + len(data)] = data


class FarMemory:
    """As much memory as there are addresses: 8 bytes tell their own place."""

    def __init__(self):
        self.written = {}

    def read(self, address, nbytes):
        return b"".join(
            (at // 8).to_bytes(8, "little")[at % 8 : at % 8 + 1]
            for at in range(address, address + nbytes)
        )

    def write(self, address, data):
        self.written.update({address + at: one for at, one in enumerate(data)})


def item_bytes(tm):
    """Of an element: the digits at the end of its type are its bits."""
    return int(re.search(r"\d+$", tm.dtype)[0]) // 8


def places(tm, coords):
    """For each byte of an unswizzled box: its address, and whether the tensor has it."""
    item = item_bytes(tm)
    steps = (1, *tm.elem_strides[1:])
    address, inside = np.array(tm.base, object), np.array(True)
    for corner, size, step, dim, stride in zip(
        coords, tm.box, steps, tm.dims, (item, *tm.strides), strict=True
    ):
        index = np.arange(corner, corner + size, step).astype(object)
        shape = (-1, *(1,) * address.ndim)
        address = index.reshape(shape) * stride + address
        inside = ((index >= 0) & (index < dim)).reshape(shape) & inside
    address = address.reshape(-1, 1) + np.arange(item)
    return address.ravel(), np.repeat(inside.ravel().astype(bool), item)


def box_order(tm, nbytes):
    """Where each byte of a box lies in shared memory."""
    return swizzled(np.arange(nbytes), tm.swizzle)


def image(tm, data, coords):
    """The bytes that a load brings, those of a NaN all ones."""
    address, inside = places(tm, coords)
    loaded = np.full(len(address), 0 if tm.padding == "zero" else 255, np.uint8)
    loaded[inside] = np.frombuffer(bytes(data), np.uint8)[address[inside].astype(np.int64)]
    arrived = np.empty_like(loaded)
    arrived[box_order(tm, len(loaded))] = loaded
    return arrived.tobytes()


def stored(tm, data, coords, smem):
    """All memory after a store."""
    address, inside = places(tm, coords)
    after = np.frombuffer(bytes(data), np.uint8).copy()
    box = np.frombuffer(bytes(smem), np.uint8)[box_order(tm, len(smem))]
    after[address[inside].astype(np.int64)] = box[inside]
    return after.tobytes()


def _is_nan(item, dtype):
    if dtype == "bfloat16":
        return bool(np.isnan(np.frombuffer(b"\0\0" + item, np.float32)[0]))
    return bool(np.isnan(np.frombuffer(item, dtype)[0]))


def difference(got, tm, data, coords):
    """The first element of a loaded box that is not as it should be, or ""; any NaN pads."""
    want = image(tm, data, coords)
    asked = f"input: {tm}, coords = {coords}"
    if not isinstance(got, bytes | bytearray) or len(got) != len(want):
        size = f"{len(got)} bytes" if hasattr(got, "__len__") else got
        return f"{asked} | yours: {size}, expected: {len(want)} bytes"
    _, inside = places(tm, coords)
    order, item = box_order(tm, len(want)), item_bytes(tm)
    for at in range(0, len(want), item):
        where = int(order[at])
        mine, right = bytes(got[where : where + item]), want[where : where + item]
        if mine == right or (not inside[at] and tm.padding == "nan" and _is_nan(mine, tm.dtype)):
            continue
        what = f"element {at // item} of the box, at byte {where} of shared memory"
        return f"{asked} | {what}: yours: {mine.hex()}, expected: {right.hex()}"
    return ""


def least_sectors(tm, coords):
    """The sectors that the rows of a box touch, each row by itself."""
    address, inside = places(tm, coords)
    row = tm.box[0] * item_bytes(tm)
    return sum(
        len({int(one) // SECTOR_BYTES for one in address[at : at + row][inside[at : at + row]]})
        for at in range(0, len(address), row)
    )


def core_matrix_conflicts(image, span):
    """
    Wavefronts too many for reading 8 rows of one 16-byte chunk each, over all chunks of a box.

    Each chunk of the box holds its number in the box.
    """
    place = {int(n): at for at, n in enumerate(np.frombuffer(image, np.int64)[::2])}
    width, extra = span // 16, 0
    for first in range(0, len(place), 8 * width):
        for column in range(width):
            banks = [place.get(first + row * width + column, 0) % 8 for row in range(8)]
            extra += max(banks.count(bank) for bank in banks) - 1
    return extra
