"""Pipelines on a machine that shows every hazard, their time, and the arithmetic of stages."""

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

STAGES = (2, 3, 4, 5, 6)
BIG = 10**17


def closed_form(oracle, n, stages, latency, copy, compute):
    cycles, tiles = oracle.cycles_of_rounds(latency, copy, compute, stages)
    return latency + copy + (n - 1) * Fraction(cycles, tiles) + compute


# ---- the pipeline --------------------------------------------------------------------------


@pytest.mark.parametrize("stages", STAGES, ids=[f"{n} stages" for n in STAGES])
def test_each_tile_is_computed_once_and_in_order(kata, oracle, stages):
    for n in (*range(2 * stages + 2), 100):  # fewer tiles than stages, a round more or less
        machine = oracle.run(kata.pipeline, n, stages)
        assert machine.computed == list(range(n)), f"input: {n} tiles, {stages} stages"


@pytest.mark.parametrize("stages", STAGES, ids=[f"{n} stages" for n in STAGES])
def test_each_tile_is_copied_once(kata, oracle, stages):
    for n in (0, 1, stages - 1, stages, 3 * stages + 1):
        machine = oracle.run(kata.pipeline, n, stages)
        assert sorted(machine.copied) == list(range(n)), f"input: {n} tiles, {stages} stages"


# one copy in flight at a time, and a copy that is as long as everything else
@example(n=40, stages=2, latency=60, copy=1, compute=1)
@example(n=40, stages=6, latency=0, copy=20, compute=20)
@given(n=st.integers(1, 60), stages=st.integers(2, 6), latency=st.integers(0, 99),
       copy=st.integers(1, 30), compute=st.integers(1, 30))  # fmt: skip
def test_copies_hide_behind_the_computation(kata, oracle, n, stages, latency, copy, compute):
    asked = stages, latency, copy, compute
    now = oracle.run(kata.pipeline, n, *asked).now
    least = closed_form(oracle, n, *asked)
    assert now <= Fraction(51, 50) * least, (
        f"{n} tiles, (stages, latency, copy, compute) = {asked}: yours takes {now} cycles, "
        f"expected at most 1.02 * {float(least)}"
    )


def test_a_hundred_tiles_take_what_the_slowest_takes(kata, oracle, cost):
    worst = max(
        oracle.run(kata.pipeline, 100, stages, *times).now
        / closed_form(oracle, 100, stages, *times)
        for times in oracle.MACHINES
        for stages in (2, 3, 6)
    )
    cost.check("makespan", float(worst))


def test_one_barrier_a_tile(kata, oracle, cost):
    cost.check("barriers", max(oracle.run(kata.pipeline, 100, n).syncs for n in STAGES))


@pytest.mark.parametrize(
    ("name", "num_tiles", "stages"),
    [("stages", 5, 1), ("stages", 0, -2), ("num_tiles", -1, 3)],
    ids=["one stage", "minus two stages, no tile", "minus one tile"],
)
def test_impossible_pipelines_are_refused(kata, oracle, name, num_tiles, stages):
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.pipeline(oracle.Untouchable(), num_tiles, stages)


# ---- arithmetic ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((600, 50, 100, 2), 650.0),  # the latency shows in every tile
        ((600, 50, 100, 4), 650 / 3),
        ((600, 50, 100, 8), 100.0),
        ((600, 150, 100, 6), 150.0),  # exactly as long as the copy
        ((0, 7, 3, 2), 7.0),
        ((0, 3, 7, 2), 7.0),
    ],
    ids=["latency", "three in flight", "compute", "equal", "copy", "no latency"],
)
def test_period_by_hand(kata, asked, expected):
    found = kata.steady_period(*asked)
    assert found == pytest.approx(expected, rel=1e-12)
    assert type(found) is float


@given(latency=st.integers(0, 99), copy=st.integers(1, 30), compute=st.integers(1, 30),
       stages=st.integers(2, 7))  # fmt: skip
def test_period_is_what_another_tile_takes(kata, oracle, latency, copy, compute, stages):
    cycles, tiles = oracle.cycles_of_rounds(latency, copy, compute, stages)
    found = kata.steady_period(latency, copy, compute, stages)
    assert found == pytest.approx(cycles / tiles, rel=1e-12)


@example(latency=0, copy=1, compute=9)  # two stages are the fewest there are
@example(latency=50, copy=10, compute=20)  # exact: 60 is three times 20
@example(latency=51, copy=10, compute=20)
@given(latency=st.integers(0, 99), copy=st.integers(1, 30), compute=st.integers(1, 30))
def test_needed_stages_are_the_fewest_that_hide_the_latency(kata, oracle, latency, copy, compute):
    expected = oracle.fewest_stages(latency, copy, compute)
    assert kata.stages_needed(latency, copy, compute) == expected


@pytest.mark.parametrize(
    ("asked", "expected"),
    [((3 * BIG, 1, 1), 3 * BIG + 2), ((3 * BIG, 3, BIG), 5), ((3 * BIG - 3, 3, BIG), 4)],
    ids=["many stages", "just over", "exact"],
)
def test_needed_stages_are_exact(kata, asked, expected):
    found = kata.stages_needed(*asked)
    assert found == expected
    assert type(found) is int


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("latency", (-1, 1, 1, 2)),
        ("copy", (5, 0, 1, 2)),
        ("compute", (5, 1, 0, 2)),
        ("stages", (5, 1, 1, 1)),
    ],
    ids=["latency", "copy", "compute", "stages"],
)
def test_impossible_times_are_refused(kata, name, asked):
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.steady_period(*asked)
    if name != "stages":
        with pytest.raises(ValueError, match=f"^{name}: "):
            kata.stages_needed(*asked[:3])
