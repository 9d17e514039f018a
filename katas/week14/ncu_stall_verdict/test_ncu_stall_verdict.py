"""Exports of 18 kernels against the profiler's own pages; planted units, gaps and launches."""

from dataclasses import replace

import pytest

TIME, READ, WRITE = "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum"
ISSUED = "smsp__inst_executed.sum"


@pytest.fixture(scope="module")
def captured(kata, oracle):
    """Parsed launches of a capture."""
    return lambda name: kata.parse_raw(oracle.lines_of(name))


# ---- the raw page --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "unit", "expected"),
    [
        ("2.5", "s", 2.5),
        ("2.5", "ms", 2.5e-3),
        ("2.5", "us", 2.5e-6),
        ("2,500", "ns", 2.5e-6),
        ("2.5", "second", 2.5),
        ("2.5", "msecond", 2.5e-3),
        ("2.5", "usecond", 2.5e-6),
        ("17,279,456", "nsecond", 0.017279456),
        ("768", "byte", 768),
        ("1.5", "Kbyte", 1500),
        ("1.5", "Mbyte", 1.5e6),
        ("0.536892", "Gbyte", 536_892_000),
        ("1.5", "Tbyte", 1.5e12),
        ("3.2", "Ghz", 3.2e9),
        ("3.2", "Mhz", 3.2e6),
        ("3.2", "Khz", 3200),
        ("3", "hz", 3),
        ("86.86", "%", 0.8686),
        ("4.18", "Tbyte/s", 4.18e12),
        ("995", "Gbyte/second", 9.95e11),
        ("8", "byte/s", 8),
        ("206", "sector/ns", 206e9),
        ("5", "sector/us", 5e6),
        ("1.504", "Kbyte/cycle", 1504),
        ("0.5", "%/Kbyte", 5e-6),
        ("16", "register/thread", 16),
        ("7", "SM", 7),
        ("0.09", "", 0.09),
        ("0", "Gbyte", 0),
    ],
)
def test_units_become_those_of_si(kata, oracle, cell, unit, expected):
    (found,) = kata.parse_raw(oracle.export({"a__b.sum": unit}, {"a__b.sum": cell}))
    assert found["a__b.sum"] == pytest.approx(expected, rel=1e-13)
    assert type(found["a__b.sum"]) is float


