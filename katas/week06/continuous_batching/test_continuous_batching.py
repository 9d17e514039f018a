"""Who runs in each step with the memory that there is, what users saw of it, and how fast it is."""

import math
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.simulators.serving import Request, Slo, StepModel, llama2_7b, simulate

ROOMY = {"kv_tokens": 1000, "max_batch": 8, "token_budget": 8}
REORDERED = 1e-9  # relative: times added up in another order


@pytest.fixture(scope="module")
def served(kata, oracle, profile):
    """Each trace served once by the implementation under test, when first asked for."""
    return cache(lambda name: oracle.serve(kata.Scheduler, name, profile))


@pytest.fixture(scope="module")
def static(oracle, profile):
    """Each trace served once by the baseline."""
    return cache(lambda name: oracle.serve(oracle.StaticBatching, name, profile))


def next_step(scheduler):
    """Plan one step; the order within a list says nothing."""
    plan = scheduler.plan()
    return sorted(plan.prefill), sorted(plan.decode), sorted(plan.preempt)


def scheduler_with(kata, prompts, **bounds):
    scheduler = kata.Scheduler(**bounds)
    for req_id, prompt_len in enumerate(prompts):
        scheduler.add(req_id, prompt_len)
    return scheduler


# ---- one step at a time --------------------------------------------------------------------


def test_a_lone_request(kata):
    scheduler = kata.Scheduler(**ROOMY)
    assert next_step(scheduler) == ([], [], [])  # nothing to do yet
    scheduler.add(7, 18)
    for chunk in (8, 8, 2):  # the last chunk emits the first token
        assert next_step(scheduler) == ([(7, chunk)], [], [])
    assert next_step(scheduler) == ([], [7], [])
    assert next_step(scheduler) == ([], [7], [])
    scheduler.finished(7)
    assert next_step(scheduler) == ([], [], [])


def test_decodes_come_first_and_a_prompt_gets_what_is_left(kata):
    scheduler = scheduler_with(kata, [3, 4], **ROOMY)
    assert next_step(scheduler) == ([(0, 3), (1, 4)], [], [])
    scheduler.add(2, 20)
    assert next_step(scheduler) == ([(2, 6)], [0, 1], [])
    scheduler.finished(0)
    assert next_step(scheduler) == ([(2, 7)], [1], [])
    assert next_step(scheduler) == ([(2, 7)], [1], [])
    assert next_step(scheduler) == ([], [1, 2], [])


def test_prompts_are_prefilled_one_after_the_other(kata):
    scheduler = scheduler_with(kata, [12, 5, 6], **ROOMY)
    assert next_step(scheduler) == ([(0, 8)], [], [])
    assert next_step(scheduler) == ([(0, 4), (1, 4)], [], [])
    assert next_step(scheduler) == ([(1, 1), (2, 6)], [0], [])


def test_the_batch_has_a_limit(kata):
    scheduler = scheduler_with(kata, [5, 5, 5], kv_tokens=100, max_batch=2, token_budget=50)
    assert next_step(scheduler) == ([(0, 5), (1, 5)], [], [])
    assert next_step(scheduler) == ([], [0, 1], [])
    scheduler.finished(0)
    assert next_step(scheduler) == ([(2, 5)], [1], [])


def test_nobody_overtakes_a_prompt_that_waits_for_memory(kata):
    scheduler = scheduler_with(kata, [10, 11, 2], kv_tokens=20, max_batch=8, token_budget=50)
    assert next_step(scheduler) == ([(0, 10)], [], [])
    assert next_step(scheduler) == ([], [0], [])  # 11 of 20: request 2 would fit
    scheduler.finished(0)
    assert next_step(scheduler) == ([(1, 11), (2, 2)], [], [])


def test_admission_leaves_room_for_the_tokens_of_this_step(kata):
    scheduler = scheduler_with(kata, [10], kv_tokens=20, max_batch=8, token_budget=50)
    assert next_step(scheduler) == ([(0, 10)], [], [])
    scheduler.add(1, 10)  # 10 and 10 fill the cache, but request 0 is about to cache an 11th
    assert next_step(scheduler) == ([], [0], [])


