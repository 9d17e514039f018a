"""The timing protocol and its verdicts, on a device that the test plays."""

import itertools
import json
import random
import statistics
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from harness.content.kata import CostThreshold
from harness.hardware.profiles import Cost, find_profile
from harness.judge.timing.device_state import DeviceState
from harness.judge.timing.measure import (
    Clock,
    HostClock,
    Samples,
    StreamCheck,
    Timed,
    WallClock,
    check_streams,
    compare,
    measure,
    median_interval,
)
from harness.judge.timing.threshold import judge_cost, judge_ratio, judge_roofline

H200 = find_profile(Path(__file__).parents[1] / "hardware_profiles", "h200_sxm")
LAUNCH_S, SYNC_S = 5e-6, 20e-6


class PlayedDevice(Clock):
    """Streams that work off what the host launches; the host's time is made up as well."""

    asynchronous = True

    def __init__(self):
        self.host = 0.0
        self.free = {"main": 0.0, "side": 0.0}  # when each stream will have done all its work
        self.hiccups = []  # seconds that the next waits take longer
        self.waits = 0

    def launch(self, seconds, stream="main"):
        self.host += LAUNCH_S
        self.free[stream] = max(self.free[stream], self.host) + seconds

    def occupy(self, seconds):
        self.free["main"] = max(self.free["main"], self.host) + seconds

    def now(self):
        return self.host

    def mark(self):
        return max(self.free["main"], self.host)

    def between(self, start, stop):
        return stop - start

    def wait_for(self, mark):
        self.host = max(self.host, mark) + SYNC_S

    def wait(self):
        self.waits += 1
        late = self.hiccups.pop() if self.hiccups else 0.0
        self.host = max(self.host, *self.free.values()) + SYNC_S + late


class PlayedReading:
    """A state that is read once it has been asked for often enough."""

    def __init__(self, state, after=0):
        self.result = state
        self.after = after

    def done(self):
        self.after -= 1
        return self.after < 0

    def state(self):
        return self.result


@pytest.fixture
def device():
    return PlayedDevice()


def times(*seconds, **seen):
    """What was measured: these samples, and what was seen around them."""
    return Timed(mine=Samples(seconds), **seen)


# ---- how long, how often -------------------------------------------------------------------


def test_a_steady_kernel_is_known_after_thirty_samples(device):
    samples = measure(lambda: device.launch(0.05), device).mine
    assert samples.median == pytest.approx(0.05)
    assert len(samples.values) == 30


def test_a_short_kernel_is_timed_for_at_least_300_ms(device):
    samples = measure(lambda: device.launch(1e-4), device).mine
    assert sum(samples.values) > 0.8 * 0.3  # untimed rounds and checks take the rest


def test_timing_goes_on_until_the_median_is_known_to_one_percent(device):
    noise = random.Random(0)
    samples = measure(lambda: device.launch(2e-3 * noise.uniform(0.9, 1.1)), device).mine
    low, high = samples.interval
    # 300 ms, which are long enough for a steady kernel, would leave 3 %
    assert 0.008 < (high - low) / samples.median <= 0.01


def test_a_noisy_kernel_ends_with_the_budget_and_keeps_every_sample(device):
    noise = random.Random(0)
    given = []

    def call():
        given.append(0.01 * noise.uniform(0.2, 5))
        device.launch(given[-1])

    samples = measure(call, device).mine
    assert 10 < device.host < 13
    low, high = samples.interval
    assert high - low > 0.01 * samples.median
    # all but the warm-up, one untimed round a batch, and what the check of the streams ran
    assert len(samples.values) > 0.8 * len(given)


def test_a_budget_of_ones_own_is_kept(device):
    noise = random.Random(0)
    measure(lambda: device.launch(0.01 * noise.uniform(0.2, 5)), device, most_s=1.0)
    assert device.host < 3


def test_outliers_move_the_median_little(device):
    noise = random.Random(0)
    timed = measure(lambda: device.launch(0.1 if noise.random() < 0.05 else 0.01), device)
    assert timed.mine.median == pytest.approx(0.01)


def test_what_comes_before_each_call_is_not_timed(device):
    timed = measure(lambda: device.launch(1e-3), device, before=lambda: device.launch(2e-3))
    assert timed.mine.median == pytest.approx(1e-3)


