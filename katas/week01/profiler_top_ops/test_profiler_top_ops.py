"""Who spent the GPU's time: a captured GPT-2 forward pass, and small traces with known answers."""

import copy
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

# sums of a few dozen times in another order; times have three decimals
REORDERED = 1e-9


@pytest.fixture(scope="module")
def h200(profile):
    """The H200's ceilings, on which the capture was made, whatever GPU counts here."""
    peak = {"float16": 989.4e12, "float32": 67e12}
    return replace(profile, peak=peak, bandwidth=4.8e12, launch_s=2e-6)


@pytest.fixture(scope="module")
def gpt2(kata, oracle):
    """GPT2LMHeadModel, float16, 8 sequences of 512 tokens, one forward pass."""
    return kata.load_trace(oracle.DATA / "gpt2_h200_trace.json.gz")


def times(kata, profile, trace, k=99):
    """GPU microseconds and calls, op by op."""
    return {stat.name: (stat.cuda_us, stat.calls) for stat in kata.top_ops(trace, k, profile)}


# ---- the captured forward pass -------------------------------------------------------------


def test_the_three_costliest_ops_of_gpt2(kata, h200, gpt2):
    stats = kata.top_ops(gpt2, 3, h200)
    assert [(stat.name, stat.calls) for stat in stats] == [
        ("aten::mm", 1),
        ("aten::addmm", 48),
        ("aten::mul", 48),
    ]
    for stat, cuda_us in zip(stats, (3044.515, 1135.65, 645.147), strict=True):
        assert math.isclose(stat.cuda_us, cuda_us, rel_tol=REORDERED)
    assert [stat.regime for stat in stats] == ["compute", "compute", "memory"]


def test_every_op_agrees_with_pytorch(kata, oracle, h200, gpt2):
    found, expected = times(kata, h200, gpt2), oracle.key_averages()
    assert found.keys() == expected.keys()
    for name, (cuda_us, calls) in expected.items():
        assert found[name][1] == calls, name
        assert math.isclose(found[name][0], cuda_us, rel_tol=REORDERED), name


def test_the_lm_head_is_far_from_its_roof(kata, h200, gpt2):
    [head] = kata.top_ops(gpt2, 1, h200)
    assert head.flops == 2 * 4096 * 768 * 50257
    assert head.bytes == 2 * (4096 * 768 + 768 * 50257 + 4096 * 50257)  # 638 FLOP per byte
    # 320 us of 3045: its kernel is called align1, for 50257 is odd
    assert math.isclose(head.sol_fraction, 0.105, abs_tol=5e-4)


def test_an_op_is_held_against_the_roof_of_all_its_calls(kata, h200, gpt2):
    stats = {stat.name: stat for stat in kata.top_ops(gpt2, 99, h200)}
    mul, rows, cols = stats["aten::mul"], 8 * 512, 3072
    # 36 by a number, 12 by another tensor
    assert mul.bytes == (36 * 2 + 12 * 3) * rows * cols * 2
    assert math.isclose(mul.sol_fraction, mul.bytes / 4.8e12 * 1e6 / 645.147, rel_tol=REORDERED)
    # 12 each of 768 to 2304, 768 to 768, 768 to 3072 and back: all bound by arithmetic
    products = 12 * 2 * rows * 768 * (2304 + 768 + 3072 + 3072)
    addmm = stats["aten::addmm"]
    assert addmm.flops == products
    assert math.isclose(addmm.sol_fraction, products / 989.4e12 * 1e6 / 1135.65, rel_tol=REORDERED)
    assert (stats["aten::gather"].regime, stats["aten::gather"].sol_fraction) == ("unknown", None)


def test_gpt2_leaves_the_gpu_idle_half_of_the_time(kata, gpt2):
    assert math.isclose(kata.gpu_busy_fraction(gpt2), 0.50, abs_tol=0.01)


# ---- who launched it -----------------------------------------------------------------------


def test_the_innermost_op_gets_the_time(kata, oracle, h200):
    trace = oracle.trace(
        oracle.op("aten::linear", 0, 100),
        oracle.op("aten::t", 5, 5),
        oracle.op("aten::addmm", 20, 30),
        oracle.launch(1, 25),
        oracle.launch(2, 50),  # addmm has just returned
        oracle.kernel(1, 200, 7.0),
        oracle.kernel(2, 300, 3.0),
    )
    assert times(kata, h200, trace) == {"aten::addmm": (7.0, 1), "aten::linear": (3.0, 1)}


