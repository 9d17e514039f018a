"""What limits an op: hand numbers of three GPUs, ties, levels, and the batch where it changes."""

import math
from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

# a quotient, a product and a maximum: a few roundings of 1.1e-16 each
ROUNDING = 1e-15

WORK = st.floats(0, 1e15)
MOVED = st.dictionaries(st.sampled_from(["hbm", "l2", "smem"]), st.floats(1, 1e13))


def test_ridge_points(kata):
    assert kata.ridge(kata.A100, "float16") == 156  # 312 / 2
    assert kata.ridge(kata.A100, "float32") == 9.75  # 19.5 / 2
    assert math.isclose(kata.ridge(kata.H100, "bfloat16"), 295.343, abs_tol=5e-4)  # 989.4 / 3.35
    assert math.isclose(kata.ridge(kata.H200, "bfloat16"), 206.125, rel_tol=ROUNDING)  # 989.4 / 4.8


def test_ridge_is_lower_nearer_to_the_cores(kata):
    l2, smem = (
        kata.ridge(kata.A100, "float16", "l2"),
        kata.ridge(kata.A100, "float16", level="smem"),
    )
    assert math.isclose(l2, 312e12 / 7.2192e12, rel_tol=ROUNDING)
    assert math.isclose(smem, 312e12 / 19.49184e12, rel_tol=ROUNDING)


def test_milestone_matmul_is_compute_bound(kata):
    verdict = kata.roofline(2 * 4096**3, {"hbm": 3 * 4096**2 * 2}, kata.A100, "float16")
    assert verdict.regime == "compute"
    assert math.isclose(verdict.time_s, 440.5e-6, abs_tol=0.05e-6)
    assert math.isclose(verdict.attainable, 312e12, rel_tol=ROUNDING)


def test_milestone_traffic_alone_takes_50_microseconds(kata):
    verdict = kata.roofline(0, {"hbm": 3 * 4096**2 * 2}, kata.A100, "float16")
    assert verdict.regime == "memory:hbm"
    assert math.isclose(verdict.time_s, 50.33e-6, abs_tol=0.005e-6)
    assert verdict.attainable == 0


def test_memory_bound_op_attains_intensity_times_bandwidth(kata):
    verdict = kata.roofline(1e9, {"hbm": 1e9}, kata.A100, "float16")
    assert verdict.regime == "memory:hbm"
    assert math.isclose(verdict.attainable, 2e12, rel_tol=ROUNDING)


@pytest.mark.parametrize(
    ("hbm", "l2", "smem", "regime", "time_s"),
    [  # at 2, 7.2 and 19.5 TB/s
        (1e8, 1e9, 2e9, "memory:l2", 1e9 / 7.2192e12),  # 50, 139 and 103 us
        (1e8, 3.6e8, 1.95e9, "memory:smem", 1.95e9 / 19.49184e12),  # 50, 49.9 and 100.04 us
        (1e9, 1e9, 2e9, "memory:hbm", 500e-6),  # most bytes inside, but most time outside
    ],
    ids=["l2", "smem", "hbm"],
)
def test_slowest_level_binds(kata, hbm, l2, smem, regime, time_s):
    moved = {"smem": smem, "hbm": hbm, "l2": l2}
    verdict = kata.roofline(1e9, moved, kata.A100, "float16")
    assert verdict.regime == regime
    assert math.isclose(verdict.time_s, time_s, rel_tol=ROUNDING)


def test_tiny_op_is_bound_by_its_launch(kata):
    verdict = kata.roofline(10, {"hbm": 60}, kata.A100, "float16")
    assert (verdict.regime, verdict.time_s) == ("latency", 3e-6)
    assert math.isclose(verdict.attainable, 10 / 3e-6, rel_tol=ROUNDING)


@pytest.mark.parametrize("moved", [{}, {"hbm": 0.0}], ids=["no level", "no bytes"])
def test_nothing_to_do_is_no_error(kata, moved):
    verdict = kata.roofline(0.0, moved, kata.A100, "float16")
    assert (verdict.regime, verdict.time_s, verdict.attainable) == ("latency", 3e-6, 0)


def test_nothing_to_do_takes_arithmetic_as_long_as_memory(kata):
    assert kata.crossover(lambda batch: (0.0, 0.0), kata.A100, "float16") == 1


