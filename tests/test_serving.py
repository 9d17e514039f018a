"""The serving simulator: hand-worked times and schedules, and every rule an engine cannot break."""

import math
from collections import Counter, deque
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from harness.base.errors import UsageProblem
from harness.simulators.serving import (
    Auditor,
    ModelSpec,
    Plan,
    PrefixGroups,
    Request,
    ScheduleViolation,
    Slo,
    StepModel,
    audit_log,
    bursty_trace,
    chat_trace,
    llama2_7b,
    llama3_8b,
    long_prompt_trace,
    make_trace,
    simulate,
)


def toy_profile(**changes):
    """1 PFLOP/s, 1 TB/s, and links of 100 GB/s and 5 us: round numbers for hand calculation."""
    figures = {"bandwidth": 1e12, "link_bandwidth": 1e11, "link_latency_s": 5e-6} | changes
    return SimpleNamespace(peak_of={"float16": 1e15, "float8": 2e15}.__getitem__, **figures)


def unit_steps():
    """A step model by which every step with tokens takes one second."""
    return SimpleNamespace(time=lambda prefill, decode: float(bool(prefill or decode)))


def request(id, prompt, output, arrival=0.0):
    return Request(id=id, arrival_s=arrival, prompt_tokens=prompt, output_tokens=output)


# --- StepModel ---


def test_a_decode_reads_weights_and_its_context():
    step_model = StepModel(toy_profile(), llama2_7b)
    # 2 * 6,738,415,616 weight bytes + 1000 * 524,288 cache bytes, at 0.8 TB/s
    assert step_model.time(decode=[1000]) == pytest.approx(0.01750139904 + 20e-6, rel=1e-12)


def test_a_long_prefill_is_bound_by_compute():
    step_model = StepModel(toy_profile(), llama2_7b)
    flops = 2 * 6_738_415_616 * 2048 + 4 * 32 * 32 * 128 * (2048 * 2049 // 2)
    assert step_model.time(prefill=[(2048, 0)]) == pytest.approx(flops / 0.6e15 + 20e-6, rel=1e-12)


def test_chunks_of_a_prompt_do_the_work_of_the_whole():
    step_model = StepModel(toy_profile(bandwidth=1e18), llama3_8b)
    whole = step_model.time(prefill=[(300, 0)])
    chunks = [step_model.time(prefill=[chunk]) for chunk in [(100, 0), (150, 100), (50, 250)]]
    assert sum(chunks) == pytest.approx(whole + 2 * 20e-6, rel=1e-12)


def test_a_decode_is_a_chunk_of_one():
    step_model = StepModel(toy_profile(), llama3_8b)
    mixed = step_model.time(prefill=[(64, 0)], decode=[500, 700])
    assert mixed == step_model.time(prefill=[(64, 0), (1, 499), (1, 699)])


def test_tensor_parallel_divides_the_work_and_adds_all_reduces():
    model = ModelSpec(params=10**9, layers=10, heads=8, kv_heads=8, head_dim=64, d_model=1000)
    step_model = StepModel(toy_profile(), model, tp=4)
    weights_s = 2e9 / 0.8e12 / 4
    cache_s = 2 * 10 * 8 * 64 * 2 * 100 / 0.8e12 / 4
    # per layer two all-reduces of 1000 values of 2 bytes: 2 * 3/4 of them over 100 GB/s
    all_reduces_s = 2 * 10 * (1.5 * 2000 / 1e11 + 5e-6)
    expected = weights_s + cache_s + 20e-6 + all_reduces_s
    assert step_model.time(decode=[100]) == pytest.approx(expected, rel=1e-12)


def test_weight_and_cache_bytes_scale_what_is_moved():
    narrow = StepModel(toy_profile(), llama3_8b, w_bytes=1, kv_bytes=1, dtype="float8")
    wide = StepModel(toy_profile(), llama3_8b)
    assert narrow.kv_bytes_per_token() == 65_536
    assert wide.kv_bytes_per_token() == 131_072
    assert narrow.time(decode=[500]) - 20e-6 == pytest.approx((wide.time(decode=[500]) - 20e-6) / 2)
    # compute-bound: FP8 runs at twice the peak
    assert narrow.time(prefill=[(4096, 0)]) - 20e-6 == pytest.approx(
        (wide.time(prefill=[(4096, 0)]) - 20e-6) / 2
    )


def test_a_step_without_tokens_takes_no_time():
    assert StepModel(toy_profile(), llama2_7b).time() == 0.0


def test_tensor_parallel_needs_a_link():
    with pytest.raises(UsageProblem, match="tp = 2 and a link of 0 B/s"):
        StepModel(toy_profile(link_bandwidth=0.0), llama2_7b, tp=2)


def test_least_time_of_one_request_is_its_perfect_schedule():
    step_model = StepModel(toy_profile(bandwidth=1e18), llama2_7b)
    perfect = step_model.time(prefill=[(100, 0)]) + step_model.time(decode=[101])
    trace = (request(0, prompt=100, output=2),)
    assert step_model.least_time(trace, batch=1) == pytest.approx(perfect, rel=1e-12)
    assert step_model.capacity(trace * 2, batch=2) == pytest.approx(
        2 / (2 * perfect - 2 * 20e-6), rel=1e-12
    )


def test_least_time_has_a_whole_number_of_steps():
    step_model = StepModel(toy_profile(), llama2_7b)
    three = tuple(request(at, prompt=1, output=1) for at in range(3))
    two_steps = step_model.time(prefill=[(1, 0)] * 2) + step_model.time(prefill=[(1, 0)])
    assert step_model.least_time(three, batch=2) == pytest.approx(two_steps, rel=1e-12)


# --- traces ---


def test_the_same_seed_draws_the_same_requests_at_any_rate():
    slow, fast = chat_trace(50, rate=1.0, seed=3), chat_trace(50, rate=4.0, seed=3)
    assert slow == chat_trace(50, rate=1.0, seed=3)
    assert slow != chat_trace(50, rate=1.0, seed=4)
    for one, other in zip(slow, fast, strict=True):
        assert one.arrival_s == pytest.approx(4 * other.arrival_s)
        assert replace(one, arrival_s=0.0) == replace(other, arrival_s=0.0)


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gaps_have_the_mean_and_spread_asked_for(cv):
    trace = make_trace(20_000, 5.0, cv, 0, in_mu=4.0, in_sigma=1.0, out_mu=4.0, out_sigma=1.0)
    gaps = np.diff([0.0] + [one.arrival_s for one in trace])
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(0.2, rel=0.1)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)