@pytest.mark.parametrize("flipped", [False, True])
def test_of_ops_that_start_together_the_shorter_is_within(kata, oracle, h200, flipped):
    ops = [oracle.op("aten::linear", 10, 100), oracle.op("aten::addmm", 10, 90)]
    trace = oracle.trace(
        *(reversed(ops) if flipped else ops), oracle.launch(1, 10), oracle.kernel(1, 200, 7.0)
    )
    assert times(kata, h200, trace) == {"aten::addmm": (7.0, 1)}


def test_only_ops_count_as_ops(kata, oracle, h200):
    trace = oracle.trace(
        oracle.op("aten::mm", 0, 100),
        oracle.op("my phase", 10, 80, cat="user_annotation"),
        oracle.launch(1, 20),
        oracle.kernel(1, 200, 7.0),
        {"ph": "s", "id": 1, "pid": 100, "tid": 1, "ts": 20, "cat": "ac2g", "name": "ac2g"},
        {"ph": "M", "name": "process_name", "pid": 100, "tid": 0, "ts": 0, "args": {}},
    )
    assert times(kata, h200, trace) == {"aten::mm": (7.0, 1)}


def test_a_launch_belongs_to_its_own_thread(kata, oracle, h200):
    # backward passes run on threads of their own, while the main thread waits within an op; another
    # process numbers its threads from 1, too
    main, backward, other = {"tid": 1}, {"tid": 2}, {"pid": 101, "tid": 1}
    trace = oracle.trace(
        oracle.op("aten::item", 0, 100, **main),
        oracle.op("aten::mm", 10, 20, **backward),
        oracle.op("aten::mm", 10, 60, **other),
        oracle.launch(1, 15, **backward),
        oracle.launch(2, 16, **main),
        oracle.launch(3, 17, **other),
        oracle.kernel(1, 200, 7.0),
        oracle.kernel(2, 300, 3.0),
        oracle.kernel(3, 400, 2.0),
    )
    assert times(kata, h200, trace) == {"aten::mm": (9.0, 2), "aten::item": (3.0, 1)}


@pytest.mark.parametrize("work", ["kernel", "gpu_memcpy", "gpu_memset"])
@pytest.mark.parametrize("call", ["cuda_runtime", "cuda_driver"])
def test_all_ways_to_launch_and_all_kinds_of_work(kata, oracle, h200, call, work):
    trace = oracle.trace(
        oracle.op("aten::mm", 0, 100),
        oracle.launch(1, 20, cat=call),
        oracle.kernel(1, 200, 7.0, cat=work),
    )
    assert times(kata, h200, trace) == {"aten::mm": (7.0, 1)}


def test_a_call_with_several_kernels_is_one_call(kata, oracle, h200):
    # one graph launch: many kernels with one correlation id; then a fill and a kernel in one op
    graph = [oracle.kernel(1, 200 + 10 * at, 2.0) for at in range(5)]
    trace = oracle.trace(
        oracle.op("replay", 0, 50),
        oracle.launch(1, 10, name="cudaGraphLaunch"),
        *graph,
        oracle.op("aten::addmm", 60, 40),
        oracle.launch(2, 61, name="cudaMemsetAsync"),
        oracle.launch(3, 62),
        oracle.kernel(2, 300, 1.0, cat="gpu_memset"),
        oracle.kernel(3, 310, 4.0),
    )
    assert times(kata, h200, trace) == {"replay": (10.0, 1), "aten::addmm": (5.0, 1)}


def test_work_that_no_op_launched_is_unattributed(kata, oracle, h200):
    trace = oracle.trace(
        oracle.op("aten::mm", 0, 100),
        oracle.launch(1, 20),
        oracle.launch(2, 150),  # outside every op
        oracle.kernel(1, 200, 2.0),
        oracle.kernel(2, 210, 3.0),
        oracle.kernel(2, 220, 3.0),
        oracle.kernel(99, 230, 4.0),  # launched before the trace began
    )
    assert times(kata, h200, trace) == {"<unattributed>": (10.0, 2), "aten::mm": (2.0, 1)}
    [stat] = kata.top_ops(trace, 1, h200)
    assert (stat.name, stat.regime, stat.sol_fraction) == ("<unattributed>", "unknown", None)


