"""Verdicts on 18 captured kernels, and on launches with planted shares."""

import math
import re

import pytest

TIME = "gpu__time_duration.sum"
SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"


@pytest.fixture
def gpu(oracle, profile):
    return oracle.h200(profile)


def as_pair(limit):
    return limit.kind, limit.unit


# ---- speed of light ------------------------------------------------------------------------


def test_shares_are_those_of_the_profiler(kata, oracle, cost):
    worst = 0.0
    for k, expected in zip(oracle.captured(), oracle.profiler_shares(), strict=True):
        found = kata.sol(k)
        assert found.keys() == expected.keys()
        for unit, share in expected.items():
            off = abs(found[unit] - share)
            worst = max(worst, off)
            assert off < 0.01, (
                f"{unit} of {k['Kernel Name']}: expected {share}, found {found[unit]}"
            )
    cost.check("share_error", worst)


def test_every_unit_has_its_own_peak(kata, oracle):
    """SMs awake for a fifth of the time, L1 for a tenth: shares are of the whole duration."""
    shares = {"sm": 0.11, "memory": 0.12, "dram": 0.13, "l2": 0.14, "l1": 0.05, "issue": 0.16}
    shares |= {"alu": 0.17, "fma": 0.18, "tensor": 0.19, "xu": 0.2}
    found = kata.sol(oracle.planted(launch_awake=0.2, **shares))
    assert found == pytest.approx(shares, rel=1e-9)


# ---- verdicts ------------------------------------------------------------------------------


def test_captured_kernels_get_their_verdicts(kata, oracle, gpu, cost):
    wrong = []
    for k, (name, kind, unit) in zip(oracle.captured(), oracle.LABELS, strict=True):
        found = as_pair(kata.classify(k, gpu))
        if found != (kind, unit):
            wrong.append(f"{name}: expected {(kind, unit)}, found {found}")
    cost.check("wrong_verdicts", len(wrong))
    assert not wrong, "; ".join(wrong)


@pytest.mark.parametrize(
    ("time_ns", "launch_s", "kind"),
    [
        (4_900, 2e-6, "launch"),
        (6_000, 2.4e-6, "latency"),  # exactly 2.5 launch floors
        (9_000, 4e-6, "launch"),
        (9_000, 2e-6, "latency"),
    ],
    ids=["below", "at the limit", "slow to launch", "above"],
)
def test_short_kernels_are_launched(kata, oracle, profile, time_ns, launch_s, kind):
    k = oracle.planted(time_ns=float(time_ns), sm=0.3, memory=0.2, dram=0.2)
    assert as_pair(kata.classify(k, oracle.h200(profile, launch_s))) == (kind, None)


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ({"sm": 0.59, "memory": 0.599, "dram": 0.599, "l2": 0.7}, ("latency", None)),
        ({"sm": 0.1, "memory": 0.6, "dram": 0.6}, ("bandwidth", "dram")),
        ({"sm": 0.6, "memory": 0.1, "fma": 0.6}, ("compute", "fma")),
        ({"sm": 0.8, "memory": 0.8, "dram": 0.8, "fma": 0.8}, ("bandwidth", "dram")),
        ({"sm": 0.81, "memory": 0.8, "dram": 0.8, "fma": 0.81}, ("compute", "fma")),
        ({"sm": 0.1, "memory": 0.9, "dram": 0.1, "l2": 0.6, "l1": 0.9}, ("bandwidth", "l2")),
        ({"sm": 0.1, "memory": 0.9, "dram": 0.7, "l2": 0.9, "l1": 0.8}, ("bandwidth", "dram")),
        ({"sm": 0.1, "memory": 0.9, "dram": 0.59, "l2": 0.5, "l1": 0.6}, ("bandwidth", "l1")),
        ({"sm": 0.1, "memory": 0.7, "dram": 0.3, "l2": 0.5, "l1": 0.4}, ("bandwidth", "l2")),
        ({"sm": 0.1, "memory": 0.7, "dram": 0.5, "l2": 0.5, "l1": 0.1}, ("bandwidth", "dram")),
        ({"sm": 0.9, "memory": 0.1, "issue": 0.7, "tensor": 0.9}, ("compute", "tensor")),
        ({"sm": 0.9, "memory": 0.1, "issue": 0.9, "tensor": 0.7}, ("compute", "issue")),
        ({"sm": 0.7, "memory": 0.1, "issue": 0.4, "alu": 0.5}, ("compute", "alu")),
        ({"sm": 0.7, "memory": 0.1, "alu": 0.7, "xu": 0.7}, ("compute", "alu")),
        ({"sm": 0.7, "memory": 0.1, "issue": 0.7, "alu": 0.7}, ("compute", "issue")),
    ],
    ids=[
        "just idle",
        "just busy memory",
        "just busy SM",
        "equal headlines",
        "SM ahead",
        "L2 outside L1",
        "DRAM outside L2",
        "L1 alone",
        "no level busy",
        "no level busy, two equal",
        "tensor pipe",
        "issue slots",
        "no pipe busy",
        "two pipes equal",
        "issue slots and a pipe equal",
    ],
)
def test_the_two_headlines_come_first_then_the_unit(kata, oracle, gpu, shares, expected):
    assert as_pair(kata.classify(oracle.planted(**shares), gpu)) == expected


def test_short_kernel_that_is_busy_is_not_launched(kata, oracle, gpu):
    k = oracle.planted(time_ns=3000.0, sm=0.2, memory=0.7, dram=0.7)
    assert as_pair(kata.classify(k, gpu)) == ("bandwidth", "dram")