def test_the_wall_clock_starts_and_stops_with_an_idle_gpu(device, monkeypatch):
    monkeypatch.setattr("torch.cuda.synchronize", device.wait)
    monkeypatch.setattr("harness.judge.timing.measure.perf_counter", device.now)
    clock = WallClock()
    before = clock.mark()
    device.launch(1e-3)
    device.launch(2e-3)
    assert 3e-3 <= clock.between(before, clock.mark()) < 3.1e-3
    # two kernels of a microsecond: the launches are what is waited for
    timed = compare(
        lambda: device.launch(2e-6), lambda: [device.launch(1e-6) for _ in range(20)], clock
    )
    assert timed.ratios.median > 3
    assert timed.host_s is None
    assert timed.streams is None


def test_what_a_call_costs_the_host_is_told_for_both_sides(device):
    def mine():
        device.launch(1e-4)

    def theirs():
        device.launch(1e-4)
        device.launch(1e-4)

    timed = compare(mine, theirs, device, required=1.5)
    assert timed.host_s == pytest.approx((LAUNCH_S, 2 * LAUNCH_S))
    verdict = judge_ratio(timed, H200, 1.5, "ratio")
    assert verdict.detail["host_s"] == pytest.approx(LAUNCH_S)
    assert verdict.detail["baseline_host_s"] == pytest.approx(2 * LAUNCH_S)
    assert measure(mine, HostClock(), most_s=0.01).host_s is None


def test_launches_hide_behind_work_that_is_queued_already(device):
    """The host needs 3 x 5 µs a call, the device 3 µs: with a full queue only the latter counts."""

    def call():
        for _ in range(3):
            device.launch(1e-6)

    timed = measure(call, device, before=lambda: device.launch(50e-6))
    assert timed.mine.median == pytest.approx(3e-6)


def test_the_first_call_of_a_batch_meets_a_full_queue_too(device):
    """On an idle device the 5 µs of the launch would lie between the marks."""
    timed = measure(lambda: device.launch(20e-6), device)
    assert max(timed.mine.values) == pytest.approx(20e-6)


def test_compiling_does_not_use_up_the_warm_up(device):
    calls = []

    def call():
        device.host += 0.0 if calls else 30.0  # the first call compiles
        calls.append(device.host)
        device.launch(0.01)

    ahead = []

    def probe():
        ahead.append(len(calls))
        return PlayedReading(None)

    measure(call, device, probe=probe)
    # the state is read before the first call, and again once 200 ms of calls have warmed up
    assert ahead[0] == 0
    assert ahead[1] >= 1 + 0.2 / 0.01


def test_the_warm_up_calls_both_sides_and_what_comes_before_them(device):
    done = []

    def named(name):
        return lambda: (done.append(name), device.launch(0.01))

    compare(named("mine"), named("theirs"), device, before=lambda: done.append("before"))
    assert done[:6] == ["mine", "theirs", "before", "mine", "before", "theirs"]


def test_a_warm_up_of_slow_calls_ends_after_five_seconds(device):
    calls, at_probe = [], []

    def call():
        calls.append(1)
        device.host += 2.0

    def probe():
        at_probe.append(len(calls))
        return PlayedReading(None)

    measure(call, device, probe=probe, most_s=1.0)
    assert at_probe == [0, 1 + 3]  # one that compiles, then three of 2 s


def test_a_batch_is_held_back_for_a_fifth_of_a_second_at_the_most(device):
    held = []
    device.occupy = held.append

    def launched_in(seconds):
        return lambda: setattr(device, "host", device.host + seconds)

    for seconds in (1e-3, 0.05):
        device.time_rounds([launched_in(seconds)], 10, lambda: None)
    assert held == pytest.approx([1.5 * 10 * 1e-3, 0.2])


def test_the_host_waits_between_batches_only(device):
    timed = measure(lambda: device.launch(1e-4), device, before=lambda: device.launch(1e-4))
    assert len(timed.mine.values) > 1000
    assert device.waits < 250  # a tenth of the calls, and less when batches have grown


def test_the_interval_holds_the_true_median():
    draw = random.Random(1)
    hits = 0
    for _ in range(300):
        low, high = median_interval([draw.gauss(10, 1) for _ in range(60)])
        hits += low <= 10 <= high
    assert hits >= 0.92 * 300


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [
        (3, 0, 2),  # 1.5 -+ 1.70, held inside
        (31, 10, 21),  # 15.5 -+ 5.46
        (100, 40, 60),  # 50 -+ 9.8
        (1000, 469, 531),  # 500 -+ 30.99; with 2 for the 1.96 it would be 31.6
    ],
)
def test_the_interval_lies_between_these_ranks(count, low, high):
    assert median_interval(range(count, 0, -1)) == (low + 1, high + 1)