@given(order=st.randoms(use_true_random=False))
def test_the_order_of_events_says_nothing(kata, oracle, h200, order):
    trace = oracle.forward(layers=4)
    order.shuffle(trace["traceEvents"])
    before = copy.deepcopy(trace)
    assert times(kata, h200, trace) == {"aten::addmm": (20.0, 4)}
    assert kata.gpu_busy_fraction(trace) == 20 / 65  # 5 of every 20 us, up to the last
    assert trace == before


def test_a_trace_that_has_grown_is_read_again(kata, oracle, h200):
    trace = oracle.forward(layers=1)
    assert times(kata, h200, trace) == {"aten::addmm": (5.0, 1)}
    trace["traceEvents"].append(oracle.kernel(0, 30.0, 2.0))
    assert times(kata, h200, trace) == {"aten::addmm": (7.0, 1)}
    assert kata.gpu_busy_fraction(trace) == 7 / 17  # from 15 to 20, and from 30 to 32


def test_k_ops_the_longest_first(kata, oracle, h200):
    durations = [3.0, 9.0, 1.0, 5.0]
    events = []
    for at, dur in enumerate(durations):
        # the shorter on the GPU, the longer on the CPU
        events.append(oracle.op(f"aten::op{at}", 100 * at, 50 - dur))
        events += [oracle.launch(at, 100 * at + 1), oracle.kernel(at, 100 * at + 20, dur)]
    trace = oracle.trace(*events)
    assert [*times(kata, h200, trace, k=3)] == ["aten::op1", "aten::op3", "aten::op0"]


# ---- the roof ------------------------------------------------------------------------------


def one_op(oracle, shapes, dur, kind="c10::Half"):
    op = oracle.op("aten::mm", 0, 100, shapes=shapes, kind=kind)
    return oracle.trace(op, oracle.launch(1, 1), oracle.kernel(1, 20, dur))


CUBE = [[4096, 4096], [4096, 4096]]
ROW = [[1, 8192], [8192, 8192]]
ROW_BYTES = 2 * (8192**2 + 2 * 8192)


@pytest.mark.parametrize(
    ("shapes", "kind", "regime", "least_us"),
    [
        (CUBE, "c10::Half", "compute", 2 * 4096**3 / 989.4e6),
        (CUBE, "float", "compute", 2 * 4096**3 / 67e6),
        (ROW, "c10::Half", "memory", ROW_BYTES / 4.8e6),
        (ROW, "long int", "memory", 4 * ROW_BYTES / 4.8e6),  # no FLOPs, and no peak
        ([[64, 64], [64, 64]], "c10::Half", "latency", 2 * 3 * 64**2 / 4.8e6),  # 5 ns of 2 us
    ],
    ids=["compute", "compute in float32", "memory", "memory of integers", "latency"],
)
def test_regimes(kata, oracle, h200, shapes, kind, regime, least_us):
    for fraction in (0.5, 2.0):  # what is in a cache comes faster than memory could send it
        [stat] = kata.top_ops(one_op(oracle, shapes, least_us / fraction, kind), 1, h200)
        assert stat.regime == regime
        assert math.isclose(stat.sol_fraction, fraction, rel_tol=REORDERED)


@pytest.mark.parametrize(
    ("ceiling", "regime", "least_us"),
    [
        ({"bandwidth": 320e9}, "memory", ROW_BYTES / 320e3),
        ({"peak": {"float16": 0.5e12}}, "compute", 2 * 8192**2 / 0.5e6),
        ({"launch_s": 27.9e-6}, "memory", ROW_BYTES / 4.8e6),  # the call takes 27.97 us
        ({"launch_s": ROW_BYTES / 4.8e12}, "memory", ROW_BYTES / 4.8e6),
        ({"launch_s": 28.0e-6}, "latency", ROW_BYTES / 4.8e6),
    ],
    ids=[
        "bandwidth",
        "peak",
        "longer than a launch",
        "as long as a launch",
        "shorter than a launch",
    ],
)
def test_another_gpu_has_another_roof(kata, oracle, h200, ceiling, regime, least_us):
    [stat] = kata.top_ops(one_op(oracle, ROW, 1000.0), 1, replace(h200, **ceiling))
    assert stat.regime == regime
    assert math.isclose(stat.sol_fraction, least_us / 1000, rel_tol=REORDERED)


