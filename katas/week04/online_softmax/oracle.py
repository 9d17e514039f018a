"""What is right: softmax and its statistics over the whole row at once, summed exactly."""

import math

import numpy as np

# An exponent under 746 in size is off by at most 746 · 2^-53 = 8.3e-14 however it is split among
# merges, and exp of it by that share; beyond 746 exp is 0. Twice that, and exp's own rounding.
RELATIVE = 1e-12
SMALLEST = 1e-300  # below it doubles lose digits


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