def test_both_exports_of_a_run_are_the_same(kata, captured):
    scaled, base = captured("kernels_raw"), captured("kernels_raw_base")
    assert len(scaled) == len(base) == 15
    for one, other in zip(scaled, base, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            if "__" in name and name != "device__attribute_display_name":
                # six decimals of a gigabyte here, two of a ratio there
                rounded = 600 if name.startswith("dram__bytes_") else 0.006
                near = pytest.approx(other[name], rel=1e-3, abs=0 if name == TIME else rounded)
                assert value == near, f"{name}: {value} and {other[name]} of {one['Kernel Name']}"


def test_what_is_no_metric_stays_text(kata, captured):
    first = captured("kernels_raw")[0]
    assert first["Kernel Name"] == "copy_vec4(const float4 *, float4 *, unsigned long)"
    assert (first["ID"], first["Block Size"], first["CC"]) == ("0", "(256, 1, 1)", "9.0")
    assert first["device__attribute_display_name"] == "NVIDIA H200"


def test_launches_come_in_the_order_of_the_file(captured):
    names = [launch["Kernel Name"].split("(")[0] for launch in captured("kernels_raw")]
    assert names[-3:] == ["layernorm_sync", "void layernorm_cp_async<4>", "layernorm_sync"]
    assert len(captured("gemm_raw")) == 3


def test_text_without_metrics_is_kept_as_it_is(kata, oracle):
    (found,) = kata.parse_raw(oracle.export({"Grid Size": ""}, {"Grid Size": " 1,024"}))
    assert found == {"ID": "0", "Kernel Name": "", "Grid Size": " 1,024"}


def test_cells_are_quoted_as_in_any_csv(kata, oracle):
    name = 'tag<"a","b">(int, float *)'
    (quoted,) = kata.parse_raw(oracle.export({TIME: "s"}, {TIME: "1", "Kernel Name": name}))
    assert quoted == {"ID": "0", "Kernel Name": name, TIME: 1.0}
    (bare,) = kata.parse_raw([f"ID,Kernel Name,{TIME}\n", ",,s\n", '0,"f(int, int)",2\n'])
    assert bare == {"ID": "0", "Kernel Name": "f(int, int)", TIME: 2.0}


def test_a_unit_of_what_is_no_metric_is_nothing(kata, oracle):
    (found,) = kata.parse_raw(oracle.export({"Grid Size": "furlong"}, {"Grid Size": "7"}))
    assert found["Grid Size"] == "7"


def test_a_metric_that_was_not_measured_is_left_out(kata, oracle):
    lines = oracle.export({TIME: "us", READ: "byte"}, {TIME: "1"}, {TIME: "n/a", READ: "3"})
    assert [set(launch) - {"ID", "Kernel Name"} for launch in kata.parse_raw(lines)] == [
        {TIME},
        {READ},
    ]


def test_lines_are_read_once_and_the_profilers_own_skipped(kata, oracle):
    equal = {TIME: "2", "Kernel Name": "f<a == b>(int)"}  # no line of the profiler's own
    table = oracle.export({TIME: "us"}, {TIME: "1"}, equal)
    between = [*table[:3], "==WARNING== Slow\n", "\n", *table[3:]]
    noisy = ["==PROF== Connected\n", "\n", *between, "\n", "==ERROR== Disconnected\n"]
    for lines in (table, between, noisy):
        found = kata.parse_raw(line for line in lines)
        assert [launch[TIME] for launch in found] == pytest.approx([1e-6, 2e-6])


@pytest.mark.parametrize("kept", [0, 1, 2], ids=["nothing", "names", "units"])
def test_an_export_without_launches_has_none(kata, oracle, kept):
    assert kata.parse_raw(oracle.export({TIME: "us"})[:kept]) == []


@pytest.mark.parametrize(
    "unit", ["furlong", "kbyte", "byte/furlong", "mbyte", "Ms", "Kinst", "GHz", "byte/s/cycle"]
)
def test_unknown_units_are_refused(kata, oracle, unit):
    with pytest.raises(ValueError, match=rf"^a__b\.sum: .*{unit}"):
        kata.parse_raw(oracle.export({"a__b.sum": unit}))


# ---- bandwidth -----------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "page"), [("kernels", "raw_base"), ("gemm", "raw")])
def test_bandwidth_of_each_kernel_is_the_profilers(
    kata, oracle, captured, profile, cost, name, page
):
    of_rate, of_share = [], []
    for launch, details in zip(captured(f"{name}_{page}"), oracle.details(name), strict=True):
        bytes_per_s, share = kata.achieved_bandwidth([launch], oracle.h200(profile))
        rate = launch["dram__bytes.sum.per_second"]
        of_rate.append(abs(bytes_per_s - rate) / rate)
        # the page has two decimals of a percentage
        shown = details["DRAM Throughput"][0] / 100
        of_share.append(max(0, abs(share - shown) - 0.00005) / shown)
        assert share <= 1, f"{launch['Kernel Name']}: faster than its bytes at the peak"
    cost.check("bandwidth_error", max(of_rate))
    cost.check("share_error", max(of_share))


def test_launches_are_added_before_they_are_divided(kata, oracle, profile):
    launches = [oracle.launch(1.0, read=4e12), oracle.launch(3.0, read=1e12, write=1e12)]
    found = kata.achieved_bandwidth(launches, replace(profile, bandwidth=2e12))
    assert found == pytest.approx((1.5e12, 0.75))


def test_bandwidth_needs_no_metric_but_bytes_and_time(kata, oracle, profile):
    launch = {READ: 3e12, WRITE: 1e12, TIME: 2.0, "dram__bytes.sum.per_second": 1.0}
    found = kata.achieved_bandwidth((launch,), oracle.h200(profile))
    assert found == pytest.approx((2e12, 2 / 4.8))


# ---- stalls --------------------------------------------------------------------------------


def test_dominant_stalls_are_those_of_the_samples(kata, oracle, captured, cost):
    wrong = []
    for name in oracle.RAW:
        launches = zip(captured(f"{name}_raw"), oracle.cells_of(f"{name}_raw"), strict=True)
        for launch, cells in launches:
            shares, sampled = kata.stall_breakdown([launch]), oracle.sampled_shares(cells)
            assert sum(shares.values()) == pytest.approx(1)
            assert "selected" not in shares
            if sampled:  # one kernel is over before the first sample
                dominant, expected = (max(of, key=of.get) for of in (shares, sampled))
                close = abs(shares[expected] - sampled[expected]) < 0.06
                if dominant != expected or not close:
                    wrong.append((launch["Kernel Name"], dominant, expected))
    cost.check("wrong_stalls", len(wrong))


def test_shares_are_of_the_stalled_cycles_alone(kata, oracle):
    launch = oracle.launch(selected=1.0, barrier=1.5, long_scoreboard=4.5, gmma=0.0)
    expected = {"barrier": 0.25, "long_scoreboard": 0.75, "gmma": 0}
    assert kata.stall_breakdown([launch]) == pytest.approx(expected)


def test_other_metrics_of_stalls_are_no_reasons(kata, oracle):
    launch = oracle.launch(barrier=1.0, wait=3.0) | {
        "smsp__average_warps_issue_stalled_barrier_per_warp_active.pct": 0.9,
        "smsp__average_warps_issue_stalled_drain.ratio": 9.0,
        "smsp__maximum_warps_issue_stalled_drain_per_issue_active.ratio": 9.0,
        "smsp__pcsamp_warps_issue_stalled_drain": 9.0,
    }
    assert kata.stall_breakdown([launch]) == pytest.approx({"barrier": 0.25, "wait": 0.75})


def test_launches_weigh_by_the_instructions_they_issued(kata, oracle):
    launches = [
        oracle.launch(issued=300, barrier=1.0, wait=1.0),
        oracle.launch(issued=100, barrier=9.0, wait=3.0),
    ]
    expected = {"barrier": 1200 / 1800, "wait": 600 / 1800}
    assert kata.stall_breakdown(launches) == pytest.approx(expected)


def test_what_never_stalls_has_no_shares(kata, oracle):
    found = kata.stall_breakdown([oracle.launch(selected=1.0, barrier=0.0, wait=0.0)])
    assert found == {"barrier": 0, "wait": 0}


# ---- the verdict ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (12, 13, "latency"),  # cp.async at one block an SM: 0.35 of the peak
        (12, 14, "bandwidth"),  # the synchronous kernel at full occupancy: 0.64
        (14, 13, "latency"),  # slower is a change, too
        (9, 10, "bandwidth"),
        (12, 12, "no change"),
    ],
    ids=["cp.async", "occupancy", "back to cp.async", "transpose", "the same"],
)
def test_verdicts_on_captured_kernels(kata, oracle, captured, profile, before, after, expected):
    launches = captured("kernels_raw")
    found = kata.verdict([launches[before]], [launches[after]], oracle.h200(profile))
    assert found == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {"time_s": 0.96, "read": 4.8e12}, "no change"),
        ({}, {"time_s": 1.04}, "no change"),
        ({}, {"time_s": 0.9515}, "no change"),
        ({}, {"time_s": 1.051}, "barrier"),
        ({}, {"time_s": 0.94}, "barrier"),
        ({}, {"time_s": 1.06}, "barrier"),
        ({}, {"time_s": 0.5, "barrier": 1.9}, "latency"),
        ({}, {"time_s": 0.5, "barrier": 2.0}, "latency"),
        ({}, {"time_s": 0.5, "barrier": 0.0, "wait": 0.0}, "latency"),
        ({}, {"time_s": 0.5, "read": 0.8e12, "write": 0.7e12}, "bandwidth"),
        ({}, {"time_s": 0.5, "read": 0.7e12, "write": 0.7e12}, "barrier"),
        ({"read": 4.8e12}, {"time_s": 0.5}, "barrier"),
        ({"barrier": 0.1}, {"time_s": 2.0}, "barrier"),
        # selected is no stall, and all but one of the stalls together outweigh the barrier
        ({}, {"time_s": 0.5, "selected": 9.0, "long_scoreboard": 2.5, "drain": 2.5}, "barrier"),
    ],
    ids=[
        "4 % less", "4 % more", "nearly 5 % less", "just 5 % more", "6 % less", "6 % more",
        "another stall", "as much of another stall", "no stall",
        "0.62 of the peak", "0.58 of it", "peak before", "other stall before", "selected",
    ],
)  # fmt: skip
def test_verdicts_on_planted_kernels(kata, oracle, profile, before, after, expected):
    usual = {"barrier": 3.0, "wait": 2.0}
    old, new = ([oracle.launch(**usual | change)] for change in (before, after))
    assert kata.verdict(old, new, oracle.h200(profile)) == expected


