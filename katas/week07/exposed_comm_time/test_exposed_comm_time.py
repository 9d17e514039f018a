"""What communication a step waits for: small timelines, their raster, and a model of buckets."""

import copy
import math
import random
from dataclasses import asdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROUNDING = 1e-9  # relative: sums of a few thousand terms in another order
SMALL = {
    "params": 1000,
    "bytes_per_el": 2,
    "t_compute_per_sample": 1e-3,
    "world": 4,
    "bucket_bytes": 300,
}
# a transformer of 1.3e9 parameters, buckets of 25 MiB as DDP makes them
LARGE = {
    "params": 1_300_000_000,
    "bytes_per_el": 2,
    "t_compute_per_sample": 0.02,
    "world": 8,
    "bucket_bytes": 25 * 2**20,
}

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=8)


def us(breakdown):
    """All five in microseconds, without what rounding leaves."""
    return {name: round(1e6 * seconds, 6) for name, seconds in asdict(breakdown).items()}


def assert_close(found, expected):
    for name, seconds in expected.items():
        assert math.isclose(
            getattr(found, name), seconds, rel_tol=ROUNDING, abs_tol=ROUNDING * expected["total"]
        ), f"{name}: expected {seconds}, found {getattr(found, name)}"


def split(kata, oracle, computed, communicated, window=(0, 100)):
    """Compute, comm, exposed, idle of a step with these spans of (start, duration), in us."""
    start, end = window
    trace = oracle.trace(
        oracle.annotation(1, start, end - start),
        *(oracle.kernel(*span) for span in computed),
        *(oracle.comm(*span) for span in communicated),
    )
    found = us(kata.step_breakdown(trace, 1))
    assert found.pop("total") == end - start
    return tuple(found.values())


@pytest.fixture
def asked(calls):
    """Calls of `predict`; who tries all batches is stopped."""
    return calls("predict", limit=200)


# ---- a trace ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("computed", "communicated", "expected"),
    [
        ([(0, 100)], [(20, 50)], (100, 50, 0, 0)),
        ([(0, 40)], [(40, 50)], (40, 50, 50, 10)),
        ([(0, 60)], [(50, 20)], (60, 20, 10, 30)),
        ([(0, 10), (50, 10)], [(10, 40)], (20, 40, 40, 40)),  # as long as compute or longer
        ([(0, 50)], [(60, 30)], (50, 30, 30, 20)),
        ([(0, 90), (10, 20), (30, 5)], [(40, 10)], (90, 10, 0, 10)),
        ([(0, 20), (20, 20)], [(40, 10), (50, 10)], (40, 20, 20, 40)),
        ([(10, 30)], [(0, 60), (10, 5)], (30, 60, 30, 40)),
        ([(0, 50)], [], (50, 0, 0, 50)),
        ([], [(0, 50)], (0, 50, 50, 50)),
        ([], [], (0, 0, 0, 100)),
    ],
    ids=[
        "hidden",
        "exposed",
        "half hidden",
        "between two kernels",
        "after a gap",
        "nested",
        "touching",
        "around compute",
        "compute alone",
        "communication alone",
        "nothing",
    ],
)
def test_a_small_timeline(kata, oracle, computed, communicated, expected):
    assert split(kata, oracle, computed, communicated) == expected


@given(computed=SPANS, communicated=SPANS, start=st.integers(0, 40), length=st.integers(1, 60))
def test_any_timeline_agrees_with_its_raster(kata, oracle, computed, communicated, start, length):
    window = start, start + length
    expected = oracle.rasterised(computed, communicated, *window)
    found = split(kata, oracle, computed, communicated, window)
    assert found == tuple(round(1e6 * expected[name], 6) for name in list(expected)[:4])