def test_lengths_are_log_normal_and_clipped():
    trace = make_trace(5000, 1.0, 1.0, 0, in_mu=6.0, in_sigma=2.0, out_mu=5.0, out_sigma=2.0)
    prompts = [one.prompt_tokens for one in trace]
    outputs = [one.output_tokens for one in trace]
    assert (min(prompts), max(prompts)) == (8, 8192)
    assert (min(outputs), max(outputs)) == (2, 1024)
    assert np.median(prompts) == pytest.approx(math.exp(6), rel=0.1)
    assert np.median(outputs) == pytest.approx(math.exp(5), rel=0.1)


def test_classes_and_prefixes_leave_the_rest_of_the_trace_alone():
    lengths = {"in_mu": 4.0, "in_sigma": 1.0, "out_mu": 4.0, "out_sigma": 1.0}
    plain = make_trace(2000, 1.0, 1.0, 7, **lengths)
    rich = make_trace(
        2000,
        1.0,
        1.0,
        7,
        **lengths,
        classes={"interactive": 3, "batch": 1},
        prefix_groups=PrefixGroups(count=5, tokens=(100, 200)),
    )
    for one, other in zip(plain, rich, strict=True):
        own_tokens = other.prompt_tokens - other.prefix_tokens
        assert (one.arrival_s, one.prompt_tokens, one.output_tokens) == (
            other.arrival_s,
            own_tokens,
            other.output_tokens,
        )
    assert Counter(one.class_name for one in rich)["batch"] == pytest.approx(500, rel=0.15)
    popularity = Counter(one.prefix_group for one in rich)
    assert popularity[0] / popularity[4] == pytest.approx(5, rel=0.3)  # 1/1 against 1/5
    lengths_of = {(one.prefix_group, one.prefix_tokens) for one in rich}
    assert len(lengths_of) == 5
    assert all(100 <= tokens <= 200 for _, tokens in lengths_of)


