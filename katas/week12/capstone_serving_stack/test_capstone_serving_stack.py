"""Answers that no optimization changes, logs that replay, reports that follow from logs."""

import json
import math
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from xml.etree import ElementTree

import pytest
import torch

STAGES = pytest.mark.parametrize("stage", range(4))
SAME = 1e-9  # relative: numbers added up in another order
SEED = 7  # of what is reported on, so that thresholds do not depend on luck


def make_request(kata, req_id, prompt=4, max_new=4, arrival_s=0.0):
    return kata.Request(
        id=req_id, arrival_s=arrival_s, prompt=tuple(range(1, prompt + 1)), max_new=max_new
    )


def tight(kata):
    """Bounds within which ten requests crowd each other out."""
    return kata.Limits(max_batch=5, kv_tokens=96, block_size=4, room=48, k_max=3)


def emitted(log):
    answers = {}
    for step in log:
        for req_id, tokens in step.emitted.items():
            answers[req_id] = answers.get(req_id, ()) + tuple(tokens)
    return answers


@pytest.fixture(scope="module")
def crowded(kata, oracle, profile):
    """Ten requests served within tight bounds, by seed and stage: requests, log."""

    @cache
    def serve(seed, stage):
        asked = oracle.requests(kata.Request, seed, 10, 2e-3, longest=16)
        engine = kata.Engine(stage, *oracle.models(seed), profile, tight(kata))
        return asked, engine.run(asked)

    return serve


@pytest.fixture(scope="module")
def reported(kata, oracle, profile, tmp_path_factory):
    """The folder of a report, made when first asked for; and what was reported on."""

    @cache
    def make():
        outdir = tmp_path_factory.mktemp("capstone") / "new" / "folder"
        workloads = oracle.workloads(kata.Request, SEED)
        kata.report(outdir, *oracle.models(SEED), profile, workloads, oracle.heldout(SEED))
        return outdir, workloads

    return make


@pytest.fixture(scope="module")
def results(reported):
    return cache(lambda: json.loads((reported()[0] / "results.json").read_text()))


@pytest.fixture(scope="module")
def tallies(kata, oracle, profile, reported):
    """What the logs of a report come to, by workload and stage, counted by the oracle."""

    @cache
    def count():
        outdir, workloads = reported()
        return {
            (name, stage): oracle.tally(
                stage, kata.load_log(outdir / f"{name}-{stage}.jsonl"), asked, profile
            )
            for name, asked in workloads.items()
            for stage in range(4)
        }

    return count


def tokens_per_s(tallies, name, stage):
    tokens, _, _, work = tallies[name, stage]
    return tokens / work[3]


# ---- the engine ----------------------------------------------------------------------------


@STAGES
def test_answers_are_what_the_model_writes_for_each_alone(oracle, crowded, seed, stage):
    asked, log = crowded(seed, stage)
    model, _ = oracle.models(seed)
    expected = oracle.answers(oracle.rounded(model, seed) if stage else model, asked)
    assert emitted(log) == expected


@STAGES
def test_every_step_is_one_that_an_engine_can_do(kata, oracle, profile, crowded, seed, stage):
    asked, log = crowded(seed, stage)
    assert oracle.faults(stage, log, asked, profile, tight(kata)) == []


@STAGES
def test_who_arrived_first_starts_first(crowded, seed, stage):
    asked, log = crowded(seed, stage)
    started = list(dict.fromkeys(req_id for step in log for req_id in step.prefill))
    assert started == [one.id for one in sorted(asked, key=lambda one: one.arrival_s)]


@STAGES
def test_nothing_asked_nothing_logged(kata, oracle, profile, stage):
    assert kata.Engine(stage, *oracle.models(0), profile).run([]) == []
    assert kata.replay(stage, [], [], profile).tokens == 0


@STAGES
def test_a_second_run_is_like_the_first(kata, oracle, profile, stage):
    asked = oracle.requests(kata.Request, 3, 4, 1e-3, longest=10)
    engine = kata.Engine(stage, *oracle.models(3), profile)
    as_given = [*asked]
    first = engine.run(asked)
    assert engine.run(asked) == first
    assert asked == as_given


class Scripted(torch.nn.Module):
    """Says token + 1, or, where it is wrong on purpose, token + 2; EOS, which is 0, after 63."""

    def __init__(self, ahead=1):
        super().__init__()
        self.ahead = ahead

    def forward(self, tokens):
        said = (tokens + self.ahead) % 64
        return torch.nn.functional.one_hot(said, 64).double()


