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
    # TODO(kata): check, skew the feed, step, undo the skew (about 25 lines with helpers)
    raise NotImplementedError


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
    raise NotImplementedError  # TODO(kata): check, tiles and their sum (about 10 lines)


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
    raise NotImplementedError  # TODO(kata): check, cycles (about 10 lines with helpers)


def utilisation(m: int, k: int, n: int, size: int) -> float:
    """
    Useful multiply-adds over what the cells could do in the cycles of the double-buffered array.

    Raises:
        ValueError: a number below 1; the message begins with its name.
    """
    raise NotImplementedError  # TODO(kata): (1 line)


def peak_flops(mxus: int, size: int, clock_hz: float) -> float:
    """
    FLOP/s of `mxus` arrays of `size` by `size` cells when every cell works in every cycle.

    Raises:
        ValueError: a number below 1, or a clock that is not above 0; the message begins with its
            name.
    """
    raise NotImplementedError  # TODO(kata): (about 4 lines)