@pytest.mark.parametrize(("share", "value"), [(0.0, 0), (0.1, 1), (0.9, 9), (1.0, 9)])
def test_a_quantile_is_the_sample_with_that_share_below_it(share, value):
    assert Samples(tuple(range(9, -1, -1))).quantile(share) == value


@pytest.mark.parametrize(("required", "known"), [(2.0, True), (3.0, False), (4.0, True)])
def test_a_required_ratio_is_timed_until_its_side_is_known(device, required, known):
    """The ratio is 2.9 and 3.1 in turns: 30 pairs tell it from 2 and 4, and none from 3."""
    theirs = itertools.cycle((0.029, 0.031))
    timed = compare(
        lambda: device.launch(0.01), lambda: device.launch(next(theirs)), device, required=required
    )
    assert (len(timed.mine.values) == 30) is known
    assert (device.host > 10) is not known


@pytest.mark.parametrize("spreads", [(0.03, 0.0), (0.0, 0.03)])
def test_without_a_ratio_required_both_medians_are_known_to_one_percent(device, spreads):
    """Of 3 % to either side 30 samples leave an interval of 2 %, some 140 one of 1 %."""
    noise = random.Random(0)

    def varying(spread):
        return lambda: device.launch(0.02 * noise.uniform(1 - spread, 1 + spread))

    timed = compare(*map(varying, spreads), device)
    for samples in (timed.mine, timed.baseline):
        low, high = samples.interval
        assert high - low <= 0.01 * samples.median
    assert device.host < 10


def test_a_comparison_gives_one_ratio_a_pair_and_survives_drift(device):
    drift = {"factor": 1.0}

    def mine():
        drift["factor"] += 0.01
        device.launch(0.01 * drift["factor"])

    timed = compare(mine, lambda: device.launch(0.03 * drift["factor"]), device, required=2.0)
    assert timed.ratios.median == pytest.approx(3.0)
    assert statistics.pstdev(timed.ratios.values) < 1e-9
    assert statistics.pstdev(timed.mine.values) > 1e-4


def test_the_host_clock_sees_a_real_difference():
    small, large = list(range(2_000)), list(range(60_000))
    timed = compare(lambda: sorted(small), lambda: sorted(large), HostClock(), required=5.0)
    assert timed.ratios.median > 5
    assert timed.streams is None


# ---- work left on another stream -----------------------------------------------------------


def test_honest_work_leaves_nothing_running(device):
    check = check_streams(lambda: device.launch(1e-3), device, seconds=1e-3)
    assert check.calls == 10
    assert check.device_s == pytest.approx(10e-3, rel=0.01)
    assert check.left_s == pytest.approx(SYNC_S)
    assert check.clean


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_work_left_on_another_stream_is_seen(device, share):
    """Of 1 ms aside, `share` is not waited for: 10 calls leave that much of 10 ms running."""

    def call():
        device.launch((1 - share) * 1e-3)
        device.launch(1e-3, "side")

    check = check_streams(call, device, seconds=1e-3)
    assert not check.clean
    assert check.left_s == pytest.approx(10e-3 * share, rel=0.02)


def test_two_streams_that_end_together_are_honest(device):
    def call():
        device.launch(1e-3, "side")
        device.launch(1e-3)

    assert check_streams(call, device, seconds=1e-3).clean


def test_another_stream_that_is_waited_for_is_honest(device):
    def call():
        device.launch(1e-3, "side")
        device.free["main"] = max(device.free["main"], device.free["side"])

    assert check_streams(call, device, seconds=1e-3).clean


def test_a_host_that_was_kept_waiting_is_not_accused(device):
    device.hiccups = [0.0, 0.0, 0.05, 0.0]  # the second wait, which ends the first try, is late
    assert check_streams(lambda: device.launch(1e-3), device, seconds=1e-3).clean
    assert device.waits == 4