def test_communication_on_two_streams_counts_once(kata, oracle):
    trace = oracle.trace(
        oracle.annotation(1, 0, 100),
        oracle.comm(10, 40, stream=20),
        oracle.comm(30, 40, stream=24),
        oracle.kernel(0, 20, stream=7),
        oracle.kernel(10, 20, stream=9),
    )
    found = us(kata.step_breakdown(trace, 1))
    assert found == {"compute": 30, "comm": 60, "exposed": 40, "idle": 30, "total": 100}


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_f32_TREE_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
    ],
    ids=["all-reduce", "all-gather", "send", "older"],
)
@pytest.mark.parametrize("stream", [7, 20], ids=["the stream that computes", "one of its own"])
def test_nccl_is_known_by_name(kata, oracle, name, stream):
    trace = oracle.trace(oracle.annotation(1, 0, 10), oracle.comm(2, 5, name, stream=stream))
    assert us(kata.step_breakdown(trace, 1))["comm"] == 5


@pytest.mark.parametrize(
    "name",
    [
        "void fused_add<ncclDevKernel_like>(float*)",
        "my_ncclKernel_probe",
        "nccl_free_gemm",
        "NCCLKernel_probe",
    ],
    ids=["in its arguments", "in the middle", "something like it", "in other letters"],
)
def test_other_names_compute(kata, oracle, name):
    # also on the stream of NCCL's kernels
    trace = oracle.trace(
        oracle.annotation(1, 0, 10), oracle.comm(0, 2), oracle.comm(2, 5, name, stream=20)
    )
    found = us(kata.step_breakdown(trace, 1))
    assert (found["compute"], found["comm"]) == (5, 2)


def test_copies_and_fills_count_as_compute(kata, oracle):
    trace = oracle.trace(
        oracle.annotation(1, 0, 100),
        oracle.kernel(0, 10, "Memcpy DtoD (Device -> Device)", cat="gpu_memcpy"),
        oracle.kernel(20, 5, "Memset (Device)", cat="gpu_memset"),
        oracle.comm(5, 20),
    )
    found = us(kata.step_breakdown(trace, 1))
    assert found == {"compute": 15, "comm": 20, "exposed": 10, "idle": 75, "total": 100}


def test_only_work_of_the_gpu_counts(kata, oracle):
    trace = oracle.trace(
        # each lacks something that an event of interest has
        {"ph": "M", "name": "process_name", "pid": 100, "tid": 0, "args": {}},
        {"ph": "i", "s": "g", "name": "Iteration Start: PyTorch Profiler", "ts": 0},
        {"ph": "f", "id": 1, "pid": 0, "tid": 7, "ts": 30, "cat": "ac2g", "bp": "e"},
        oracle.op("Optimizer.step#AdamW.step", 80, 10, cat="user_annotation"),
        oracle.annotation(1, 0, 100),
        oracle.op("aten::mm", 0, 50),
        oracle.op(oracle.ALL_REDUCE, 0, 60),
        oracle.op("nccl:all_reduce", 0, 70, cat="gpu_user_annotation"),
        oracle.op("cudaLaunchKernel", 0, 80, cat="cuda_runtime"),
        oracle.kernel(90, 5),
    )
    found = us(kata.step_breakdown(trace, 1))
    assert found == {"compute": 5, "comm": 0, "exposed": 0, "idle": 95, "total": 100}


def test_a_step_ends_where_its_annotation_does(kata, oracle):
    trace = oracle.trace(
        oracle.annotation(10, 300, 100),
        oracle.annotation(1, 100, 100),
        oracle.annotation(2, 200, 100),
        oracle.annotation(2, 0, 900, cat="gpu_user_annotation"),
        oracle.kernel(90, 20),  # 10 of them in step 1
        oracle.comm(190, 30),  # 10 in step 1, 20 in step 2
        oracle.kernel(150, 500),  # all of step 2, and of step 10
        oracle.kernel(395, 5),
    )
    steps = {step: us(kata.step_breakdown(trace, step)) for step in (1, 2, 10)}
    assert steps == {
        1: {"compute": 60, "comm": 10, "exposed": 0, "idle": 40, "total": 100},
        2: {"compute": 100, "comm": 20, "exposed": 0, "idle": 0, "total": 100},
        10: {"compute": 100, "comm": 0, "exposed": 0, "idle": 0, "total": 100},
    }