def test_ties(kata):
    at_ridge = kata.roofline(312e9, {"hbm": 2e9}, kata.A100, "float16")  # 1 ms and 1 ms
    assert at_ridge.regime == "compute"
    even = replace(kata.A100, bandwidth={"hbm": 2e12, "l2": 4e12, "smem": 8e12})
    levels = kata.roofline(1.0, {"smem": 8e9, "l2": 4e9, "hbm": 2e9}, even, "float16")
    assert levels.regime == "memory:hbm"
    at_floor = kata.roofline(1.0, {"l2": 4e9}, replace(even, launch_s=1e-3), "float16")
    assert at_floor.regime == "memory:l2"


def test_a_millionth_apart_is_no_tie(kata):
    more = 1 + 1e-6
    below_ridge = kata.roofline(312e9, {"hbm": more * 2e9}, kata.A100, "float16")  # 1 ms and 1 ms
    assert below_ridge.regime == "memory:hbm"
    above_floor = kata.roofline(0.0, {"hbm": more * 6e6}, kata.A100, "float16")  # 3 us and 3 us
    assert above_floor.regime == "memory:hbm"


def test_levels_are_those_of_the_machine(kata):
    laptop = kata.Machine(
        name="laptop", peak={"float64": 1e11}, bandwidth={"dram": 5e10, "l3": 2e11}, launch_s=1e-6
    )
    inner = kata.roofline(1.0, {"dram": 5e7, "l3": 1e9}, laptop, "float64")  # 1 and 5 ms
    assert (inner.regime, inner.time_s) == ("memory:l3", 5e-3)
    for ask in (kata.ridge, partial(kata.crossover, lambda batch: (1.0, 1.0))):
        with pytest.raises(ValueError, match="hbm"):
            ask(laptop, "float64")


@given(flops=WORK, moved=MOVED)
def test_time_is_that_of_one_ceiling_and_under_none(kata, flops, moved):
    machine = kata.A100
    bounds = [flops / 312e12, 3e-6, *(moved[level] / machine.bandwidth[level] for level in moved)]
    time_s = kata.roofline(flops, moved, machine, "float16").time_s
    assert math.isclose(time_s, max(bounds), rel_tol=ROUNDING)


@given(flops=WORK, moved=MOVED, level=st.sampled_from(["hbm", "l2", "smem"]))
def test_more_bandwidth_never_slows(kata, flops, moved, level):
    before = kata.A100
    after = replace(before, bandwidth=before.bandwidth | {level: 2 * before.bandwidth[level]})
    faster = kata.roofline(flops, moved, after, "float16")
    assert faster.time_s <= kata.roofline(flops, moved, before, "float16").time_s


def test_linear_layer_crosses_later_than_the_ridge(kata, oracle):
    layer = oracle.linear(4096, 4096, itemsize=2)
    assert kata.crossover(layer, kata.A100, "float16") == 169  # the ridge is 156
    assert kata.crossover(layer, kata.H100, "float16") == 346  # and 295.3


def test_small_layer_never_crosses(kata, oracle):
    # as the batch grows the intensity nears 256·256·2 / (2·512) = 128, under the ridge of 295
    assert kata.crossover(oracle.linear(256, 256, itemsize=2), kata.H100, "float16") is None


def test_decode_attention_never_crosses(kata, oracle):
    attention = oracle.decode_attention(length=8192, width=128, itemsize=2)
    assert kata.crossover(attention, kata.A100, "float16") is None


def test_crossover_where_cost_is_not_linear(kata, oracle):
    # n / 3 FLOP per byte reaches 156 at 468 and 295.3 at 886.03
    assert kata.crossover(oracle.square_matmul(itemsize=2), kata.A100, "float16") == 468
    assert kata.crossover(oracle.square_matmul(itemsize=2), kata.H100, "float16") == 887


def test_exactly_at_the_ridge_is_compute_bound(kata):
    assert kata.crossover(lambda batch: (2.0 * batch, 2.0), kata.A100, "float16") == 156
    # a quarter of a millionth below it is not
    assert kata.crossover(lambda batch: (2.0 * batch, 2.0000005), kata.A100, "float16") == 157


