"""Turn a measurement and a threshold into a verdict."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.content.kata import CostThreshold
from harness.hardware.profiles import Cost, Profile, physical_limit, speed_of_light, too_small
from harness.judge.timing.device_state import as_detail, unfit
from harness.judge.timing.measure import Timed

PASSED, FAILED, AMBIGUOUS, NOT_GRADED = "passed", "failed", "ambiguous", "not_graded"

# the datasheet rounds, and a cache holds back a part of what was written: no more than this
BEYOND_PHYSICS = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """
    One threshold judged: the value, the limit it was held against, and in words.

    `outcome` is "passed", "failed", "ambiguous" (the samples' spread straddles the limit) or
    "not_graded" (the device was not fit to be timed). `detail` holds what the record keeps.
    """

    outcome: str
    value: float
    limit: float
    relation: str
    message: str
    detail: Mapping[str, float] = field(default_factory=dict)


def judge_cost(
    threshold: CostThreshold, value: float, ideal: float | None = None, built: str = ""
) -> Verdict:
    """
    Compare a counted `value` with its limit.

    Args:
        threshold: The `[[cost]]` entry.
        value: What was counted.
        ideal: The least possible, which a `bound` multiplies.
        built: What else the compiler said, to be shown with it.
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
    share = f" ({float(value / ideal):.4g} x the least possible)" if ideal else ""
    # a fraction or a tensor of one element is compared as it is, and told as a number
    value, limit = _plain(value), _plain(limit)
    words = f"{threshold.name}: {value:,.6g}{share}, limit {relation} {limit:,.6g}"
    words += f"; {built}" if built else ""
    if not met and threshold.bound is not None and ideal is not None and value < ideal:
        words += (
            "; less than the work requires: part of it was not done, or not where it is counted"
        )
    return Verdict(
        outcome=PASSED if met else FAILED,
        value=value,
        limit=limit,
        relation=relation,
        message=words,
    )


def _plain(number: float) -> float:
    return number if isinstance(number, int) else float(number)


def judge_roofline(
    timed: Timed, cost: Cost, dtype: str, profile: Profile, required: float, name: str
) -> Verdict:
    """
    Compare the share of the datasheet's speed of light with the fraction asked for.

    Passed when even the slow end of the median's interval clears it, failed when even the fast
    end does not, ambiguous in between. Where ceilings were measured, the share of those is told
    beside it.

    Raises:
        DeviceError: the profile has no peak for `dtype`.
    """
    ideal_s = speed_of_light(cost, dtype, profile)
    measured_s = speed_of_light(cost, dtype, profile, calibrated=True)
    median_s, (fast_s, slow_s) = timed.mine.median, timed.mine.interval
    words = f"{ideal_s / median_s:.3f} of the speed of light ({_spread_us(timed)})"
    detail = {"ideal": ideal_s}
    if measured_s != ideal_s:
        detail["measured_ceiling_share"] = measured_s / median_s
        words += f", {measured_s / median_s:.3f} of the measured ceiling"
    words += f", limit >= {required}"
    if small := too_small(cost, dtype, profile):
        words += f"; {small}"
    objection = _objection(timed, profile, physical_limit(cost, dtype, profile))
    return _timed_verdict(
        timed,
        name=name,
        value=ideal_s / median_s,
        limit=required,
        decided=objection or (_three_way(ideal_s / slow_s, ideal_s / fast_s, required), ""),
        words=words,
        detail=detail,
    )


def judge_ratio(timed: Timed, profile: Profile, required: float, name: str) -> Verdict:
    """Compare how many times faster than a baseline with the ratio asked for, as a roofline is."""
    ratios = timed.ratios
    low, high = ratios.interval
    words = (
        f"{ratios.median:.2f} times as fast ({low:.2f} to {high:.2f}; {_spread_us(timed)}), "
        f"limit >= {required}"
    )
    return _timed_verdict(
        timed,
        name=name,
        value=ratios.median,
        limit=required,
        decided=_objection(timed, profile) or (_three_way(low, high, required), ""),
        words=words,
        detail={},
    )


def _objection(timed: Timed, profile: Profile, least_s: float = 0.0) -> tuple[str, str] | None:
    """What keeps these samples from being held against a limit, as an outcome and a sentence."""
    if why := unfit(timed.before, timed.during, profile):
        return NOT_GRADED, why
    check = timed.streams
    if check is not None and not check.clean:
        return FAILED, (
            f"work was left running: {check.calls} calls took {_ms(check.device_s)} on their "
            f"stream, but kept the device at work for {_ms(check.left_s)} more; run it on "
            "the current stream"
        )
    if least_s > BEYOND_PHYSICS * timed.mine.median:
        return FAILED, (
            f"faster than physics: {_us(timed.mine.median)}, where {profile.id} needs at least "
            f"{_us(least_s)}; the kernel, the cost in oracle.py or the profile is wrong"
        )
    return None


def _timed_verdict(
    timed: Timed,
    *,
    name: str,
    value: float,
    limit: float,
    decided: tuple[str, str],
    words: str,
    detail: Mapping[str, float],
) -> Verdict:
    outcome, why = decided
    mine = timed.mine
    return Verdict(
        outcome=outcome,
        value=value,
        limit=limit,
        relation=">=",
        message=f"{name}: {why}; {words}" if why else f"{name}: {words}",
        detail={
            "samples": len(mine.values),
            "p10": mine.quantile(0.1),
            "median": mine.median,
            "p90": mine.quantile(0.9),
            **dict(zip(("host_s", "baseline_host_s"), timed.host_s or (), strict=False)),
            **detail,
            **as_detail(timed.during),
        },
    )


def _spread_us(timed: Timed) -> str:
    mine = timed.mine
    return f"{_us(mine.median)}, {_us(mine.quantile(0.1))} to {_us(mine.quantile(0.9))}"


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _three_way(low: float, high: float, required: float) -> str:
    if low >= required:
        return PASSED
    return FAILED if high < required else AMBIGUOUS