def test_prefix_lengths_include_both_ends():
    groups = PrefixGroups(count=3, tokens=(150, 150))
    trace = make_trace(9, 1.0, 1.0, 0, 4.0, 1.0, 4.0, 1.0, prefix_groups=groups)
    assert {one.prefix_tokens for one in trace} == {150}


def test_impossible_traces_are_refused():
    with pytest.raises(UsageProblem, match="found 10, 0 and 1"):
        make_trace(10, 0, 1, 0, 4.0, 1.0, 4.0, 1.0)


# --- Auditor ---


class Script:
    """A scheduler that answers with plans written down beforehand."""

    def __init__(self, *plans):
        self.plans = deque(plans)
        self.heard = []

    def add(self, req_id, prompt_len):
        self.heard.append(("add", req_id, prompt_len))

    def plan(self):
        self.heard.append("plan")
        return self.plans.popleft()

    def finished(self, req_id):
        self.heard.append(("finished", req_id))


def three_requests():
    trace = [request(0, 4, 3), request(1, 2, 1), request(2, 3, 2, arrival=1.5)]
    script = Script(
        Plan(prefill=[(0, 4), (1, 2)]),
        Plan(decode=[0]),
        Plan(prefill=[(2, 2)], decode=[0]),
        Plan(prefill=[(2, 1)]),
        Plan(preempt=[2]),
        Plan(prefill=[(2, 4)]),  # its prompt and the token it has emitted
    )
    bounds = {"kv_tokens": 8, "max_batch": 2, "token_budget": 6}
    return trace, script, simulate(script, trace, unit_steps(), **bounds)


def test_a_schedule_worked_by_hand():
    _, script, result = three_requests()
    assert [(step.start_s, step.end_s) for step in result.steps] == [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 4),
        (4, 4),
        (4, 5),
    ]
    assert [list(step.emitted) for step in result.steps] == [
        [(0, 0), (1, 0)],
        [(0, 1)],
        [(0, 2)],
        [(2, 0)],
        [],
        [(2, 1)],
    ]
    assert [step.kv_tokens for step in result.steps] == [6, 5, 8, 3, 0, 4]
    assert script.heard == [
        ("add", 0, 4),
        ("add", 1, 2),
        "plan",
        ("finished", 1),
        "plan",
        ("add", 2, 3),
        "plan",
        ("finished", 0),
        "plan",
        "plan",
        "plan",
        ("finished", 2),
    ]


def test_a_report_worked_by_hand():
    report = three_requests()[2].report
    assert report.ttft.values == [1.0, 1.0, 2.5]  # the last waits from 1.5 to 2
    assert [times.tpot_s for times in report.requests] == [1.0, None, 1.0]
    assert report.tpot.values == [1.0, 1.0]
    assert report.tbt.values == [1.0, 1.0, 1.0]
    assert report.ttft.p50 == 1.0
    assert report.ttft.p99 == pytest.approx(1.0 + 0.98 * 1.5)
    assert report.ttft.max == 2.5
    assert report.makespan_s == 5.0
    assert report.throughput == pytest.approx(6 / 5)
    assert report.attainment(Slo(ttft_s=1.0)) == pytest.approx(2 / 3)
    assert report.goodput(Slo(ttft_s=1.0)) == pytest.approx(2 / 5)
    assert report.goodput(Slo(tpot_s=0.5)) == pytest.approx(1 / 5)  # only the one without TPOT


def test_the_log_of_a_simulation_passes_an_audit():
    trace, _, result = three_requests()
    auditor = Auditor(trace, unit_steps(), kv_tokens=8, max_batch=2, token_budget=6)
    for step in result.steps:
        auditor.audit(step)
    assert auditor.report() == result.report