@pytest.mark.parametrize(
    ("device_s", "left_s", "clean"),
    [
        (1e-3, 0.4e-3, True),  # half a millisecond is the host's own
        (1e-3, 0.6e-3, False),
        (10e-3, 1.1e-3, True),  # a tenth of all, of 11.1 ms
        (10e-3, 1.2e-3, False),
    ],
)
def test_half_a_millisecond_or_a_tenth_of_the_time_may_be_left(device_s, left_s, clean):
    assert StreamCheck(calls=10, device_s=device_s, left_s=left_s).clean is clean


@pytest.mark.parametrize(("mine", "theirs"), [("side", "main"), ("main", "side")])
def test_the_call_under_test_is_checked_and_not_the_baseline(device, mine, theirs):
    calls = [lambda stream=stream: device.launch(1e-3, stream) for stream in (mine, theirs)]
    assert compare(*calls, device).streams.clean is (mine == "main")


def test_a_check_lasts_about_ten_milliseconds_whatever_the_kernel(device):
    assert check_streams(lambda: device.launch(0.1), device, seconds=0.1).calls == 2
    assert check_streams(lambda: device.launch(1e-6), device, seconds=1e-6).calls == 100


def test_work_left_running_is_found_where_only_later_or_earlier_calls_leave_any(device):
    """Some 1000 calls are timed in all; those from 400 to 800 leave their work aside."""
    calls = []

    def call():
        calls.append(1)
        device.launch(1e-3, "side" if 400 < len(calls) < 800 else "main")

    timed = measure(call, device, probe=lambda: PlayedReading(None, after=60))
    assert len(calls) > 1000
    assert not timed.streams.clean


def test_work_left_running_is_refused_in_a_sentence(device):
    timed = measure(lambda: device.launch(1e-3, "side"), device)
    assert timed.mine.median < 1e-4  # what a clock that looks at one stream believes
    verdict = judge_roofline(timed, Cost(bytes=4.8e9), "float32", H200, 0.75, "roofline")
    assert verdict.outcome == "failed"
    assert "work was left running: 100 calls took" in verdict.message
    assert "run it on the current stream" in verdict.message


# ---- the device's state --------------------------------------------------------------------


def test_the_state_is_read_before_the_first_call_and_again_under_load(device):
    states = iter([DeviceState(utilization=0.0), DeviceState(sm_clock_hz=1.7e9)])
    seen = []

    def probe():
        seen.append(device.host)
        return PlayedReading(next(states))

    timed = measure(lambda: device.launch(0.05), device, probe=probe)
    assert timed.before == DeviceState(utilization=0.0)
    assert timed.during == DeviceState(sm_clock_hz=1.7e9)
    assert seen[0] == 0.0
    assert seen[1] > 0.2  # after the warm-up


def test_timing_goes_on_until_the_state_has_been_read(device):
    readings = iter([PlayedReading(None), PlayedReading(DeviceState(), after=7)])
    timed = measure(lambda: device.launch(0.02), device, probe=lambda: next(readings))
    # thirty samples were enough after three batches, the state was there seven batches later
    assert len(timed.mine.values) == 100


def test_a_state_that_never_comes_ends_with_the_budget(device):
    readings = iter([PlayedReading(None), PlayedReading(None, after=10**9)])
    timed = measure(lambda: device.launch(0.05), device, probe=lambda: next(readings))
    assert device.host < 13
    assert timed.during is None


# ---- verdicts ------------------------------------------------------------------------------

COPY = Cost(bytes=4.8e9)  # a millisecond at the H200's 4.8 TB/s


@pytest.mark.parametrize(
    ("samples", "outcome"),
    [
        ([1.25e-3] * 30, "passed"),  # 0.8 of the speed of light, asked for 0.75
        ([1.5e-3] * 30, "failed"),  # 0.67
        ([1.25e-3] * 15 + [1.4e-3] * 15, "ambiguous"),  # the interval straddles the limit
    ],
)
def test_a_roofline_verdict_needs_the_whole_interval(samples, outcome):
    verdict = judge_roofline(times(*samples), COPY, "float32", H200, 0.75, "roofline")
    assert verdict.outcome == outcome


