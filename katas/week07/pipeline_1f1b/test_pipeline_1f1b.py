"""Bubbles and live activations of three schedules, a simulator, and stages that train by them."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.judge import assert_matches
from harness.meters.communication import CountingP2P, comm_meter

LIMIT_S = 20.0
STEPS = 2
ROUNDING = 1e-9  # relative: times that are added up in another order
TIMES = {"t_f": 1, "t_b": 2, "t_comm": 0}

# one of each, the paper's figure, a long one, fewer micro-batches than stages, one of them
SIZES = [(1, 1), (1, 5), (4, 8), (8, 32), (6, 4), (5, 1)]
sizes = pytest.mark.parametrize(("p", "m"), SIZES, ids=[f"p={p} m={m}" for p, m in SIZES])
# one chunk, one round of micro-batches, the paper's figure, a long one, one stage
CHUNKED = [(4, 8, 1), (3, 3, 2), (4, 8, 2), (8, 32, 4), (1, 3, 3)]
chunked = pytest.mark.parametrize(
    ("p", "m", "v"), CHUNKED, ids=[f"p={p} m={m} v={v}" for p, m, v in CHUNKED]
)


def assert_no_more_bubble(oracle, schedule, *, p, m, v=1):
    """The makespan is that of a bubble of p - 1 passes, whatever a backward costs."""
    for t_f, t_b in [(1, 2), (1, 1), (3, 1)]:
        makespan, _ = oracle.tick(schedule, t_f, t_b, 0)
        least = (m * v + p - 1) * (t_f + t_b)
        assert makespan == least, (
            f"p={p} m={m} v={v}, t_f={t_f} t_b={t_b}: expected a makespan of {least}, "
            f"found {makespan}"
        )


def assert_live(oracle, schedule, bound):
    for stage, (ops, most) in enumerate(zip(schedule, bound, strict=True)):
        live = oracle.peak_live(ops)
        assert live <= most, (
            f"stage {stage}: expected activations of at most {most} passes, found {live}"
        )


# ---- the schedules -------------------------------------------------------------------------


@sizes
def test_gpipe_runs_all_forwards_then_all_backwards(kata, oracle, p, m):
    schedule = kata.gpipe(p, m)
    oracle.audit(schedule, p=p, m=m)
    for stage, ops in enumerate(schedule):
        kinds = "".join(op.kind for op in ops)
        assert kinds == "F" * m + "B" * m, f"stage {stage}: found {kinds}"
    assert_no_more_bubble(oracle, schedule, p=p, m=m)


@sizes
def test_1f1b_has_gpipe_s_bubble(kata, oracle, p, m):
    schedule = kata.one_f_one_b(p, m)
    oracle.audit(schedule, p=p, m=m)
    assert_no_more_bubble(oracle, schedule, p=p, m=m)


@sizes
def test_1f1b_holds_at_most_the_stages_that_follow(kata, oracle, p, m):
    assert_live(oracle, kata.one_f_one_b(p, m), oracle.live_bound(p=p, m=m))


@chunked
def test_interleaving_divides_the_bubble(kata, oracle, p, m, v):
    schedule = kata.interleaved(p, m, v)
    oracle.audit(schedule, p=p, m=m, v=v)
    assert_no_more_bubble(oracle, schedule, p=p, m=m, v=v)


@chunked
def test_interleaving_holds_no_more_than_its_warm_up(kata, oracle, p, m, v):
    assert_live(oracle, kata.interleaved(p, m, v), oracle.live_bound(p=p, m=m, v=v))


@given(p=st.integers(1, 6), rounds=st.integers(1, 3), v=st.integers(1, 4), more=st.integers(0, 5))
def test_any_pipeline(kata, oracle, p, rounds, v, more):
    m = p * rounds
    schedule = kata.interleaved(p, m, v)
    oracle.audit(schedule, p=p, m=m, v=v)
    assert_no_more_bubble(oracle, schedule, p=p, m=m, v=v)
    assert_live(oracle, schedule, oracle.live_bound(p=p, m=m, v=v))
    m = rounds + more
    schedule = kata.one_f_one_b(p, m)
    oracle.audit(schedule, p=p, m=m)
    assert_no_more_bubble(oracle, schedule, p=p, m=m)
    assert_live(oracle, schedule, oracle.live_bound(p=p, m=m))


@pytest.mark.parametrize("size", [0, -1])
@pytest.mark.parametrize(
    ("function", "names"),
    [("gpipe", "pm"), ("one_f_one_b", "pm"), ("interleaved", "pmv")],
    ids=["gpipe", "one_f_one_b", "interleaved"],
)
def test_a_size_below_one_is_refused(kata, function, names, size):
    for name in names:
        with pytest.raises(ValueError, match=rf"\b{name}\b"):
            getattr(kata, function)(**(dict.fromkeys(names, 2) | {name: size}))


@pytest.mark.parametrize("v", [1, 2])
def test_interleaving_refuses_micro_batches_that_do_not_divide(kata, v):
    for m in (2, 3, 6):
        with pytest.raises(ValueError, match=r"\bm\b"):
            kata.interleaved(4, m, v)


# ---- the simulator -------------------------------------------------------------------------


def ops(kata, text):
    """Read `F0 F1 B0`, and `F0.1` for chunk 1."""
    parts = [(word[0], *map(int, word[1:].split("."))) for word in text.split()]
    return [kata.Op(*part) for part in parts]


def text(schedule):
    """Write ops as `ops` reads them, stage by stage."""
    stages = ([f"{op.kind}{op.micro}.{op.chunk}" for op in ops] for ops in schedule)
    return " | ".join(" ".join(words) for words in stages)


# bubbles of the papers: (p - 1) / (v m + p - 1)
@pytest.mark.parametrize(
    ("p", "m", "v", "bubble"),
    [(1, 1, 1, 0), (4, 8, 1, 3 / 11), (8, 32, 1, 7 / 39), (8, 32, 4, 7 / 135)],
    ids=["alone", "4 stages", "8 stages", "8 stages of 4 chunks"],
)
def test_the_bubbles_of_the_papers(kata, p, m, v, bubble):
    schedule = kata.interleaved(p, m, v)
    found = kata.simulate(schedule, 1.0, 2.0, 0.0).bubble_fraction
    assert found == pytest.approx(bubble, rel=ROUNDING, abs=ROUNDING)


def test_what_is_sent_takes_time(kata):
    schedule = [ops(kata, "F0 B0"), ops(kata, "F0 B0")]
    sim = kata.simulate(schedule, 1.0, 2.0, 3.0)
    assert sim.makespan == 1 + 3 + 1 + 2 + 3 + 2
    assert sim.bubble_fraction == 0.5 + 0.25  # 6 of 24 s
    assert sim.peak_live == [1, 1]


def test_a_schedule_may_be_of_tuples(kata):
    schedule = (tuple(ops(kata, "F0 F1 B0 B1")), tuple(ops(kata, "F0 B0 F1 B1")))
    assert kata.simulate(schedule, 1.0, 2.0, 0.0).makespan == (2 + 2 - 1) * (1 + 2)


def test_sending_holds_nobody_up(kata):
    # the second is sent while the first is under way, and stage 0 ends before stage 1 does
    schedule = [ops(kata, "F0 F1 B1 B0"), ops(kata, "F1 B1 F0 B0")]
    assert kata.simulate(schedule, 1.0, 1.0, 10.0).makespan == 2 + 10 + 4 + 10 + 1
    schedule = [ops(kata, "F0"), ops(kata, "F0 B0")]
    sim = kata.simulate(schedule, 1.0, 2.0, 0.5)
    assert sim.makespan == 4.5
    assert sim.bubble_fraction == pytest.approx(5 / 9, rel=ROUNDING)  # 4 of 9 s of work


def test_nothing_is_sent_within_a_stage(kata):
    sim = kata.simulate([ops(kata, "F0 F0.1 B0.1 B0")], 1.0, 2.0, 100.0)
    assert sim.makespan == 6
    assert sim.bubble_fraction == 0
    assert sim.peak_live == [2]


@pytest.mark.parametrize(
    "stages",
    [
        ["B0 F0"],
        ["F0 F0.1 B0 B0.1"],
        ["F0 B0 F1 B1", "F0 F1 B0 B1"],
        ["F0 B0", "B0"],
        ["F0 F0.1 F1 B0"],
    ],
    ids=["backward first", "chunk 0 first", "too early", "no forward", "no backward of chunk 1"],
)
def test_a_schedule_that_stands_still_is_refused(kata, stages):
    schedule = [ops(kata, text) for text in stages]
    with pytest.raises(ValueError, match=r"\bschedule\b"):
        kata.simulate(schedule, 1.0, 2.0, 0.0)


@given(
    p=st.integers(1, 4),
    m=st.integers(1, 4),
    v=st.integers(1, 3),
    t_f=st.integers(1, 3),
    t_b=st.integers(1, 3),
    t_comm=st.integers(0, 4),
    at=st.integers(0, 2**31),
)
@example(p=3, m=4, v=2, t_f=1, t_b=2, t_comm=0, at=0)
def test_any_order_agrees_with_a_clock_that_ticks(kata, oracle, p, m, v, t_f, t_b, t_comm, at):
    schedule = oracle.any_order(kata.Op, random.Random(at), p=p, m=m, v=v)
    before = [[*ops] for ops in schedule]
    sim = kata.simulate(schedule, t_f / 4, t_b / 4, t_comm / 4)
    makespan, bubble = oracle.tick(before, t_f, t_b, t_comm)
    told = f"{text(before)}, t_f={t_f / 4}, t_b={t_b / 4}, t_comm={t_comm / 4}: expected"
    assert sim.makespan == makespan / 4, f"{told} {makespan / 4} s, found {sim.makespan}"
    assert sim.bubble_fraction == pytest.approx(bubble, rel=ROUNDING, abs=ROUNDING), (
        f"{told} a bubble of {bubble}, found {sim.bubble_fraction}"
    )
    live = [oracle.peak_live(ops) for ops in before]
    assert [*sim.peak_live] == live, f"{told} {live} passes alive, found {sim.peak_live}"
    assert schedule == before, "the schedule was changed: expected it as it was"


# ---- stages that train ---------------------------------------------------------------------

# rows that micro-batches do not divide, micro-batches without rows, fewer of them than stages
TRAINED = {2: [(4, 13), (5, 3)], 3: [(4, 13)], 4: [(2, 5), (4, 9)]}


@pytest.mark.parametrize("world", [2, 3, 4])
def test_stages_learn_what_one_process_does(kata, oracle, ranks, seed, world):
    runs = []
    for m, rows in TRAINED[world]:
        runs.append((kata.one_f_one_b(world, m), m, 1, rows))
        if m % world == 0:
            runs.append((kata.interleaved(world, m, 2), m, 2, rows))
    for schedule, m, v, _ in runs:
        oracle.audit(schedule, p=world, m=m, v=v)
        oracle.tick(schedule, 1, 2, 0)  # one that stands still would hang
    networks = [oracle.network(depth=world * v, rows=rows, seed=seed) for _, _, v, rows in runs]

    def train(rank, _):
        trained = []
        for (schedule, m, _, _), network in zip(runs, networks, strict=True):
            stage = oracle.StageRunner(schedule, rank, *network, m)
            with comm_meter() as meter:
                for _ in range(STEPS):
                    with CountingP2P() as p2p:
                        stage.step(p2p)
            weights = [weight.detach() for weight in stage.weights]
            trained.append((weights, meter.bytes_sent, stage.peak_live))
        return trained

    for rank, trained in enumerate(ranks(world, train, timeout_s=LIMIT_S)):
        for run, network, (weights, sent, live) in zip(runs, networks, trained, strict=True):
            _, m, v, rows = run
            name = f"p={world} m={m} v={v}, rank {rank}"
            whole, split = (
                oracle.trained_alone(*network, m=parts, steps=STEPS)[rank::world]
                for parts in (1, m)
            )
            for chunk, found in enumerate(weights):
                assert_matches(
                    found, whole[chunk], same_precision=split[chunk], name=f"{name}: weights"
                )
            assert sent == STEPS * oracle.bytes_a_step(rank=rank, p=world, v=v, rows=rows), name
            most = oracle.live_bound(p=world, m=m, v=v)[rank]
            assert live <= most, f"{name}: expected {most} passes alive at most, found {live}"


# ---- cost ----------------------------------------------------------------------------------


def test_the_makespan_is_that_of_the_formula(kata, oracle, cost):
    cost.check("makespan", oracle.tick(kata.one_f_one_b(8, 32), 1, 2, 0)[0])
    cost.check("interleaved_makespan", oracle.tick(kata.interleaved(8, 32, 4), 1, 2, 0)[0])


def test_messages_are_hidden_behind_the_warm_up(kata, oracle, cost):
    quarters, _ = oracle.tick(kata.interleaved(8, 32, 4), 4, 8, 1)
    cost.check("interleaved_sending", quarters / 4)


def test_1f1b_needs_a_quarter_of_gpipe_s_memory(kata, oracle, cost):
    live = [oracle.peak_live(make(8, 32)[0]) for make in (kata.one_f_one_b, kata.gpipe)]
    cost.check("live", live[0] / live[1])


def test_the_work_grows_with_the_ops(kata, lines, cost):
    with lines(limit=2_000_000) as counted:
        schedule = kata.interleaved(8, 64, 4)
        kata.simulate(schedule, 1.0, 2.0, 0.5)
    cost.check("instructions", counted.lines / (2 * 8 * 64 * 4))
