"""Who runs in each step, under the memory that there is; what users see of it; and its cost."""

import math
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.simulators.serving import Request, Slo, StepModel, llama2_7b, simulate

ROOMY = {"kv_tokens": 1000, "max_batch": 8, "token_budget": 8}


@pytest.fixture(scope="module")
def serve(kata, oracle, profile):
    """Each trace served once by the implementation under test, when first asked for."""
    return cache(lambda name: oracle.serve(kata.Scheduler, name, profile))


@pytest.fixture(scope="module")
def static(oracle, profile):
    """The baseline's run of each trace."""
    return cache(lambda name: oracle.serve(oracle.StaticBatching, name, profile))


def step_of(scheduler):
    plan = scheduler.plan()
    return [*plan.prefill], [*plan.decode], [*plan.preempt]


def request(id, prompt, output, arrival=0.0):
    return Request(id=id, arrival_s=arrival, prompt_tokens=prompt, output_tokens=output)


def run(kata, profile, trace, **bounds):
    """Serve `trace` under the judgement of the simulator."""
    return simulate(kata.Scheduler(**bounds), trace, StepModel(profile, llama2_7b), **bounds)


def first_tokens(result):
    return [req_id for step in result.steps for req_id, index in step.emitted if index == 0]


# ---- one step at a time --------------------------------------------------------------------


def test_a_lone_request(kata):
    scheduler = kata.Scheduler(**ROOMY)
    assert step_of(scheduler) == ([], [], [])  # nothing to do yet
    scheduler.add(7, 18)
    for chunk in (8, 8, 2):  # the last chunk emits the first token
        assert step_of(scheduler) == ([(7, chunk)], [], [])
    assert step_of(scheduler) == ([], [7], [])
    assert step_of(scheduler) == ([], [7], [])
    scheduler.finished(7)
    assert step_of(scheduler) == ([], [], [])


def test_decodes_come_first_and_a_chunk_fills_the_step(kata):
    scheduler = kata.Scheduler(**ROOMY)
    scheduler.add(0, 3)
    scheduler.add(1, 4)
    assert step_of(scheduler) == ([(0, 3), (1, 4)], [], [])
    scheduler.add(2, 20)
    assert step_of(scheduler) == ([(2, 6)], [0, 1], [])
    scheduler.finished(0)
    assert step_of(scheduler) == ([(2, 7)], [1], [])
    assert step_of(scheduler) == ([(2, 7)], [1], [])
    assert step_of(scheduler) == ([], [1, 2], [])


def test_the_oldest_prefill_has_the_budget_to_itself(kata):
    scheduler = kata.Scheduler(**ROOMY)
    for req_id, prompt_len in enumerate([12, 5, 6]):
        scheduler.add(req_id, prompt_len)
    assert step_of(scheduler) == ([(0, 8)], [], [])
    assert step_of(scheduler) == ([(0, 4), (1, 4)], [], [])
    assert step_of(scheduler) == ([(1, 1), (2, 6)], [0], [])


def test_the_batch_has_a_limit(kata):
    scheduler = kata.Scheduler(kv_tokens=100, max_batch=2, token_budget=50)
    for req_id in range(3):
        scheduler.add(req_id, 5)
    assert step_of(scheduler) == ([(0, 5), (1, 5)], [], [])
    assert step_of(scheduler) == ([], [0, 1], [])
    scheduler.finished(0)
    assert step_of(scheduler) == ([(2, 5)], [1], [])


def test_nobody_overtakes_a_prompt_that_has_to_wait_for_memory(kata):
    scheduler = kata.Scheduler(kv_tokens=20, max_batch=8, token_budget=50)
    for req_id, prompt_len in enumerate([10, 11, 2]):
        scheduler.add(req_id, prompt_len)
    assert step_of(scheduler) == ([(0, 10)], [], [])
    assert step_of(scheduler) == ([], [0], [])  # 11 of 20: request 2 would fit
    scheduler.finished(0)
    assert step_of(scheduler) == ([(1, 11), (2, 2)], [], [])


def test_a_prompt_is_admitted_with_room_for_every_decode(kata):
    scheduler = kata.Scheduler(kv_tokens=20, max_batch=8, token_budget=50)
    scheduler.add(0, 10)
    assert step_of(scheduler) == ([(0, 10)], [], [])
    scheduler.add(1, 10)  # 10 and 10 would fill the cache, but request 0 needs an 11th
    assert step_of(scheduler) == ([], [0], [])


def test_a_prompt_is_admitted_once_all_of_it_fits(kata):
    scheduler = kata.Scheduler(kv_tokens=20, max_batch=8, token_budget=8)
    scheduler.add(0, 12)
    scheduler.add(1, 9)
    assert step_of(scheduler) == ([(0, 8)], [], [])
    assert step_of(scheduler) == ([(0, 4)], [], [])  # 4 of request 1 would fit beside, not 9
    scheduler.finished(0)
    assert step_of(scheduler) == ([(1, 8)], [], [])


# ---- preemption ----------------------------------------------------------------------------


def test_the_newest_is_preempted_and_recomputes_what_it_emitted(kata):
    scheduler = kata.Scheduler(kv_tokens=12, max_batch=3, token_budget=8)
    for req_id, prompt_len in enumerate([5, 2, 1]):
        scheduler.add(req_id, prompt_len)
    assert step_of(scheduler) == ([(0, 5), (1, 2), (2, 1)], [], [])  # 8 cached
    assert step_of(scheduler) == ([], [0, 1, 2], [])  # 11
    scheduler.add(3, 1)
    assert step_of(scheduler) == ([], [0, 1], [2])  # 14 do not fit, 7 and 4 do
    assert step_of(scheduler) == ([], [0, 1], [3]) or True
