"""Alerts against a detector that keeps everything, and against traces whose truth is known."""

import random
import warnings

import numpy as np
import pytest


def shown(alerts):
    return [(one.rank, round(one.slowdown, 6), one.since_step) for one in alerts]


def watched(kata, oracle, own, *args):
    """The alerts of each step."""
    detector = kata.StragglerDetector(own.shape[1], *args)
    return [detector.update(*report) for report in zip(*oracle.steps_of(own), strict=True)]


def check_watched(kata, oracle, own, *args):
    detector = kata.StragglerDetector(own.shape[1], *args)
    recomputed = oracle.Recomputed(own.shape[1], *args)
    for number, report in enumerate(zip(*oracle.steps_of(own), strict=True)):
        found, expected = detector.update(*report), recomputed.update(*report)
        found = [(one.rank, one.slowdown, one.since_step) for one in found]
        assert found == [pytest.approx(one, rel=1e-6) for one in expected], (
            f"{args}, step {number}, of {own[max(0, number - 3) : number + 1].tolist()}: expected "
            f"(rank, slowdown, since) {expected}, found {found}"
        )


# ---- alerts, one by one --------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 2, 3, 4, 7, 20], ids=str)
def test_alerts_are_those_of_a_detector_that_keeps_everything(kata, oracle, seed, window):
    rng = np.random.default_rng(seed)
    for world in (1, 2, 3, 4, 9):
        own = oracle.healthy(seed, world, 90, noise=0.05)
        for start, stop in ((10, 30), (35, 60), (62, 66)):
            own[start:stop, rng.integers(world)] *= 1.4
        own[rng.random(own.shape) < 0.1] = np.nan
        own[70:73] = np.nan
        own[75] = 0.5
        for limits in ((), (0.02, 1.3), (0.3, 0.0)):
            check_watched(kata, oracle, own, window, *limits)


def test_an_example_by_hand(kata):
    detector = kata.StragglerDetector(3, 4)
    found = [
        shown(detector.update([2.0] * 3, [1.0, 1.0, 2.0 - slow]))
        for slow in (1.0, 1.2, 1.3, 1.0, 1.1, 1.0, 1.0)
    ]
    assert found == [
        [],
        [],
        [(2, 0.25, 1)],
        [(2, 0.166667, 1)],
        [(2, 0.15, 1)],
        [(2, 0.1, 1)],
        [],
    ], f"found (rank, slowdown, since) {found}"


def test_steps_are_equally_long_for_all(kata, oracle):
    own = np.full((6, 4), 1.0)
    own[:, 2] = 1.5
    step, _ = oracle.steps_of(own)
    assert (step == step[0, 0]).all()
    assert [one.rank for one in watched(kata, oracle, own, 4)[-1]] == [2]


def test_a_rank_exactly_at_the_limit_is_not_slow(kata, oracle):
    own = np.full((8, 5), 1.0)
    own[:, 4] = 1.25
    assert watched(kata, oracle, own, 4, 0.25, 0.0)[-1] == []
    own[:, 4] = 1.25 + 2**-20
    assert [one.rank for one in watched(kata, oracle, own, 4, 0.25, 0.0)[-1]] == [4]
    own[:] = [0.75, 0.875, 1.0, 1.125, 1.5]  # the median deviation is 1/8 of the median
    assert watched(kata, oracle, own, 4, 0.0, 4.0)[-1] == []
    assert [one.rank for one in watched(kata, oracle, own, 4, 0.0, 3.0)[-1]] == [4]


def test_one_or_two_ranks_tell_nothing(kata, oracle):
    assert watched(kata, oracle, np.full((9, 1), 3.0), 4) == [[]] * 9
    own = np.full((9, 2), 1.0)
    own[:, 1] = 3.0
    assert watched(kata, oracle, own, 4) == [[]] * 9, "which of two is slow?"
    three = np.concatenate([own, own[:, :1]], axis=1)
    assert [one.rank for one in watched(kata, oracle, three, 4)[-1]] == [1]


def test_a_step_without_work_makes_nobody_slow(kata, oracle):
    own = np.zeros((9, 4))
    own[:, 1] = 1.0
    assert watched(kata, oracle, own, 4) == [[]] * 9
    assert watched(kata, oracle, own, 4, 0.08, 0.0) == [[]] * 9


def test_a_step_that_nobody_reports_passes_quietly(kata):
    detector, nobody = kata.StragglerDetector(3, 2), [float("nan")] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [shown(detector.update(nobody, nobody))]
        found.append(shown(detector.update([2.0] * 3, [1.0, 0.5, 1.0])))
        found.append(shown(detector.update(nobody, nobody)))
    expected = [[], [(1, 0.5, 1)], [(1, 0.5, 1)]]
    assert found == expected, f"no reports in steps 0 and 2: found {found}, expected {expected}"