def test_a_prompt_that_fits_exactly_is_admitted(kata):
    scheduler = scheduler_with(kata, [10], kv_tokens=20, max_batch=8, token_budget=50)
    assert next_step(scheduler) == ([(0, 10)], [], [])
    scheduler.add(1, 9)  # request 0 is about to cache an 11th: 11 and 9 fill the cache
    assert next_step(scheduler) == ([(1, 9)], [0], [])


def test_admission_waits_until_the_whole_prompt_fits(kata):
    scheduler = scheduler_with(kata, [12, 9], kv_tokens=20, max_batch=8, token_budget=8)
    assert next_step(scheduler) == ([(0, 8)], [], [])
    assert next_step(scheduler) == ([(0, 4)], [], [])  # 4 of request 1 would fit beside, not 9
    scheduler.finished(0)
    assert next_step(scheduler) == ([(1, 8)], [], [])


# ---- preemption ----------------------------------------------------------------------------


def test_the_newest_is_preempted(kata):
    scheduler = scheduler_with(kata, [5, 2, 1], kv_tokens=12, max_batch=3, token_budget=8)
    assert next_step(scheduler) == ([(0, 5), (1, 2), (2, 1)], [], [])  # 8 cached
    assert next_step(scheduler) == ([], [0, 1, 2], [])  # 11
    assert next_step(scheduler) == ([], [0, 1], [2])  # 7 + 4, not 7 + 4 + 3
    assert next_step(scheduler) == ([], [0], [1])  # 8, not 8 + 5


def test_the_newest_is_who_arrived_last_whatever_its_id(kata):
    scheduler = kata.Scheduler(kv_tokens=12, max_batch=3, token_budget=8)
    for req_id, prompt_len in [(5, 5), (9, 2), (2, 1)]:
        scheduler.add(req_id, prompt_len)
    assert next_step(scheduler) == ([(2, 1), (5, 5), (9, 2)], [], [])
    assert next_step(scheduler) == ([], [2, 5, 9], [])
    assert next_step(scheduler) == ([], [5, 9], [2])
    assert next_step(scheduler) == ([], [5], [9])
    scheduler.finished(5)
    assert next_step(scheduler) == ([(2, 3), (9, 5)], [], [])


def test_a_preempted_request_returns_to_the_front_with_the_tokens_it_emitted(kata):
    scheduler = scheduler_with(kata, [5, 2, 1], kv_tokens=12, max_batch=3, token_budget=8)
    for _ in range(3):
        next_step(scheduler)
    scheduler.add(3, 1)
    assert next_step(scheduler) == ([], [0], [1])
    scheduler.finished(0)
    # 2 of its prompt and 3 emitted, 1 and 2; request 3 has to wait for the next step's budget
    assert next_step(scheduler) == ([(1, 5), (2, 3)], [], [])
    assert next_step(scheduler) == ([(3, 1)], [1, 2], [])


def test_as_many_are_preempted_as_it_takes(kata):
    scheduler = scheduler_with(kata, [1] * 6, kv_tokens=12, max_batch=6, token_budget=6)
    next_step(scheduler)
    assert next_step(scheduler) == ([], [0, 1, 2, 3, 4, 5], [])  # 12 cached
    assert next_step(scheduler) == ([], [0, 1, 2, 3], [4, 5])  # 4 times 3


def test_a_prefill_under_way_is_preempted_for_older_decodes(kata):
    scheduler = scheduler_with(kata, [8, 10], kv_tokens=20, max_batch=2, token_budget=9)
    assert next_step(scheduler) == ([(0, 8), (1, 1)], [], [])
    assert next_step(scheduler) == ([(1, 8)], [0], [])  # 9 + 9
    assert next_step(scheduler) == ([(1, 1)], [0], [])  # 10 + 10: request 1 emits its first
    assert next_step(scheduler) == ([], [0], [1])  # 11, not 11 + 11
    scheduler.finished(0)
    assert next_step(scheduler) == ([(1, 9)], [], [])
    assert next_step(scheduler) == ([(1, 2)], [], [])