def calls_of(oracle, *shapes, dur):
    """Calls of one op, one after the other, each with its operands and a kernel."""
    events = []
    for at, operands in enumerate(shapes):
        events.append(oracle.op("aten::mm", 100 * at, 50, shapes=operands))
        events += [oracle.launch(at, 100 * at + 1), oracle.kernel(at, 1000 * at + 200, dur)]
    return oracle.trace(*events)


@pytest.mark.parametrize(("rows", "regime"), [(4, "compute"), (5, "memory")])
def test_each_call_has_a_roof_of_its_own(kata, oracle, h200, rows, regime):
    # 139 us of arithmetic in one call, 28 us of reading in each of the others
    [stat] = kata.top_ops(calls_of(oracle, CUBE, *[ROW] * rows, dur=500.0), 1, h200)
    least_us = 2 * 4096**3 / 989.4e6 + rows * ROW_BYTES / 4.8e6
    assert stat.regime == regime
    assert math.isclose(stat.sol_fraction, least_us / (500 * (1 + rows)), rel_tol=REORDERED)


def test_many_short_calls_are_still_short(kata, oracle, h200):
    # 1.1 us each, less than a launch; 11 us together
    trace = calls_of(oracle, *[[[512, 1024], [1024, 1024]]] * 10, dur=4.0)
    [stat] = kata.top_ops(trace, 1, h200)
    assert stat.regime == "latency"
    assert math.isclose(stat.sol_fraction, 2 * 512 * 1024**2 / 989.4e6 / 4, rel_tol=REORDERED)


def test_one_call_of_unknown_work_makes_the_op_unknown(kata, oracle, h200):
    trace = calls_of(oracle, [[64, 64], [64, 64]], None, dur=5.0)  # one is recorded without shapes
    [stat] = kata.top_ops(trace, 1, h200)
    assert (stat.regime, stat.sol_fraction) == ("unknown", None)
    assert stat.flops == 2 * 64**3


# ---- was the GPU busy? ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spans", "busy"),
    [
        ([(100, 50)], 1.0),
        ([(100, 10), (130, 10)], 20 / 40),  # a gap
        ([(100, 10), (110.25, 10)], 20 / 20.25),  # shorter than anything a host could do in it
        ([(100, 20), (110, 20)], 1.0),  # two streams
        ([(100, 100), (110, 10), (150, 10), (220, 20)], 120 / 140),
    ],
    ids=["alone", "a gap", "a short gap", "two streams", "short ones beside a long one"],
)
def test_overlapping_streams_are_busy_once(kata, oracle, spans, busy):
    work = [oracle.kernel(at, ts, dur, stream=at) for at, (ts, dur) in enumerate(spans)]
    assert kata.gpu_busy_fraction(oracle.trace(*work)) == busy


def test_copies_keep_the_gpu_busy(kata, oracle):
    work = [oracle.kernel(1, 100, 10), oracle.kernel(3, 140, 10)]
    copy = oracle.kernel(2, 110, 30, cat="gpu_memcpy")
    assert kata.gpu_busy_fraction(oracle.trace(*work, copy)) == 1.0


# ---- cost and bad input --------------------------------------------------------------------


def test_no_loop_in_a_loop(kata, oracle, h200, lines, cost, seed):
    trace = oracle.forward(layers=1000)
    random.Random(seed).shuffle(trace["traceEvents"])
    events = len(trace["traceEvents"])
    with lines(limit=200 * events) as counted:
        found = times(kata, h200, trace)
    assert found == {"aten::addmm": (5000.0, 1000)}
    cost.check("instructions", counted.lines / events)


@pytest.mark.parametrize("events", [None, [], ["op", "launch"]], ids=["no list", "empty", "cpu"])
def test_a_trace_without_the_gpu_is_refused(kata, oracle, h200, events):
    made = {"op": oracle.op("aten::mm", 0, 100), "launch": oracle.launch(1, 20)}
    trace = {} if events is None else oracle.trace(*(made[name] for name in events))
    with pytest.raises(ValueError, match="no GPU activity in trace"):
        kata.top_ops(trace, 3, h200)
    with pytest.raises(ValueError, match="no GPU activity in trace"):
        kata.gpu_busy_fraction(trace)
