"""Tiles by hand and by putting blocks on an SM, times wave by wave and measured, panels counted."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

SIZES = st.integers(1, 700)
TILE = {"bm": 128, "bn": 256, "bk": 64, "stages": 3, "warpgroups": 2}


@pytest.fixture(scope="module")
def gpus(oracle, profile):
    """By name: profiles with the figures of real GPUs, and "toy" for sums by hand."""
    return {name: replace(profile, id=name, **figures) for name, figures in oracle.GPUS.items()}


@pytest.fixture(scope="module")
def tile(kata):
    def make(**changes):
        return kata.Tile(**TILE | changes)

    return make


def close(expected):
    return pytest.approx(expected, rel=1e-9)


def tiles_drawn():
    return st.fixed_dictionaries(
        {
            "bm": st.sampled_from([1, 16, 64, 65, 128, 192, 256]),
            "bn": st.sampled_from([8, 16, 40, 64, 128, 256]),
            "bk": st.sampled_from([16, 32, 48, 64, 128]),
            "stages": st.integers(2, 6),
            "warpgroups": st.integers(1, 8),
        }
    )


# ---- a tile --------------------------------------------------------------------------------


def test_metrics_by_hand(kata, gpus, tile):
    """A step brings 49,152 bytes, reads two products of 64 + 256 rows, and has 4 Mi FLOP."""
    assert kata.tile_metrics(tile(), 2, gpus["h200"]) == kata.Metrics(
        smem_bytes=147_456, regs=128 + 40, intensity=close(256 / 3),
        smem_ratio=close((49_152 + 81_920) / 128 / 1024), resident=1, feasible=True,
    )  # fmt: skip


def test_fp8_halves_the_bytes(kata, gpus, tile):
    assert kata.tile_metrics(tile(), 1, gpus["h200"]) == kata.Metrics(
        smem_bytes=73_728, regs=168, intensity=close(512 / 3), smem_ratio=close(1.0),
        resident=1, feasible=True,  # registers: 43,008 of 65,536
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "regs", "resident", "feasible"),
    [
        ({"warpgroups": 1}, 296, 1, False),  # 256 accumulators a thread
        ({"stages": 4}, 168, 1, True),  # 192 KiB
        ({"stages": 5}, 168, 0, False),  # 240 KiB
        ({"bm": 64, "bn": 64, "stages": 2, "warpgroups": 1}, 72, 6, True),  # 32 + 1 KiB each
        ({"bm": 64, "bn": 8, "bk": 16, "stages": 2, "warpgroups": 1}, 44, 11, True),
        ({"bm": 1, "bn": 1, "bk": 1, "stages": 2, "warpgroups": 1}, 41, 12, True),
        ({"bm": 1, "bn": 1, "bk": 1, "stages": 2, "warpgroups": 8}, 41, 1, True),
        ({"bm": 215, "bn": 128, "bk": 16, "warpgroups": 1}, 255, 2, True),  # the last one
        ({"bm": 216, "bn": 128, "bk": 16, "warpgroups": 1}, 256, 2, False),
        ({"bm": 5, "bn": 77, "bk": 16, "warpgroups": 1}, 44, 11, True),  # 385 / 128, rounded up
        ({"bm": 227, "bn": 227, "bk": 128, "stages": 2, "warpgroups": 4}, 141, 0, False),
        ({"bm": 200, "bn": 254, "bk": 128, "stages": 2, "warpgroups": 4}, 140, 0, False),
        ({"bm": 128, "bn": 256, "bk": 16, "stages": 2, "warpgroups": 8}, 72, 0, False),
    ],
    ids=[
        "too few threads", "four stages", "five stages", "small", "registers", "tiny",
        "eight warpgroups", "255 registers", "256 registers", "ragged", "just too large",
        "shared memory alone", "registers of the SM",
    ],
)  # fmt: skip
def test_what_fits_by_hand(kata, gpus, tile, changes, regs, resident, feasible):
    found = kata.tile_metrics(tile(**changes), 2, gpus["h200"])
    assert (found.regs, found.resident, found.feasible) == (regs, resident, feasible)


@pytest.mark.parametrize(
    ("limit", "value", "resident", "feasible"),
    [
        ("smem_per_block_bytes", 147_456, 1, True), ("smem_per_block_bytes", 147_455, 1, False),
        ("smem_per_sm_bytes", 148_480, 1, True), ("smem_per_sm_bytes", 148_479, 0, False),
        ("registers_per_sm", 43_008, 1, True), ("registers_per_sm", 43_007, 0, False),
        ("warps_per_sm", 8, 1, True), ("warps_per_sm", 7, 0, False), ("blocks_per_sm", 1, 1, True),
    ],
)  # fmt: skip
def test_exact_fits(kata, gpus, tile, limit, value, resident, feasible):
    found = kata.tile_metrics(tile(), 2, replace(gpus["h200"], **{limit: value}))
    assert (found.resident, found.feasible) == (resident, feasible)


def test_small_blocks_share_the_places(kata, gpus, tile):
    """41 registers for 128 threads: 12 blocks, by places for warps 5, by places for blocks 3."""
    tiny = tile(bm=1, bn=1, bk=1, stages=2, warpgroups=1)
    for limit, value, resident in (("warps_per_sm", 20, 5), ("blocks_per_sm", 3, 3)):
        found = kata.tile_metrics(tiny, 2, replace(gpus["h200"], **{limit: value}))
        assert found.resident == resident


def test_products_are_64_rows_high(kata, gpus, tile):
    """
    One row of A takes the tensor cores and shared memory as long as 64, but is less to load. What
    is multiplied for nothing is no intensity.
    """
    one, full, more = (kata.tile_metrics(tile(bm=bm), 2, gpus["h200"]) for bm in (1, 64, 65))
    assert one.intensity == close(256 / 257)
    assert more.intensity == close(65 * 256 / 321)
    assert one.smem_ratio == close((257 * 128 + 320 * 128) / 128 / 512)
    assert full.smem_ratio == close((320 * 128 + 320 * 128) / 128 / 512)
    assert more.smem_ratio == close((321 * 128 + 640 * 128) / 128 / 1024)


@given(drawn=tiles_drawn(), itemsize=st.sampled_from([1, 2]))
@example(drawn=TILE | {"stages": 5}, itemsize=2)
def test_blocks_put_on_an_sm(kata, oracle, gpus, drawn, itemsize):
    one = kata.Tile(**drawn)
    found = kata.tile_metrics(one, itemsize, gpus["h200"])
    expected = oracle.resident(one, itemsize, gpus["h200"])
    assert (found.resident if found.feasible else 0) == expected


# ---- time ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "changes", "clocks"),
    [  # "toy": 4 SMs, 1024 FLOP a clock
        # 2 · 64 · 64 · 64 / 1024 = 512 clocks a step, 2 steps, 1 wave
        ((128, 128, 128), {}, 1000 + 2 * 512),
        ((128, 128, 129), {}, 1000 + 3 * 512),  # a step for one more
        ((128, 129, 128), {}, 1000 + 2 * 2 * 512),  # and a wave for one more
        ((1, 1, 1), {}, 1000 + 512),  # a tile larger than the matrix
        ((1, 1, 1), {"stages": 2}, 1000 + 1000),  # one load on its way
        ((128, 256, 64), {"stages": 2}, 1000 + 2 * 512),  # two blocks, one load each: 500
        ((128, 256, 64), {"stages": 2, "bk": 32}, 1000 + 2 * 2 * 500),
        ((64, 8, 64), {"bn": 8}, 1000 + 500),  # 72 · 128 / 32 are 288
        ((64, 8, 64), {"bn": 8, "stages": 6}, 1000 + 288),
        ((64, 8, 64), {"bn": 8, "stages": 4}, 1000 + 1000 / 3),
        ((1, 8, 64), {"bm": 1, "bn": 8, "stages": 20}, 1000 + 81),  # of A 64 rows are read
        ((256, 64, 64), {"bm": 256, "stages": 4, "warpgroups": 2}, 1000 + 2048),
    ],
    ids=[
        "two steps", "three steps", "two waves", "small matrix", "latency", "two blocks",
        "latency of two blocks", "narrow", "L2", "three loads", "one row",
        "four products",
    ],
)  # fmt: skip
def test_times_by_hand(kata, gpus, tile, sizes, changes, clocks):
    one = tile(**{"bm": 64, "bn": 64, "bk": 64, "stages": 3, "warpgroups": 1} | changes)
    assert kata.predict_time(*sizes, one, 2, gpus["toy"]) == close(clocks / 1000)


def test_an_sm_is_fed_32_bytes_a_clock(kata, gpus, tile):
    """With tensor cores that are fast enough, and enough loads on their way."""
    fast = replace(gpus["toy"], flops_per_clk_per_sm={"float16": 1 << 30, "float8": 1 << 30})
    one = tile(bm=64, bn=64, stages=6, warpgroups=1)
    assert kata.predict_time(64, 64, 640, one, 2, fast) == close((1000 + 10 * 512) / 1000)
    assert kata.predict_time(64, 64, 640, one, 1, fast) == close((1000 + 10 * 256) / 1000)


def test_the_memory_may_take_longest(kata, gpus, tile):
    """What is moved is that of the matrices, not that of the tiles."""
    slow = replace(gpus["toy"], bandwidth=500)
    found = kata.predict_time(3, 50, 7, tile(bm=64, bn=64), 2, slow)
    assert found == close((3 * 7 * 2 + 7 * 50 * 2 + 3 * 50 * 4) / 500)
    found = kata.predict_time(3, 50, 7, tile(bm=64, bn=64), 1, slow)
    assert found == close((3 * 7 + 7 * 50 + 3 * 50 * 4) / 500)


@given(
    m=SIZES, n=SIZES, k=SIZES, drawn=tiles_drawn(), itemsize=st.sampled_from([1, 2]),
    gpu=st.sampled_from(["h200", "toy"]),
)  # fmt: skip
def test_wave_by_wave(kata, oracle, gpus, m, n, k, drawn, itemsize, gpu):
    one = kata.Tile(**drawn)
    expected = oracle.seconds(m, n, k, one, itemsize, gpus[gpu])
    if expected == float("inf"):
        with pytest.raises(ValueError, match="^tile: "):
            kata.predict_time(m, n, k, one, itemsize, gpus[gpu])
    else:
        assert kata.predict_time(m, n, k, one, itemsize, gpus[gpu]) == close(expected)


@pytest.mark.parametrize(
    "changes",
    [{"warpgroups": 1}, {"stages": 5}, {"bm": 256, "stages": 4}],
    ids=["registers", "shared memory", "both"],
)
def test_tiles_that_do_not_fit_have_no_time(kata, gpus, tile, changes):
    with pytest.raises(ValueError, match="^tile: "):
        kata.predict_time(8, 8, 8, tile(**changes), 2, gpus["h200"])


def test_predictions_rank_as_an_h200_does(kata, oracle, gpus, cost):
    rows = list(oracle.timings())
    found = [
        kata.predict_time(m, n, k, kata.Tile(**tile), 2, gpus["h200"]) for m, n, k, tile, _ in rows
    ]
    cost.check("ranking", oracle.rank_correlation(found, [row[-1] for row in rows]))


# ---- the best tile -------------------------------------------------------------------------


@pytest.mark.parametrize(("gpu", "itemsize"), [("h200", 2), ("a100", 2), ("h200", 1)])
@pytest.mark.parametrize(
    "sizes",
    [
        (4096, 4096, 4096), (8192, 8192, 512), (1, 4096, 4096), (16, 4096, 4096), (17, 11_008, 64),
        (1024, 1024, 8192), (8192, 1024, 2048), (1537, 1537, 1537), (4096, 16, 4096), (1, 1, 1),
    ],
    ids=repr,
)  # fmt: skip
def test_no_candidate_is_faster(kata, oracle, gpus, sizes, gpu, itemsize):
    best = kata.best_tile(*sizes, itemsize, gpus[gpu])
    assert best in kata.CANDIDATES
    times = {tile: oracle.seconds(*sizes, tile, itemsize, gpus[gpu]) for tile in kata.CANDIDATES}
    assert times[best] == close(min(times.values())), (
        f"{sizes} of {itemsize} bytes on {gpu}: {best} takes {times[best]}, expected "
        f"{min(times, key=times.__getitem__)}, which takes {min(times.values())}"
    )


def test_no_candidate_fits(kata, gpus):
    with pytest.raises(ValueError, match="^tile: "):
        kata.best_tile(8, 8, 8, 2, replace(gpus["h200"], registers_per_sm=1024))


# ---- the order of the tiles ----------------------------------------------------------------


@given(gm=st.integers(1, 40), gn=st.integers(1, 40), sms=st.integers(1, 200))
def test_every_tile_is_visited_once(kata, gm, gn, sms):
    found = kata.raster(gm, gn, 128, 256, sms)
    assert sorted(found) == [(m, n) for m in range(gm) for n in range(gn)]


def against_rows(kata, oracle, gm, gn, bm, bn, sms=132):
    found = oracle.panels(kata.raster(gm, gn, bm, bn, sms), bm, bn, sms)
    return found / oracle.panels(oracle.row_by_row(gm, gn), bm, bn, sms)


def test_waves_are_square(kata, oracle, cost):
    cost.check("raster", against_rows(kata, oracle, 64, 32, 128, 256))
    grids = ((64, 64), (48, 48), (37, 53))
    cost.check(
        "raster, other grids",
        max(against_rows(kata, oracle, *grid, 128, 128) for grid in grids),
    )
    cost.check("raster, flat tiles", against_rows(kata, oracle, 64, 64, 64, 256))


@given(
    gm=st.integers(1, 30), gn=st.integers(1, 30), sms=st.sampled_from([1, 2, 7, 16, 132]),
    bm=st.sampled_from([64, 128, 256]), bn=st.sampled_from([64, 128, 256]),
)  # fmt: skip
@example(gm=100, gn=3, sms=132, bm=128, bn=256)
@example(gm=23, gn=21, sms=132, bm=128, bn=256)  # nearly four waves: whole columns read least
def test_no_worse_than_rows_or_columns(kata, oracle, gm, gn, sms, bm, bn):
    found = oracle.panels(kata.raster(gm, gn, bm, bn, sms), bm, bn, sms)
    simple = (oracle.row_by_row(gm, gn), oracle.column_by_column(gm, gn))
    assert found <= min(oracle.panels(order, bm, bn, sms) for order in simple)


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bm", 0), ("bn", 0), ("bk", 0), ("stages", 1), ("warpgroups", 0), ("warpgroups", 9),
        ("bm", -64), ("bn", -64), ("bk", -64), ("stages", -1), ("warpgroups", -2),
    ],
    ids=lambda value: str(value),
)  # fmt: skip
def test_impossible_tiles_are_refused(kata, gpus, tile, name, value):
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.tile_metrics(tile(**{name: value}), 2, gpus["h200"])
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.predict_time(8, 8, 8, tile(**{name: value}), 2, gpus["h200"])


@pytest.mark.parametrize(("itemsize", "gpu"), [(1, "a100"), (4, "h200"), (0, "h200")])
def test_elements_that_are_not_multiplied_are_refused(kata, gpus, tile, itemsize, gpu):
    for ask in (
        lambda: kata.tile_metrics(tile(stages=2), itemsize, gpus[gpu]),
        lambda: kata.predict_time(8, 8, 8, tile(stages=2), itemsize, gpus[gpu]),
        lambda: kata.best_tile(8, 8, 8, itemsize, gpus[gpu]),
    ):
        with pytest.raises(ValueError, match="^itemsize: "):
            ask()


@pytest.mark.parametrize("value", [0, -8])
def test_sizes_below_one_are_refused(kata, gpus, tile, value):
    for name in ("m", "n", "k"):
        sizes = {"m": 8, "n": 8, "k": 8} | {name: value}
        with pytest.raises(ValueError, match=f"^{name}: "):
            kata.predict_time(**sizes, tile=tile(), itemsize=2, profile=gpus["h200"])
        with pytest.raises(ValueError, match=f"^{name}: "):
            kata.best_tile(**sizes, itemsize=2, profile=gpus["h200"])
    for name in ("gm", "gn", "bm", "bn", "sms"):
        sound = {"gm": 4, "gn": 4, "bm": 128, "bn": 128, "sms": 8}
        with pytest.raises(ValueError, match=f"^{name}: "):
            kata.raster(**sound | {name: value})
