"""Exponentials against products, schedules that keep the rules, and how near the best they are."""

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

TIMES = st.integers(1, 20)
HALF = Fraction(1, 2)


def assert_legal(oracle, sched, *asked):
    fault = oracle.fault(sched, *asked)
    assert not fault, f"{fault} | input: {asked}\n    yours: {sorted(sched)[:12]}"


def over_least(kata, oracle, asked):
    """End over the time that no schedule can beat, of a schedule that keeps the rules."""
    sched = kata.schedule(*asked)
    assert_legal(oracle, sched, *asked)
    return oracle.end(sched, *asked[2:5]) / Fraction(oracle.least(*asked))


# ---- exponentials ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("d", "dtype", "expected"),
    [(128, "float16", 0.4999), (64, "float16", 0.9999), (256, "float16", 0.25),
     (1, "float16", 63.998), (128, "float8", 1.0)],
    ids=["d 128", "d 64", "d 256", "d 1", "float8"],
)  # fmt: skip
def test_exponentials_take_half_as_long_as_products(kata, oracle, profile, d, dtype, expected):
    found = kata.exp_to_gemm_ratio(d, oracle.hopper(profile), dtype)
    assert found == pytest.approx(expected, rel=1e-3)


def test_the_ratio_of_the_paper(kata, oracle, profile):
    # 3.9 T exponentials a second, 989 TFLOP/s
    figures = {"peak": {"bfloat16": 989e12}, "sms": 130, "sfu_per_clk_per_sm": 15}
    h100 = oracle.hopper(profile, clock_hz=2e9, **figures)
    assert kata.exp_to_gemm_ratio(128, h100, "bfloat16") == pytest.approx(0.49529, rel=1e-4)


# ---- schedules -------------------------------------------------------------------------------


# one tile of scores and a long PV: a PV that goes before QK keeps the softmax waiting
@example(n=20, wgs=2, t_qk=2, t_sm=10, t_pv=15, max_live=1)
@example(n=20, wgs=3, t_qk=1, t_sm=10, t_pv=9, max_live=1)
@given(n=st.integers(0, 9), wgs=st.integers(1, 3), t_qk=TIMES, t_sm=st.integers(1, 40),
       t_pv=TIMES, max_live=st.integers(1, 3))  # fmt: skip
def test_no_schedule_is_a_block_longer_than_the_least(
    kata, oracle, n, wgs, t_qk, t_sm, t_pv, max_live
):
    asked = n, wgs, t_qk, t_sm, t_pv, max_live
    sched = kata.schedule(*asked)
    assert_legal(oracle, sched, *asked)
    least = oracle.least(*asked) if n else 0
    assert oracle.end(sched, t_qk, t_sm, t_pv) <= least + t_qk + t_sm + t_pv


def test_two_warpgroups_are_near_the_least(kata, oracle, cost):
    worst = max(
        over_least(kata, oracle, (16, 2, 20 * t_qk, (t_qk + t_pv) * share, 20 * t_pv, max_live))
        for t_qk, t_pv in ((1, 1), (5, 1), (1, 5), (3, 4))
        for share in (2, 5, 10, 15, 18, 20)  # twentieths of the products
        for max_live in (1, 2)
    )
    cost.check("makespan", float(worst))


def test_three_quarters_is_not_what_the_units_forbid(kata, oracle, profile, cost):
    ratio = kata.exp_to_gemm_ratio(128, oracle.hopper(profile), "float16")
    asked = 32, 2, 1, 2 * Fraction(ratio), 1, 1
    sched = kata.schedule(*asked)
    assert_legal(oracle, sched, *asked)
    busy = Fraction(2 * 32 * 2) / oracle.end(sched, *asked[2:5])
    found = kata.utilization(sched, 1, 1)
    assert found == pytest.approx(float(busy), rel=1e-12)
    cost.check("utilization", found)


def test_one_warpgroup_with_one_tile_does_one_thing_at_a_time(kata, oracle):
    asked = 10, 1, 3, 4, 5, 1
    sched = kata.schedule(*asked)
    assert_legal(oracle, sched, *asked)
    assert oracle.end(sched, 3, 4, 5) == 10 * 12
    assert kata.utilization(sched, 3, 5) == pytest.approx(2 / 3)  # 1 / (1 + ratio)


@pytest.mark.parametrize("wgs", [1, 2, 3])
def test_a_second_tile_of_scores_overlaps_within_a_warpgroup(kata, oracle, wgs):
    assert over_least(kata, oracle, (40, wgs, 1, 1, 1, 2)) <= Fraction(21, 20)


@pytest.mark.parametrize("max_live", [1, 2])
def test_softmax_that_takes_longer_than_the_products_is_never_idle(kata, oracle, max_live):
    assert over_least(kata, oracle, (40, 2, 3, 15, 4, max_live)) <= Fraction(21, 20)