# ---- bad input -----------------------------------------------------------------------------


def test_an_id_in_use_is_refused(kata):
    scheduler = scheduler_with(kata, [5], **ROOMY)
    with pytest.raises(ValueError, match="req_id"):
        scheduler.add(0, 6)  # while it waits
    assert next_step(scheduler) == ([(0, 5)], [], [])
    with pytest.raises(ValueError, match="req_id"):
        scheduler.add(0, 6)  # while it runs
    assert next_step(scheduler) == ([], [0], [])


def test_an_id_is_free_again_once_its_request_has_finished(kata):
    scheduler = scheduler_with(kata, [5], **ROOMY)
    assert next_step(scheduler) == ([(0, 5)], [], [])
    scheduler.finished(0)
    scheduler.add(0, 6)
    assert next_step(scheduler) == ([(0, 6)], [], [])


@pytest.mark.parametrize("prompt_len", [0, -1])
def test_an_empty_prompt_is_refused(kata, prompt_len):
    scheduler = kata.Scheduler(**ROOMY)
    with pytest.raises(ValueError, match="prompt_len"):
        scheduler.add(0, prompt_len)
    assert next_step(scheduler) == ([], [], [])


def test_a_prompt_larger_than_the_cache_is_refused(kata):
    scheduler = kata.Scheduler(**ROOMY)
    with pytest.raises(ValueError, match="prompt_len"):
        scheduler.add(0, 1001)
    scheduler.add(0, 2)  # nothing of the refused request is left behind
    assert next_step(scheduler) == ([(0, 2)], [], [])


def test_a_budget_too_small_for_the_batch_is_refused(kata):
    with pytest.raises(ValueError, match="token_budget"):
        kata.Scheduler(kv_tokens=100, max_batch=9, token_budget=8)


# ---- what users saw ------------------------------------------------------------------------


def summary(kata):
    """Three requests, of which the second emits one token."""
    arrivals = [(1.0, 0), (2.0, 1), (3.0, 2)]
    tokens = [(3.0, 0), (4.0, 0), (5.0, 1), (6.0, 0), (7.0, 2), (7.5, 2)]
    log = [(at_s, "arrival", req_id) for at_s, req_id in arrivals]
    log += [(at_s, "token", req_id) for at_s, req_id in tokens]
    events = [kata.Event(at_s, req_id, kind) for at_s, kind, req_id in sorted(log)]
    return kata.metrics(iter(events))  # a log that is read once, as from a file


def test_ttft_counts_from_arrival(kata):
    assert summary(kata).ttft_s == {0: 2.0, 1: 3.0, 2: 4.0}


def test_tpot_leaves_out_the_first_token(kata):
    assert summary(kata).tpot_s == {0: 1.5, 1: None, 2: 0.5}


def test_throughput_is_over_first_arrival_to_last_token(kata):
    assert summary(kata).makespan_s == 6.5
    assert summary(kata).throughput == 6 / 6.5


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "met"),
    [(math.inf, math.inf, 3), (3.0, math.inf, 2), (math.inf, 0.5, 2), (2.9, 1.5, 1), (2.0, 1.4, 0)],
    ids=["no promise", "ttft", "tpot", "both", "never both"],
)
def test_goodput_counts_requests_that_met_both_promises(kata, ttft_s, tpot_s, met):
    assert summary(kata).goodput(Slo(ttft_s=ttft_s, tpot_s=tpot_s)) == met / 6.5


def test_metrics_agree_with_the_engine_s_own_report(kata, oracle, static):
    result = static("long-prompt")
    metrics, report = kata.metrics(oracle.events(kata.Event, result)), result.report
    ttft_s = {times.request.id: times.ttft_s for times in report.requests}
    tpot_s = {times.request.id: times.tpot_s for times in report.requests}
    assert metrics.ttft_s == pytest.approx(ttft_s, rel=REORDERED)
    assert metrics.tpot_s == pytest.approx(tpot_s, rel=REORDERED)
    assert math.isclose(metrics.throughput, report.throughput, rel_tol=REORDERED)
    slo = Slo(ttft_s=report.ttft.p50, tpot_s=report.tpot.p50)
    assert math.isclose(metrics.goodput(slo), report.goodput(slo), rel_tol=REORDERED)