@pytest.mark.parametrize(
    ("plans", "complaint"),
    [
        ([Plan(prefill=[(9, 1)])], "step 0 at 0 s, request 9: is not in the trace"),
        ([Plan(prefill=[(2, 1)])], "request 2: runs before it arrives at 50 s"),
        ([Plan(prefill=[(0, 5)])], "request 0: expected a chunk of 1 to 4 tokens, found 5"),
        ([Plan(prefill=[(0, 0)])], "request 0: expected a chunk of 1 to 4 tokens, found 0"),
        ([Plan(prefill=[(0, 2), (0, 2)])], "request 0: is in the plan more than once"),
        ([Plan(decode=[0])], "request 0: is decoded before its prefill is complete: 0 of 4"),
        (
            [Plan(prefill=[(0, 3)]), Plan(decode=[0])],
            "step 1 at 1 s, request 0: is decoded before its prefill is complete: 3 of 4",
        ),
        ([Plan(prefill=[(0, 4)]), Plan(prefill=[(0, 1)])], "request 0: is prefilled although"),
        ([Plan(prefill=[(1, 2)]), Plan(decode=[1])], "request 1: runs on after its 1 tokens"),
        ([Plan(preempt=[0])], "request 0: is preempted but holds no cache"),
        (
            [Plan(prefill=[(0, 4)]), Plan(preempt=[0]), Plan(decode=[0])],
            "request 0: is decoded before its prefill is complete: 0 of 5",
        ),
        (
            [
                Plan(prefill=[(0, 4)]),
                Plan(decode=[0]),
                Plan(preempt=[0]),
                Plan(prefill=[(0, 4)]),
                Plan(decode=[0]),
            ],
            "request 0: is decoded before its prefill is complete: 4 of 6",
        ),
        (
            [Plan(prefill=[(0, 4)]), Plan(prefill=[(3, 3)]), Plan(decode=[0])],
            "step 2 at 2 s: expected at most 7 cached tokens, found 8",
        ),
        (
            [Plan(prefill=[(0, 1), (1, 1), (3, 1)])],
            "step 0 at 0 s: expected at most 2 requests holding cache, found 3",
        ),
        (
            [Plan(prefill=[(0, 4), (3, 2)])],
            "step 0 at 0 s: expected at most 5 tokens in the step, found 6",
        ),
    ],
)
def test_what_no_engine_can_do_is_rejected(plans, complaint):
    trace = [request(0, 4, 3), request(1, 2, 1), request(2, 4, 4, arrival=50.0), request(3, 3, 3)]
    bounds = {"kv_tokens": 7, "max_batch": 2, "token_budget": 5}
    auditor = Auditor(trace, unit_steps(), **bounds)
    for at, plan in enumerate(plans[:-1]):
        auditor.advance(plan, float(at))
    with pytest.raises(ScheduleViolation) as caught:
        auditor.advance(plans[-1], float(len(plans) - 1))
    assert complaint in str(caught.value)


def test_the_log_keeps_plans_that_the_scheduler_reuses():
    auditor = Auditor([request(0, 4, 2)], unit_steps())
    chunks = [(0, 4)]
    step = auditor.advance(Plan(prefill=chunks), 0.0)
    chunks.clear()
    assert list(step.plan.prefill) == [(0, 4)]


def test_preemption_and_the_end_of_a_request_free_the_cache():
    trace = [request(at, 4, 2) for at in range(3)]
    auditor = Auditor(trace, unit_steps(), kv_tokens=5, max_batch=1)
    auditor.advance(Plan(prefill=[(0, 4)]), 0.0)
    auditor.advance(Plan(preempt=[0], prefill=[(1, 4)]), 1.0)
    assert auditor.advance(Plan(decode=[1]), 2.0).finished == [1]
    assert auditor.advance(Plan(prefill=[(2, 4)]), 3.0).kv_tokens == 4


