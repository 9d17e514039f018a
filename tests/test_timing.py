"""The timing protocol and its verdicts, on a clock that the test turns."""

import random
import statistics

import pytest

from harness.judge.threshold import judge_cost, judge_ratio, judge_roofline
from harness.judge.timing import HostClock, Samples, compare, measure, median_interval
from harness.kata import CostThreshold


class TurnedClock:
    """Each call takes what `durations` says next; host time passes with it."""

    def __init__(self, durations):
        self.durations = durations
        self.time = 0.0
        self.rounds = 0
        self.before = 0

    def now(self):
        self.time += 1e-4
        return self.time

    def time_rounds(self, calls, rounds, before):
        self.rounds += rounds
        kept = []
        for at, _ in enumerate(calls):
            before()
            kept.append([self.durations(at) for _ in range(rounds)])
        self.time += sum(map(sum, kept))
        return kept

    def wait(self):
        pass


def nothing():
    pass


def test_a_steady_kernel_is_known_after_thirty_samples():
    clock = TurnedClock(lambda _: 0.05)
    samples = measure(nothing, clock)
    assert samples.median == 0.05
    assert len(samples.values) == 30


def test_a_short_kernel_is_timed_for_at_least_300_ms():
    samples = measure(nothing, TurnedClock(lambda _: 1e-4))
    assert sum(samples.values) >= 0.25


def test_a_noisy_kernel_ends_with_the_budget_and_keeps_every_sample():
    noise = random.Random(0)
    clock = TurnedClock(lambda _: 0.01 * noise.uniform(0.2, 5))
    samples = measure(nothing, clock)
    low, high = samples.interval
    assert len(samples.values) == clock.rounds
    assert clock.time < 12
    assert high - low > 0


def test_outliers_move_the_median_little():
    noise = random.Random(0)
    clock = TurnedClock(lambda _: 0.1 if noise.random() < 0.05 else 0.01)
    assert measure(nothing, clock).median == 0.01


def test_the_interval_holds_the_true_median():
    draw = random.Random(1)
    hits = 0
    for _ in range(300):
        low, high = median_interval([draw.gauss(10, 1) for _ in range(60)])
        hits += low <= 10 <= high
    assert hits >= 0.92 * 300


def test_a_comparison_gives_one_ratio_a_pair_and_survives_drift():
    drift = iter(1 + 0.01 * step for step in range(10_000))
    now = {"factor": 1.0}

    def duration(which):
        if which == 0:
            now["factor"] = next(drift)
        return (0.01 if which == 0 else 0.03) * now["factor"]

    class Drifting(TurnedClock):
        def time_rounds(self, calls, rounds, before):
            pairs = [[self.durations(0), self.durations(1)] for _ in range(rounds)]
            self.time += sum(map(sum, pairs))
            return [list(side) for side in zip(*pairs, strict=True)]

    ratios = compare(nothing, nothing, Drifting(duration))
    assert ratios.median == pytest.approx(3.0)
    assert statistics.pstdev(ratios.values) < 1e-9


def test_the_host_clock_sees_a_real_difference():
    small, large = list(range(2_000)), list(range(60_000))
    ratios = compare(lambda: sorted(small), lambda: sorted(large), HostClock())
    assert ratios.median > 5


@pytest.mark.parametrize(
    ("times", "outcome"),
    [
        ([1.0] * 30, "passed"),  # 0.8 of the speed of light, asked for 0.75
        ([1.2] * 30, "failed"),  # 0.67
        ([1.0] * 15 + [1.15] * 15, "ambiguous"),  # the interval straddles the limit
        ([0.5] * 30, "failed"),  # 1.6 times the speed of light: something lies
    ],
)
def test_a_roofline_verdict_needs_the_whole_interval(times, outcome):
    assert judge_roofline(Samples(tuple(times)), 0.8, 0.75, "roofline").outcome == outcome


def test_faster_than_light_is_said_as_such():
    verdict = judge_roofline(Samples((0.5,) * 30), 0.8, 0.75, "roofline")
    assert "the kernel, the cost or the profile lies" in verdict.message


def test_a_ratio_verdict_needs_the_whole_interval():
    assert judge_ratio(Samples((2.0,) * 30), 1.9, "vs eager").outcome == "passed"
    assert judge_ratio(Samples((2.0,) * 30), 2.1, "vs eager").outcome == "failed"
    assert judge_ratio(Samples((1.5, 2.5) * 15), 2.0, "vs eager").outcome == "ambiguous"


def cost(**limits):
    names = {
        "bound": None,
        "at_most": None,
        "at_least": None,
        "exactly": None,
        "case": None,
        "target": None,
    }
    return CostThreshold(name="moved", meter="bytes_moved", **{**names, **limits})


def test_cost_limits():
    assert judge_cost(cost(at_most=4), 4).outcome == "passed"
    assert judge_cost(cost(at_most=4), 5).outcome == "failed"
    assert judge_cost(cost(at_least=4), 3).outcome == "failed"
    assert judge_cost(cost(exactly=4), 4).outcome == "passed"
    assert judge_cost(cost(exactly=4), 3).outcome == "failed"
    assert judge_cost(cost(bound=1.0), 100, ideal=100).outcome == "passed"
    assert judge_cost(cost(bound=1.0), 99, ideal=100).outcome == "failed"
    assert judge_cost(cost(bound=1.0), 101, ideal=100).outcome == "failed"
    with pytest.raises(ValueError, match="ideal"):
        judge_cost(cost(bound=1.0), 100)