class Delicate(Scripted):
    """Right as long as its weights are those it was made with."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 2, bias=False)
        self.layer.weight.data = torch.linspace(-1, 1, 64).reshape(2, 32)
        self.sound = self.layer.weight.sum()

    def forward(self, tokens):
        self.ahead = 1 if self.layer.weight.sum() == self.sound else 2
        return super().forward(tokens)


def scripted_log(kata, profile, stage, asked, **bounds):
    limits = kata.Limits(**{"max_batch": 4, "room": 32, "block_size": 4, **bounds})
    return kata.Engine(stage, Scripted(), Scripted(2), profile, limits).run(asked)


def test_a_static_batch_stays_closed_until_its_last_is_done(kata, profile):
    asked = [make_request(kata, req_id, max_new=new) for req_id, new in enumerate((1, 4, 2))]
    log = scripted_log(kata, profile, 1, asked, kv_tokens=64)
    assert [step.prefill for step in log] == [(0, 1), (), (), (), (2,), ()]


def test_static_batching_sets_aside_room_for_the_longest(kata, profile):
    asked = [make_request(kata, req_id, max_new=1) for req_id in range(3)]
    log = scripted_log(kata, profile, 0, asked, kv_tokens=95)  # 32 for each
    assert [step.prefill for step in log] == [(0, 1), (2,)]
    log = scripted_log(kata, profile, 0, asked, kv_tokens=96)
    assert [step.prefill for step in log] == [(0, 1, 2)]
    log = scripted_log(kata, profile, 0, asked, kv_tokens=96, max_batch=2)
    assert [step.prefill for step in log] == [(0, 1), (2,)]


def test_a_request_joins_as_soon_as_there_is_a_slot(kata, profile):
    asked = [make_request(kata, req_id, max_new=new) for req_id, new in enumerate((1, 4, 2))]
    log = scripted_log(kata, profile, 2, asked, kv_tokens=64, max_batch=2)
    assert [step.prefill for step in log] == [(0, 1), (2,), (), ()]


def test_a_request_joins_as_soon_as_its_blocks_fit(kata, profile):
    asked = [make_request(kata, 0, prompt=3, max_new=6), make_request(kata, 1, 8, 1, 1e-9)]
    # while the second waits, the first holds one block of 4 in step 1, two in steps 2 to 5
    log = scripted_log(kata, profile, 2, asked, kv_tokens=12 + 4)
    assert [step.prefill for step in log][:2] == [(0,), (1,)]
    log = scripted_log(kata, profile, 2, asked, kv_tokens=12)
    assert [step.prefill for step in log][:2] == [(0,), (1,)]  # 4 + 8: an exact fit
    asked = [make_request(kata, 0, prompt=4, max_new=6), make_request(kata, 1, 8, 1, 1e-9)]
    log = scripted_log(kata, profile, 2, asked, kv_tokens=15, room=12)  # three blocks
    assert [step.prefill for step in log] == [(0,), (), (), (), (), (), (1,)]  # 8 + 8


def test_the_newest_is_preempted_and_goes_on_where_it_was(kata, profile):
    asked = [make_request(kata, req_id, prompt=4, max_new=6) for req_id in (9, 5, 7)]
    log = scripted_log(kata, profile, 2, asked, kv_tokens=16)
    # 12 slots for three prompts; then each wants a second block, and there are four
    assert [step.preempt for step in log][:2] == [(), (7,)]
    assert emitted(log) == dict.fromkeys((9, 5, 7), (5, 6, 7, 8, 9, 10))


def test_the_preempted_go_on_before_those_who_never_ran(kata, profile):
    asked = [make_request(kata, req_id, prompt=4, max_new=4) for req_id in (9, 5)]
    asked.append(make_request(kata, 1, prompt=4, max_new=1, arrival_s=1e-9))
    log = scripted_log(kata, profile, 2, asked, kv_tokens=12, room=12)
    # 5 has to go before step 1; then 8 of 12 slots are taken, and neither 8 nor (behind it) 4 fit
    assert [step.prefill for step in log] == [(9, 5), (), (), (), (5, 1), (), ()]


def test_all_are_preempted_that_have_to_be(kata, profile):
    asked = [make_request(kata, req_id, prompt=4, max_new=6) for req_id in range(4)]
    log = scripted_log(kata, profile, 2, asked, kv_tokens=16)
    assert sorted(log[1].preempt) == [2, 3]
    assert log[1].decode == (0, 1)
    # 1 has to go, too, when it wants a third block, and 3 once more; all come back in order
    again = [step.prefill for step in log if step.prefill]
    assert again == [(0, 1, 2, 3), (1,), (2, 3), (3,)]


def test_the_target_looks_once_a_step(kata, oracle, profile, monkeypatch):
    monkeypatch.setattr(oracle.CountedLM, "calls", 0)
    asked = oracle.requests(kata.Request, 5, 4, 1e-3)
    _, draft = oracle.models(5)
    log = kata.Engine(3, oracle.CountedLM(5), draft, profile).run(asked)
    served = sum(len(step.emitted) for step in log)
    assert sum(step.drafted for step in log) > 0, "expected drafts for four requests, found none"
    assert oracle.CountedLM.calls <= served


@pytest.mark.parametrize("draft", [Scripted, Delicate], ids=["right", "unless_rounded"])
def test_a_draft_that_is_always_right_yields_one_token_more(kata, profile, draft):
    limits = kata.Limits(k_max=3)
    engine = kata.Engine(3, Scripted(), draft(), profile, limits)
    log = engine.run([make_request(kata, 0, max_new=40)])
    decodes = [step for step in log[:-1] if step.decode]
    expected = [1 + step.drafted for step in decodes]
    assert [len(step.emitted[0]) for step in decodes] == expected
    later = expected[len(expected) // 2 :]
    assert max(later) == 4, f"expected 3 tokens to be drafted by and by, found {later}"


@pytest.mark.parametrize("first", [60, 61, 62, 63])
def test_nothing_follows_the_end_of_an_answer(kata, profile, first):
    asked = [kata.Request(id=0, arrival_s=0.0, prompt=(1, first), max_new=9)]
    log = kata.Engine(3, Scripted(), Scripted(), profile).run(asked)
    assert emitted(log)[0] == (*range(first + 1, 64), 0)
    left = 64 - first
    for step in log:
        most = 1 + step.drafted * len(step.decode)
        assert len(step.emitted[0]) == min(left, most), f"{left} left before {step}"
        left -= len(step.emitted[0])


def test_a_log_is_read_as_it_was_written(kata, crowded, seed, tmp_path):
    """Ids and tokens are tuples, as `Step` says: nothing is lost on the way through a file."""
    for stage in range(4):
        _, log = crowded(seed, stage)
        kata.save_log(tmp_path / "log.jsonl", log)
        assert kata.load_log(tmp_path / "log.jsonl") == log, f"stage {stage}"


def test_a_draft_that_is_always_wrong_is_given_up(kata, oracle, profile):
    asked = oracle.requests(kata.Request, 11, 6, 10.0)
    model, _ = oracle.models(11)
    stranger, _ = oracle.models(12)
    speed = [
        oracle.tally(stage, log, asked, profile)[0] / oracle.tally(stage, log, asked, profile)[3][3]
        for stage in (2, 3)
        for log in [kata.Engine(stage, model, stranger, profile).run(asked)]
    ]
    assert speed[1] / speed[0] >= 0.9, f"expected 0.9 of the speed of stage 2, found {speed}"


@pytest.mark.parametrize("stage", [-1, 4])
def test_an_unknown_stage_is_refused(kata, oracle, profile, stage):
    with pytest.raises(ValueError, match="^stage: "):
        kata.Engine(stage, *oracle.models(0), profile)


@STAGES
def test_a_request_that_may_outgrow_its_room_is_refused(kata, profile, stage):
    fits, too_long = make_request(kata, 3, 20, 12), make_request(kata, 4, 20, 13)
    assert len(emitted(scripted_log(kata, profile, stage, [fits], kv_tokens=32))[3]) == 12
    with pytest.raises(ValueError, match="^requests: .*\\b4\\b"):
        scripted_log(kata, profile, stage, [fits, too_long], kv_tokens=32)


# ---- replaying somebody's log ---------------------------------------------------------------


@STAGES
def test_an_honest_log_is_summed_up(kata, oracle, profile, crowded, seed, stage):
    asked, log = crowded(seed, stage)
    totals = kata.replay(stage, log, asked, profile, tight(kata))
    tokens, drafted, kept, work = oracle.tally(stage, log, asked, profile)
    found = (totals.tokens, totals.steps, totals.drafted, totals.kept)
    assert found == (tokens, len(log), drafted, kept)
    sums = totals.work
    assert [sums.flops, sums.weight_bytes, sums.cache_bytes, sums.seconds] == pytest.approx(
        work, rel=SAME
    )


# Three requests of 4 tokens: 0 wants 3 more, 1 wants 2, 2 wants 1 and arrives later.
HONEST = {
    0: [
        {"prefill": (0, 1), "emitted": {0: (5,), 1: (5,)}},
        {"decode": (0, 1), "emitted": {0: (6,), 1: (6,)}},
        {"decode": (0,), "emitted": {0: (7,)}},
        {"prefill": (2,), "emitted": {2: (5,)}},
    ],
    2: [
        {"prefill": (0, 1), "emitted": {0: (5,), 1: (5,)}},
        {"prefill": (2,), "decode": (0,), "preempt": (1,), "emitted": {0: (6,), 2: (5,)}},
        {"prefill": (1,), "decode": (0,), "emitted": {0: (7,), 1: (6,)}},
    ],
    3: [
        {"prefill": (0, 1), "emitted": {0: (5,), 1: (5,)}},
        {"prefill": (2,), "decode": (0, 1), "drafted": 2, "emitted": {0: (6,), 1: (6,), 2: (5,)}},
        {"decode": (0,), "drafted": 1, "emitted": {0: (7,)}},
    ],
}
HONEST[1] = HONEST[0]
# stage, plans that take the place of HONEST's by number, the number of the step that is wrong
TAMPERED = {
    "joins a static batch": (
        0,
        {2: {"prefill": (2,), "decode": (0,), "emitted": {0: (7,), 2: (5,)}}, 3: None},
        2,
    ),
    "joins a static batch that rests": (0, {1: {"prefill": (2,), "emitted": {2: (5,)}}}, 1),
    "preempts in a static batch": (
        0,
        {1: {"preempt": (1,), "decode": (0,), "emitted": {0: (6,)}}},
        1,
    ),
    "drafts before stage 3": (2, {1: HONEST[2][1] | {"drafted": 1}}, 1),
    "drafts more than may be": (3, {1: HONEST[3][1] | {"drafted": 5}}, 1),
    "drafts less than nothing": (3, {0: HONEST[3][0] | {"drafted": -1}}, 0),
    "decodes without a cache": (2, {2: {"decode": (0, 1), "emitted": {0: (7,), 1: (6,)}}}, 2),
    "prefills what is cached": (2, {2: {"prefill": (0, 1), "emitted": {0: (7,), 1: (6,)}}}, 2),
    "preempts what is not cached": (2, {2: HONEST[2][2] | {"preempt": (2,)}}, 2),
    "preempts one that was preempted": (
        2,
        {2: {"decode": (0,), "preempt": (1,), "emitted": {0: (7,)}}},
        2,
    ),
    "prefills what it preempts": (
        2,
        {1: HONEST[2][1] | {"prefill": (1, 2), "emitted": {0: (6,), 1: (6,), 2: (5,)}}},
        1,
    ),
    "serves one twice": (2, {2: HONEST[2][2] | {"decode": (0, 0)}}, 2),
    "serves a stranger": (2, {2: {"prefill": (1, 8), "emitted": {1: (6,), 8: (1,)}}}, 2),
    "serves one that is done": (
        2,
        {2: {"prefill": (1, 2), "decode": (0,), "emitted": {0: (7,), 1: (6,), 2: (6,)}}},
        2,
    ),
    "serves one that is not there yet": (
        2,
        {0: {"prefill": (0, 1, 2), "emitted": {0: (5,), 1: (5,), 2: (5,)}}},
        0,
    ),
    "emits nothing of a decode": (2, {1: HONEST[2][1] | {"emitted": {2: (5,)}}}, 1),
    "emits an empty answer": (2, {1: HONEST[2][1] | {"emitted": {0: (), 2: (5,)}}}, 1),
    "emits of one that rests": (2, {1: HONEST[2][1] | {"emitted": {0: (6,), 1: (6,), 2: (5,)}}}, 1),
    "emits two tokens of a decode": (2, {1: HONEST[2][1] | {"emitted": {0: (6, 7), 2: (5,)}}}, 1),
    "emits two tokens of a prompt": (
        3,
        {0: HONEST[3][0] | {"drafted": 2, "emitted": {0: (5, 6), 1: (5,)}}},
        0,
    ),
    "emits more than is wanted": (3, {2: HONEST[3][2] | {"emitted": {0: (7, 8)}}}, 2),
    "emits a rejected token": (
        3,
        {1: HONEST[3][1] | {"emitted": {0: (6, 7, 8, 9), 1: (6,), 2: (5,)}}},
        1,
    ),
    "emits beyond EOS": (3, {1: HONEST[3][1] | {"emitted": {0: (0, 7), 1: (6,), 2: (5,)}}}, 1),
    "goes on after EOS": (3, {1: HONEST[3][1] | {"emitted": {0: (0,), 1: (6,), 2: (5,)}}}, 2),
    "begins again after EOS": (
        3,
        {
            1: HONEST[3][1] | {"emitted": {0: (0,), 1: (6,), 2: (5,)}},
            2: {"prefill": (0,), "emitted": {0: (7,)}},
        },
        2,
    ),
}


def three_requests(kata):
    return [
        make_request(kata, at, max_new=3 - at, arrival_s=1 + 1e-6 * (at == 2)) for at in (0, 1, 2)
    ]


def hand_log(kata, oracle, profile, stage, tampered=()):
    plans = {**dict(enumerate(HONEST[stage])), **dict(tampered)}
    plans = [plan for plan in plans.values() if plan is not None]
    return oracle.timed(kata.Step, stage, plans, three_requests(kata), profile)


@pytest.mark.parametrize("stage", HONEST)
def test_a_log_written_by_hand_passes(kata, oracle, profile, stage):
    log = hand_log(kata, oracle, profile, stage)
    assert kata.replay(stage, log, three_requests(kata), profile).tokens == 6


def test_drafted_tokens_that_were_kept_are_counted_apart(kata, oracle, profile):
    plans = {1: HONEST[3][1] | {"emitted": {0: (6, 7), 1: (6,), 2: (5,)}}, 2: None}
    log = hand_log(kata, oracle, profile, 3, plans)
    totals = kata.replay(3, log, three_requests(kata), profile)
    assert (totals.tokens, totals.drafted, totals.kept) == (6, 4, 1)


def test_an_answer_may_end_beyond_the_first_token_of_a_step(kata, oracle, profile):
    asked = [make_request(kata, 0, max_new=6)]
    plans = [
        {"prefill": (0,), "emitted": {0: (5,)}},
        {"decode": (0,), "drafted": 2, "emitted": {0: (6, 0)}},
    ]
    log = oracle.timed(kata.Step, 3, plans, asked, profile)
    assert kata.replay(3, log, asked, profile).kept == 1
    for number, tokens in ((1, (0, 7)), (1, (6, 0, 7)), (2, (6, 0))):
        plans[1]["emitted"] = {0: tokens}
        more = [*plans, {"decode": (0,), "emitted": {0: (8,)}}]
        log = oracle.timed(kata.Step, 3, more, asked, profile)
        with pytest.raises(ValueError, match=f"^step {number}: "):
            kata.replay(3, log, asked, profile)


@STAGES
def test_a_late_clock_may_round(kata, oracle, profile, stage):
    """A duration is a difference of times: after months it is off by far more than 1e-9 of it."""
    asked = [make_request(kata, 0, max_new=6, arrival_s=1e7)]
    log = kata.Engine(stage, *oracle.models(1), profile).run(asked)
    assert kata.replay(stage, log, asked, profile).steps == len(log)
    log[-1] = replace(log[-1], end_s=log[-1].end_s + 1e-4)  # 1e-11 of the time
    with pytest.raises(ValueError, match=f"^step {len(log) - 1}: "):
        kata.replay(stage, log, asked, profile)


@pytest.mark.parametrize("how", TAMPERED)
def test_a_tampered_log_is_refused(kata, oracle, profile, how):
    stage, tampered, number = TAMPERED[how]
    log = hand_log(kata, oracle, profile, stage, tampered)
    with pytest.raises(ValueError, match=f"^step {number}: "):
        kata.replay(stage, log, three_requests(kata), profile)


# of a duration, and of a time: far above rounding
OFF = {"less": -1e-7, "more": 1e-7, "none": math.nan}


@pytest.mark.parametrize("off", OFF.values(), ids=OFF)
def test_another_clock_is_refused(kata, oracle, profile, off):
    log = hand_log(kata, oracle, profile, 2)
    took_s = log[1].end_s - log[1].start_s
    log[1] = replace(log[1], end_s=log[1].start_s + (1 + off) * took_s)
    with pytest.raises(ValueError, match="^step 1: "):
        kata.replay(2, log, three_requests(kata), profile)


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("off", OFF.values(), ids=OFF)
def test_a_step_begins_when_the_last_one_ends(kata, oracle, profile, number, off):
    log = hand_log(kata, oracle, profile, 2)
    shifted = [
        replace(step, start_s=step.start_s + off, end_s=step.end_s + off) for step in log[number:]
    ]
    with pytest.raises(ValueError, match=f"^step {number}: "):
        kata.replay(2, log[:number] + shifted, three_requests(kata), profile)


def test_an_idle_engine_waits_for_the_next_arrival(kata, oracle, profile):
    asked = [make_request(kata, 0, max_new=1), make_request(kata, 1, 4, 1, arrival_s=50.0)]
    took_s = oracle.step_s(2, profile, [4], [])
    log = [
        kata.Step(start_s=at_s, end_s=at_s + took_s, prefill=(req_id,), emitted={req_id: (5,)})
        for req_id, at_s in ((0, 0.0), (1, 50.0))
    ]
    assert kata.replay(2, log, asked, profile).tokens == 2
    late = [log[0], replace(log[1], start_s=50.001, end_s=50.001 + took_s)]
    with pytest.raises(ValueError, match="^step 1: "):
        kata.replay(2, late, asked, profile)


@pytest.mark.parametrize("stage", HONEST)
def test_a_dropped_request_is_refused(kata, oracle, profile, stage):
    log = hand_log(kata, oracle, profile, stage)
    for kept in (len(log) - 1, 0):
        with pytest.raises(ValueError, match="^log: "):
            kata.replay(stage, log[:kept], three_requests(kata), profile)
    more = [*three_requests(kata), make_request(kata, 3, arrival_s=2.0)]
    with pytest.raises(ValueError, match="^log: "):
        kata.replay(stage, log, more, profile)


# the most slots and requests that a step of HONEST holds, and the first that holds so many slots
PEAKS = {0: (2 * 16, 2, 0), 1: (2 * 16, 2, 0), 2: (6 + 6, 2, 2), 3: (8 + 8 + 4, 3, 1)}


@pytest.mark.parametrize("stage", PEAKS)
def test_bounds_are_kept_to_the_last_block_and_slot(kata, oracle, profile, stage):
    kv_tokens, batch, number = PEAKS[stage]
    log, asked = hand_log(kata, oracle, profile, stage), three_requests(kata)
    limits = kata.Limits(max_batch=batch, kv_tokens=kv_tokens, block_size=2, room=16)
    assert kata.replay(stage, log, asked, profile, limits).tokens == 6
    with pytest.raises(ValueError, match=f"^step {number}: "):
        kata.replay(stage, log, asked, profile, replace(limits, kv_tokens=kv_tokens - 1))
    with pytest.raises(ValueError, match="^step [01]: "):
        kata.replay(stage, log, asked, profile, replace(limits, max_batch=batch - 1))
    if stage == 3:
        with pytest.raises(ValueError, match="^step 1: "):
            kata.replay(stage, log, asked, profile, replace(limits, k_max=1))


def test_who_rests_keeps_its_cache(kata, oracle, profile):
    plans = [
        {"prefill": (0, 1), "emitted": {0: (5,), 1: (5,)}},
        {"prefill": (2,), "emitted": {2: (5,)}},
        *HONEST[0][1:3],
    ]
    log = oracle.timed(kata.Step, 2, plans, three_requests(kata), profile)
    limits = kata.Limits(kv_tokens=16, block_size=4, room=16)
    assert kata.replay(2, log, three_requests(kata), profile, limits).tokens == 6
    # all but the newest token, which is not cached yet: 4 + 4, and 4 of the prompt
    for less in ({"kv_tokens": 11}, {"kv_tokens": 11, "block_size": 1}, {"max_batch": 2}):
        with pytest.raises(ValueError, match="^step 1: "):
            kata.replay(2, log, three_requests(kata), profile, replace(limits, **less))


def test_a_log_is_judged_as_of_its_stage(kata, oracle, profile):
    log = hand_log(kata, oracle, profile, 0)
    with pytest.raises(ValueError, match="^step 0: "):
        kata.replay(1, log, three_requests(kata), profile)  # the same plans, faster


# ---- the report ----------------------------------------------------------------------------


def test_the_logs_of_a_report_can_be_replayed(kata, oracle, profile, reported):
    outdir, workloads = reported()
    for name, asked in workloads.items():
        for stage in range(4):
            log = kata.load_log(outdir / f"{name}-{stage}.jsonl")
            assert oracle.faults(stage, log, asked, profile, kata.Limits()) == [], (name, stage)
            assert emitted(log).keys() == {request.id for request in asked}, (name, stage)


@pytest.mark.parametrize("name", ["lone", "burst"])
def test_every_number_follows_from_a_log(kata, profile, reported, results, tallies, name):
    assert results()["profile"] == profile.id
    rows = results()["workloads"][name]
    assert [row["stage"] for row in rows] == [0, 1, 2, 3]
    for stage, row in enumerate(rows):
        tokens, drafted, kept, (flops, weights, held, seconds) = tallies()[name, stage]
        expected = {
            "tokens": tokens,
            "steps": len(kata.load_log(reported()[0] / f"{name}-{stage}.jsonl")),
            "drafted": drafted,
            "kept": kept,
            "busy_s": seconds,
            "tokens_per_s": tokens / seconds,
            "flops": flops,
            "weight_bytes": weights,
            "cache_bytes": held,
            "intensity": flops / (weights + held),
        }
        found = {key: row[key] for key in expected}
        assert found == pytest.approx(expected, rel=SAME), (name, stage)


@pytest.mark.parametrize("name", ["lone", "burst"])
def test_gains_are_over_the_stage_before_and_multiply_to_the_total(results, tallies, name):
    gains = [row["gain"] for row in results()["workloads"][name]]
    speeds = [tokens_per_s(tallies(), name, stage) for stage in range(4)]
    expected = [1.0] + [speeds[at] / speeds[at - 1] for at in (1, 2, 3)]
    assert gains == pytest.approx(expected, rel=SAME)
    assert math.prod(gains) == pytest.approx(speeds[3] / speeds[0], rel=SAME)


def test_regimes_are_those_of_the_roofline(profile, results, tallies):
    ridge = profile.peak_of("float16") / profile.bandwidth
    for name, rows in results()["workloads"].items():
        for stage, row in enumerate(rows):
            flops, weights, held, _ = tallies()[name, stage][3]
            expected = "compute" if flops / (weights + held) >= ridge else "memory"
            assert row["regime"] == expected, (name, stage)


def test_next_is_what_a_burst_waits_for_most(profile, results, tallies):
    flops, weights, held, _ = tallies()["burst", 3][3]
    seconds = {
        "weights": weights / profile.bandwidth,
        "cache": held / profile.bandwidth,
        "arithmetic": flops / profile.peak_of("float16"),
    }
    assert results()["next"] == max(seconds, key=seconds.get), seconds


# What a few requests wait for where arithmetic is as good as free, and where nothing else counts.
TURNED = {"arithmetic": 0.005, "weights": 50.0}  # of the peak


@pytest.mark.parametrize("expected", TURNED)
def test_regime_and_next_turn_with_the_hardware(kata, oracle, profile, tmp_path, expected):
    share = TURNED[expected]
    turned = replace(profile, peak={name: share * peak for name, peak in profile.peak.items()})
    asked = oracle.requests(kata.Request, 2, 2, 1e-3, longest=10)
    workloads = {"lone": asked, "burst": asked}
    kata.report(tmp_path, *oracle.models(2), turned, workloads, oracle.heldout(2))
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["next"] == expected
    last = found["workloads"]["burst"][3]["regime"]
    assert last == {"arithmetic": "compute", "weights": "memory"}[expected]


def test_next_is_that_of_the_last_stage(kata, oracle, profile, tmp_path):
    # drafts turn a wait for weights into arithmetic on a machine with few FLOPs for each byte
    hardware = replace(profile, peak=dict.fromkeys(profile.peak, 13 * profile.bandwidth))
    asked = oracle.requests(kata.Request, 2, 2, 1e-3, longest=10)
    workloads = {"lone": asked, "burst": asked}
    kata.report(tmp_path, *oracle.models(2), hardware, workloads, oracle.heldout(2))
    found = json.loads((tmp_path / "results.json").read_text())
    row = found["workloads"]["burst"][3]
    seconds = {
        "weights": row["weight_bytes"] / hardware.bandwidth,
        "cache": row["cache_bytes"] / hardware.bandwidth,
        "arithmetic": row["flops"] / hardware.peak_of("float16"),
    }
    assert found["next"] == max(seconds, key=seconds.get), seconds


def test_on_the_ridge_itself_arithmetic_bounds(kata, oracle, profile, tmp_path):
    asked = oracle.requests(
        kata.Request, 2, 1, 1e-3, longest=10
    )  # alone: the same work at any speed

    def first_row(hardware):
        workloads = {"lone": asked, "burst": asked}
        kata.report(tmp_path, *oracle.models(2), hardware, workloads, oracle.heldout(2))
        return json.loads((tmp_path / "results.json").read_text())["workloads"]["lone"][0]

    intensity = first_row(profile)["intensity"]
    peak = dict.fromkeys(profile.peak, intensity * 2.0**40)
    on_it = first_row(replace(profile, peak=peak, bandwidth=2.0**40))
    found = on_it["intensity"], on_it["regime"]
    assert found == (intensity, "compute"), f"expected intensity = ridge = {intensity}"


def test_divergence_is_the_mean_of_what_the_rounding_costs(kata, oracle, seed):
    model, draft = oracle.models(seed)
    tokens = oracle.heldout(seed)
    assert kata.divergence(model, draft, tokens) == pytest.approx(
        oracle.divergence(model, draft, tokens), rel=1e-6
    )
    assert kata.divergence(model, model, tokens) == pytest.approx(0.0, abs=1e-12)


def test_rounding_costs_little(oracle, results, cost):
    model, _ = oracle.models(SEED)
    expected = oracle.divergence(model, oracle.rounded(model, SEED), oracle.heldout(SEED))
    assert results()["kl"] == pytest.approx(expected, rel=1e-6)
    cost.check("divergence", results()["kl"])


def test_the_roofline_and_the_report_show_the_results(profile, reported, results):
    root = ElementTree.parse(reported()[0] / "roofline.svg").getroot()
    ridges = [float(one.get("data-ridge")) for one in root.iter() if one.get("data-ridge")]
    assert ridges == [pytest.approx(profile.peak_of("float16") / profile.bandwidth)]
    points = {
        one.get("data-label"): (float(one.get("data-x")), float(one.get("data-y")))
        for one in root.iter()
        if one.get("data-x")
    }
    expected = {
        f"{name} {row['stage']}": (row["intensity"], row["flops"] / row["busy_s"])
        for name, rows in results()["workloads"].items()
        for row in rows
    }
    assert points.keys() == expected.keys()
    for label, point in expected.items():
        assert points[label] == pytest.approx(point, rel=1e-6), label
    text = (reported()[0] / "REPORT.md").read_text()
    titles = ["Baseline profile", "Before and after", "Roofline", "What next"]
    assert re.findall("^## (.*)", text, flags=re.MULTILINE) == titles
    for row in results()["workloads"]["burst"]:
        assert f"| {row['tokens_per_s']:.2f} | {row['gain']:.3f} |" in text


def test_the_baseline_is_a_trace_of_stage_0(reported, results):
    events = json.loads((reported()[0] / "baseline_profile.json").read_text())["traceEvents"]
    runs = [one for one in events if one.get("name") == "stage 0" and one.get("ph") == "X"]
    assert len(runs) == 1, f"expected one range named 'stage 0', found {len(runs)}"
    (run,) = runs
    assert results()["baseline_us"] == pytest.approx(run["dur"], rel=0.05)
    inside = Counter(
        one["name"]
        for one in events
        if one.get("ph") == "X" and run["ts"] <= one["ts"] <= run["ts"] + run["dur"]
    )
    # a pass has two linear layers; there is one for each step, or for each token of a step
    row = results()["workloads"]["lone"][0]
    assert 2 * row["steps"] <= inside["aten::linear"] <= 2 * row["tokens"], inside


def test_the_baseline_is_of_the_model_that_was_given(kata, oracle, profile, tmp_path):
    class Named(oracle.SmallLM):
        """Leaves its name in a trace: that of its weights."""

        def forward(self, tokens):
            name = "as given" if torch.equal(self.mix.weight, given) else "rounded"
            with torch.autograd.profiler.record_function(name):
                return super().forward(tokens)

    model, (_, draft) = Named(2), oracle.models(2)
    given = model.mix.weight.detach().clone()
    asked = oracle.requests(kata.Request, 2, 1, 1e-3, longest=10)
    workloads = {"lone": asked, "burst": asked}
    kata.report(tmp_path, model, draft, profile, workloads, oracle.heldout(2))
    events = json.loads((tmp_path / "baseline_profile.json").read_text())["traceEvents"]
    assert {one["name"] for one in events} & {"as given", "rounded"} == {"as given"}


# ---- cost: LLaMA-2-7B on the active profile ------------------------------------------------

GAINS = {
    "quantized": ("lone", 1),
    "batched": ("burst", 2),
    "drafted": ("lone", 3),
    "drafted_in_a_burst": ("burst", 3),
}


@pytest.mark.parametrize("name", GAINS)
def test_each_stage_pays(oracle, profile, tallies, cost, name):
    workload, stage = GAINS[name]
    found = tokens_per_s(tallies(), workload, stage) / tokens_per_s(tallies(), workload, stage - 1)
    if not oracle.batching_pays(profile):
        pytest.skip(f"{profile.id}: arithmetic bounds even small batches")
    cost.check(name, found)