# ---- whole traces, each step judged by the simulator ---------------------------------------


def request(id, prompt, output, arrival_s=0.0):
    return Request(id=id, arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output)


def run(kata, profile, trace, **bounds):
    return simulate(kata.Scheduler(**bounds), trace, StepModel(profile, llama2_7b), **bounds)


def first_tokens(result):
    """Ids in the order in which they emitted their first token."""
    return [req_id for step in result.steps for req_id, index in step.emitted if index == 0]


@pytest.mark.parametrize(("prompt", "output"), [(20, 1), (15, 6), (1, 20)])
def test_one_request_may_fill_the_cache(kata, profile, prompt, output):
    trace = [request(0, prompt, output), request(1, 8, 3)]
    result = run(kata, profile, trace, kv_tokens=20, max_batch=4, token_budget=8)
    assert max(step.kv_tokens for step in result.steps) == 20


def test_a_burst_of_a_thousand(kata, profile):
    trace = [request(req_id, 3, 2) for req_id in range(1000)]
    result = run(kata, profile, trace, kv_tokens=1000, max_batch=64, token_budget=512)
    assert first_tokens(result) == [*range(1000)]
    assert len(result.steps) == 32  # 16 batches: all prompts in one step, all decodes in another


def test_short_requests_do_not_starve_a_long_one(kata, oracle, profile):
    pace_s = oracle.step_model(profile).time(decode=[50])
    short = [request(req_id, 4, 8, req_id * pace_s) for req_id in range(100) if req_id != 10]
    long = request(10, 60, 8, 10 * pace_s)
    result = run(kata, profile, [*short, long], kv_tokens=80, max_batch=8, token_budget=64)
    assert first_tokens(result) == [*range(100)]


@given(
    lengths=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 8)), min_size=1, max_size=12),
    gaps_ms=st.lists(st.integers(0, 30), min_size=12, max_size=12),
    spare=st.integers(0, 12),
    max_batch=st.integers(1, 5),
    more_budget=st.integers(0, 8),
)
def test_any_trace_is_served_in_order(
    kata, oracle, profile, lengths, gaps_ms, spare, max_batch, more_budget
):
    trace = [
        request(req_id, prompt, output, sum(gaps_ms[: req_id + 1]) / 1000)
        for req_id, (prompt, output) in enumerate(lengths)
    ]
    result = run(
        kata,
        profile,
        trace,
        kv_tokens=max(prompt + output - 1 for prompt, output in lengths) + spare,
        max_batch=max_batch,
        token_budget=max_batch + more_budget,
    )
    assert first_tokens(result) == [*range(len(trace))]
    for step, holding, decoding in oracle.replay(result):
        victims = len(step.plan.preempt)
        assert set(step.plan.preempt) == set(sorted(holding)[len(holding) - victims :])
        assert set(step.plan.decode) == decoding - set(step.plan.preempt), "a request pauses"


# ---- cost: LLaMA-2-7B on the active profile ------------------------------------------------


def test_throughput_beats_static_batching(served, static, oracle, profile, cost):
    continuous = served("chat").report.throughput
    if not oracle.batching_pays(profile):
        pytest.skip(f"{profile.id}: arithmetic bounds even small batches, so static ones will do")
    cost.check("throughput", continuous / static("chat").report.throughput)


def test_decodes_do_not_wait_for_long_prompts(served, oracle, profile, cost):
    gap_s = served("long-prompt").report.tbt.p99
    cost.check("token_gap", gap_s / oracle.full_step_s(profile))


def test_work_is_conserved_under_bursts(served, oracle, profile, cost):
    least_s = oracle.least_time_s("bursty", profile)
    cost.check("makespan", served("bursty").report.makespan_s, ideal=least_s)