def test_another_order_of_ranks_is_another_order_of_alerts(kata, oracle, seed):
    own = oracle.healthy(seed, 8, 60)
    own[20:, 3] *= 1.3
    own[30:, 6] *= 1.2
    order = np.random.default_rng(seed).permutation(8)
    plain, moved = watched(kata, oracle, own, 10), watched(kata, oracle, own[:, order], 10)
    for step, (here, there) in enumerate(zip(plain, moved, strict=True)):
        back = sorted((int(order[one.rank]), one.slowdown, one.since_step) for one in there)
        expected = [(one.rank, one.slowdown, one.since_step) for one in here]
        assert back == [pytest.approx(one) for one in expected], f"step {step}: {back}, {expected}"


def test_half_a_report_is_none(kata):
    nan = float("nan")
    detector = kata.StragglerDetector(3, 2)
    detector.update([2, 2, 2], [1, 1, 0])
    for step, wait in (([2, 2, nan], [1, 1, 1]), ([2, 2, 1.5], [1, 1, nan])):
        found = shown(detector.update(step, wait))
        assert found == [(2, 1.0, 0)], f"after {step}, {wait}: an alert since step 0, found {found}"
    assert shown(detector.update([2, 2, 2], [1, 1, 1])) == [(2, 0.5, 0)]


def test_alerts_are_plain_numbers(kata):
    (found,) = kata.StragglerDetector(3, 2).update([2, 2, 2], [1, 1, 0])
    types = type(found.rank), type(found.slowdown), type(found.since_step)
    assert types == (int, float, int), f"{found}: expected int, float, int, found {types}"


def test_two_detectors_know_nothing_of_each_other(kata):
    one, other = kata.StragglerDetector(3, 2), kata.StragglerDetector(3, 2)
    for _ in range(3):
        found = one.update([2, 2, 2], [1, 1, 0])
        other.update([2, 2, 2], [1, 1, 1])
    assert shown(found) == [(2, 1.0, 0)]


def test_reports_are_not_kept(kata):
    detector, step, wait = kata.StragglerDetector(3, 4), np.full(3, 2.0), np.array([1.0, 1.0, 0.5])
    for _ in range(3):
        found = detector.update(step, wait)
        given = step.tolist(), wait.tolist()
        assert given == ([2.0] * 3, [1.0, 1.0, 0.5]), f"update has changed its arguments: {given}"
        step[:], wait[:] = 9.0, 1.0
        step[:], wait[:] = 2.0, (1.0, 1.0, 0.5)
    assert shown(found) == [(2, 0.5, 0)]


# ---- traces --------------------------------------------------------------------------------


def test_slow_ranks_are_found_soon(kata, oracle, seed, cost):
    worst = 0
    for world, slow in ((8, [5]), (16, [4, 5, 6]), (64, [63])):
        for draw in range(3):
            own = oracle.healthy(seed + draw, world, 160, noise=0.01)
            own[100:, slow] *= 1.1
            alerts = watched(kata, oracle, own, 20)
            early = [shown(found) for found in alerts[:100] if found]
            assert not early, f"{world} ranks, healthy before step 100: {early[:3]}"
            first = {}
            for step, found in enumerate(alerts):
                for one in found:
                    first.setdefault(one.rank, step)
            assert sorted(first) == slow, f"{world} ranks, {slow} slow from step 100 on: {first}"
            worst = max(worst, max(first.values()) - 99)
            for one in alerts[130]:
                assert one.slowdown == pytest.approx(0.1, abs=0.03), f"10 % slow: {one}"
                assert 99 <= one.since_step <= 110, f"slow from step 100 on: {one}"
    cost.check("delay_steps", worst)


def test_healthy_ranks_raise_no_alert(kata, oracle, seed, cost):
    alerts = watched(kata, oracle, oracle.healthy(seed, 32, 2000), 20)
    cost.check("false_alerts", sum(map(len, alerts)))


