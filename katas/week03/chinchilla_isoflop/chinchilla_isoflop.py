"""Kata week03/chinchilla_isoflop: the model size that makes the most of a compute budget.

A run of N parameters on D tokens costs C = 6ND FLOP.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

Train = Callable[[float, float], float]  # (parameters, tokens) to the final loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """L(N, D) = e + a / N ** alpha + b / D ** beta, for N parameters and D tokens."""

    e: float
    a: float
    b: float
    alpha: float
    beta: float

    def loss(self, params: float, tokens: float) -> float:
        """Loss of a model of `params` parameters after `tokens` tokens."""
        return self.e + self.a / params**self.alpha + self.b / tokens**self.beta


# the third approach of Hoffmann et al. 2022, and what its data give when the fit is repeated
HOFFMANN = Law(e=1.69, a=406.4, b=410.7, alpha=0.34, beta=0.28)
BESIROGLU = Law(e=1.8172, a=482.01, b=2085.43, alpha=0.3478, beta=0.3658)


class Run(NamedTuple):
    """One trained model: what it cost (6 FLOP per parameter and token), its size, its loss."""

    flops: float
    params: float
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLaw:
    """N_opt = coefficient · C ** exponent."""

    exponent: float
    coefficient: float

    def at(self, flops: float) -> float:
        """Parameters of the compute-optimal model for `flops`."""
        return self.coefficient * flops**self.exponent


def optimal_nd(flops: float, law: Law) -> tuple[float, float]:
    """
    Return the parameters and tokens of least loss under `law` among those that cost `flops`.

    The closed form of Hoffmann et al. 2022, equation 4.
    """
    raise NotImplementedError  # TODO(kata): closed form (about 4 lines)


def isoflop_fit(runs: Iterable[Run]) -> PowerLaw:
    """
    Fit how the compute-optimal size grows with the budget: Hoffmann et al. 2022, approach 2.

    Runs with equal `flops` are one budget. A budget whose parabola has no minimum, or has it
    outside the sizes that were tried, is left out.

    Raises:
        ValueError: flops, params or loss of a run is not finite and above 0, a budget has fewer
            than 3 different sizes, or fewer than 2 budgets are left.
    """
    # TODO(kata): check, minimum of each budget, line through the minima (about 25 lines with
    # helpers)
    raise NotImplementedError


def plan_and_predict(train: Train, target_flops: float) -> float:
    """
    Return the compute-optimal parameters for `target_flops` from runs that cost 1 % of it.

    Args:
        train: Trains a model of given parameters on given tokens, at 6 FLOP for each pair of
            them, and returns its loss, a little noisy. Refuses sizes that no law covers.
        target_flops: The budget of the model that will be trained in the end.
    """
    # TODO(kata): line through the minima, sweep small budgets, aim the next sweep (about 10 lines
    # with helpers)
    raise NotImplementedError