def test_a_share_that_is_just_reached_counts(kata, oracle, profile):
    before, after = oracle.launch(2.0, barrier=1.0), oracle.launch(1.0, read=3e12, barrier=1.0)
    peak = replace(profile, bandwidth=5e12)
    assert kata.verdict([before], [after], peak) == "bandwidth"


@pytest.mark.parametrize(
    "stalls",
    [{"wait": 1.0, "drain": 1.0}, {"barrier": 0.0}, {"barrier": 0.0, "wait": 0.0}],
    ids=["no barrier", "never there", "no stall"],
)
def test_without_time_at_barriers_it_is_latency(kata, oracle, profile, stalls):
    before, after = [oracle.launch(2.0)], [oracle.launch(1.0, **stalls)]
    assert kata.verdict(before, after, oracle.h200(profile)) == "latency"


def test_all_launches_are_judged(kata, oracle, profile):
    before = [oracle.launch(10.0, read=4.8e13)] * 2
    at_a_barrier = oracle.launch(1.0, read=4.8e12, barrier=1.0, wait=0.0)
    waiting = oracle.launch(3.0, issued=10.0, barrier=0.0, wait=1.0)
    peak = oracle.h200(profile)
    assert kata.verdict(before, [at_a_barrier, waiting], peak) == "latency"
    assert kata.verdict(before, [waiting, at_a_barrier], peak) == "latency"
    often = [oracle.launch(1.0, issued=20.0, barrier=1.0, wait=0.0), waiting]
    assert kata.verdict(before, often, peak) == "barrier"


