"""Kata week19/systolic_array_matmul: a matrix product in which data moves one cell per cycle.

Weights stay in the cells, activations move to the right, partial sums move down.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


class Array(Protocol):
    """`rows` by `cols` cells, each with a weight, an activation register and a sum register."""

    rows: int
    cols: int
    cycles: int  # steps made so far
    activations: Matrix  # registers as the last step left them, read-only
    sums: Matrix

    def load(self, w: Matrix) -> None:
        """Put `w`, [rows, cols], into the cells. Takes no cycles; the registers stay."""

    def step(self, activations: Matrix, sums: Matrix) -> None:
        """
        One cycle: set all registers at once. Copies its arguments.

        Raises:
            RuntimeError: an activation is not what its left neighbour held before (column 0 takes
                any value), or a sum is not what the cell above held before (row 0: zero) plus the
                cell's weight times its new activation. The message names the cell.
        """


def systolic_pass(a: Matrix, w: Matrix, array: Array) -> Matrix:
    """
    `a` times `w`, in as few steps of `array` as it can be done.

    Args:
        a: [M, K] activations.
        w: [K, N] weights, one for each cell; not loaded yet.
        array: K by N cells. Its registers may hold anything.

    Raises:
        ValueError: a shape that does not fit; the message begins with the argument's name.
    """
    # check
    _check(a, w)
    if (array.rows, array.cols) != w.shape:
        raise ValueError(f"array: expected {w.shape} cells, found {array.rows} x {array.cols}")
    # skew the feed
    (m, k), n = a.shape, w.shape[1]
    cycles = m + k + n - 2
    feed = np.zeros((cycles, k))
    for row in range(k):
        feed[row : row + m, row] = a[:, row]
    leaving = np.empty((cycles, n))
    # step
    array.load(w)
    for cycle in range(cycles):
        activations = np.empty((k, n))
        activations[:, 0] = feed[cycle]
        activations[:, 1:] = array.activations[:, :-1]
        sums = w * activations
        sums[1:] += array.sums[:-1]
        array.step(activations, sums)
        leaving[cycle] = sums[-1]
    # undo the skew
    return np.stack([leaving[k - 1 + col :][:m, col] for col in range(n)], axis=1)


def mxu_matmul(a: Matrix, w: Matrix, array: Array) -> Matrix:
    """
    `a` times `w` of any size, on a square array: one whole pass for each tile of `w`.

    Args:
        a: [M, K] activations.
        w: [K, N] weights.
        array: S by S cells.

    Raises:
        ValueError: a shape that does not fit; the message begins with the argument's name.
    """
    # check
    _check(a, w)
    # tiles and their sum
    size = array.rows
    (m, k), n = a.shape, w.shape[1]
    padded_a = np.pad(a, [(0, 0), (0, -k % size)])
    padded_w = np.pad(w, [(0, -k % size), (0, -n % size)])
    out = np.zeros((m, padded_w.shape[1]))
    for row in range(0, k, size):
        rows = slice(row, row + size)
        for col in range(0, n, size):
            cols = slice(col, col + size)
            out[:, cols] += systolic_pass(padded_a[:, rows], padded_w[rows, cols], array)
    return out[:, :n]


def mxu_cycles(m: int, k: int, n: int, size: int, double_buffer: bool) -> int:
    """
    Cycles of [m, k] times [k, n] on a `size` by `size` array, loading of the weights included.

    Args:
        m: Rows of the activations.
        k: Their columns.
        n: Columns of the weights.
        size: Rows and columns of the array.
        double_buffer: Whether a cell has a second weight, loaded while it works with the first.

    Raises:
        ValueError: a number below 1; the message begins with its name.
    """
    # check
    _check_positive(m=m, k=k, n=n, size=size)
    # cycles
    tiles = -(-k // size) * -(-n // size)
    alone = m + 2 * size - 2
    if double_buffer:
        return size + (tiles - 1) * max(m, size) + alone
    return tiles * (size + alone)


def utilisation(m: int, k: int, n: int, size: int) -> float:
    """
    Useful multiply-adds over what the cells could do in the cycles of the double-buffered array.

    Raises:
        ValueError: a number below 1; the message begins with its name.
    """
    return m * k * n / (size**2 * mxu_cycles(m, k, n, size, double_buffer=True))


def peak_flops(mxus: int, size: int, clock_hz: float) -> float:
    """
    FLOP/s of `mxus` arrays of `size` by `size` cells when every cell works in every cycle.

    Raises:
        ValueError: a number below 1, or a clock that is not above 0; the message begins with its
            name.
    """
    _check_positive(mxus=mxus, size=size)
    if not clock_hz > 0:
        raise ValueError(f"clock_hz: expected more than 0, found {clock_hz}")
    return 2 * mxus * size**2 * clock_hz


def _check(a: Matrix, w: Matrix) -> None:
    for name, matrix in (("a", a), ("w", w)):
        if matrix.ndim != 2 or not matrix.size:
            raise ValueError(f"{name}: expected two axes, none empty, found {matrix.shape}")
    if a.shape[1] != len(w):
        raise ValueError(f"w: expected {a.shape[1]} rows, as a has columns, found {len(w)}")


def _check_positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name}: expected 1 or more, found {number}")