# ---- headroom ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("time_ns", "shares", "expected"),
    [
        (1e6, {"memory": 0.8, "dram": 0.625, "l2": 0.8}, 1.6),
        (1e6, {"sm": 0.8, "tensor": 0.75, "memory": 0.7, "dram": 0.7}, 4 / 3),
        (1e6, {"sm": 0.1, "memory": 0.25, "dram": 0.2, "l2": 0.9}, 4.0),
        (1e6, {"sm": 0.5, "memory": 0.25, "dram": 0.2}, 2.0),
        (3000.0, {"sm": 0.1, "memory": 0.25}, 1.5),
        (1000.0, {"sm": 0.1, "memory": 0.25}, 1.0),
        (1e6, {"memory": 1.02, "dram": 1.02}, 1.0),
        (1e6, {}, math.inf),
        (1e6, {"memory": 0.7}, math.inf),
    ],
    ids=[
        "outermost level",
        "pipe",
        "latency, memory ahead",
        "latency, SM ahead",
        "launch",
        "less than a launch",
        "past the peak",
        "idle",
        "no unit did anything",
    ],
)
def test_headroom_is_up_to_the_limit(kata, oracle, gpu, time_ns, shares, expected):
    k = oracle.planted(time_ns=time_ns, **shares)
    assert kata.headroom(k, gpu) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("before", "after"), [(3, 0), (12, 14)], ids=["copy, more warps", "LayerNorm, more warps"]
)
def test_no_fix_of_the_same_work_beats_the_headroom(kata, oracle, gpu, before, after):
    launches = oracle.captured()
    measured = launches[before][TIME] / launches[after][TIME]
    assert measured <= kata.headroom(launches[before], gpu) <= 1.6 * measured


# ---- several launches ----------------------------------------------------------------------


def test_launches_add_up_by_time(kata, oracle, gpu):
    """Three short kernels and one long one: the long one is what to look at."""
    tiny = oracle.planted(time_ns=2500.0, sm=0.1)
    copy = oracle.planted(time_ns=1.997e5, memory=0.9, dram=0.9)
    gemm = oracle.planted(time_ns=7.903e5, sm=0.9, tensor=0.9)
    found = kata.triage([tiny, tiny, copy, tiny, tiny, gemm], gpu)
    assert [(as_pair(limit), share) for limit, share in found.items()] == [
        (("compute", "tensor"), pytest.approx(0.7903, rel=1e-9)),
        (("bandwidth", "dram"), pytest.approx(0.1997, rel=1e-9)),
        (("launch", None), pytest.approx(0.01, rel=1e-9)),
    ]


def test_equal_times_keep_the_order_of_launches(kata, oracle, gpu):
    copy = oracle.planted(memory=0.9, dram=0.9)
    resident = oracle.planted(memory=0.9, l2=0.9)
    for launches in ([copy, resident], [resident, copy]):
        expected = [as_pair(kata.classify(k, gpu)) for k in launches]
        found = [as_pair(limit) for limit in kata.triage(launches, gpu)]
        assert found == expected


def test_nothing_to_triage_is_refused(kata, gpu):
    with pytest.raises(ValueError, match="^launches: "):
        kata.triage([], gpu)


# ---- what is missing -----------------------------------------------------------------------


def test_missing_metric_is_named_with_its_section(kata, oracle, gpu):
    complete = oracle.planted(sm=0.1, memory=0.2)
    for name, section in kata.SECTIONS.items():
        k = {metric: value for metric, value in complete.items() if metric != name}
        for function in (kata.sol, lambda k: kata.headroom(k, gpu)):
            with pytest.raises(ValueError, match=f"^{re.escape(name)}: .* {section}$"):
                function(k)


def test_launches_are_left_alone(kata, oracle, gpu):
    k = oracle.planted(sm=0.1, memory=0.2)
    before = dict(k)
    kata.triage([k, k], gpu)
    kata.headroom(k, gpu)
    assert k == before


# ---- the command ---------------------------------------------------------------------------

LAUNCHES = ["fill", "gemm_bf16", "copy", "gemm_bf16", "gemm_fp8", "copy", "gemm_bf16"]


@pytest.mark.parametrize(
    ("regex", "skip", "count", "expected"),
    [
        ("gemm", 0, 1, [1]),
        ("gemm_bf16", 1, 1, [3]),
        ("gemm", 2, 2, [4, 6]),
        ("^copy$", 1, 5, [5]),
        ("gemm_(bf16|fp8)", 1, 2, [3, 4]),
    ],
    ids=["first", "second", "two of them", "to the end", "either"],
)
def test_command_selects_these_launches(kata, oracle, regex, skip, count, expected):
    argv = kata.ncu_argv(regex, skip, count, ["SpeedOfLight"], "report")
    found, _ = oracle.profiled(argv, LAUNCHES)
    assert found == expected, f"{argv} of {LAUNCHES}: expected {expected}, found {found}"


def test_command_collects_sections_and_leaves_the_clock_alone(kata, oracle):
    sections = ["SpeedOfLight", "regex:Memory.*Tables", "Occupancy"]
    argv = kata.ncu_argv("my kernel", 3, 1, sections, "out dir/report")
    assert all(isinstance(word, str) for word in argv), f"expected words, found {argv}"
    _, options = oracle.profiled(argv, LAUNCHES)
    assert options.section == sections
    assert options.clock_control == "none"
    assert options.export == "out dir/report"


@pytest.mark.parametrize(
    ("change", "name"),
    [({"skip": -1}, "skip"), ({"count": 0}, "count"), ({"sections": []}, "sections")],
    ids=["skip", "count", "sections"],
)
def test_impossible_commands_are_refused(kata, change, name):
    call = {"kernel_regex": "gemm", "skip": 0, "count": 1, "sections": ["SpeedOfLight"], "out": "r"}
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.ncu_argv(**(call | change))
