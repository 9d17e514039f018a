"""Kata week24/mixture_sampler: weights of datasets, and an order true to them at every step."""

import heapq
from collections.abc import Sequence

import numpy as np


def temperature_weights(sizes: Sequence[int], alpha: float) -> np.ndarray:
    """
    Return weights in proportion to size ** alpha, float64, with the sum 1; empty datasets have 0.

    Raises:
        ValueError: a size is negative, or all are 0; alpha is not a finite number from 0 on. The
            message begins with the name and a colon.
    """
    # check
    sizes = _amounts("sizes", sizes)
    if not 0 <= alpha < np.inf:
        raise ValueError(f"alpha: expected a finite number from 0 on, found {alpha}.")
    # powers of sizes
    powers = np.where(sizes > 0, (sizes / sizes.max()) ** alpha, 0)
    return powers / powers.sum()


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
    # check
    w, sizes = _amounts("w", w), _amounts("sizes", sizes)
    if len(sizes) != len(w):
        raise ValueError(f"sizes: expected {len(w)}, one for each weight, found {len(sizes)}.")
    if not total > 0:
        raise ValueError(f"total: expected more than 0, found {total}.")
    enough = max_epochs * sizes[w > 0].sum()  # rounded once: 30 tokens last for 9 at 0.3 epochs
    if not enough >= total:
        raise ValueError(f"max_epochs: expected {total} tokens at least, found {enough}.")
    # cap the epochs
    most = max_epochs * sizes
    drawn = np.flatnonzero(w)
    order = drawn[np.argsort(most[drawn] / w[drawn])]  # those to be cut off come first
    weight_left = np.cumsum(w[order][::-1])[::-1]
    tokens, left = np.zeros(len(w)), total
    for i, together in zip(order, weight_left, strict=True):
        tokens[i] = min(most[i], left * (w[i] / together))
        left -= tokens[i]
    return tokens / tokens.sum()


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
    # check
    w = _amounts("w", w)
    if n < 0:
        raise ValueError(f"n: expected at least 0, found {n}.")
    # first turns
    share = (w / w.sum()).tolist()
    drawn = [i for i, part in enumerate(share) if part > 0]
    margin = 1 / (2 * max(len(drawn) - 1, 1))
    count = [0] * len(share)
    dataset, index = np.empty(n, np.int16), np.empty(n, np.int64)
    waiting, eligible = [(margin / share[i], i) for i in drawn], []
    heapq.heapify(waiting)
    # who may be drawn
    for at in range(n):
        while waiting and waiting[0][0] <= at + 1:
            _, i = heapq.heappop(waiting)
            heapq.heappush(eligible, ((count[i] + 1 - margin) / share[i], i))
        # earliest deadline
        _, i = heapq.heappop(eligible)
        dataset[at], index[at] = i, count[i]
        count[i] += 1
        heapq.heappush(waiting, ((count[i] + margin) / share[i], i))
    return dataset, index


def _amounts(name: str, given: Sequence[float]) -> np.ndarray:
    """Return what is given as float64, if these are amounts and not all of them are 0."""
    amounts = np.array(given, np.float64)
    if not ((amounts >= 0) & (amounts < np.inf)).all() or not amounts.any():
        raise ValueError(f"{name}: expected finite numbers from 0 on, one above 0, found {given}.")
    return amounts