def test_a_roofline_verdict_tells_share_spread_and_limit():
    samples = [at * 1e-5 for at in range(130, 119, -1)]  # 1.30 ms to 1.20 ms
    verdict = judge_roofline(times(*samples), COPY, "float32", H200, 0.7, "roofline")
    assert verdict.value == pytest.approx(0.8)
    assert (verdict.limit, verdict.relation) == (0.7, ">=")
    assert verdict.message == (
        "roofline: 0.800 of the speed of light (1250.0 µs, 1210.0 µs to 1290.0 µs), "
        "0.899 of the measured ceiling, limit >= 0.7"
    )
    shares = [verdict.detail[name] for name in ("p10", "median", "p90")]
    assert shares == pytest.approx([1.21e-3, 1.25e-3, 1.29e-3])
    assert verdict.detail["samples"] == 11
    # 4.8 GB at the 4.27 TB/s measured are 1.1241 ms
    assert verdict.detail["measured_ceiling_share"] == pytest.approx(1.1241 / 1.25, rel=1e-4)


def test_without_a_measured_ceiling_none_is_mentioned():
    cost = Cost(flops=67e9)  # float32 was not measured on the H200: a millisecond either way
    verdict = judge_roofline(times(*[1e-3] * 30), cost, "float32", H200, 0.5, "roofline")
    assert "measured ceiling" not in verdict.message
    assert "measured_ceiling_share" not in verdict.detail


@pytest.mark.parametrize(
    ("seconds", "outcome"),
    [
        (125e-6, "passed"),  # 1.11 of the datasheet's 989.4 TFLOP/s, but possible at 1980 MHz
        (120e-6, "failed"),  # 132 x 4096 x 1.98 GHz = 1070.5 TFLOP/s give 128.4 µs, 1.07 times it
    ],
)
def test_faster_than_physics_means_faster_than_the_maximum_clock_allows(seconds, outcome):
    matmul = Cost(flops=2 * 4096**3, bytes=3 * 2 * 4096**2)
    verdict = judge_roofline(times(*[seconds] * 30), matmul, "float16", H200, 0.75, "roofline")
    assert verdict.outcome == outcome
    assert ("faster than physics" in verdict.message) == (outcome == "failed")


def test_faster_than_physics_says_what_may_lie():
    verdict = judge_roofline(times(*[0.9e-3] * 30), COPY, "float32", H200, 0.75, "roofline")
    assert verdict.outcome == "failed"
    assert "900.0 µs, where h200_sxm needs at least 1000.0 µs" in verdict.message
    assert "the kernel, the cost in oracle.py or the profile is wrong" in verdict.message


def test_a_copy_within_five_percent_of_the_datasheet_is_believed():
    verdict = judge_roofline(times(*[0.96e-3] * 30), COPY, "float32", H200, 0.75, "roofline")
    assert verdict.outcome == "passed"


def test_a_throttled_device_is_not_graded():
    """Three quarters of 1830 MHz are 1372.5."""
    slow = DeviceState(sm_clock_hz=1.2e9, temperature_c=91, slowed_by=("heat",))
    verdict = judge_roofline(
        times(*[3e-3] * 30, during=slow), COPY, "float32", H200, 0.75, "roofline"
    )
    assert verdict.outcome == "not_graded"
    assert "held at 1200 MHz by heat while timing" in verdict.message
    assert verdict.value == pytest.approx(1 / 3)
    assert (verdict.detail["sm_clock_hz"], verdict.detail["temperature_c"]) == (1.2e9, 91)


def test_a_busy_device_is_not_graded_even_where_it_would_pass():
    busy = DeviceState(utilization=0.97)
    fast, slow = Samples((1.0,) * 30), Samples((3.0,) * 30)
    timed = Timed(mine=fast, baseline=slow, before=busy)
    verdict = judge_ratio(timed, H200, 2.0, "vs eager")
    assert verdict.outcome == "not_graded"
    assert "97% busy with other work" in verdict.message


def test_work_left_running_fails_a_ratio_as_well():
    left = StreamCheck(calls=10, device_s=1e-3, left_s=50e-3)
    timed = Timed(mine=Samples((1.0,) * 30), baseline=Samples((3.0,) * 30), streams=left)
    verdict = judge_ratio(timed, H200, 2.0, "vs eager")
    assert verdict.outcome == "failed"
    assert "10 calls took 1.00 ms" in verdict.message
    assert "kept the device at work for 50.00 ms more" in verdict.message


