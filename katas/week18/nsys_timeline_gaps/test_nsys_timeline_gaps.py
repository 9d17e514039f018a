"""Gaps against every nanosecond, planted causes, and five captures of an H200."""

import random

import pytest

T0 = 1_790_857_026_000_000_000  # where timelines begin, in nanoseconds since 1970
SYNC, MEMCPY = "cudaStreamSynchronize_v3020", "cudaMemcpy_v3020"


def times(gaps):
    return [(gap.start - T0, gap.end - T0) for gap in gaps]


# ---- gaps ----------------------------------------------------------------------------------


def test_gaps_are_those_of_every_nanosecond(kata, oracle, seed):
    draw = random.Random(seed)
    for trial in range(40):
        timeline = oracle.random_timeline(draw, trial // 3)
        expected = oracle.gaps(timeline.activities, 0)
        found = times(kata.gpu_gaps(timeline.database()))
        assert found == expected, (
            f"{sorted(timeline.activities)}: expected {expected}, found {found}"
        )
        busy_ns, idle_ns = len(oracle.busy(timeline.activities)), sum(e - s for s, e in expected)
        totals = {"span_ns": busy_ns + idle_ns, "busy_ns": busy_ns, "idle_ns": idle_ns}
        found = kata.report(timeline.database())
        found = {key: found[key] for key in totals}
        assert found == totals, f"{sorted(timeline.activities)}: expected {totals}, found {found}"


def test_gaps_are_of_all_streams_together(kata, oracle):
    timeline = oracle.Timeline()
    timeline.kernel(10, 50, 1, stream=7)
    timeline.kernel(20, 30, 2, stream=13)  # within the first
    timeline.kernel(50, 60, 3, stream=13)  # at once
    timeline.memset(64, 65, 4)
    timeline.copy(70, 80, 5)
    timeline.copy(72, 74, 6, "PtoP", stream=14)
    timeline.kernel(90, 91, 7)
    gaps = kata.gpu_gaps(timeline.database())
    assert times(gaps) == [(60, 64), (65, 70), (80, 90)]
    assert gaps[0] == kata.Gap(T0 + 60, T0 + 64)


def test_short_gaps_are_left_out(kata, oracle):
    timeline = oracle.Timeline()
    for number, (start, end) in enumerate([(0, 10), (14, 20), (25, 30), (36, 40)]):
        timeline.kernel(start, end, number)
    db = timeline.database()
    for min_ns, expected in ((0, [4, 5, 6]), (5, [5, 6]), (6, [6]), (7, [])):
        found = [gap.end - gap.start for gap in kata.gpu_gaps(db, min_ns)]
        assert found == expected, f"at least {min_ns} ns: expected {expected}, found {found}"


def test_what_takes_no_time_neither_splits_nor_ends_a_gap(kata, oracle):
    timeline = oracle.Timeline()
    for number, (start, end) in enumerate(
        [(3, 3), (5, 10), (15, 15), (20, 30), (20, 20), (44, 44)]
    ):
        timeline.kernel(start, end, number + 1)
        timeline.call(start - 1, start, number + 1)
    db = timeline.database()
    assert times(kata.gpu_gaps(db)) == [(10, 20)]
    assert kata.report(db)["span_ns"] == 25


@pytest.mark.parametrize("events", [[], [(5, 9)], [(5, 5)]], ids=["nothing", "one", "no time"])
def test_little_has_no_gaps(kata, oracle, events):
    timeline = oracle.Timeline()
    for start, end in events:
        timeline.kernel(start, end, 1)
    db = timeline.database()
    assert kata.gpu_gaps(db) == []
    busy_ns = sum(end - start for start, end in events)
    assert kata.report(db) == {
        "span_ns": busy_ns,
        "busy_ns": busy_ns,
        "idle_ns": 0,
        "idle_by_cause": {},
        "idle_by_range": {},
    }
    assert kata.launch_latency(db) is None


# ---- causes --------------------------------------------------------------------------------


def cause(kata, oracle, calls, *, gap=(100_000, 200_000), own=9, copies=()):
    """Why the GPU idled in `gap`, where the host made these calls (start, end, id, name)."""
    timeline = oracle.Timeline()
    timeline.kernel(0, gap[0], 1)
    timeline.kernel(gap[1], gap[1] + 5, own)
    for start, end, number in copies:
        timeline.copy(start, end, number, "DtoH")
    for call in calls:
        timeline.call(*call)
    return kata.explain(timeline.database(), kata.Gap(T0 + gap[0], T0 + gap[1]))


LAUNCH = "cudaLaunchKernel_v7000"
CAUSES = {
    "no call": ("unknown", [(0, 100_300, 2, SYNC)]),
    "called before the gap": ("device", [(90_000, 99_000, 9, LAUNCH)]),
    "returned as the gap began": ("device", [(90_000, 100_000, 9, LAUNCH)]),
    "returned just after": ("launch bound", [(90_000, 100_001, 9, LAUNCH)]),
    "called at once": ("launch bound", [(100_100, 199_000, 9, LAUNCH)]),
    "away for long": ("host work", [(150_001, 199_000, 9, LAUNCH)]),
    "away as long as may be": ("launch bound", [(150_000, 199_000, 9, LAUNCH)]),
    "away between calls": (
        "host work", [(120_000, 130_000, 8, LAUNCH), (180_001, 199_000, 9, LAUNCH)],
    ),
    "away before another call": (
        "launch bound", [(160_000, 170_000, 8, LAUNCH), (180_000, 199_000, 9, LAUNCH)],
    ),
    "away since before the gap": (
        "launch bound", [(10_000, 20_000, 8, LAUNCH), (140_000, 199_000, 9, LAUNCH)],
    ),
    "synchronised": ("sync bubble", [(0, 101_000, 8, SYNC), (190_000, 199_000, 9, LAUNCH)]),
    "synchronised with an event": (
        "sync bubble",
        [(0, 101_000, 8, "cudaEventSynchronize_v3020"), (190_000, 199_000, 9, LAUNCH)],
    ),
    "synchronised, and more": (
        "sync bubble",
        [(0, 101_000, 7, "cudaDeviceSynchronize_v3020"), (102_000, 103_000, 8, LAUNCH),
         (190_000, 199_000, 9, LAUNCH)],
    ),
    "synchronised as the gap began": (
        "sync bubble", [(0, 100_000, 8, SYNC), (120_000, 199_000, 9, LAUNCH)],
    ),
    "synchronised before the gap": (
        "launch bound", [(0, 99_999, 8, SYNC), (120_000, 199_000, 9, LAUNCH)],
    ),
    "synchronised afterwards": (
        "launch bound", [(120_000, 130_000, 9, LAUNCH), (140_000, 210_000, 10, SYNC)],
    ),
    "synchronised by another thread": (
        "launch bound", [(0, 101_000, 8, SYNC, 2), (120_000, 199_000, 9, LAUNCH)],
    ),
    "busy in another thread": (
        "host work", [(120_000, 150_000, 8, LAUNCH, 2), (160_000, 199_000, 9, LAUNCH)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", CAUSES.values(), ids=CAUSES)
def test_causes_one_at_a_time(kata, oracle, rule):
    expected, calls = rule
    found = cause(kata, oracle, calls)
    assert found == expected, (
        f"gap from 100000 to 200000, its call is 9, calls (start, end, id, name) {calls}: "
        f"expected {expected!r}, found {found!r}"
    )


@pytest.mark.parametrize(
    ("name", "copy_end", "expected"),
    [
        (MEMCPY, 99_500, "memcpy wait"),
        (MEMCPY, 103_000, "memcpy wait"),
        ("cudaMemcpyAsync_v3020", 99_500, "memcpy wait"),
        ("cudaMemcpyAsync_v3020", 103_001, "launch bound"),  # it was on its way
        ("cudaMemcpyAsync_v3020", None, "launch bound"),  # whatever became of it
        ("cudaMemsetAsync_v3020", 99_500, "launch bound"),
    ],
)
def test_a_copy_is_waited_for_if_it_is_done_when_the_call_returns(
    kata, oracle, name, copy_end, expected
):
    timeline = oracle.Timeline()
    timeline.kernel(0, 100_000, 1)
    if copy_end:
        # the gap is before it, or behind it
        timeline.copy(90_000 if copy_end < 100_000 else 102_000, copy_end, 8, "DtoH")
    timeline.call(80_000, 103_000, 8, name)
    timeline.call(130_000, 140_000, 9)
    timeline.kernel(139_000, 150_000, 9)
    db = timeline.database()
    gap = kata.gpu_gaps(db)[-1]
    found = kata.explain(db, gap)
    assert found == expected, (
        f"{name} until 103000, copied until {copy_end}: expected {expected!r}, found {found!r}"
    )


@pytest.mark.parametrize(
    ("copies", "expected"),
    [
        ([(99_000, 99_500), (201_000, 202_000)], "launch bound"),
        ([(201_000, 202_000), (99_000, 99_500)], "launch bound"),
        ([(99_000, 99_500), (98_000, 100_000)], "memcpy wait"),
        ([(102_000, 102_000)], "memcpy wait"),
    ],
    ids=["the second late", "the first late", "both done", "of no length"],
)
def test_all_copies_of_a_call_are_done_if_it_waited(kata, oracle, copies, expected):
    calls = [(80_000, 103_000, 8, MEMCPY), (120_000, 199_000, 9, LAUNCH)]
    found = cause(kata, oracle, calls, copies=[(*each, 8) for each in copies])
    assert found == expected, (
        f"a call until 103000 with copies {copies}: expected {expected!r}, found {found!r}"
    )


def test_the_last_wait_is_the_cause(kata, oracle):
    sync, copy = (0, 101_000, 7, SYNC), (102_000, 105_000, 8, MEMCPY)
    own, copies = (120_000, 199_000, 9, LAUNCH), [(99_000, 99_500, 8)]
    assert cause(kata, oracle, [sync, copy, own], copies=copies) == "memcpy wait"
    copy, sync = (0, 101_000, 8, MEMCPY), (102_000, 105_000, 10, SYNC)
    assert cause(kata, oracle, [sync, copy, own], copies=copies) == "sync bubble"


def test_calls_belong_to_activities_by_their_id(kata, oracle):
    timeline = oracle.Timeline()
    timeline.kernel(0, 100, 30)
    timeline.kernel(500, 600, 20, name="add")  # called last, and the first to run
    timeline.kernel(700, 800, 10, name="add")
    timeline.call(10, 20, 10)
    timeline.call(300, 400, 20)
    db = timeline.database()
    assert kata.explain(db, kata.Gap(T0 + 100, T0 + 500)) == "launch bound"
    assert kata.explain(db, kata.Gap(T0 + 600, T0 + 700)) == "device"


@pytest.mark.parametrize("ids", [(3, 4, 5), (4, 3, 5), (5, 4, 3)])
def test_of_activities_that_end_a_gap_together_the_least_id_counts(kata, oracle, ids):
    timeline = oracle.Timeline()
    timeline.kernel(0, 100, 1)
    timeline.kernel(500, 700, ids[0], stream=7)
    timeline.kernel(500, 600, ids[1], stream=13)
    timeline.copy(500, 600, ids[2], stream=14)
    timeline.kernel(500, 500, 2, stream=15)  # takes no time
    timeline.call(10, 20, 2)
    timeline.call(30, 40, 4)
    timeline.call(50, 60, 5)
    timeline.call(300, 350, 3)
    db = timeline.database()
    assert kata.explain(db, kata.Gap(T0 + 100, T0 + 500)) == "launch bound"
    assert kata.report(db)["idle_by_cause"] == {"launch bound": 400}


def test_planted_gaps_are_explained(kata, oracle, seed):
    draw = random.Random(seed)
    timeline, expected = oracle.planted(draw, 60)
    db = timeline.database()
    found = kata.report(db)
    for key, index in (("idle_by_cause", 1), ("idle_by_range", 2)):
        planted = {}
        for gap in expected:
            planted[gap[index]] = planted.get(gap[index], 0) + gap[0]
        assert found[key] == planted, f"{key}: expected {planted}, found {found[key]}"
    assert found["idle_ns"] == sum(gap[0] for gap in expected)
    gaps = kata.gpu_gaps(db)
    for gap in draw.sample(range(60), 6):
        assert kata.explain(db, gaps[gap]) == expected[gap][1]


# ---- overlap, latency, ranges --------------------------------------------------------------


def test_overlap_is_that_of_every_nanosecond(kata, oracle, seed):
    draw = random.Random(seed)
    for trial in range(12):
        timeline = oracle.random_timeline(draw, trial)
        db = timeline.database()
        for kind_a in kata.KINDS:
            for kind_b in kata.KINDS:
                expected = oracle.shared(timeline.activities, kind_a, kind_b)
                found = kata.overlap(db, kind_a, kind_b)
                assert found == pytest.approx(expected), (
                    f"{kind_a} and {kind_b} of {timeline.activities}: expected {expected}, "
                    f"found {found}"
                )


def test_overlap_is_that_of_times_and_not_of_streams(kata, oracle):
    timeline = oracle.Timeline()
    timeline.kernel(0, 100, 1)
    timeline.kernel(0, 100, 2, stream=13)
    timeline.copy(50, 140, 3, stream=14)
    timeline.copy(60, 150, 4, stream=15)
    assert kata.overlap(timeline.database(), "kernel", "HtoD") == 0.5


def test_latency_is_from_the_call_to_its_first_kernel(kata, oracle):
    timeline = oracle.Timeline()
    # of six calls: -2, 10, 20, 30, 35 and 1000; the third is a graph
    for number, latency in ((1, 20), (2, 10), (3, 30), (4, 1000)):
        start = 2000 * number
        timeline.call(start, start + 5, number)
        timeline.kernel(start + latency, start + latency + 3, number)
    for node in (40, 33, 50):
        timeline.kernel(6000 + node, 6002 + node, 3, stream=node)
    timeline.call(20_000, 20_010, 6)
    timeline.kernel(20_035, 20_035, 6)
    timeline.call(22_000, 22_010, 7)
    timeline.kernel(21_998, 22_005, 7)  # the clocks of host and device are a bit apart
    timeline.kernel(5, 6, 77)  # before the profiler saw calls
    timeline.call(1, 2, 78, SYNC)
    timeline.call(30_000, 30_001, 79, MEMCPY)
    timeline.copy(30_500, 30_600, 79)
    assert kata.launch_latency(timeline.database()) == (25, 1000)


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (1, (1, 1)),
        (2, (1.5, 2)),
        (13, (7, 13)),
        (20, (10.5, 19)),
        (21, (11, 20)),
        (40, (20.5, 38)),
        (200, (100.5, 190)),
    ],
)
def test_the_percentile_is_one_of_the_latencies(kata, oracle, n, expected):
    timeline = oracle.Timeline()
    for number in range(1, n + 1):
        timeline.call(100 * number, 100 * number + 1, number)
        timeline.kernel(101 * number, 101 * number + 1, number)
    found = kata.launch_latency(timeline.database())
    assert found == expected, f"latencies 1 to {n}: expected {expected}, found {found}"


def test_idle_time_belongs_to_the_innermost_range_of_the_call(kata, oracle):
    timeline = oracle.Timeline()
    for number in range(7):
        timeline.kernel(100 * number, 100 * number + 90 - number, number)
        timeline.call(100 * number - 5, 100 * number, number)
    timeline.nvtx(50, 450, "step")
    timeline.nvtx(150, 350, "layer", by_id=True)
    timeline.nvtx(195, 295, "attention")  # begins with the call of 2, and is over for that of 3
    timeline.nvtx(394, None, "mark")
    timeline.nvtx(394, 399, "elsewhere", thread=2)
    timeline.nvtx(380, 396, "overlapping")
    timeline.nvtx(380, 399, "as late, but longer")
    timeline.nvtx(480, 498, "ends first")
    timeline.nvtx(490, 499, "begins last")
    found = kata.report(timeline.database())["idle_by_range"]
    texts = ("step", "attention", "layer", "overlapping", "begins last", "")
    assert found == {text: 10 + gap for gap, text in enumerate(texts)}


# ---- an H200 -------------------------------------------------------------------------------


def test_captures_have_the_defects_that_they_were_made_for(kata, oracle):
    share = {}
    for name in ("decode_eager", "decode_graph", "item_loop", "pipeline_serial"):
        found = kata.report(oracle.captured(name).database())
        share[name] = found["idle_ns"] / found["span_ns"]
        causes = found["idle_by_cause"]
        assert sum(causes.values()) == found["idle_ns"] == found["span_ns"] - found["busy_ns"]
        if name == "decode_eager":
            assert max(causes, key=causes.get) == "launch bound", causes
        elif name == "decode_graph":
            assert set(causes) == {"device"}, causes  # all replays were launched ahead
        else:
            assert "sync bubble" in causes, causes
    assert share["decode_eager"] > 0.8 > 0.2 > share["decode_graph"], share


def test_every_item_is_a_bubble(kata, oracle):
    db = oracle.captured("item_loop").database()
    causes = [kata.explain(db, gap) for gap in kata.gpu_gaps(db)]
    assert causes.count("sync bubble") == 10, causes


def test_three_streams_overlap_and_one_does_not(kata, oracle):
    three, serial = (
        oracle.captured(f"pipeline_{name}").database() for name in ("3_streams", "serial")
    )
    for kind_a, kind_b in (("HtoD", "DtoH"), ("HtoD", "kernel"), ("kernel", "DtoH")):
        assert kata.overlap(serial, kind_a, kind_b) == 0
        assert kata.overlap(three, kind_a, kind_b) > 0.6


def test_a_graph_of_many_kernels_is_one_launch(kata, oracle):
    timeline = oracle.captured("decode_graph")
    found = kata.launch_latency(timeline.database())
    # four replays: the first begins at once, the others when the ones before are done
    assert found == ((128_565 + 259_131) / 2, 395_476)


# ---- how much work -------------------------------------------------------------------------


def test_work_grows_with_the_events(kata, oracle, seed, lines, cost):
    timeline, expected = oracle.planted(random.Random(seed), 400)
    db = timeline.database()
    steps = []
    db.set_progress_handler(lambda: steps.append(1), 100)
    events = 5 * len(expected)
    with lines(limit=1_000_000) as counted:
        found = kata.report(db)
    assert found["idle_ns"] == sum(gap[0] for gap in expected)
    cost.check("lines", counted.lines / events)
    cost.check("sql_steps", 100 * len(steps) / events)


# ---- what is refused -----------------------------------------------------------------------

KERNEL, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"


NEEDED = {
    "gpu_gaps": (lambda kata, db: kata.gpu_gaps(db), [KERNEL]),
    "overlap": (lambda kata, db: kata.overlap(db, "kernel", "HtoD"), [KERNEL]),
    "launch_latency": (lambda kata, db: kata.launch_latency(db), [KERNEL, RUNTIME]),
    "report": (lambda kata, db: kata.report(db), [KERNEL, RUNTIME, "StringIds"]),
    "explain": (
        lambda kata, db: kata.explain(db, kata.Gap(T0 + 10, T0 + 20)),
        [KERNEL, RUNTIME, "StringIds"],
    ),
}


@pytest.mark.parametrize("name", NEEDED)
def test_missing_tables_are_named(kata, oracle, name):
    timeline = oracle.Timeline()
    timeline.kernel(0, 10, 1)
    timeline.kernel(20, 30, 2)
    timeline.call(12, 14, 2)
    ask, needed = NEEDED[name]
    for table in (KERNEL, RUNTIME, "StringIds"):
        db = timeline.database(without=[table])
        try:
            found = repr(ask(kata, db))
        except ValueError as error:
            found = str(error)
        refused = found.startswith(f"{table}: ")
        assert refused == (table in needed), (
            f"{name} without the table {table}: expected "
            f"{f'a ValueError {table!r}: …' if table in needed else 'an answer'}, found {found}"
        )


def test_the_connection_stays_as_it_was(kata, oracle):
    timeline, _ = oracle.planted(random.Random(0), 3)
    db = timeline.database()
    (gap, *_) = kata.gpu_gaps(db)
    kata.explain(db, gap), kata.overlap(db, "kernel", "DtoH"), kata.launch_latency(db)
    kata.report(db)
    assert db.row_factory is None, f"row_factory: expected None, found {db.row_factory}"


def test_tables_without_rows_are_not_exported(kata, oracle):
    timeline = oracle.Timeline()
    timeline.kernel(0, 10, 1)
    timeline.kernel(20, 30, 2)
    db = timeline.database()
    assert times(kata.gpu_gaps(db)) == [(10, 20)]
    assert kata.report(db)["idle_by_cause"] == {"unknown": 10}
    assert kata.overlap(db, "kernel", "memset") == 0


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("min_ns", lambda kata, db: kata.gpu_gaps(db, -1)),
        ("kind_a", lambda kata, db: kata.overlap(db, "memcpy", "kernel")),
        ("kind_b", lambda kata, db: kata.overlap(db, "kernel", "htod")),
        ("gap", lambda kata, db: kata.explain(db, kata.Gap(T0 + 10, T0 + 19))),
    ],
    ids=["a length of -1", "the kind memcpy", "the kind htod", "a gap that nothing ends"],
)
def test_what_cannot_be_is_refused(kata, oracle, name, ask):
    timeline = oracle.Timeline()
    timeline.kernel(0, 10, 1)
    timeline.kernel(20, 30, 2)
    with pytest.raises(ValueError, match=f"^{name}: "):
        ask(kata, timeline.database())
