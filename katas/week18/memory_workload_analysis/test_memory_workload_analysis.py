"""Access patterns against an H200, charts of 18 kernels, and launches with planted counters."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

LANES = range(32)


def strided(stride, width=4):
    """Lanes that are `stride` elements of `width` bytes apart."""
    return tuple(stride * width * lane for lane in LANES)


# ---- one request of a warp -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("offsets", "width", "expected"),
    [
        (strided(1), 4, 4),
        (strided(2), 4, 8),
        (strided(8), 4, 32),
        (strided(33), 4, 32),
        (strided(1, 8), 8, 8),
        (strided(1, 16), 16, 16),
        ((64,) * 32, 4, 1),
        (tuple(4 + 4 * lane for lane in LANES), 4, 5),
        (tuple(reversed(strided(1))), 4, 4),
    ],
    ids=["1", "2", "8", "33", "8 bytes", "16 bytes", "broadcast", "shifted", "reversed"],
)
def test_sectors_are_those_touched(kata, offsets, width, expected):
    assert kata.predicted(offsets, width, "global") == expected


@pytest.mark.parametrize(
    ("offsets", "width", "expected"),
    [
        (strided(1), 4, 1),
        (strided(2), 4, 2),
        (strided(8), 4, 8),
        (strided(32), 4, 32),
        (strided(33), 4, 1),
        (strided(1, 8), 8, 2),
        (strided(2, 8), 8, 4),
        (strided(1, 16), 16, 4),
        (strided(32, 16), 16, 32),
        ((64,) * 32, 4, 1),
        (tuple(4 * (lane // 2) for lane in LANES), 4, 1),
        (tuple(128 * (lane % 2) for lane in LANES), 4, 2),
    ],
    ids=["1", "2", "8", "32", "33", "8 bytes", "8 bytes, 2", "16 bytes", "16 bytes, 32"]
    + ["broadcast", "pairs", "two words of a bank"],
)
def test_wavefronts_are_words_of_the_busiest_bank(kata, offsets, width, expected):
    assert kata.predicted(offsets, width, "shared") == expected


@given(
    width=st.sampled_from([4, 8, 16]),
    space=st.sampled_from(["global", "shared"]),
    elements=st.lists(st.integers(0, 200), min_size=32, max_size=32),
)
@settings(max_examples=25)
@example(width=8, space="shared", elements=[16 * (lane % 16) for lane in LANES])
@example(width=16, space="shared", elements=[lane // 8 for lane in LANES])
def test_requests_byte_by_byte(kata, oracle, width, space, elements):
    offsets = tuple(width * element for element in elements)
    assert kata.predicted(offsets, width, space) == oracle.request(offsets, width, space)


def test_patterns_of_an_h200_are_predicted(kata, oracle, cost):
    patterns = oracle.patterns(kata)
    wrong = kata.misses(patterns)
    cost.check("unexplained", len(wrong) / len(patterns))
    expected = [
        pattern.id
        for pattern in patterns
        if pattern.count
        != pattern.requests * oracle.request(pattern.offsets, pattern.width, pattern.space)
    ]
    assert wrong == expected, f"misses: expected {expected}, found {wrong}"


def test_misses_come_in_the_order_of_patterns(kata, oracle):
    patterns = [replace(pattern, count=0) for pattern in oracle.patterns(kata)[40::-10]]
    assert kata.misses(iter(patterns)) == [pattern.id for pattern in patterns]


def test_one_more_or_one_less_is_a_miss(kata):
    """Of patterns whose requests take 8 sectors each; counts are compared as integers."""
    found = kata.misses(
        kata.Pattern(
            id=at, space="global", op="ld", width=4, offsets=strided(2), requests=requests,
            count=8 * requests + more,
        )
        for at, (requests, more) in enumerate(
            [(5, 0), (5, 1), (5, -1), (0, 0), (0, 8), (2**60, 0), (2**60, 1), (2**60, -1)]
        )
    )  # fmt: skip
    assert found == [1, 2, 4, 6, 7]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"width": 2}, "width"),
        ({"width": 32}, "width"),
        ({"offsets": strided(1)[:31]}, "offsets"),
        ({"offsets": ()}, "offsets"),
        ({"offsets": (2, *strided(1)[1:])}, "offsets"),
        ({"width": 16}, "offsets"),
        ({"space": "local"}, "space"),
    ],
    ids=["narrow", "wide", "31 lanes", "no lanes", "misaligned", "too wide for them", "space"],
)
def test_impossible_requests_are_refused(kata, change, name):
    call = {"offsets": strided(1), "width": 4, "space": "shared"}
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.predicted(**(call | change))


# ---- the chart -----------------------------------------------------------------------------


def test_counters_are_those_of_loads(kata, oracle):
    k = oracle.planted(requests=10, sectors=90, l1_hits=30, l2_sectors=60, l2_hits=40)
    k |= oracle.planted(wavefronts=70, ideal=35, read=480, written=96) | {
        name: value for name, value in k.items() if value
    }
    assert kata.memory_chart(k) == kata.Chart(
        requests=10,
        sectors=90,
        l1_hit=pytest.approx(1 / 3, rel=1e-12),
        l2_sectors=60,
        l2_hit=pytest.approx(2 / 3, rel=1e-12),
        dram_read_bytes=480,
        dram_written_bytes=96,
        shared_wavefronts=70,
        shared_ideal=35,
    )


def test_hit_rates_are_those_of_the_profiler(kata, oracle, cost):
    worst = 0.0
    for at, (k, (l1, l2)) in enumerate(
        zip(oracle.captured(), oracle.profiler_rates(), strict=True)
    ):
        chart, name = kata.memory_chart(k), k["Kernel Name"]
        if chart.sectors:
            worst = max(worst, abs(chart.l1_hit - l1))
            assert chart.l1_hit == pytest.approx(l1, abs=0.005), f"l1_hit of {name}"
        # the profiler's rate has all other reads in it, too: constants, instructions, the
        # other partition of L2
        if chart.sectors > 1_000_000 and at < 11:
            assert chart.l2_hit == pytest.approx(l2, abs=0.02), f"l2_hit of {name}"
    cost.check("hit_error", worst)


def test_passes_hit_the_cache_that_keeps_them(kata, oracle):
    """The same request again and again: 1 of n comes from further away, from L2 with ld.cg."""
    for row in oracle.measured():
        if row["passes"] > 1:
            counters = ("requests", "sectors", "l1_hits", "l2_sectors", "l2_hits")
            chart = kata.memory_chart(oracle.planted(**{name: row[name] for name in counters}))
            again = (row["passes"] - 1) / row["passes"]
            expected = (0.0, again) if row["op"] == "ld.cg" else (again, 0.0)
            found = (chart.l1_hit, chart.l2_hit)
            assert found == expected, f"pattern {row['id']}: expected {expected}, found {found}"


def test_no_loads_have_no_hit_rate(kata, oracle):
    chart = kata.memory_chart(oracle.planted(read=64, written=64))
    assert (chart.l1_hit, chart.l2_hit) == (None, None)
    assert kata.load_efficiency(oracle.planted(), 0) is None


def test_impossible_counters_are_refused(kata, oracle):
    for short, name in oracle.SHORT.items():
        k = oracle.planted(sectors=9, l2_sectors=9) | {name: -1}
        for function in (kata.memory_chart, lambda k: kata.load_efficiency(k, 128)):
            with pytest.raises(ValueError, match=f"^{name}: "):
                function(k)
            if short in ("l1_hits", "l2_hits"):
                with pytest.raises(ValueError, match=f"^{name}: "):
                    function(k | {name: 10})
        if short in ("l1_hits", "l2_hits"):
            k[name] = 9
            assert kata.memory_chart(k).sectors == 9


# ---- efficiency, waste, advice -------------------------------------------------------------


@pytest.mark.parametrize(
    ("sectors", "requested", "expected"),
    [(4, 128, 1.0), (32, 128, 0.125), (5, 128, 0.8), (1, 128, 4.0), (4, 0, 0.0)],
    ids=["contiguous", "strided", "shifted", "broadcast", "unused"],
)
def test_efficiency_is_of_the_sectors(kata, oracle, sectors, requested, expected):
    k = oracle.planted(requests=1, sectors=sectors)
    assert kata.load_efficiency(k, requested) == pytest.approx(expected, rel=1e-12)


def test_useful_and_wasted_bytes_are_all_that_moved(kata, oracle):
    for at, (name, requested, useful, _) in oracle.LABELS.items():
        k = oracle.captured()[at]
        found = kata.waste(kata.memory_chart(k), requested, useful)
        expected = {
            "SM-L1": 32 * k[oracle.SHORT["sectors"]] - requested,
            "L1-L2": 32 * k[oracle.SHORT["l2_sectors"]] - useful,
            "L2-DRAM": k[oracle.SHORT["read"]] - useful,
        }
        assert found == expected, f"{name}: expected {expected}, found {found}"


def test_waste_is_exact_past_53_bits(kata, oracle):
    many = 2**60 + 1
    chart = kata.memory_chart(oracle.planted(sectors=many, l2_sectors=many, read=many))
    expected = {"SM-L1": 32 * many - 3, "L1-L2": 32 * many - 7, "L2-DRAM": many - 7}
    assert kata.waste(chart, 3, 7) == expected


def test_what_a_cache_keeps_is_saved(kata, oracle):
    """The second pass over 3200 bytes, all of them in L2."""
    k = oracle.planted(requests=25, sectors=100, l2_sectors=100, l2_hits=100, read=0)
    chart = kata.memory_chart(k)
    assert chart.l2_hit == 1.0
    assert kata.waste(chart, 3200, 3200) == {"SM-L1": 0, "L1-L2": 0, "L2-DRAM": -3200}
    assert kata.advice(chart, 3200, 3200) == "none"
    # lanes share the bytes of 4 sectors, L1 has 3 of these, and half of the fourth is read
    chart = kata.memory_chart(oracle.planted(sectors=4, l1_hits=3, l2_sectors=1, read=16))
    assert kata.waste(chart, 1024, 128) == {"SM-L1": -896, "L1-L2": -96, "L2-DRAM": -112}


def test_captured_kernels_get_their_advice(kata, oracle):
    launches = oracle.captured()
    for at, (name, requested, useful, expected) in oracle.LABELS.items():
        found = kata.advice(kata.memory_chart(launches[at]), requested, useful)
        assert found == expected, f"{name}: expected {expected!r}, found {found!r}"


@pytest.mark.parametrize(
    ("counters", "requested", "useful", "expected"),
    [
        ({"sectors": 100}, 1600, 1600, "coalesce"),
        ({"sectors": 100}, 1601, 1601, "none"),
        ({"sectors": 100, "wavefronts": 9, "ideal": 1, "read": 9999}, 1600, 100, "coalesce"),
        ({"wavefronts": 200, "ideal": 100}, 0, 100, "swizzle"),
        ({"wavefronts": 199, "ideal": 100}, 0, 100, "none"),
        ({"wavefronts": 5, "ideal": 0}, 0, 100, "none"),
        ({"wavefronts": 9, "ideal": 1, "read": 9999, "l2_sectors": 999}, 0, 100, "swizzle"),
        ({"read": 640, "l2_sectors": 20}, 0, 320, "block for L2"),
        ({"read": 639, "l2_sectors": 20}, 0, 320, "block for L1"),
        ({"read": 639, "l2_sectors": 19}, 0, 320, "none"),
        ({"read": 639, "l2_sectors": 19}, 0, 0, "none"),
        ({"written": 9999}, 0, 320, "none"),
        ({"sectors": 1}, 0, 0, "coalesce"),
        ({"sectors": 1, "read": 32, "l2_sectors": 1}, 128, 32, "none"),
    ],
    ids=[
        "half used",
        "more than half used",
        "coalesce first",
        "two for one",
        "less than two for one",
        "no ideal",
        "swizzle before blocking",
        "twice from DRAM",
        "twice from L2",
        "once",
        "nothing useful",
        "written back",
        "nothing used",
        "shared by lanes",
    ],
)
def test_the_first_waste_is_the_advice(kata, oracle, counters, requested, useful, expected):
    chart = kata.memory_chart(oracle.planted(**counters))
    assert kata.advice(chart, requested, useful) == expected


def test_negative_bytes_are_refused(kata, oracle):
    k = oracle.planted(sectors=4)
    chart = kata.memory_chart(k)
    for function in (kata.waste, kata.advice):
        with pytest.raises(ValueError, match="^bytes_requested: "):
            function(chart, -1, 5)
        with pytest.raises(ValueError, match="^useful_bytes: "):
            function(chart, 128, -1)
    for counters in (k, oracle.planted()):
        with pytest.raises(ValueError, match="^bytes_requested: "):
            kata.load_efficiency(counters, -1)


def test_counters_are_left_alone(kata, oracle):
    k = oracle.planted(sectors=4, l1_hits=2)
    before = dict(k)
    kata.load_efficiency(k, 128)
    assert k == before