@pytest.mark.parametrize(
    ("cost", "seconds", "warning"),
    [
        (Cost(bytes=1e9), 250e-6, None),  # 208 µs
        (Cost(bytes=240e6), 60e-6, "small for this device: 50 µs of work, 100 wanted"),
        (Cost(flops=989.4e12 * 150e-6, bytes=100e6), 200e-6, None),  # its operands may be cached
    ],
)
def test_a_case_too_small_for_the_device_is_told(cost, seconds, warning):
    verdict = judge_roofline(times(*[seconds] * 30), cost, "float16", H200, 0.5, "roofline")
    assert verdict.outcome == "passed"
    assert ("small for this device" in verdict.message) == (warning is not None)
    assert warning is None or verdict.message.endswith(warning)


def test_a_ratio_verdict_needs_the_whole_interval():
    def outcome(ratios, required):
        baseline = Samples(tuple(ratios))
        timed = Timed(mine=Samples((1.0,) * len(ratios)), baseline=baseline)
        return judge_ratio(timed, H200, required, "vs eager").outcome

    assert outcome((2.0,) * 30, 1.9) == "passed"
    assert outcome((2.0,) * 30, 2.1) == "failed"
    assert outcome((1.5, 2.5) * 15, 2.0) == "ambiguous"
    assert outcome((2.0,) * 30, 2.0) == "passed"  # what is asked for is enough
    assert outcome((1.5, 2.0) * 15, 2.0) == "ambiguous"


def test_a_ratio_verdict_keeps_the_times_of_the_call_itself():
    timed = Timed(mine=Samples((2e-3,) * 30), baseline=Samples((6e-3,) * 30))
    verdict = judge_ratio(timed, H200, 2.0, "vs eager")
    assert verdict.value == pytest.approx(3)
    assert verdict.detail["median"] == 2e-3
    assert verdict.message == (
        "vs eager: 3.00 times as fast (3.00 to 3.00; 2000.0 µs, 2000.0 µs to 2000.0 µs), "
        "limit >= 2.0"
    )


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
    assert judge_cost(cost(at_least=4), 4).outcome == "passed"
    assert judge_cost(cost(at_least=4), 3).outcome == "failed"
    assert judge_cost(cost(exactly=4), 4).outcome == "passed"
    assert judge_cost(cost(exactly=4), 3).outcome == "failed"
    assert judge_cost(cost(bound=1.0), 100, ideal=100).outcome == "passed"
    assert judge_cost(cost(bound=1.0), 99, ideal=100).outcome == "failed"
    assert judge_cost(cost(bound=1.0), 101, ideal=100).outcome == "failed"
    with pytest.raises(ValueError, match="ideal"):
        judge_cost(cost(bound=1.0), 100)


@pytest.mark.parametrize(
    ("value", "ideal", "told"),
    [
        (Fraction(7, 2), None, "moved: 3.5, limit <= 4"),
        (torch.tensor(3.5), None, "moved: 3.5, limit <= 4"),
        (Fraction(7, 2), Fraction(2), "moved: 3.5 (1.75 x the least possible), limit <= 4"),
    ],
)
def test_a_count_that_is_no_float_is_judged_and_recorded_as_one(value, ideal, told):
    verdict = judge_cost(cost(**({"bound": 2.0} if ideal else {"at_most": 4})), value, ideal)
    assert (verdict.outcome, verdict.message) == ("passed", told)
    assert (type(verdict.value), verdict.value, json.dumps(verdict.limit)[0]) == (float, 3.5, "4")


@pytest.mark.parametrize(
    ("limits", "value", "more", "told"),
    [
        ({"at_most": 4}, 5, {}, "moved: 5, limit <= 4"),
        ({"at_most": 4}, 4, {"built": "9 spills"}, "moved: 4, limit <= 4; 9 spills"),
        (
            {"bound": 2.0},
            250,
            {"ideal": 100},
            "moved: 250 (2.5 x the least possible), limit <= 200",
        ),
        (
            {"bound": 2.0},
            50,
            {"ideal": 100},
            "moved: 50 (0.5 x the least possible), limit <= 200; less than the work requires: "
            "part of it was not done, or not where it is counted",
        ),
    ],
)
def test_a_cost_verdict_in_words(limits, value, more, told):
    assert judge_cost(cost(**limits), value, **more).message == told


def test_a_slow_launch_does_not_show_in_the_time_of_a_short_kernel():
    device = PlayedDevice()

    def call():
        device.host += 300e-6  # what a launcher written in Python may take
        device.launch(100e-6)

    (times,) = device.time_rounds([call], 10, lambda: None)
    assert times == pytest.approx([100e-6] * 10)