def test_launches_are_left_as_they_are(kata, oracle, profile):
    launches = [oracle.launch(2.0, selected=1.0, barrier=1.0), oracle.launch(1.0, barrier=2.0)]
    before, after = ([dict(launch)] for launch in launches)
    kata.verdict(before, after, oracle.h200(profile))
    kata.stall_breakdown(before)
    left = before + after
    assert left == launches


def test_a_verdict_asks_for_no_more_than_it_takes(kata, oracle, profile):
    peak = oracle.h200(profile)
    timed, moved = {TIME: 1.0}, {TIME: 0.5, READ: 2.4e12, WRITE: 0.0}
    assert kata.verdict([timed], [timed], peak) == "no change"
    assert kata.verdict([timed], [moved], peak) == "bandwidth"
    assert kata.verdict([timed], [oracle.launch(0.5, barrier=1.0)], peak) == "barrier"


def test_the_time_of_a_launch_is_compared(kata, oracle, profile):
    once = oracle.launch(1.0, barrier=1.0)
    twice = [oracle.launch(0.6, barrier=1.0), oracle.launch(1.4, barrier=1.0)]
    assert kata.verdict([once], twice, oracle.h200(profile)) == "no change"
    assert kata.verdict(twice, [once] * 3, oracle.h200(profile)) == "no change"
    assert kata.verdict([once], twice[:1] * 2, oracle.h200(profile)) == "barrier"


# ---- what is missing -----------------------------------------------------------------------


@pytest.mark.parametrize("name", [TIME, READ, WRITE], ids=["time", "read", "write"])
def test_bandwidth_names_the_missing_metric(kata, oracle, profile, name):
    launches = [oracle.launch(), oracle.launch()]
    del launches[1][name]
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.achieved_bandwidth(launches, profile)


def test_stalls_name_the_missing_metric(kata, oracle):
    whole, bare = oracle.launch(barrier=1.0, wait=1.0), oracle.launch(barrier=1.0)
    unweighted = dict(whole)
    del unweighted[ISSUED]
    for launches, name in (
        ([whole, bare], oracle.stall("wait")),
        ([bare, whole], oracle.stall("wait")),
        ([oracle.launch()], "smsp__average_warps_issue_stalled_"),
        ([oracle.launch(selected=1.0)], "smsp__average_warps_issue_stalled_"),
        ([unweighted], ISSUED),
        ([whole, unweighted], ISSUED),
    ):
        with pytest.raises(ValueError, match=f"^{name}"):
            kata.stall_breakdown(launches)


def test_verdict_names_the_missing_metric(kata, oracle, profile):
    timeless = oracle.launch()
    del timeless[TIME]
    for before, after, name in (
        (timeless, oracle.launch(), TIME),
        (oracle.launch(), timeless, TIME),
        (oracle.launch(), oracle.launch(2.0), "smsp__average_warps_issue_stalled_"),
    ):
        with pytest.raises(ValueError, match=f"^{name}"):
            kata.verdict([before], [after], profile)


def test_no_launches_are_refused(kata, oracle, profile):
    some = [oracle.launch()]
    for ask in (
        lambda: kata.achieved_bandwidth([], profile),
        lambda: kata.stall_breakdown([]),
        lambda: kata.verdict([], some, profile),
        lambda: kata.verdict(some, [], profile),
    ):
        with pytest.raises(ValueError, match="^launches: "):
            ask()
