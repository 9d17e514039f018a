"""The slow memory to work on, and what is right: whole rows at once, summed exactly."""

import math

import numpy as np

# An exponent under 746 in size is off by at most 746 · 2^-53 = 8.3e-14 however it is split among
# merges, and exp of it by that share; beyond 746 exp is 0. Twice that, and exp's own rounding.
RELATIVE = 1e-12
SMALLEST = 1e-300  # below it doubles lose digits


class Reader:
    """A row in slow memory. `reads` counts its elements as often as they are read."""

    def __init__(self, row):
        self.__row = np.array(row, dtype=np.float64)
        self.__reads = self.__largest_read = 0

    @property
    def reads(self):
        return self.__reads

    @property
    def largest_read(self):
        return self.__largest_read

    def __len__(self):
        return len(self.__row)

    def read(self, start, stop):
        """Fetch a copy of elements start to stop, or to the end of the row if that comes first."""
        chunk = self.__row[start:stop].copy()
        self.__reads += len(chunk)
        self.__largest_read = max(self.__largest_read, len(chunk))
        return chunk


class Writer:
    """A row in slow memory to fill. `writes` counts its elements as often as they are written."""

    def __init__(self, length):
        self.__row = np.full(length, -1.0)  # no probability
        self.__writes = self.__largest_write = 0

    @property
    def writes(self):
        return self.__writes

    @property
    def largest_write(self):
        return self.__largest_write

    @property
    def row(self):
        """A copy of what was written."""
        return self.__row.copy()

    def write(self, start, values):
        """Store `values` from element `start` on."""
        self.__row[start : start + len(values)] = values
        self.__writes += len(values)
        self.__largest_write = max(self.__largest_write, len(values))


def softmax(row):
    """exp(x - max) / sum, NaN throughout where that has no value."""
    largest, total, _ = state(row, np.ones(len(row)))
    if not math.isfinite(largest) or math.isnan(total):
        return np.full(len(row), np.nan)
    return np.array([math.exp(x - largest) / total for x in row])


def state(row, values):
    """(max, sum of exp(x - max), sum of exp(x - max)·v): the textbook formulas, without merging."""
    largest = float(np.max(row, initial=-np.inf))
    if largest == -np.inf:
        return largest, 0.0, np.zeros(values.shape[1:])
    weights = [math.exp(x - largest) for x in row]
    products = np.array([weight * value for weight, value in zip(weights, values, strict=True)])
    return largest, math.fsum(weights), np.apply_along_axis(math.fsum, 0, products)


def topk(row, k):
    """The k largest probabilities and their places: by value falling, then by index rising."""
    places = sorted(range(len(row)), key=lambda at: (-row[at], at))[:k]
    return softmax(row)[places], np.array(places)


def assert_close(got, want):
    """Fail unless shape and dtype agree and every value does within `RELATIVE`."""
    np.testing.assert_allclose(got, want, rtol=RELATIVE, atol=SMALLEST, strict=True)