def test_capacity_is_counted_in_whole_blocks():
    trace = [request(0, 5, 9), request(1, 1, 9)]
    auditor = Auditor(trace, unit_steps(), kv_tokens=12, block_size=4)
    assert auditor.advance(Plan(prefill=[(0, 2)]), 0.0).kv_tokens == 4
    assert auditor.advance(Plan(prefill=[(0, 2)]), 1.0).kv_tokens == 4
    assert auditor.advance(Plan(prefill=[(0, 1), (1, 1)]), 2.0).kv_tokens == 12
    for at in range(3, 6):
        assert auditor.advance(Plan(decode=[0, 1]), float(at)).kv_tokens == 12
    with pytest.raises(ScheduleViolation, match="at most 12 cached tokens, found 20"):
        auditor.advance(Plan(decode=[0, 1]), 6.0)  # the 9th token of one, the 5th of the other


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"end_s": 2.5}, "step 1 at 1 s: expected to take 1 s by the step model, found 1.5 s"),
        ({"start_s": 0.5}, "step 1 at 0.5 s: starts before the last step ended, at 1 s"),
        ({"emitted": []}, "step 1 at 1 s, request 0: skips token 1"),
        ({"emitted": [(0, 1), (0, 1)]}, "step 1 at 1 s, request 0: emits token 1 twice"),
        ({"emitted": [(0, 1), (0, 0)]}, "step 1 at 1 s, request 0: emits token 0 twice"),
        ({"emitted": [(0, 1), (2, 0)]}, "step 1 at 1 s, request 2: emits token 0 too early"),
    ],
)
def test_a_log_that_claims_otherwise_is_rejected(change, complaint):
    trace, _, result = three_requests()
    auditor = Auditor(trace, unit_steps())
    auditor.audit(result.steps[0])
    with pytest.raises(ScheduleViolation) as caught:
        auditor.audit(replace(result.steps[1], **change))
    assert complaint in str(caught.value)


def test_a_report_waits_for_every_request():
    auditor = Auditor([request(0, 4, 3)], unit_steps())
    auditor.advance(Plan(prefill=[(0, 4)]), 0.0)
    with pytest.raises(ScheduleViolation, match="request 0: never finished: 1 of 3 tokens"):
        auditor.report()


@pytest.mark.parametrize("start_s", [math.nan, math.inf, -1.0])
def test_a_step_starts_at_some_time(start_s):
    auditor = Auditor([request(0, 4, 3, arrival=-9.0)], unit_steps())
    with pytest.raises(ScheduleViolation, match="starts at no time"):
        auditor.advance(Plan(prefill=[(0, 4)]), start_s)


def test_a_long_clock_hides_no_microseconds():
    quick = SimpleNamespace(time=lambda prefill, decode: 1e-3)
    trace = [request(0, 4, 1, arrival=5000.0)]
    step = Auditor(trace, quick).advance(Plan(prefill=[(0, 4)]), 5000.0)
    assert audit_log([step], trace, quick).makespan_s == pytest.approx(1e-3)
    with pytest.raises(ScheduleViolation, match="expected to take 0.001 s"):
        audit_log([replace(step, end_s=step.end_s - 1e-6)], trace, quick)


# --- blocks ---


def preempted(*tables):
    """Two requests in blocks of 4: the first, of 6 tokens, is preempted and starts over."""
    trace = [request(0, 6, 2), request(1, 3, 2)]
    plans = [
        Plan(prefill=[(0, 6)]),
        Plan(preempt=[0], prefill=[(1, 3)]),
        Plan(decode=[1]),
        Plan(prefill=[(0, 7)]),
    ]
    auditor = Auditor(trace, unit_steps(), block_size=4)
    steps = [auditor.advance(plan, float(at)) for at, plan in enumerate(plans)]
    return trace, [replace(step, blocks=told) for step, told in zip(steps, tables, strict=True)]


SOUND = ({0: [2, 0]}, {1: [1]}, {}, {})


@pytest.mark.parametrize("spare", [{}, {1: (1, 2)}], ids=["as needed", "one ahead"])
def test_blocks_that_hold_what_is_cached_are_accepted(spare):
    trace, steps = preempted(SOUND[0], SOUND[1] | spare, *SOUND[2:])
    report = audit_log(steps, trace, unit_steps(), kv_tokens=12, block_size=4)
    assert report.ttft.values == [1.0, 2.0]


