"""Two clocks, a graph and its price, totals over all calls, buckets: hand numbers, brute force."""

import math
import random
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def trace(kata):
    """A call from (host_us, kernel_us), or with tuned_us and wait behind them."""

    def make(*rows):
        names = ("host_us", "kernel_us", "tuned_us", "wait")
        return [kata.Launch(**dict(zip(names, row, strict=False))) for row in rows]

    return make


@pytest.fixture(scope="module")
def capture(trace, oracle):
    """The forward pass of GPT-2 on an H200; its kernels of one kind as fast as `tuned_us`."""

    def make(tuned_us=None, kind="gemm"):
        return trace(
            *((host, run, tuned_us if this == kind else None) for host, run, this in oracle.gpt2())
        )

    return make


@pytest.fixture(scope="module")
def graph(kata):
    return lambda: kata.Graph(launch_us=10, gap_us=1)


# times in whole microseconds, so that sums are exact in any order
ROWS = st.lists(
    st.tuples(
        st.integers(0, 20), st.integers(0, 20), st.none() | st.integers(0, 20), st.booleans()
    ),
    min_size=1,
    max_size=12,
)


# ---- one call ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "span", "exposed"),
    [
        ([(5, 7)], 12, 5),  # the device waits for the first launch, at least
        ([(5, 2), (5, 2), (5, 2)], 17, 11),  # the host is slower: it ends at 15
        ([(2, 5), (2, 5), (2, 5)], 17, 2),  # the device is: the launches hide behind the kernels
        ([(1, 20), (8, 1), (8, 1), (8, 1)], 26, 3),  # a long kernel, then a host that falls behind
        ([(1, 4, None, True), (1, 4)], 10, 2),  # the second launch begins when the first has ended
        ([(1, 4), (1, 4, None, True)], 9, 1),  # a wait at the end delays nobody
        ([(0, 0)], 0, 0),
    ],
    ids=["one", "host", "device", "both", "wait", "last wait", "nothing"],
)
def test_launches_and_kernels_overlap(kata, trace, rows, span, exposed):
    stats = kata.launch_model(trace(*rows))
    assert (stats.span_us, stats.exposed_us) == (span, exposed)


@given(rows=ROWS)
def test_span_is_the_longest_chain(kata, trace, oracle, rows):
    assert kata.launch_model(trace(*rows)).span_us == oracle.longest_chain(trace(*rows))


def test_times_are_exact_past_the_integers_of_a_float(kata, trace):
    stats = kata.launch_model(trace((1, 2**60, 2**60 - 1), (1, 1)))
    assert (stats.span_us, stats.kernel_us) == (2**60 + 2, 2**60 + 1)
    assert (stats.exposed_us, stats.tuning_us) == (1, 1)


def test_a_call_is_counted(kata, trace):
    stats = kata.launch_model(trace((3, 10, 4), (2, 10), (1, 10, 12), (4, 10, 0)))
    assert (stats.kernels, stats.host_us, stats.kernel_us) == (4, 10, 40)
    assert stats.tuning_us == 16  # 6 and 10; a search that finds nothing better changes nothing


def test_gpt2_waits_for_the_host(kata, capture):
    stats = kata.launch_model(capture())
    assert stats.kernels == 244
    assert stats.kernel_us == pytest.approx(6119.395)
    assert stats.span_us == pytest.approx(12_159, rel=0.01)  # as measured
    assert stats.exposed_us > 0.45 * stats.span_us


@pytest.mark.parametrize(
    "row", [(-1, 5), (1, -5), (1, 5, -1)], ids=["host_us", "kernel_us", "tuned_us"]
)
def test_negative_times_are_refused(kata, trace, row):
    with pytest.raises(ValueError, match="^trace: "):
        kata.launch_model(trace((1, 5), row))


def test_an_empty_trace_is_refused(kata):
    with pytest.raises(ValueError, match="^trace: "):
        kata.launch_model([])


# ---- one call in each mode -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("eager", 61),  # of the host: 60, and the last kernel
        ("default", 34),  # 10 + 20, and the last kernel
        ("reduce-overhead", 10 + 19 + 2),
        ("max-autotune-no-cudagraphs", 34),  # 8 less, but none of it is waited for
        ("max-autotune", 10 + 11 + 2),
    ],
)
def test_each_mode_removes_something_else(kata, trace, graph, mode, expected):
    eager = trace(*[(10, 1)] * 6)
    fused = trace((10, 10, 2), (10, 5, 9), (10, 4))
    assert kata.predict(mode, eager, fused, graph()) == expected


