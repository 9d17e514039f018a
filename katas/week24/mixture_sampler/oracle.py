"""What is right: fractions, and a count of every dataset after every sample."""

import random
from fractions import Fraction

import numpy as np

# one alone, two, equal ones, one that crowds out the rest, many small ones before a large one
# (largest deficits exceed a sample there), odd ratios, unused ones, large numbers
WEIGHTS = [
    [5],
    [1, 1],
    [3, 7],
    [1] * 16,
    [1, 999],
    [1, 1, 1, 1, 1, 1, 361, 4, 1, 5, 4, 1, 1],
    [1, 1, 1, 1, 1, 1, 393, 1, 14, 24, 21, 5, 21],
    [3] * 8 + [304, 2, 1, 3, 5, 3, 1, 1],
    [135204, 847028, 712802, 512656, 904705, 347421, 574182, 243424, 369444, 39578, 58376],
    [0, 2, 0, 3, 0],
    [2**40, 3, 2**39, 5],
]


def drawn_weights(seed, n):
    """Up to 16 weights each, every other time with one that is much larger."""
    draw = random.Random(seed)
    found = []
    for number in range(n):
        most = draw.choice([3, 30, 1000, 10**6])
        weights = [draw.randint(0, most) for _ in range(draw.randint(1, 15))]
        found.append([*weights, draw.randint(1, most) * (20 if number % 2 else 1)])
    return found


def drift(weights, dataset):
    """How far a count is from its share at most, in samples times the sum of the weights."""
    drawn = np.zeros((len(dataset), len(weights)), np.int64)
    drawn[np.arange(len(dataset)), dataset] = 1
    due = np.arange(1, len(dataset) + 1)[:, None] * np.array(weights)
    return int(np.abs(np.cumsum(drawn, axis=0) * sum(weights) - due).max(initial=0))


def capped(weights, sizes, total, max_epochs):
    """Cut off whoever has too much, hand that to the others, and look again."""
    most = [Fraction(max_epochs) * size for size in sizes]
    cut = set()
    while True:
        free = [i for i, weight in enumerate(weights) if weight and i not in cut]
        left = total - sum(most[i] for i in cut)
        together = sum(Fraction(weights[i]) for i in free)
        tokens = {i: left * Fraction(weights[i]) / together for i in free}
        more = {i for i in free if tokens[i] > most[i]}
        if not more:
            return [
                float((most[i] if i in cut else tokens.get(i, 0)) / total)
                for i in range(len(weights))
            ]
        cut |= more


def drawn_mixture(seed):
    """Weights, sizes, tokens and epochs for which there is enough, though not always much more."""
    draw = random.Random(seed)
    n = draw.randint(1, 9)
    weights = [draw.choice([0, 1, 2, 5, 40]) for _ in range(n)] + [3]
    sizes = [draw.randint(1, 1000) for _ in weights]
    max_epochs = draw.choice([1, 2, 4, 0.5])
    enough = max_epochs * sum(size for size, weight in zip(sizes, weights, strict=True) if weight)
    return weights, sizes, enough * draw.choice([0.1, 0.5, 0.75, 0.9]), max_epochs
