"""Blocks that use what other blocks have made: in order only where a fence and a flag say so."""

import numpy as np
import pytest

from tests.ptx.test_hazards import places
from tests.ptx.test_values import floats


def sums(run, rng, **changes):
    x, parts = floats(rng, 8 * 32), np.zeros(8, np.float32)
    count, out = np.zeros(1, np.int32), np.zeros(1, np.float32)
    found = run("blocks", [x, parts, count, out], name="last_block_sums", grid=8, **changes)
    return found, abs(out[0] - x.astype(float).sum())


@pytest.mark.parametrize("schedule", [None, 0], ids=["lockstep", "warp by warp"])
def test_a_fence_and_a_counter_order_blocks(run, rng, schedule):
    found, error = sums(run, rng, schedule=schedule)
    assert error < 1e-4
    assert found.found == []


@pytest.mark.parametrize("schedule", [None, 0], ids=["lockstep", "warp by warp"])
def test_without_the_fence_the_partial_sums_race(run, rng, line, schedule):
    found, _ = sums(run, rng, FENCE="", schedule=schedule)
    use, made = line("blocks", "total += "), line("blocks", "[OWN] = sum")
    assert (use, made) in places(found, "global-race")


def test_blocks_that_write_to_one_place_race(run, rng, line):
    found, _ = sums(run, rng, OWN="0")
    made = line("blocks", "[OWN] = sum")
    assert (made, made) in places(found, "global-race")


@pytest.mark.parametrize("wave", [1, 200], ids=["one wave", "several waves"])
def test_a_neighbour_that_is_overwritten_races(run, rng, line, wave):
    x = floats(rng, 64 * wave)
    found = run("blocks", [x], name="neighbours", grid=wave * 2)
    read, write = line("blocks", "float next"), line("blocks", "x[at] = next")
    assert {(write, read)} <= places(found, "global-race") | {(read, write)}
    assert "global-race" in found.names


def test_a_block_alone_needs_no_order(run, rng):
    assert run("blocks", [floats(rng, 32)], name="neighbours", grid=1).found == []


def test_bytes_side_by_side_are_different_bytes(run):
    x = np.zeros(30, np.uint8)
    assert run("blocks", [x], name="bytes", grid=10, block=3).found == []
    assert (x == np.repeat(np.arange(10), 3)).all()


@pytest.mark.parametrize("schedule", [None, 0], ids=["lockstep", "warp by warp"])
def test_a_chain_of_flags_orders_blocks(run, schedule):
    x, y, flags = np.arange(10, dtype=np.int32), *np.zeros((2, 10), np.int32)
    found = run("blocks", [x, y, flags], name="chained", grid=10, schedule=schedule)
    assert (y == x.cumsum()).all()
    assert found.found == []


@pytest.mark.parametrize("schedule", [None, 0], ids=["lockstep", "warp by warp"])
def test_lanes_may_come_to_a_barrier_out_of_a_loop_that_waits(run, schedule):
    x, y = np.arange(256, dtype=np.int32), np.zeros(256, np.int32)
    state, ticket = np.zeros(8, np.uint64), np.zeros(1, np.int32)
    found = run("blocks", [x, y, state, ticket], name="lookback", grid=8, schedule=schedule)
    assert (y == x.cumsum()).all()
    assert found.found == []


def test_a_grid_that_meets_at_a_barrier_is_in_order(run):
    x, out = np.zeros(40, np.float32), np.zeros(40, np.float32)
    found = run("grid", [x, out], grid=40, cooperative=True)
    assert (out == np.arange(40)[::-1]).all()
    assert found.found == []


def cluster_total(run, rng, **changes):
    x, parts, y = floats(rng, 8 * 32), *np.zeros((2, 8), np.float32)
    sizes = {"grid": 8, "cluster": 2, "arch": "sm_90"}
    found = run("blocks", [x, parts, y], name="cluster_total", **sizes, **changes)
    return found, abs(y - x.reshape(4, 64).sum(1, dtype=float).repeat(2)).max()


@pytest.mark.parametrize("schedule", [None, 0], ids=["lockstep", "warp by warp"])
def test_the_barrier_of_a_cluster_orders_its_blocks(run, rng, schedule):
    found, error = cluster_total(run, rng, schedule=schedule)
    assert error < 1e-4
    assert found.found == []


def test_a_relaxed_arrival_at_it_publishes_nothing(run, rng, line):
    found, _ = cluster_total(run, rng, ARRIVES='"relaxed"')
    use, made = line("blocks", "float both"), line("blocks", "parts[b] = sum")
    assert (use, made) in places(found, "global-race")