def test_times_late_in_the_day_lose_nothing(kata, oracle):
    start = 1_763_800_000_000_000  # us since 1970
    found = split(kata, oracle, [(start, 40)], [(start + 30, 30)], (start, start + 100))
    assert found == (40, 30, 20, 40)


def test_fractions_of_a_microsecond_count(kata, oracle):
    found = split(kata, oracle, [(0.25, 20.5)], [(10.375, 20.5)], (0.5, 50.25))
    assert found == (20.25, 20.5, 10.125, 19.375)


def test_events_in_any_order_and_left_alone(kata, oracle, seed):
    trace = oracle.training(layers=30)
    expected = us(kata.step_breakdown(trace, 1))
    assert expected == {"compute": 300, "comm": 150, "exposed": 90, "idle": 230, "total": 620}
    random.Random(seed).shuffle(trace["traceEvents"])
    before = copy.deepcopy(trace)
    assert us(kata.step_breakdown(trace, 1)) == expected
    assert trace == before


@pytest.mark.parametrize("made", ["training", "nested"])
def test_no_loop_in_a_loop(kata, oracle, lines, cost, seed, made):
    trace = getattr(oracle, made)(layers=2000)
    random.Random(seed).shuffle(trace["traceEvents"])
    events = len(trace["traceEvents"])
    with lines(limit=200 * events) as counted:
        found = us(kata.step_breakdown(trace, 1))
    assert (found["compute"], found["exposed"]) == {
        "training": (20_000, 6000),
        "nested": (20_000, 10_000),
    }[made]
    cost.check("lines", counted.lines / events)


def test_a_trace_without_events_is_refused(kata, oracle):
    with pytest.raises(ValueError, match="^step: "):
        kata.step_breakdown(oracle.trace(), 1)


@pytest.mark.parametrize("annotated", [[], [11, 110]], ids=["none", "others"])
def test_a_step_that_is_not_there_is_refused(kata, oracle, annotated):
    steps = [oracle.annotation(step, 0, 10) for step in annotated]
    steps.append(oracle.annotation(1, 0, 10, cat="gpu_user_annotation"))
    with pytest.raises(ValueError, match="^step: "):
        kata.step_breakdown(oracle.trace(*steps, oracle.kernel(0, 5)), 1)


# ---- a model ---------------------------------------------------------------------------------


@given(
    params=st.integers(1, 5000),
    bytes_per_el=st.sampled_from([1, 2, 4]),
    t_compute=st.sampled_from([1e-7, 1e-6, 1e-4]),
    batch=st.integers(1, 64),
    world=st.integers(1, 9),
    bucket_bytes=st.integers(200, 6000),
    latency_s=st.sampled_from([0.0, 1e-6]),
)
def test_any_step_agrees_with_the_model_in_fractions(
    kata, oracle, profile, params, bytes_per_el, t_compute, batch, world, bucket_bytes, latency_s
):
    gpu = oracle.machine(profile, link_bandwidth=1e9, link_latency_s=latency_s)
    step = (params, bytes_per_el, t_compute, batch, world, gpu, bucket_bytes)
    assert_close(kata.predict(*step), oracle.predicted(*step))


def test_gradients_of_a_7b_model_over_8_gpus(kata, oracle, profile):
    gpu = oracle.machine(profile, link_latency_s=0.0)
    params = 6_738_415_616
    found = kata.predict(params, 2, 1.0, 1, 8, gpu, 2 * params)
    assert math.isclose(found.comm, 52.4e-3, abs_tol=0.05e-3)  # 2 * 7/8 * 13.48 GB / 450 GB/s
    assert math.isclose(found.exposed, found.comm, rel_tol=1e-6)  # one bucket: full at the end


