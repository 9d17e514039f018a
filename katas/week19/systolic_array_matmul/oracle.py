"""The array itself, which lets nothing jump over a cell, and tiles followed cycle by cycle."""

import numpy as np


class SystolicArray:
    """Registers that are set all at once, and only to what the wires between cells can bring."""

    def __init__(self, rows, cols, left_over=0.0):
        self.rows, self.cols, self.cycles, self.loads = rows, cols, 0, 0
        self._weights = np.zeros((rows, cols))
        self._set(np.full((rows, cols), left_over), np.full((rows, cols), left_over))

    def _set(self, activations, sums):
        self.activations, self.sums = activations.copy(), sums.copy()
        self.activations.flags.writeable = self.sums.flags.writeable = False

    def load(self, w):
        if w.shape != self._weights.shape:
            raise RuntimeError(f"load: expected weights {self._weights.shape}, found {w.shape}")
        self._weights = w.copy()
        self.loads += 1

    def step(self, activations, sums):
        shape = self._weights.shape
        if np.shape(activations) != shape or np.shape(sums) != shape:
            raise RuntimeError(
                f"step: expected registers {shape}, found activations {np.shape(activations)} "
                f"and sums {np.shape(sums)}"
            )
        self._demand("activation", activations[:, 1:], self.activations[:, :-1], first=(0, 1))
        expected = self._weights * activations
        expected[1:] += self.sums[:-1]
        self._demand("sum", sums, expected, first=(0, 0))
        self._set(activations, sums)
        self.cycles += 1

    def _demand(self, what, found, expected, first):
        right = (found == expected) | (np.isnan(found) & np.isnan(expected))
        if not right.all():
            row, col = (int(at) for at in np.argwhere(~right)[0])
            cell = (row + first[0], col + first[1])
            raise RuntimeError(
                f"step {self.cycles + 1}, cell {cell}: expected the {what} {expected[row, col]}, "
                f"found {found[row, col]}: values move one cell per cycle"
            )


def integers(seed, *shape):
    """Small whole numbers without a zero, so that products and sums are exact in float64."""
    draw = np.random.default_rng(seed)
    return draw.integers(1, 50, shape) * draw.choice([-1.0, 1.0], shape)


def simulated_cycles(m, tiles, size, double_buffer):
    """
    Count cycles one by one: a row of weights is shifted in, a row of activations is fed.

    Weights may be shifted in while nothing of the next tile is, and without a second register for
    them only while the array is empty.
    """
    cycle = shifted = fed = busy_until = 0
    waiting, feeding = tiles, False
    while waiting or feeding or cycle < busy_until:
        if not feeding and waiting and shifted == size:
            waiting, shifted, fed, feeding = waiting - 1, 0, 0, True
            busy_until = cycle + m + 2 * size - 2
        if shifted < size and waiting and (double_buffer or cycle >= busy_until):
            shifted += 1
        if feeding:
            fed += 1
            feeding = fed < m
        cycle += 1
    return cycle
