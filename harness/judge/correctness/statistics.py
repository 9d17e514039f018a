"""Whether samples follow a known law: Pearson's chi-square test, for outcomes that are counted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.base.errors import UsageProblem

# Anything that torch.as_tensor takes: a tensor, an array, nested lists.
Numbers = Tensor | np.ndarray[Any, Any] | Sequence[Any]

# Below this many expected counts a cell's share of the statistic no longer follows the law
# (Cochran, Biometrics 10, 1954).
LEAST_EXPECTED = 5.0
# What tests reject at: over fixed seeds no sound sampler comes near it.
P_MIN = 1e-4
SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ChiSquare:
    """How far counts are from a law, and how often chance alone takes them as far."""

    statistic: float
    degrees: int
    p: float


def chi_square(counts: Numbers, probabilities: Numbers) -> ChiSquare:
    """
    Test `counts` of outcomes against their `probabilities`; both of one shape, any number of axes.

    Outcomes of which fewer than LEAST_EXPECTED are expected are pooled. One that cannot happen
    and did has p = 0. The p-value is the upper tail of the chi-square law, the regularized
    gamma function Q(degrees / 2, statistic / 2). UsageProblem where shapes differ, nothing was
    counted, or the probabilities are negative or do not sum to 1.
    """
    seen, expected = _observed_and_expected(counts, probabilities)
    if bool(((expected == 0) & (seen > 0)).any()):
        return ChiSquare(statistic=float("inf"), degrees=_degrees(expected), p=0.0)
    seen, expected = _pooled(seen, expected)
    statistic = ((seen - expected) ** 2 / expected).sum()
    degrees = _degrees(expected)
    if degrees == 0:
        return ChiSquare(statistic=float(statistic), degrees=0, p=1.0)
    tail = torch.special.gammaincc(torch.tensor(degrees / 2, dtype=torch.float64), statistic / 2)
    return ChiSquare(statistic=float(statistic), degrees=degrees, p=float(tail))


def assert_follows(
    counts: Numbers, probabilities: Numbers, *, p_min: float = P_MIN, what: str = "samples"
) -> ChiSquare:
    """
    Fail unless `counts` could have come from `probabilities`: a chi-square p of at least `p_min`.

    For samples over fixed seeds: with fresh ones a sound sampler fails once in 1 / `p_min` runs.
    """
    __tracebackhide__ = True
    found = chi_square(counts, probabilities)
    if found.p < p_min:
        raise AssertionError(
            f"{what}: expected a chi-square p of at least {p_min:g}, found {found.p:.3g} "
            f"(statistic {found.statistic:.4g}, {found.degrees} degrees of freedom). "
            f"{_farthest(counts, probabilities)}"
        )
    return found


def _observed_and_expected(counts: Numbers, probabilities: Numbers) -> tuple[Tensor, Tensor]:
    seen = torch.as_tensor(counts).to("cpu", torch.float64)
    law = torch.as_tensor(probabilities).to("cpu", torch.float64)
    if seen.shape != law.shape:
        raise UsageProblem(
            f"chi_square: expected a count for each probability, found counts of shape "
            f"{tuple(seen.shape)} and probabilities of shape {tuple(law.shape)}."
        )
    if not seen.sum() >= 1 or bool((seen < 0).any()):
        raise UsageProblem("chi_square: expected at least one outcome, found none counted.")
    if bool((law < 0).any()) or not abs(float(law.sum()) - 1) <= SUM_TOLERANCE:
        raise UsageProblem(
            f"chi_square: expected probabilities that sum to 1, found a sum of "
            f"{float(law.sum()):.9g} and a least of {float(law.min()):.3g}."
        )
    return seen, law * seen.sum()


def _pooled(seen: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    """Flatten, and make one cell of the rare outcomes, with the next rarest if it is still rare."""
    expected, order = expected.flatten().sort()
    seen = seen.flatten()[order]
    rare = int((expected < LEAST_EXPECTED).sum())
    if rare and float(expected[:rare].sum()) < LEAST_EXPECTED:
        rare += 1
    if rare < 2:
        return seen, expected
    cells = [torch.cat([cell[:rare].sum()[None], cell[rare:]]) for cell in (seen, expected)]
    return cells[0], cells[1]


def _degrees(expected: Tensor) -> int:
    return max(0, int((expected > 0).sum()) - 1)


def _farthest(counts: Numbers, probabilities: Numbers) -> str:
    """Name the outcome that contributes the most."""
    seen, expected = _observed_and_expected(counts, probabilities)
    distance = (seen - expected) ** 2 / expected.clamp(min=1e-300)
    worst = int(distance.nan_to_num(0.0).argmax())
    at = tuple(int(axis) for axis in np.unravel_index(worst, tuple(seen.shape)))
    outcome = at[0] if len(at) == 1 else at
    return (
        f"Outcome {outcome} came {seen.flatten()[worst]:g} times of {seen.sum():g}, "
        f"expected {expected.flatten()[worst]:.1f}."
    )