def test_a_ramp_and_a_rank_that_is_slow_half_of_the_time(kata, oracle, seed):
    own = oracle.healthy(seed, 12, 400, noise=0.01)
    own[:, 3] *= 1 + 0.0005 * np.arange(400)
    own[:, 7] *= np.where(np.arange(400) // 5 % 2, 1.3, 1.0)
    alerts = watched(kata, oracle, own, 20)
    ramp = [step for step, found in enumerate(alerts) if 3 in [one.rank for one in found]]
    assert ramp[-1] == 399, f"0.05 % slower in each step, never an alert at the end: {ramp[-3:]}"
    assert 130 <= ramp[0] <= 190, f"8 % slow at step 160: the first alert came at {ramp[0]}"
    half = [7 in [one.rank for one in found] for found in alerts[20:]]
    assert all(half), f"slow in 5 of 10 steps: alerts in {sum(half)} of {len(half)} steps"


# ---- what it takes -------------------------------------------------------------------------


def test_an_update_takes_few_lines(kata, oracle, lines, cost):
    own = oracle.healthy(3, 512, 40)
    reports = [*zip(*oracle.steps_of(own), strict=True)]
    detector = kata.StragglerDetector(512, 20)
    with lines(limit=1_000_000) as counted:
        for report in reports:
            detector.update(*report)
    cost.check("lines_per_update", counted.lines / 40)


def test_memory_does_not_grow(kata, oracle, host_memory, cost):
    own = oracle.healthy(3, 64, 600)
    reports = [*zip(*oracle.steps_of(own), strict=True)]
    with host_memory() as held:
        detector = kata.StragglerDetector(64, 20)
        for report in reports:
            detector.update(*report)
    cost.check("detector_bytes", held.peak_bytes)


# ---- one step, one fleet -------------------------------------------------------------------


def test_who_was_busy_longest_is_to_blame(kata, oracle, seed):
    draw = random.Random(seed)
    for _ in range(60):
        intervals, clocks = [], [draw.randint(-1000, 1000) for _ in range(4)]
        for rank in draw.sample([0, 3, 5, 12], draw.randint(1, 4)):
            for _ in range(draw.randint(1, 6)):
                start = clocks[rank % 4] + draw.randint(0, 30)
                kind = draw.choice(["compute", "wait", "wait", "data"])
                intervals.append((rank, start, start + draw.randint(0, 12), kind))
        draw.shuffle(intervals)
        expected = oracle.busiest(intervals)
        for unit in (1, 1 / 4096):  # seconds, and quarters of milliseconds
            given = [(rank, start * unit, end * unit, kind) for rank, start, end, kind in intervals]
            found = kata.blame(iter(given))
            assert found == expected, f"blame({given}): expected {expected}, found {found}"


def test_what_overlaps_counts_once(kata):
    nested = [(0, 0, 12, "compute"), (0, 1, 3, "data"), (0, 2, 11, "data"), (0, 12, 13, "data")]
    assert kata.blame([*nested, (1, 0, 15, "compute")]) == 1
    assert kata.blame([*nested, (1, 0, 12, "compute")]) == 0


def test_a_clock_of_its_own_is_no_blame(kata):
    late = [(0, 100.0, 101.0, "compute"), (0, 101.0, 101.5, "wait")]
    slow = [(1, 0.0, 1.4, "compute"), (1, 1.4, 1.5, "wait")]
    assert kata.blame(late + slow) == 1


def test_ranks_that_only_waited(kata):
    assert kata.blame([(7, 0, 5, "wait"), (2, 0, 5, "wait")]) == 2


def test_lost_throughput(kata):
    nan = float("nan")
    for compute, expected in (
        ([1.0, 1.0, 1.0, 2.0], 0.375),
        ([3, 3, 3], 0.0),
        ([5.0], 0.0),
        ([0.0, 0.0], 0.0),
        ([0.0, 2.0], 0.5),
        ([1.0, nan, 2.0], 0.25),
    ):
        given = np.array(compute)
        for one in (given, compute):
            found = kata.throughput_loss(one)
            assert found == pytest.approx(expected), f"{one!r}: {found}, expected {expected}"


# ---- what makes no sense -------------------------------------------------------------------


def test_a_report_that_is_refused_changes_nothing(kata):
    detector, nan, inf = kata.StragglerDetector(3, 2), float("nan"), float("inf")
    detector.update([2, 2, 2], [1, 1, 1])
    for name, step, wait in (
        ("step_s", [2, 2], [0]), ("step_s", [2, -1, 2], [0]), ("step_s", [2, inf, 2], [0]),
        ("step_s", [[2, 2, 2]], [[1, 1, 1]]), ("step_s", [[2], [2], [2]], [1, 1, 1]),
        ("wait_s", [2, 2, 2], [1, 1]), ("wait_s", [2, 2, 2], [[1], [1], [1]]),
        ("wait_s", [2, 2, 2], [1, -1, 1]), ("wait_s", [2, 2, 2], [1, inf, 1]),
        ("wait_s", [2, 2, 2], [1, 3, 1]), ("wait_s", [nan, 2, 2], [1, 1, 3]),
        ("wait_s", [nan, 2, 2], [-1, 1, 1]),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{name}: "):
            detector.update(step, wait)
    found = detector.update([2, 2, 2], [1, 1, 0])
    assert shown(found) == [(2, 1.0, 1)], f"in step 1, after reports that were refused: {found}"


def test_what_makes_no_sense_is_refused(kata):
    nan, inf = float("nan"), float("inf")
    for name, call, args in (
        ("world", kata.StragglerDetector, (0, 0, -1, -1)),
        ("window", kata.StragglerDetector, (1, 0, -1, -1)),
        ("rel_threshold", kata.StragglerDetector, (1, 1, -0.1, -1)),
        ("k_mad", kata.StragglerDetector, (1, 1, 0, -1)),
        ("intervals", kata.blame, ([],)),
        ("intervals", kata.blame, ([(0, 1, 2, "compute"), (1, 3, 2, "wait")],)),
        ("compute", kata.throughput_loss, ([],)),
        ("compute", kata.throughput_loss, ([nan],)),
        ("compute", kata.throughput_loss, ([1, -1],)),
        ("compute", kata.throughput_loss, ([1, inf],)),
    ):
        with pytest.raises(ValueError, match=f"^{name}: "):
            call(*args)