@pytest.mark.parametrize(
    ("bucket_bytes", "buckets"),
    [(300, 7), (500, 4), (501, 4), (1999, 2), (2000, 1), (10**6, 1)],
    ids=["a rest", "an exact fit", "a small rest", "a byte left", "one exactly", "one with room"],
)
def test_every_bucket_pays_the_latency_of_a_ring(kata, oracle, profile, bucket_bytes, buckets):
    gpu = oracle.machine(profile, link_bandwidth=1e30, link_latency_s=1e-6)
    step = SMALL | {"bucket_bytes": bucket_bytes}  # of 2000 bytes in all
    found = kata.predict(**step, batch=1, profile=gpu)
    assert math.isclose(found.comm, buckets * 2 * 3 * 1e-6, rel_tol=ROUNDING)
    assert found.exposed >= 2 * 3 * 1e-6 * (1 - 1e-6)  # the last one's


def test_the_first_bucket_waits_for_its_gradients(kata, oracle, profile):
    # 3 s of compute: 1 forward, then half of the gradients after each of the others
    gpu = oracle.machine(profile, link_bandwidth=1000.0, link_latency_s=0.0)
    step = {"params": 1000, "bytes_per_el": 2, "t_compute_per_sample": 3.0, "world": 2}
    found = kata.predict(**step, batch=1, profile=gpu, bucket_bytes=1000)
    # the first runs from 2 to 3 s, the second from 3 to 4
    assert_close(found, {"compute": 3.0, "comm": 2.0, "exposed": 1.0, "idle": 0.0, "total": 4.0})
    slow = oracle.machine(profile, link_bandwidth=500.0, link_latency_s=0.0)
    found = kata.predict(**step, batch=1, profile=slow, bucket_bytes=1000)
    # from 2 to 4, then to 6
    assert_close(found, {"compute": 3.0, "comm": 4.0, "exposed": 3.0, "idle": 0.0, "total": 6.0})


def test_one_rank_has_nothing_to_communicate_and_needs_no_link(kata, profile, oracle):
    gpu = oracle.machine(profile, link_bandwidth=0.0)
    found = kata.predict(**LARGE | {"world": 1}, batch=3, profile=gpu)
    assert_close(found, {"compute": 0.06, "comm": 0.0, "exposed": 0.0, "idle": 0.0, "total": 0.06})


def test_a_larger_batch_exposes_less_and_never_nothing(kata, oracle, profile):
    gpu = oracle.machine(profile)
    steps = [kata.predict(**LARGE, batch=batch, profile=gpu) for batch in range(1, 65)]
    shares = [step.exposed / step.total for step in steps]
    assert all(more < less for less, more in pairwise(shares))
    last = LARGE["params"] * 2 % LARGE["bucket_bytes"]
    least_s = 2 * 7 * (last / 8 / 450e9 + 2e-6)
    assert steps[-1].exposed >= least_s * (1 - 1e-6)


# ---- the batch that hides it -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("t_compute", "share"),
    [(0.02, 0.05), (1e-4, 0.05), (1e-5, 0.5), (1e-6, 0.02), (1.0, 0.05)],
    ids=["slow", "fast", "half", "a large batch", "a batch of one"],
)
def test_the_batch_is_the_smallest(kata, oracle, profile, asked, t_compute, share):
    gpu = oracle.machine(profile)
    step = LARGE | {"t_compute_per_sample": t_compute, "bucket_bytes": 2**28}
    found = kata.break_even_batch(**step, profile=gpu, share=share)

    def share_at(batch):
        split = oracle.predicted(**step, batch=batch, profile=gpu)
        return split["exposed"] / split["total"]

    assert share_at(found) <= share * (1 + ROUNDING)
    assert found == 1 or share_at(found - 1) > share * (1 - ROUNDING)