@pytest.mark.parametrize(
    ("threshold", "hi"), [(1, 1), (2, 1), (1, 1000), (1000, 1000), (999, 1000)]
)
def test_crossover_at_the_ends_of_the_range(kata, oracle, threshold, hi):
    step = oracle.step(threshold, 156)

    def cost_fn(batch):
        assert batch in range(1, hi + 1), f"cost_fn was asked for batch {batch} of 1..{hi}"
        return step(batch)

    expected = threshold if threshold <= hi else None
    assert kata.crossover(cost_fn, kata.A100, "float16", hi=hi) == expected


def test_launch_floor_does_not_move_the_crossover(kata):
    slow_launch = replace(kata.A100, launch_s=1.0)
    assert kata.crossover(lambda batch: (2.0 * batch, 2.0), slow_launch, "float16") == 156


@given(
    k=st.integers(1, 3000),
    n=st.integers(1, 3000),
    itemsize=st.sampled_from([1, 2, 4]),
    hi=st.integers(1, 400),
)
def test_linear_crossover_agrees_with_every_batch_and_with_algebra(
    kata, oracle, k, n, itemsize, hi
):
    found = kata.crossover(oracle.linear(k, n, itemsize), kata.A100, "float16", hi=hi)
    assert found == oracle.first_compute_bound(oracle.linear(k, n, itemsize), 312e12, 2e12, hi)
    solved = oracle.linear_crossover(k, n, itemsize, Fraction(156))
    assert found == (solved if solved is not None and solved <= hi else None)


def test_crossover_calls_cost_fn_seldom(kata, oracle, cost):
    most = 0
    for threshold in (1, 2, 3, 1000, 2**19, 2**19 + 1, 2**20 - 1, 2**20, 2**20 + 1):
        asked = []
        step = oracle.step(threshold, 156)

        def counted(batch, step=step, asked=asked):
            asked.append(batch)
            return step(batch)

        found = kata.crossover(counted, kata.A100, "float16", hi=2**20)
        assert found == (threshold if threshold <= 2**20 else None)
        most = max(most, len(asked))
    cost.check("evaluations", most)


@pytest.mark.parametrize("dtype", ["float8", "fp16"])
def test_unknown_dtype_is_refused(kata, dtype):
    with pytest.raises(ValueError, match=dtype):
        kata.ridge(kata.A100, dtype)
    with pytest.raises(ValueError, match=dtype):
        kata.roofline(0.0, {"hbm": 1.0}, kata.A100, dtype)  # a copy has a dtype too
    with pytest.raises(ValueError, match=dtype):
        kata.crossover(lambda batch: (1.0, 1.0), kata.A100, dtype)


def test_unknown_level_is_refused(kata):
    with pytest.raises(ValueError, match="dram"):
        kata.ridge(kata.A100, "float16", "dram")
    with pytest.raises(ValueError, match="dram"):
        kata.roofline(1.0, {"hbm": 1.0, "dram": 1.0}, kata.A100, "float16")
    with pytest.raises(ValueError, match="dram"):
        kata.roofline(0.0, {"dram": 0.0}, kata.A100, "float16")


@pytest.mark.parametrize(("flops", "moved"), [(1.0, 0.0), (1.0, -1.0), (0.0, -1.0)])
def test_too_few_bytes_are_refused(kata, flops, moved):
    with pytest.raises(ValueError, match="l2"):
        kata.roofline(flops, {"hbm": 1.0, "l2": moved}, kata.A100, "float16")


def test_negative_flops_are_refused(kata):
    with pytest.raises(ValueError, match="flops"):
        kata.roofline(-1.0, {}, kata.A100, "float16")


@pytest.mark.parametrize(
    ("flops", "moved", "named"), [(1.0, 0.0, "hbm"), (1.0, -1.0, "hbm"), (-1.0, 1.0, "flops")]
)
@pytest.mark.parametrize("sound_from", [2**20, 2**20 + 1], ids=["below hi", "everywhere"])
def test_crossover_refuses_an_impossible_cost(kata, flops, moved, named, sound_from):
    def cost_fn(batch):
        return (1e3, 1.0) if batch >= sound_from else (flops, moved)

    with pytest.raises(ValueError, match=named):
        kata.crossover(cost_fn, kata.A100, "float16")


@pytest.mark.parametrize("hi", [0, -1])
def test_empty_range_is_refused(kata, hi):
    with pytest.raises(ValueError, match=r"\bhi\b"):
        kata.crossover(lambda batch: (1.0, 1.0), kata.A100, "float16", hi=hi)