def test_autotuning_shows_where_the_device_is_the_slower_one(kata, trace, graph):
    fused = trace((1, 100, 60), (1, 100, 150), (1, 7))
    modes = ("default", "max-autotune-no-cudagraphs", "reduce-overhead", "max-autotune")
    found = {mode: kata.predict(mode, fused, fused, graph()) for mode in modes}
    assert found == dict(zip(modes, (208, 168, 219, 179), strict=True))


def test_a_graph_halves_the_time_of_gpt2(kata, capture, graph):
    same = capture()
    found = kata.predict("reduce-overhead", same, same, graph())
    assert 6100 < found < 6500
    assert kata.predict("eager", same, same, graph()) / found > 1.8


def test_autotuning_gpt2_is_lost_on_a_device_that_waits(kata, oracle, capture, graph):
    # the LM head, half of all kernel time, is last: it alone is not hidden behind the host
    saved = kata.launch_model(capture(tuned_us=0)).tuning_us
    without = kata.predict("default", capture(), capture(), graph())
    tuned = kata.predict("max-autotune-no-cudagraphs", capture(), capture(tuned_us=0), graph())
    head = max(run for _, run, kind in oracle.gpt2() if kind == "gemm")
    assert without - tuned == pytest.approx(head, rel=0.01)
    assert saved == pytest.approx(4171.43)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_wait_forbids_a_graph(kata, trace, graph, at):
    plain = trace((10, 10, 5), (10, 10), (10, 10))
    fused = trace(*((10, 10, 5, step == at) for step in range(3)))
    assert kata.predict("reduce-overhead", plain, fused, graph()) == math.inf
    assert kata.predict("max-autotune", plain, fused, graph()) == math.inf
    assert kata.predict("default", plain, fused, graph()) < math.inf
    # nor does a wait that Inductor has removed
    assert kata.predict("reduce-overhead", fused, plain, graph()) == 42


@given(rows=ROWS)
def test_tuned_kernels_keep_their_launches_and_waits(kata, trace, oracle, graph, rows):
    tuned = trace(*((h, k if t is None else min(k, t), None, wait) for h, k, t, wait in rows))
    found = kata.predict("max-autotune-no-cudagraphs", trace((0, 1)), trace(*rows), graph())
    assert found == oracle.longest_chain(tuned)


def test_an_unknown_mode_is_refused(kata, trace, graph):
    with pytest.raises(ValueError, match="^mode: "):
        kata.predict("fastest", trace((1, 1)), trace((1, 1)), graph())


@pytest.mark.parametrize("mode", ["eager", "default", "reduce-overhead", "max-autotune"])
def test_the_trace_of_the_mode_is_checked(kata, trace, graph, mode):
    good = trace((1, 1))
    # checked before a wait forbids the graph
    for bad in ([], trace((1, -1)), trace((1, 1, None, True), (1, -1))):
        pair = (bad, good) if mode == "eager" else (good, bad)
        with pytest.raises(ValueError, match="^trace: "):
            kata.predict(mode, *pair, graph())


def test_the_other_trace_is_not_looked_at(kata, trace, graph):
    bad = trace((1, -1))
    assert kata.predict("eager", trace((1, 1)), bad, graph()) == 2
    assert kata.predict("default", bad, trace((1, 1)), graph()) == 2


# ---- all calls -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def menu(kata):
    """Modes of a model that eager runs in 1000 us: slow, faster, and fast at a price."""

    def make():
        costs = {
            "eager": kata.ModeCost(),
            "default": kata.ModeCost(compile_us=30_000),
            "reduce-overhead": kata.ModeCost(compile_us=30_000, shape_us=2_000, shape_bytes=100),
            "max-autotune": kata.ModeCost(compile_us=900_000, shape_us=2_000, shape_bytes=100),
        }
        times = {"eager": 1000, "default": 700, "reduce-overhead": 400, "max-autotune": 300}
        return costs, lambda mode, shape: times[mode] * shape

    return make


