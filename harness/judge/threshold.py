"""Turn a measurement and a threshold into a verdict."""

from dataclasses import dataclass

from harness.judge.timing import Samples
from harness.kata import CostThreshold

PASSED, FAILED, AMBIGUOUS = "passed", "failed", "ambiguous"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One threshold judged: the value, the limit it was held against, and in words."""

    outcome: str
    value: float
    limit: float
    relation: str
    message: str


def judge_cost(threshold: CostThreshold, value: float, ideal: float | None = None) -> Verdict:
    """
    Compare a counted `value` with its limit.

    Args:
        threshold: The `[[cost]]` entry.
        value: What was counted.
        ideal: The least possible, which a `bound` multiplies.
    """
    if threshold.at_least is not None:
        met, relation, limit = value >= threshold.at_least, ">=", threshold.at_least
    elif threshold.exactly is not None:
        met, relation, limit = value == threshold.exactly, "==", threshold.exactly
    elif threshold.at_most is not None:
        met, relation, limit = value <= threshold.at_most, "<=", threshold.at_most
    elif threshold.bound is not None and ideal is not None:
        relation, limit = "<=", threshold.bound * ideal
        # less than the least possible: the work was not done where it is counted
        met = ideal * (1 - 1e-9) <= value <= limit * (1 + 1e-9)
    else:
        raise ValueError(f"{threshold.name}: expected the ideal value of a `bound`, found none")
    share = f" ({value / ideal:.3g} x the least possible)" if ideal else ""
    words = f"{threshold.name}: {value:,.6g}{share}, limit {relation} {limit:,.6g}"
    return Verdict(
        outcome=PASSED if met else FAILED,
        value=value,
        limit=limit,
        relation=relation,
        message=words,
    )


def judge_roofline(times: Samples, ideal_s: float, required: float, name: str) -> Verdict:
    """
    Compare the share of the speed of light with the fraction asked for.

    Passed when even the slow end of the interval clears it, failed when even the fast end does
    not, ambiguous in between.
    """
    fast, slow = times.interval
    share = ideal_s / times.median
    if share > 1.05:
        words = (
            f"{name}: {share:.2f} of the speed of light: the kernel, the cost or the profile lies"
        )
        return Verdict(outcome=FAILED, value=share, limit=required, relation=">=", message=words)
    words = (
        f"{name}: {share:.3f} of the speed of light ({times.median * 1e6:.1f} us, "
        f"{times.quantile(0.1) * 1e6:.1f} to {times.quantile(0.9) * 1e6:.1f}), limit >= {required}"
    )
    return Verdict(
        outcome=_three_way(ideal_s / slow, ideal_s / fast, required),
        value=share,
        limit=required,
        relation=">=",
        message=words,
    )


def judge_ratio(ratios: Samples, required: float, name: str) -> Verdict:
    """Compare how many times faster than a baseline with the ratio asked for."""
    low, high = ratios.interval
    words = (
        f"{name}: {ratios.median:.2f} times as fast ({low:.2f} to {high:.2f}), limit >= {required}"
    )
    return Verdict(
        outcome=_three_way(low, high, required),
        value=ratios.median,
        limit=required,
        relation=">=",
        message=words,
    )


def _three_way(low: float, high: float, required: float) -> str:
    if low >= required:
        return PASSED
    return FAILED if high < required else AMBIGUOUS
