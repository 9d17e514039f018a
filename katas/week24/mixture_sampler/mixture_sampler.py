"""Kata week24/mixture_sampler: weights of datasets, and an order true to them at every step."""

from collections.abc import Sequence

import numpy as np


def temperature_weights(sizes: Sequence[int], alpha: float) -> np.ndarray:
    """
    Return weights in proportion to size ** alpha, float64, with the sum 1; empty datasets have 0.

    Raises:
        ValueError: a size is negative, or all are 0; alpha is not a finite number from 0 on. The
            message begins with the name and a colon.
    """
    raise NotImplementedError  # TODO(kata): check, powers of sizes (about 10 lines with helpers)


def cap_epochs(
    w: Sequence[float], sizes: Sequence[int], total: float, max_epochs: float
) -> np.ndarray:
    """
    Return weights with which no dataset is seen more than `max_epochs` times, float64, sum 1.

    What is cut off goes to the others in proportion to their weights.

    Args:
        w: Weights in any unit.
        sizes: Tokens of each dataset.
        total: Tokens of the whole run.
        max_epochs: Times that each token may be seen.

    Raises:
        ValueError: a number is out of range; there are not as many sizes as weights; the datasets
            that have a weight do not last for `total` tokens (``max_epochs: ``).
    """
    raise NotImplementedError  # TODO(kata): check, cap the epochs (about 15 lines)


def interleave(w: Sequence[float], n: int) -> tuple[np.ndarray, np.ndarray]:
    """
    Return which dataset each of n samples is from, int16, and which of its samples it is, int64.

    After any number of samples each dataset has been drawn from as often as its weight says, to
    within less than one sample (Tijdeman 1980).

    Args:
        w: Weights in any unit.
        n: Samples; the first of more are the same.

    Raises:
        ValueError: a weight is negative or not finite, or all are 0; n is negative.
    """
    # TODO(kata): check, first turns, who may be drawn, earliest deadline (about 20 lines)
    raise NotImplementedError
