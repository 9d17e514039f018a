"""Requests whose cost is known by hand or from a GPU's counters, and brute force for the rest."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

LANE = np.arange(32)
ALL = np.ones((1, 32), dtype=bool)
SIZES = st.sampled_from([1, 2, 4, 8, 16])


def warp(offsets):
    """One request."""
    return np.asarray(offsets, dtype=np.int64)[None]


@st.composite
def requests(draw):
    """
    Up to eight requests within 1 KiB, size and active lanes; inactive ones point anywhere.

    Their addresses cannot be written: whoever replays them wants to ask again.
    """
    size, count = draw(SIZES), draw(st.integers(1, 8))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    words = generator.integers(0, draw(st.integers(1, 1024 // size)), (count, 32))
    active = generator.random((count, 32)) < draw(st.sampled_from([0.1, 0.6, 1.0]))
    addr = np.where(active, words * size, -7)
    addr.setflags(write=False)
    return addr, size, active


# ---- sectors -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("addr", "size", "count"),
    [
        (4 * LANE, 4, 4),
        (4 * LANE + 4, 4, 5),  # one float further: the last lane needs a sector more
        (8 * LANE, 4, 8),  # every second float
        (4 * LANE[::-1], 4, 4),
        (2 * LANE, 2, 2),
        (16 * LANE, 16, 16),
        (0 * LANE + 64, 4, 1),
        (2**40 * LANE, 1, 32),  # alike in their lower 40 bits
    ],
)
def test_sectors_by_hand(kata, addr, size, count):
    assert kata.sectors(warp(addr), size, ALL).tolist() == [count]


@pytest.mark.parametrize("size", [4, 8, 16])
def test_sectors_as_counted_by_a_gpu(kata, oracle, size):
    found = kata.sectors(oracle.strided(size), size, np.ones((33, 32), dtype=bool))
    assert found.tolist() == oracle.MEASURED_SECTORS[size]


@given(requests())
def test_sectors_of_any_request(kata, oracle, drawn):
    addr, size, active = drawn
    touched = oracle.pieces(addr, size, active, of=32)
    assert kata.sectors(addr, size, active).tolist() == [len(one) for one in touched]


# ---- shared memory -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("addr", "size", "count"),
    [
        (4 * LANE, 4, 1),
        (128 * LANE, 4, 32),  # a column of a [32][32] tile
        (132 * LANE, 4, 1),  # of a [32][33] tile
        (0 * LANE + 64, 4, 1),  # one word for all
        (LANE // 2 * 128, 4, 16),  # two lanes a word, sixteen words in bank 0
        (LANE, 1, 1),  # eight words, four lanes each
        (2 * LANE, 2, 1),
        (8 * LANE, 8, 2),
        (16 * LANE, 16, 4),
        (8 * (LANE % 16), 8, 2),  # the same again in the second half
        (8 * (LANE // 16), 8, 2),  # halves do not share a pass
    ],
)
def test_passes_by_hand(kata, addr, size, count):
    assert kata.smem_wavefronts(warp(addr), size, ALL).tolist() == [count]


@pytest.mark.parametrize("size", [4, 8, 16])
def test_passes_as_counted_by_a_gpu(kata, oracle, size):
    found = kata.smem_wavefronts(oracle.strided(size), size, np.ones((33, 32), dtype=bool))
    assert found.tolist() == oracle.MEASURED_PASSES[size]


@given(requests())
def test_passes_of_any_request(kata, oracle, drawn):
    addr, size, active = drawn
    assert kata.smem_wavefronts(addr, size, active).tolist() == (
        oracle.passes(addr, size, active).tolist()
    )


# ---- lanes and requests --------------------------------------------------------------------


def test_inactive_lanes_cost_nothing(kata):
    addr = np.vstack([128 * LANE, 4 * LANE, 3 + 128 * LANE])
    active = np.zeros((3, 32), dtype=bool)
    active[0, ::4] = active[1, 20:] = True  # eight lanes apart; 48 bytes from byte 80 on
    assert kata.sectors(addr, 4, active).tolist() == [8, 2, 0]
    assert kata.smem_wavefronts(addr, 4, active).tolist() == [8, 1, 0]


def test_half_without_active_lanes_takes_no_pass(kata):
    assert kata.smem_wavefronts(warp(8 * LANE), 8, (LANE < 16)[None]).tolist() == [1]


def test_no_requests(kata):
    addr, active = np.zeros((0, 32), dtype=np.int64), np.zeros((0, 32), dtype=bool)
    for found in (kata.sectors(addr, 4, active), kata.smem_wavefronts(addr, 16, active)):
        assert found.shape == (0,)
        assert found.dtype.kind in "iu", "counts are integers"
    assert kata.cache_replay(addr, 4, active, 1024) == (0, 0)


# ---- the cache -----------------------------------------------------------------------------


def chunk_per_thread(warps):
    """Every lane walks 32 bytes of its own in steps of 4; warps take turns, 1 KiB each."""
    step, warp = np.arange(8)[:, None, None], np.arange(warps)[:, None]
    return (4 * step + 1024 * warp + 32 * LANE).reshape(-1, 32)


@pytest.mark.parametrize(
    ("warps", "capacity", "hits", "misses"),
    [
        (1, 1024, 224, 32),  # seven loads in eight hit, if the lines live until then
        (1, 1023, 0, 256),  # one line too few, and the oldest is always the next to be used
        (64, 8192, 0, 16384),  # enough for one warp, but 64 share it
    ],
)
def test_cache_saves_a_chunk_per_thread_for_few_warps(kata, warps, capacity, hits, misses):
    addr = chunk_per_thread(warps)
    active = np.ones(addr.shape, dtype=bool)
    assert kata.cache_replay(addr, 4, active, capacity) == (hits, misses)


def walk(kata, places, capacity_bytes, **sizes):
    """Replay loads of one lane at these byte addresses."""
    addr = np.zeros((len(places), 32), dtype=np.int64)
    active = np.zeros(addr.shape, dtype=bool)
    addr[:, 5], active[:, 5] = places, True
    return kata.cache_replay(addr, 4, active, capacity_bytes, **sizes)


def test_line_used_longest_ago_goes_first(kata):
    # lines 0, 1, 0, 2 (1 goes), 0 again, 1 misses
    assert walk(kata, [0, 128, 0, 256, 0, 128], 256) == (2, 4)


def test_miss_makes_its_line_younger(kata):
    # lines 0 and 1, another sector of line 0, line 2 (1 goes), and line 0 is still there
    assert walk(kata, [0, 128, 32, 256, 0], 256) == (1, 4)


def test_lines_and_sectors_have_the_sizes_asked_for(kata):
    assert walk(kata, [0, 64, 128, 64], 128, line=64) == (1, 3)  # two lines, not one
    assert walk(kata, [0, 64, 0], 96, line=96) == (1, 2)  # one line of three sectors
    assert walk(kata, [0, 32, 60], 128, sector=64) == (2, 1)
    assert walk(kata, [0, 16, 28], 128, sector=16) == (1, 2)


def test_sectors_are_filled_when_asked_for(kata):
    assert walk(kata, [0, 32, 60, 0], 256) == (2, 2)


def test_line_that_went_took_its_sectors_along(kata):
    # sectors 0 and 1 of line 0, line 1 in its place, sector 0 again: sector 1 is not back
    assert walk(kata, [0, 32, 128, 0, 32, 0], 128) == (1, 5)


@given(drawn=requests(), capacity=st.sampled_from([128, 300, 512]), line=st.sampled_from([64, 128]))
def test_cache_on_any_requests(kata, oracle, drawn, capacity, line):
    addr, size, active = drawn
    expected = oracle.replay(addr, size, active, lines=capacity // line, line=line, sector=32)
    assert kata.cache_replay(addr, size, active, capacity, line=line) == expected


# ---- what no warp can issue ----------------------------------------------------------------


@pytest.fixture(params=["sectors", "smem_wavefronts", "cache_replay"])
def call(request, kata):
    if request.param == "cache_replay":
        return lambda *arguments: kata.cache_replay(*arguments, 1024)
    return getattr(kata, request.param)


@pytest.mark.parametrize("size", [0, 3, 32])
def test_size_is_refused(call, size):
    with pytest.raises(ValueError, match="size"):
        call(warp(96 * LANE), size, ALL)


def test_unaligned_address_is_refused(call):
    for size in (2, 4, 8, 16):
        with pytest.raises(ValueError, match="addr"):
            call(np.vstack([16 * LANE, 16 * LANE + size // 2 * (LANE == 31)]), size, ALL[[0, 0]])


@pytest.mark.parametrize("shape", [(32,), (1, 16), (1, 1, 32)])
def test_shape_of_addr_is_refused(call, shape):
    with pytest.raises(ValueError, match="addr"):
        call(np.zeros(shape, dtype=np.int64), 4, np.ones(shape, dtype=bool))


# one row for both requests, and as many lanes in another shape
@pytest.mark.parametrize("shape", [(1, 32), (64,)])
def test_shape_of_active_is_refused(call, shape):
    with pytest.raises(ValueError, match="active"):
        call(np.zeros((2, 32), dtype=np.int64), 4, np.ones(shape, dtype=bool))


@pytest.mark.parametrize("line", [128, 256])
def test_cache_without_a_line_is_refused(kata, line):
    with pytest.raises(ValueError, match="capacity_bytes"):
        kata.cache_replay(warp(4 * LANE), 4, ALL, line - 1, line=line)