@pytest.mark.parametrize("share", [0.52, 0.26, 0.11, 0.061, 0.031], ids=str)
def test_the_batch_agrees_with_trying_them_all(kata, oracle, profile, asked, share):
    gpu = oracle.machine(profile, link_bandwidth=1e6, link_latency_s=1e-4)
    found = kata.break_even_batch(**SMALL, profile=gpu, share=share)

    def small_enough(batch):
        split = oracle.predicted(**SMALL, batch=batch, profile=gpu)
        return split["exposed"] <= share * split["total"]

    assert found == next(batch for batch in range(1, 1000) if small_enough(batch))


def test_five_percent_unless_told(kata, oracle, profile, asked):
    gpu, step = oracle.machine(profile), LARGE | {"t_compute_per_sample": 1e-4}
    told = kata.break_even_batch(**step, profile=gpu, share=0.05)
    assert kata.break_even_batch(**step, profile=gpu) == told
    assert told > 1


def test_one_rank_is_at_ease_with_a_batch_of_one(kata, oracle, profile, asked):
    gpu = oracle.machine(profile)
    assert kata.break_even_batch(**LARGE | {"world": 1}, profile=gpu, share=0.001) == 1


def test_all_of_a_step_may_be_exposed(kata, oracle, profile, asked):
    assert kata.break_even_batch(**SMALL, profile=oracle.machine(profile), share=1) == 1


def test_as_much_as_the_share_is_enough(kata, oracle, profile, asked):
    # one bucket: 1 s exposed after 3 s a sample, a quarter of a step of one sample
    gpu = oracle.machine(profile, link_bandwidth=2.0**11, link_latency_s=0.0)
    step = {"params": 2**10, "bytes_per_el": 2, "t_compute_per_sample": 3.0, "world": 2}
    found = kata.break_even_batch(**step, profile=gpu, bucket_bytes=2**11, share=0.25)
    assert found == 1


def test_few_predictions_find_it(kata, oracle, profile, asked, cost):
    gpu = oracle.machine(profile, link_bandwidth=1e9)
    step = SMALL | {"t_compute_per_sample": 2.4e-9, "bucket_bytes": 2000}
    found = kata.break_even_batch(**step, profile=gpu, share=0.01)
    split, before = (
        oracle.predicted(**step, batch=batch, profile=gpu) for batch in (found, found - 1)
    )
    assert split["exposed"] <= 0.01 * split["total"] * (1 + ROUNDING)
    assert before["exposed"] > 0.01 * before["total"] * (1 - ROUNDING)
    assert 2**19 < found <= 2**20
    cost.check("predictions", asked.calls)


def test_a_batch_may_have_to_be_larger_still(kata, oracle, profile, asked):
    gpu = oracle.machine(profile, link_bandwidth=1e9, link_latency_s=0.0)
    step = SMALL | {"t_compute_per_sample": 1e-20, "bucket_bytes": 2000}
    # 3 us exposed in all, a hundredth of the step: 297 us of compute
    found = kata.break_even_batch(**step, profile=gpu, share=0.01)
    assert math.isclose(found, 297e-6 / 1e-20, rel_tol=1e-6)


# ---- bad input -------------------------------------------------------------------------------

IMPOSSIBLE = [
    ("params", 0),
    ("bytes_per_el", 0),
    ("t_compute_per_sample", 0.0),
    ("t_compute_per_sample", -1e-3),
    ("t_compute_per_sample", float("nan")),
    ("world", 0),
    ("bucket_bytes", 0),
]


@pytest.mark.parametrize(("name", "value"), [*IMPOSSIBLE, ("batch", 0)], ids=str)
def test_an_impossible_step_is_refused(kata, oracle, profile, name, value):
    step = {**SMALL, "batch": 1, "profile": oracle.machine(profile)}
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.predict(**step | {name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [*IMPOSSIBLE, ("share", 0.0), ("share", -0.1), ("share", 1.01), ("share", float("nan"))],
    ids=str,
)
def test_an_impossible_question_is_refused(kata, oracle, profile, name, value):
    step = {**SMALL, "profile": oracle.machine(profile)}
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.break_even_batch(**step | {name: value})