@pytest.mark.parametrize(
    ("histogram", "mode", "total"),
    [
        ({1: 3}, "eager", 3_000),
        ({1: 53}, "eager", 53_000),
        ({1: 54}, "reduce-overhead", 53_600),
        ({1: 8_699}, "reduce-overhead", 3_511_600),
        ({1: 8_701}, "max-autotune", 3_512_300),
        # 100 shapes, one call each: two compilations, then 99 sizes that need none, but 98 graphs
        (dict.fromkeys(range(1, 101), 1), "default", 60_000 + 700 * 5050),
        (dict.fromkeys(range(1, 10), 1), "eager", 45_000),
        ({1: 27, 2: 27}, "eager", 81_000),
        # shapes that are never called cost nothing
        ({1: 54, 2: 0, 3: 0}, "reduce-overhead", 53_600),
        ({}, "eager", 0),
        ({5: 0}, "eager", 0),
    ],
    ids=[
        "3 calls", "53", "54", "8699", "8701", "100 shapes", "9 shapes", "2 shapes", "0 calls",
        "no shapes", "one of 0 calls",
    ],
)  # fmt: skip
def test_a_mode_has_to_earn_its_compilation(kata, menu, histogram, mode, total):
    costs, call_us = menu()
    found = kata.choose_mode(MappingProxyType(histogram), call_us, costs, 1000)
    assert found == kata.Choice(mode=mode, total_us=total)


def test_graphs_have_to_fit(kata, menu):
    costs, call_us = menu()
    histogram = {1: 1000, 2: 1000, 3: 1000}
    exact = kata.choose_mode(histogram, call_us, costs, 300)
    assert exact == kata.Choice(mode="reduce-overhead", total_us=66_000 + 2_400_000)
    short = kata.choose_mode(histogram, call_us, costs, 299)
    assert short == kata.Choice(mode="default", total_us=60_000 + 4_200_000)


def test_a_mode_that_cannot_serve_a_shape_is_out(kata, menu):
    costs, call_us = menu()

    def waits(mode, shape):
        return math.inf if shape == 2 and mode != "eager" else call_us(mode, shape)

    assert kata.choose_mode({1: 10**6, 2: 1}, waits, costs).mode == "eager"
    # nobody calls it with that shape: infinity times 0 calls is nothing
    assert kata.choose_mode({1: 10**6, 2: 0}, waits, costs).mode == "max-autotune"


def test_of_equals_the_first_is_taken(kata):
    costs = {mode: kata.ModeCost() for mode in ("b", "a", "c")}
    assert kata.choose_mode({1: 5}, lambda mode, shape: 7, costs).mode == "b"


def test_totals_are_exact_past_the_integers_of_a_float(kata):
    # 9007199254740993 us against one less, which are the same float
    costs = {"eager": kata.ModeCost(compile_us=1), "default": kata.ModeCost()}
    found = kata.choose_mode({1: 2**53}, lambda mode, shape: 1, costs)
    assert found == kata.Choice(mode="default", total_us=2**53)
    found = kata.choose_mode({1: 2**53}, lambda mode, shape: 1, {"eager": costs["eager"]})
    assert found.total_us == 2**53 + 1


def test_the_choice_is_the_best_of_all_modes(kata, oracle, seed):
    draw = random.Random(seed)
    for _ in range(30):
        costs = {
            mode: kata.ModeCost(
                compile_us=draw.randrange(300),
                shape_us=draw.randrange(50),
                shape_bytes=draw.randrange(40),
            )
            for mode in kata.MODES[1:]
        }
        costs["eager"] = kata.ModeCost()
        histogram = {draw.randrange(50): draw.randrange(9) for _ in range(draw.randrange(1, 6))}
        times = {(mode, shape): draw.randrange(1, 60) for mode in costs for shape in histogram}

        def call_us(mode, shape, times=times):
            return times[mode, shape]

        want = oracle.totals(histogram, call_us, costs, 60)
        found = kata.choose_mode(histogram, call_us, costs, 60)
        assert found.total_us == min(want.values()), f"{histogram}, {costs}, {times}: {want}"
        assert want[found.mode] == found.total_us, f"{histogram}, {costs}, {times}: {want}"


def test_a_trillion_calls_take_no_loop(kata, menu, lines, cost):
    costs, call_us = menu()
    costs["max-autotune-no-cudagraphs"] = costs["default"]

    def timed(mode, shape):
        return call_us("default" if mode not in ("eager", "max-autotune") else mode, shape)

    with lines(limit=20_000) as counted:
        kata.choose_mode(dict.fromkeys(range(1, 21), 5 * 10**10), timed, costs)
    cost.check("choice_lines", counted.lines)


def test_a_negative_count_is_refused(kata, menu):
    costs, call_us = menu()
    with pytest.raises(ValueError, match="^histogram: "):
        kata.choose_mode({1: 5, 2: -1}, call_us, costs)


@pytest.mark.parametrize("count", [0, 3])
def test_no_mode_to_choose_is_refused(kata, menu, count):
    with pytest.raises(ValueError, match="^costs: "):
        kata.choose_mode({1: count}, menu()[1], {})


