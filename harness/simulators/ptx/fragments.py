"""
Which element of a matrix each lane of a warp holds in which register.

Every function returns rows and columns as arrays [register, lane, element of the register].
Source: PTX ISA 9.0, Matrix Fragments for mma.m16n8k8 to mma.m16n8k64.
"""

import numpy as np

from harness.simulators.ptx.formats import SIZE, Array, i64, u32

Coordinates = tuple[Array, Array]


def _axes(registers: int, elements: int) -> tuple[Array, Array, Array, Array]:
    register = np.arange(registers)[:, None, None]
    lane = np.arange(32)[None, :, None]
    return register, lane >> 2, lane & 3, np.arange(elements)[None, None, :]


def fragment_a(bits: int, k: int) -> Coordinates:
    """Row and column of an operand A of 16 x `k` elements of so many bits."""
    width = 32 // bits
    register, group, place, element = _axes(16 * k * bits // 1024, width)
    row = group + 8 * (register & 1) + 0 * element
    return row, place * width + element + 4 * width * (register >> 1)


def fragment_b(bits: int, k: int) -> Coordinates:
    """Row and column of an operand B of `k` x 8 elements."""
    width = 32 // bits
    register, group, place, element = _axes(8 * k * bits // 1024, width)
    row = place * width + element + 4 * width * register
    return row, group + 0 * element + 0 * register


def fragment_c(bits: int) -> Coordinates:
    """Row and column of an accumulator of 16 x 8 elements."""
    width = 32 // bits
    register, group, place, element = _axes(4 // width, width)
    number = register * width + element
    return group + 8 * (number >> 1), place * 2 + (number & 1)


def wmma_fragment(what: str, kind: str, shape: tuple[int, int], registers: int) -> Coordinates:
    """
    Row and column of a fragment of the C++ API, whose layout is nobody's business.

    Of 16 x 16 products this is the layout of two m16n8 tiles, of others the order of rows; it is
    repeated where there are registers left.

    Args:
        what: "a", "b", or "c" and "d" for an accumulator.
        kind: The type of an element.
        shape: Rows and columns of the matrix.
        registers: Of a lane.
    """
    bits, (rows, columns) = 8 * SIZE[kind], shape
    if what == "a" and rows == 16:
        row, column = fragment_a(bits, columns)
    elif columns == 16 and what != "a" and (what == "b" or rows == 16):
        row, column = fragment_b(bits, rows) if what == "b" else fragment_c(bits)
        row, column = np.concatenate([row, row]), np.concatenate([column, column + 8])
    else:
        width = max(1, 32 // bits)
        number = np.arange(max(1, rows * columns // (32 * width)) * 32 * width)
        place = number.reshape(-1, 32, width)
        row, column = place // columns, place % columns
    times = registers // row.shape[0]
    return np.concatenate([row] * times), np.concatenate([column] * times)


def expanded(values: Array, metadata: Array, selector: int) -> Array:
    """
    A matrix of 2:4 sparsity with its zeros: [warp, 16, 32] from [warp, 16, 16].

    Lane ``2 * selector`` of each four holds where the values of k = 0 … 15 go, the next one
    those of k = 16 … 31: two bits each, the lower half of the word for row g, the upper one for
    row g + 8.
    """
    warps = values.shape[0]
    out = np.zeros((warps, 16, 32), values.dtype)
    quads = metadata.reshape(warps, 8, 4)
    numbers = np.arange(warps)[:, None]
    for half in range(2):
        words = quads[:, :, 2 * selector + half]
        for upper in range(2):
            bits = (words >> u32(16 * upper)) & u32(0xFFFF)
            rows = np.arange(8) + 8 * upper
            for number in range(8):
                place = ((bits >> u32(2 * number)) & u32(3)).astype(i64)
                column = 16 * half + 4 * (number // 2) + place
                out[numbers, rows[None, :], column] = values[:, rows, 8 * half + number]
    return out
