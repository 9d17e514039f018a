"""Kata week03/chinchilla_isoflop: a parabola over log N at each budget, a line through the minima.

Small budgets say where the optimum lies and how fast it moves; the line says the rest.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
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
    ratio = law.alpha * law.a / (law.beta * law.b)
    scale = ratio ** (1 / (law.alpha + law.beta))
    params = scale * (flops / 6) ** (law.beta / (law.alpha + law.beta))
    return params, flops / (6 * params)


def isoflop_fit(runs: Iterable[Run]) -> PowerLaw:
    """
    Fit how the compute-optimal size grows with the budget: Hoffmann et al. 2022, approach 2.

    Runs with equal `flops` are one budget. A budget whose parabola has no minimum, or has it
    outside the sizes that were tried, is left out.

    Raises:
        ValueError: flops, params or loss of a run is not finite and above 0, a budget has fewer
            than 3 different sizes, or fewer than 2 budgets are left.
    """
    # check
    budgets: dict[float, list[Run]] = defaultdict(list)
    for run in runs:
        for name, value in run._asdict().items():
            if not 0 < value < math.inf:
                raise ValueError(f"{name}: expected finite and above 0, found {value} in {run}")
        budgets[run.flops].append(run)
    # minimum of each budget
    optima = {flops: _minimum(group) for flops, group in budgets.items()}
    usable = {flops: params for flops, params in optima.items() if params is not None}
    if len(usable) < 2:
        expected = "at least 2 budgets with a minimum among their sizes"
        raise ValueError(f"budgets: expected {expected}, found {len(usable)} of {len(optima)}")
    # line through the minima
    exponent, intercept = np.polyfit(np.log(list(usable)), np.log(list(usable.values())), 1)
    return PowerLaw(exponent=float(exponent), coefficient=math.exp(intercept))


def _minimum(group: Sequence[Run]) -> float | None:
    """Return where the parabola over log N has its minimum; None if not among the sizes tried."""
    # check
    if len({run.params for run in group}) < 3:
        raise ValueError(f"sizes: expected 3 for each budget, found fewer at {group[0].flops:g}")
    # minimum of each budget
    sizes = np.log([run.params for run in group])
    middle = sizes.mean()  # near 0 the three coefficients are told apart best
    curvature, slope, _ = np.polyfit(sizes - middle, [run.loss for run in group], 2)
    if curvature <= 0:
        return None
    vertex = middle - slope / (2 * curvature)
    return math.exp(vertex) if sizes.min() <= vertex <= sizes.max() else None


SHARES = (1e-5, 3e-5, 1e-4, 3e-4)  # of the target, for one run: 15 runs at each are 0.66 %
SIZES, SPREAD = 15, 6.0  # at each budget, from a sixth to six times the size expected


def plan_and_predict(train: Train, target_flops: float) -> float:
    """
    Return the compute-optimal parameters for `target_flops` from runs that cost 1 % of it.

    Args:
        train: Trains a model of given parameters on given tokens, at 6 FLOP for each pair of
            them, and returns its loss, a little noisy. Refuses sizes that no law covers.
        target_flops: The budget of the model that will be trained in the end.
    """
    # sweep small budgets
    sweeps: list[list[Run]] = []
    per_root = 120**-0.5  # at 20 tokens per parameter, until the runs know better
    for flops in (share * target_flops for share in (SHARES[0], *SHARES)):
        centre = per_root * math.sqrt(flops)
        sizes = np.geomspace(centre / SPREAD, centre * SPREAD, SIZES).tolist()
        sweeps.append([Run(flops, params, train(params, flops / (6 * params))) for params in sizes])
        # aim the next sweep
        per_root = _minimum(sweeps[-1]) / math.sqrt(flops)
    # line through the minima
    # a loss is a parabola only near its minimum, which the first sweep has merely found
    return isoflop_fit(chain(*sweeps[1:])).at(target_flops)
