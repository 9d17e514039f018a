"""How threads fill warps, tiles a matrix and blocks a GPU: hand numbers, and one by one."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

TILE = (256, 128)


@pytest.fixture(scope="module")
def a100(profile):
    """The SMs and warps of an A100, whatever GPU counts here."""
    return replace(profile, sms=108, warp_size=32)


# ---- threads into warps --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tid", "block", "expected"),
    [
        ((0, 4), (8, 8), (1, 0)),  # x is fastest: 4 rows of 8 come before it
        ((4, 0), (8, 8), (0, 4)),
        ((31,), (33,), (0, 31)),
        ((32,), (33,), (1, 0)),
        ((1, 2, 3), (4, 5, 6), (2, 5)),  # 1 + 2 · 4 + 3 · 20 = 69
        ((31, 31), (32, 32), (31, 31)),  # the largest block
    ],
)
def test_x_is_the_fastest_thread_index(kata, tid, block, expected):
    assert kata.warp_lane(tid, block) == expected


@given(
    block=st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple),
    warp_size=st.sampled_from([32, 64]),
)
def test_every_thread_has_a_lane_of_its_own(kata, oracle, block, warp_size):
    expected = oracle.lanes(block, warp_size)
    assert {tid: kata.warp_lane(tid, block, warp_size) for tid in expected} == expected


@pytest.mark.parametrize(
    ("threads", "warp_size", "warps", "idle"),
    [(32, 32, 1, 0), (33, 32, 2, 31), (1, 32, 1, 31), (1024, 32, 32, 0), (96, 64, 2, 32)],
)
def test_lanes_without_a_thread_are_idle(kata, a100, threads, warp_size, warps, idle):
    gpu = replace(a100, warp_size=warp_size)
    shape = kata.launch_shape(512, 512, TILE, threads, 1, gpu)
    assert (shape.warps_per_block, shape.idle_lanes) == (warps, idle)


# ---- blocks into waves ---------------------------------------------------------------------


def test_one_column_more_takes_a_second_wave(kata, a100):
    full = kata.launch_shape(2304, 1536, TILE, 256, 1, a100)
    assert (full.blocks, full.waves, full.wave_efficiency) == (108, 1, 1.0)  # 9 by 12
    over = kata.launch_shape(2304, 1537, TILE, 256, 1, a100)
    assert (over.blocks, over.waves) == (117, 2)  # 9 by 13
    assert over.wave_efficiency == 117 / 216  # 0.542


def test_a_gpu_with_more_sms_needs_fewer_waves(kata, a100):
    waves = [
        kata.launch_shape(2304, 1537, TILE, 256, 1, replace(a100, sms=sms)).waves
        for sms in (108, 132, 39)
    ]
    assert waves == [2, 1, 3]  # of 117 blocks


def test_the_edge_of_a_tile_is_padding(kata, a100):
    assert kata.launch_shape(2304, 1536, TILE, 256, 1, a100).tile_efficiency == 1.0
    over = kata.launch_shape(2304, 1537, TILE, 256, 1, a100)
    assert over.tile_efficiency == 2304 * 1537 / (2304 * 1664)
    assert kata.launch_shape(1, 1, TILE, 256, 1, a100).tile_efficiency == 1 / 32768


@pytest.mark.parametrize(
    ("blocks", "per_sm", "waves"),
    [(1, 1, 1), (108, 1, 1), (109, 1, 2), (216, 2, 1), (217, 2, 2), (324, 1, 3), (865, 8, 2)],
)
def test_an_sm_holds_several_blocks(kata, a100, blocks, per_sm, waves):
    shape = kata.launch_shape(blocks * 256, 128, TILE, 256, per_sm, a100)
    assert (shape.blocks, shape.waves) == (blocks, waves)
    assert shape.wave_efficiency == blocks / (waves * 108 * per_sm)


@pytest.mark.parametrize(("m", "n"), [(0, 128), (256, 0), (0, 0)])
def test_a_launch_of_nothing_wastes_nothing(kata, a100, m, n):
    shape = kata.launch_shape(m, n, TILE, 256, 1, a100)
    assert (shape.blocks, shape.waves) == (0, 0)
    assert (shape.wave_efficiency, shape.tile_efficiency) == (1.0, 1.0)


@given(
    m=st.integers(0, 60),
    n=st.integers(0, 60),
    tile=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    slots=st.tuples(st.integers(1, 9), st.integers(1, 3)),
)
def test_waves_agree_with_blocks_handed_out_one_by_one(kata, oracle, a100, m, n, tile, slots):
    sms, per_sm = slots
    shape = kata.launch_shape(m, n, tile, 32, per_sm, replace(a100, sms=sms))
    assert shape.blocks == len(oracle.tiles_of(m, n, tile))
    assert shape.waves == oracle.makespan(shape.blocks, sms * per_sm, block_time=1)


def test_waves_are_exact_past_the_integers_of_a_float(kata, a100, lines):
    # one block more than fills 10^15 waves; 2^53 is 9 · 10^15
    with lines(limit=10_000):
        shape = kata.launch_shape(108 * 10**15 + 1, 1, (1, 1), 32, 1, a100)
    assert shape.waves == 10**15 + 1


def test_a_trillion_blocks_take_no_loop(kata, a100, lines, cost):
    with lines(limit=10_000) as counted:
        shape = kata.launch_shape(10**6 * 256, 10**6 * 128, TILE, 256, 1, a100)
    assert (shape.blocks, shape.waves) == (10**12, 9_259_259_260)
    cost.check("instructions", counted.lines)


# ---- the tile that is done first -----------------------------------------------------------


def test_the_best_tile_changes_with_the_last_column(kata, a100):
    # a quarter of the work takes a third of the time: small tiles reuse less
    time_of = {(256, 128): 6e-6, (128, 64): 2e-6}
    both = [(128, 64), (256, 128)]
    # large: 1 wave, 6 us; small: 432 blocks, 4 waves, 8 us
    assert kata.best_tile(2304, 1536, both, time_of.get, 1, a100) == (256, 128)
    # large: 2 waves, 12 us; small: 450 blocks, 5 waves, 10 us
    assert kata.best_tile(2304, 1537, both, time_of.get, 1, a100) == (128, 64)


def test_of_equal_tiles_the_first_is_taken(kata, a100):
    tiles = [(64, 128), (128, 64), (64, 64)]
    assert kata.best_tile(512, 512, iter(tiles), lambda tile: 1.0, 1, a100) == (64, 128)


def test_an_empty_matrix_is_done_at_once_with_any_tile(kata, a100):
    # 256 · 128 us a block against 64 · 64, but there are no blocks
    assert kata.best_tile(0, 512, [TILE, (64, 64)], math.prod, 1, a100) == TILE


def test_ends_are_exact_past_the_integers_of_a_float(kata, a100):
    # of 2 · 10^16 waves and one row more: 10^16 + 1 waves of 2, and 2 · 10^16 + 1 waves of 1
    tiles = [(2, 1), (1, 1)]
    assert kata.best_tile(216 * 10**16 + 1, 1, tiles, math.prod, 1, a100) == (1, 1)


def test_best_tile_is_done_as_early_as_any(kata, oracle, a100, seed):
    draw = random.Random(seed)
    for _ in range(200):
        m, n, sms, per_sm = (draw.randint(1, high) for high in (70, 70, 9, 4))
        tiles = [(draw.randint(8, 32), draw.randint(8, 32)) for _ in range(4)]
        # whole numbers, so that adding them up is exact
        times = {tile: math.prod(tile) + draw.randint(0, 200) for tile in tiles}
        done = {
            tile: oracle.makespan(len(oracle.tiles_of(m, n, tile)), sms * per_sm, times[tile])
            for tile in tiles
        }
        gpu = replace(a100, sms=sms)
        found = kata.best_tile(m, n, tiles, times.__getitem__, per_sm, gpu)
        assert done[found] == min(done.values()), f"m={m} n={n} sms={sms}: {done}"


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [0, -32, 1025])
def test_a_block_has_1_to_1024_threads(kata, a100, threads):
    with pytest.raises(ValueError, match="threads"):
        kata.launch_shape(512, 512, TILE, threads, 1, a100)


def test_a_block_that_is_too_large_has_no_lanes(kata):
    with pytest.raises(ValueError, match="block"):
        kata.warp_lane((0, 0, 0), (16, 16, 5))


@pytest.mark.parametrize("tid", [(8, 0), (0, -1), (0,), (0, 0, 0)])
def test_a_thread_outside_its_block_is_refused(kata, tid):
    with pytest.raises(ValueError, match="tid"):
        kata.warp_lane(tid, (8, 8))


@pytest.mark.parametrize("tile", [(0, 128), (256, 0), (256, -1)])
def test_a_tile_without_elements_is_refused(kata, a100, tile):
    with pytest.raises(ValueError, match="tile"):
        kata.launch_shape(512, 512, tile, 256, 1, a100)


@pytest.mark.parametrize(("m", "n"), [(-1, 5), (5, -1), (-1, -1)])
def test_a_negative_matrix_is_refused(kata, a100, m, n):
    with pytest.raises(ValueError, match="m, n"):
        kata.launch_shape(m, n, TILE, 256, 1, a100)


@pytest.mark.parametrize("per_sm", [0, -1])
def test_an_sm_without_room_for_a_block_is_refused(kata, a100, per_sm):
    with pytest.raises(ValueError, match="blocks_per_sm"):
        kata.launch_shape(512, 512, TILE, 256, per_sm, a100)


def test_no_tiles_to_choose_from_is_refused(kata, a100):
    with pytest.raises(ValueError, match="tiles"):
        kata.best_tile(512, 512, iter([]), math.prod, 1, a100)


@pytest.mark.parametrize(
    ("m", "tile", "per_sm", "name"),
    [
        (-1, TILE, 1, "m, n"),
        (512, (256, -1), 1, "tile"),
        (0, (256, -1), 1, "tile"),  # though any tile would be done at once
        (512, TILE, 0, "blocks_per_sm"),
    ],
)
def test_best_tile_checks_what_a_launch_checks(kata, a100, m, tile, per_sm, name):
    for tiles in ([tile], [(64, 64), tile]):
        with pytest.raises(ValueError, match=name):
            kata.best_tile(m, 512, tiles, math.prod, per_sm, a100)