def test_no_possible_mode_is_refused(kata, menu):
    costs, call_us = menu()
    with pytest.raises(ValueError, match="^costs: "):
        kata.choose_mode({1: 3}, lambda mode, shape: math.inf, costs)
    del costs["eager"], costs["default"]
    with pytest.raises(ValueError, match="^costs: "):
        kata.choose_mode({1: 3}, call_us, costs, 99)


# ---- buckets -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("histogram", "max_graphs", "expected"),
    [
        ({100: 7, 3: 1}, 1, [100]),
        ({100: 7, 3: 1}, 2, [3, 100]),
        ({100: 7, 3: 1}, 9, [3, 100]),  # no more buckets than lengths
        # spikes just above powers of two, where those would pad nearly twofold
        ({65: 1000, 66: 100, 129: 1000, 130: 1}, 2, [66, 130]),
        # the rare length in between is padded, however far
        ({10: 1000, 11: 100, 90: 1000}, 2, [11, 90]),
        ({10: 1000, 50: 1, 90: 1000}, 2, [10, 90]),
        ({1: 1, 4: 1, 6: 1, 8: 1}, 2, [4, 8]),  # merging what pads least ends at [1, 8]
        ({1: 1, 2: 1, 4: 1, 6: 1, 9: 1}, 3, [2, 6, 9]),  # of two, 4 and 9 are best
        ({10: 5, 20: 0, 30: 5}, 2, [10, 30]),  # nobody has length 20
        ({10: 5, 20: 0}, 1, [10]),
        ({}, 3, []),
        ({8: 0}, 1, []),
    ],
    ids=[
        "one", "two", "plenty", "spikes", "near", "between", "not greedy", "nor one more",
        "count 0",
        "longest of count 0", "empty", "only count 0",
    ],
)  # fmt: skip
def test_buckets_end_where_the_calls_are(kata, histogram, max_graphs, expected):
    assert kata.choose_buckets(MappingProxyType(histogram), max_graphs) == expected


@given(
    histogram=st.dictionaries(st.integers(1, 40), st.integers(0, 9), min_size=1, max_size=9),
    max_graphs=st.integers(1, 5),
)
def test_buckets_pad_as_little_as_any(kata, oracle, histogram, max_graphs):
    if not any(histogram.values()):
        return
    found = kata.choose_buckets(histogram, max_graphs)
    used = {length for length, count in histogram.items() if count}
    assert found == sorted(set(found)), f"{histogram}: expected buckets that rise, found {found}"
    assert used.issuperset(found), f"{histogram}: expected lengths that occur, found {found}"
    assert len(found) == min(max_graphs, len(used)), f"{histogram}, {max_graphs}: found {found}"
    least = oracle.least_work(histogram, max_graphs)
    work = oracle.padded_work(histogram, found)
    assert work == least, f"{histogram}, {max_graphs}: {found} pads to {work}, expected {least}"


@pytest.mark.parametrize("rare", [1, 2])
def test_padded_work_is_exact_past_the_integers_of_a_float(kata, rare):
    # of two lengths that are called as often but for one call, the rarer one is padded
    histogram = {1: 2**70, 2: 2**70, 3: 1}
    histogram[rare] -= 1
    assert kata.choose_buckets(histogram, 2) == [3 - rare, 3]


def test_the_same_lengths_with_other_counts_are_planned_anew(kata):
    found = [kata.choose_buckets({1: ones, 2: 5, 3: 5}, 2) for ones in (1, 9)]
    assert found == [[2, 3], [1, 3]]


def test_many_lengths_take_no_search(kata, oracle, seed, lines, cost):
    draw = random.Random(seed)
    histogram = {length: draw.randrange(1, 1000) for length in draw.sample(range(1, 5000), 60)}
    with lines(limit=1_000_000) as counted:
        found = kata.choose_buckets(histogram, 8)
    assert len(found) == 8
    cost.check("bucket_lines", counted.lines)


@pytest.mark.parametrize("max_graphs", [0, -1])
def test_no_graphs_at_all_are_refused(kata, max_graphs):
    for histogram in ({5: 1}, {}):
        with pytest.raises(ValueError, match="^max_graphs: "):
            kata.choose_buckets(histogram, max_graphs)


@pytest.mark.parametrize("histogram", [{0: 1, 5: 1}, {-3: 1}, {0: 0}, {5: -1, 6: 2}])
def test_lengths_and_counts_are_checked(kata, histogram):
    with pytest.raises(ValueError, match="^histogram: "):
        kata.choose_buckets(histogram, 1)