@pytest.mark.parametrize("max_live", [1, 2, 5])
def test_one_block_is_a_chain(kata, max_live):
    assert sorted(kata.schedule(1, 1, 3, 4, 5, max_live)) == [
        (0, 0, "QK", 0),
        (3, 0, "SM", 0),
        (7, 0, "PV", 0),
    ]


def test_two_tiles_are_the_default(kata, oracle):
    asked = 12, 1, 2, 4, 2
    sched = kata.schedule(*asked)
    assert_legal(oracle, sched, *asked)
    assert oracle.end(sched, 2, 4, 2) < 12 * 8  # one tile


def test_nothing_to_do_is_no_schedule(kata):
    assert kata.schedule(0, 2, 1, 1, 1) == []


@pytest.mark.parametrize(
    ("t_qk", "t_sm", "t_pv"),
    [(10**17 + 1, 10**17 + 3, 10**17 + 7), (Fraction(1, 3), Fraction(2, 7), Fraction(3, 1009))],
    ids=["beyond 2**53", "fractions"],
)
def test_times_are_exact(kata, oracle, t_qk, t_sm, t_pv):
    asked = 7, 2, t_qk, t_sm, t_pv, 2
    assert_legal(oracle, kata.schedule(*asked), *asked)
    # starts that are all rounded alike keep the rules: only the end tells
    chain = kata.schedule(7, 1, t_qk, t_sm, t_pv, 1)
    assert oracle.end(chain, t_qk, t_sm, t_pv) == 7 * (t_qk + t_sm + t_pv)


def test_a_long_sequence_takes_no_longer_a_block(kata, lines, cost):
    with lines(limit=2_000_000) as counted:
        sched = kata.schedule(150, 2, 2, 3, 4)
    assert len(sched) == 3 * 2 * 150
    cost.check("lines", counted.lines)


# ---- utilization -----------------------------------------------------------------------------


def issues(kata, *rows):
    return [kata.Issue(*row) for row in rows]


def test_utilization_counts_products_of_all_warpgroups(kata):
    # 0 to 2, 2 to 4, 9 to 12, 15 to 18: ten of eighteen, in any order, read once
    sched = issues(
        kata,
        (15, 1, "PV", 0),
        (0, 0, "QK", 0),
        (4, 1, "SM", 0),
        (2, 1, "QK", 0),
        (9, 0, "PV", 0),
    )
    assert kata.utilization(iter(sched), 2, 3) == pytest.approx(10 / 18)


def test_utilization_counts_from_zero_to_the_last_product(kata):
    late = issues(kata, (6, 0, "QK", 0), (9, 0, "SM", 0))
    assert kata.utilization(late, 2, 3) == pytest.approx(2 / 8)
    # a long PV begins before a short QK and ends after it
    crossed = issues(kata, (4, 0, "QK", 1), (0, 0, "PV", 0))
    assert kata.utilization(crossed, 1, 20) == pytest.approx(21 / 20)


def test_utilization_leaves_the_schedule_as_it_is(kata):
    sched = issues(kata, (4, 0, "QK", 1), (2, 0, "SM", 0), (0, 0, "QK", 0))
    before = list(sched)
    kata.utilization(sched, 2, 3)
    assert sched == before


def test_without_products_nothing_is_used(kata):
    for sched in ([], issues(kata, (0, 0, "SM", 0))):
        found = kata.utilization(sched, 1, 1)
        assert found == 0
        assert type(found) is float


def test_utilization_of_fractions_is_a_float(kata):
    sched = issues(kata, (HALF, 0, "QK", 0))
    found = kata.utilization(sched, HALF, 1)
    assert found == HALF
    assert type(found) is float


# ---- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("n_blocks", {"n_blocks": -1}),
        ("n_wg", {"n_wg": 0}),
        ("n_wg", {"n_wg": -1, "n_blocks": 0}),
        ("max_live", {"max_live": 0}),
        ("t_qk", {"t_qk": 0}),
        ("t_sm", {"t_sm": -1}),
        ("t_pv", {"t_pv": 0.0, "n_blocks": 0}),
        ("t_sm", {"t_sm": float("nan")}),
    ],
    ids=["blocks", "no warpgroup", "fewer", "no tile", "QK", "SM", "PV of nothing", "nan"],
)
def test_impossible_schedules_are_refused(kata, name, changes):
    asked = {"n_blocks": 3, "n_wg": 2, "t_qk": 1, "t_sm": 1, "t_pv": 1} | changes
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.schedule(**asked)


@pytest.mark.parametrize(
    ("name", "t_qk", "t_pv"), [("t_qk", 0, 1), ("t_pv", 1, -1)], ids=["QK", "PV"]
)
def test_impossible_products_are_refused(kata, name, t_qk, t_pv):
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.utilization([], t_qk, t_pv)


@pytest.mark.parametrize("d", [0, -64])
def test_no_channels_are_refused(kata, oracle, profile, d):
    with pytest.raises(ValueError, match="^d: "):
        kata.exp_to_gemm_ratio(d, oracle.hopper(profile), "float16")