@pytest.mark.parametrize(
    ("at", "table", "complaint"),
    [
        (0, {0: [2]}, "step 0 at 0 s, request 0: expected 2 blocks or more, found 1"),
        (0, {}, "request 0: expected 2 blocks or more, found 0"),
        (0, {0: [2, 2]}, "request 0: holds block 2, which request 0 has"),
        (0, {0: [2, 3]}, "request 0: holds block 3, which there is not"),
        (0, {0: [2, -1]}, "request 0: holds block -1, which there is not"),
        (0, {0: [2, 0], 1: [1]}, "request 1: keeps 1 blocks but has nothing cached"),
        (0, {0: [2, 0], 7: []}, "request 7: holds blocks but is not in the trace"),
        (1, {0: [2, 0], 1: [1]}, "step 1 at 1 s, request 0: keeps 2 blocks but has nothing"),
        (2, {1: [1]}, "step 2 at 2 s, request 1: keeps 1 blocks but has nothing cached"),
    ],
)
def test_blocks_that_cannot_be_are_rejected(at, table, complaint):
    trace, steps = preempted(*SOUND[:at], table, *SOUND[at + 1 :])
    with pytest.raises(ScheduleViolation) as caught:
        audit_log(steps, trace, unit_steps(), kv_tokens=12, block_size=4)
    assert complaint in str(caught.value)


def test_a_block_of_two_requests_is_rejected():
    trace = [request(0, 2, 2), request(1, 2, 2)]
    step = Auditor(trace, unit_steps()).advance(Plan(prefill=[(0, 2), (1, 2)]), 0.0)
    with pytest.raises(ScheduleViolation, match="request 1: holds block 1, which request 0 has"):
        audit_log([replace(step, blocks={0: [0, 1], 1: [1, 2]})], trace, unit_steps())


# --- simulate ---


class FirstComeFirstServed:
    """Decodes first, then chunks of prompts in order of arrival; preempts the newest."""

    def __init__(self, kv_tokens, max_batch, token_budget):
        self.kv_tokens, self.max_batch, self.token_budget = kv_tokens, max_batch, token_budget
        self.waiting = deque()  # (id, tokens to cache before the next one is emitted)
        self.cached, self.goal, self.decoding = {}, {}, set()

    def add(self, req_id, prompt_len):
        self.waiting.append((req_id, prompt_len))

    def finished(self, req_id):
        del self.cached[req_id], self.goal[req_id]
        self.decoding.discard(req_id)

    def plan(self):
        preempt = []
        while sum(self.cached.values()) + len(self.decoding) > self.kv_tokens:
            newest = [*self.cached][-1]
            self.waiting.appendleft((newest, self.goal[newest]))
            self.finished(newest)
            preempt.append(newest)
        if not preempt:
            self._admit()
        decode = [at for at in self.cached if at in self.decoding]
        prefill = self._chunks()
        for req_id, tokens in [*prefill, *((at, 1) for at in decode)]:
            self.cached[req_id] += tokens
            if self.cached[req_id] == self.goal[req_id]:
                self.goal[req_id] += 1
                self.decoding.add(req_id)
        return Plan(prefill=prefill, decode=decode, preempt=preempt)

    def _admit(self):
        free = self.kv_tokens - sum(self.goal.values())
        while self.waiting and len(self.cached) < self.max_batch and self.waiting[0][1] <= free:
            req_id, goal = self.waiting.popleft()
            self.cached[req_id], self.goal[req_id] = 0, goal
            free -= goal

    def _chunks(self):
        budget = self.token_budget - len(self.decoding)
        chunks = []
        for req_id in self.cached:
            tokens = min(budget, self.goal[req_id] - self.cached[req_id])
            if req_id not in self.decoding and tokens > 0:
                chunks.append((req_id, tokens))
                budget -= tokens
        return chunks


@pytest.mark.parametrize("draw", [chat_trace, long_prompt_trace, bursty_trace])
def test_a_sound_scheduler_serves_every_trace_with_preemptions(draw):
    step_model = StepModel(toy_profile(), llama3_8b)
    trace = draw(60, rate=2 * step_model.capacity(draw(60), batch=8))
    bounds = {"kv_tokens": 9000, "max_batch": 8, "token_budget": 256}
    if draw is not long_prompt_trace:
        bounds["kv_tokens"] = 1500
    result = simulate(FirstComeFirstServed(**bounds), trace, step_model, **bounds)
    assert any(step.plan.preempt for step in result.steps)
    assert max(step.kv_tokens for step in result.steps) <= bounds["kv_tokens"]
    busy_s = sum(step.end_s - step.start_s for step in result.steps)
    assert busy_s >= step_model.least_time(trace, batch=8)


def changed_plan(step, **changes):
    return [replace(step, plan=replace(step.plan, **changes))]


# what becomes of one entry of a log, and which entries that makes impossible
CORRUPTIONS = {
    "left out": (lambda step: [], lambda step: True),
    "told twice": (lambda step: [step, step], lambda step: True),
    "quick": (
        lambda step: [replace(step, end_s=0.01 * step.start_s + 0.99 * step.end_s)],
        lambda step: step.end_s > step.start_s,
    ),
    "early": (
        lambda step: [replace(step, start_s=step.start_s - 1e-6, end_s=step.end_s - 1e-6)],
        lambda step: step.start_s > 0,
    ),
    "silent": (
        lambda step: [replace(step, emitted=step.emitted[1:])],
        lambda step: step.emitted,
    ),
    "talkative": (
        lambda step: [replace(step, emitted=[*step.emitted, *step.emitted[:1]])],
        lambda step: step.emitted,
    ),
    "without a decode": (
        lambda step: changed_plan(step, decode=step.plan.decode[1:]),
        lambda step: step.plan.decode,
    ),
    "with a longer chunk": (
        lambda step: changed_plan(step, prefill=[(at, n + 1) for at, n in step.plan.prefill]),
        lambda step: step.plan.prefill,
    ),
    "without its preemptions": (
        lambda step: changed_plan(step, preempt=()),
        lambda step: step.plan.preempt,
    ),
}


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_no_corrupted_log_passes(kind):
    corrupt, possible = CORRUPTIONS[kind]
    step_model = StepModel(toy_profile(), llama3_8b)
    trace = chat_trace(12, rate=2 * step_model.capacity(chat_trace(12), batch=8), seed=1)
    bounds = {"kv_tokens": 1500, "max_batch": 8, "token_budget": 256}
    result = simulate(FirstComeFirstServed(**bounds), trace, step_model, **bounds)
    assert audit_log(result.steps, trace, step_model, **bounds) == result.report
    steps = result.steps
    # the first entry may well start earlier: only behind another can none
    places = [at for at, step in enumerate(steps) if at and possible(step)]
    random = np.random.Generator(np.random.PCG64(0))
    for at in random.permutation(places)[:8]:
        log = [*steps[:at], *corrupt(steps[at]), *steps[at + 1 :]]
        with pytest.raises(ScheduleViolation):
            audit_log(log, trace, step_model, **bounds)


def test_idle_time_is_skipped():
    trace = [request(0, 4, 1, arrival=10.0), request(1, 4, 1, arrival=100.0)]
    bounds = {"kv_tokens": 50, "max_batch": 2, "token_budget": 50}
    result = simulate(FirstComeFirstServed(**bounds), trace, unit_steps(), **bounds)
    assert [step.start_s for step in result.steps] == [10.0, 100.0]
    assert result.report.makespan_s == 91.0
    assert result.report.ttft.values == [1.0, 1.0]


def test_a_scheduler_that_sits_still_is_stalled():
    script = Script(Plan(prefill=[(0, 4)]), *[Plan()] * 100)
    with pytest.raises(
        ScheduleViolation, match="stalled at 1 s: no token in 100 plans, 1 requests"
    ):
        simulate(script, [request(0, 4, 3)], unit_steps(), patience=100)


def test_a_scheduler_that_thrashes_is_stalled():
    thrash = [Plan(prefill=[(0, 2)]), Plan(preempt=[0])] * 10
    with pytest.raises(ScheduleViolation, match="stalled at 10 s"):
        simulate(Script(*thrash), [request(0, 4, 3)], unit_steps(), patience=20)


def test_a_scheduler_s_own_errors_pass_through():
    class Picky(Script):
        def add(self, req_id, prompt_len):
            raise ValueError("prompt_len over capacity")

    with pytest.raises(ValueError, match="prompt_len"):
        simulate(Picky(), [request(0, 4, 3)], unit_steps())
