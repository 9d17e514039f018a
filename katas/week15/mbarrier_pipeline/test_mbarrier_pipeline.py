"""Barriers against the harness's own; pipelines in any order, and in time."""

import random
from fractions import Fraction

import pytest


def phases(barrier):
    return barrier.test_wait(0), barrier.test_wait(1)


# ---- MBarrier ------------------------------------------------------------------------------


def test_a_new_barrier_has_ended_the_phase_before_its_first(kata):
    assert kata.MBarrier(2).test_wait(1) is True
    assert kata.MBarrier(2).test_wait(0) is False


@pytest.mark.parametrize("count", [1, 2, 5], ids=["one arrival", "two", "five"])
def test_a_phase_takes_so_many_arrivals(kata, count):
    barrier = kata.MBarrier(count)
    for phase in range(3):
        for _ in range(count):
            assert barrier.test_wait(phase & 1) is False
            barrier.arrive()
        assert barrier.test_wait(phase & 1) is True
        assert barrier.test_wait(1 - phase & 1) is False


def test_several_arrivals_at_once(kata):
    barrier = kata.MBarrier(5)
    barrier.arrive(2)
    assert not barrier.test_wait(0)
    barrier.arrive(n=3)
    assert barrier.test_wait(0)


def test_announced_bytes_add_up(kata):
    barrier = kata.MBarrier(1)
    barrier.expect_tx(300)
    barrier.expect_tx(100)
    barrier.arrive()
    barrier.complete_tx(100)
    assert phases(barrier) == (False, True), "a part of the bytes has landed"
    barrier.complete_tx(300)
    assert phases(barrier) == (True, False), "all bytes have landed"


def test_bytes_may_land_before_they_are_announced(kata):
    barrier = kata.MBarrier(1)
    barrier.complete_tx(64)
    barrier.arrive()
    assert phases(barrier) == (False, True), "more bytes have landed than are announced"
    barrier.expect_tx(64)
    assert phases(barrier) == (True, False), "as many bytes announced as landed"


def test_any_calls_end_phases_as_the_simulators_say(kata, oracle, seed):
    draw = random.Random(seed)
    for length in range(2, 62):  # short ones first, to fail with
        count = draw.randint(1, 3)
        barrier, model, calls = kata.MBarrier(count), oracle.model(count), []
        for _ in range(length):
            nbytes = draw.choice((0, 1, 1, 2, 3))
            call = draw.choice(("arrive", "expect_tx", "complete_tx"))
            if call == "arrive":
                if not model.pending:
                    continue
                nbytes = draw.randint(1, model.pending)
                model.arrive(nbytes, model.start)
            elif call == "expect_tx":
                model.expect(nbytes)
            else:
                model.land(nbytes, model.start)
            getattr(barrier, call)(nbytes)
            calls.append(f"{call}({nbytes})")
            expected = model.passes(0), model.passes(1)
            assert phases(barrier) == expected, (
                f"MBarrier({count}), {', '.join(calls)}: test_wait(0), test_wait(1) are "
                f"{phases(barrier)}, expected {expected}"
            )


@pytest.mark.parametrize(("first", "n"), [(3, 1), (1, 3), (0, 4)], ids=["one", "three", "four"])
def test_more_arrivals_than_a_phase_takes_are_refused(kata, first, n):
    barrier = kata.MBarrier(3)
    barrier.expect_tx(8)  # so that the phase lasts
    if first:
        barrier.arrive(first)
    with pytest.raises(RuntimeError):
        barrier.arrive(n)
    if first < 3:
        barrier.arrive(3 - first)  # nothing has changed
    barrier.complete_tx(8)
    assert phases(barrier) == (True, False)


def test_no_arrival_is_kept_for_the_next_phase(kata):
    barrier = kata.MBarrier(3)
    barrier.arrive(2)
    with pytest.raises(RuntimeError):
        barrier.arrive(2)
    assert phases(barrier) == (False, True)


def test_barriers_share_nothing(kata):
    first, second = kata.MBarrier(1), kata.MBarrier(1)
    first.expect_tx(8)
    second.arrive()
    assert phases(first) == (False, True), "nobody has arrived at the first"
    assert phases(second) == (True, False), "no bytes were announced to the second"


@pytest.mark.parametrize("below", [0, -2], ids=["0", "minus 2"])
def test_fewer_arrivals_than_one_are_refused(kata, below):
    with pytest.raises(ValueError, match="^count: "):
        kata.MBarrier(below)
    with pytest.raises(ValueError, match="^n: "):
        kata.MBarrier(2).arrive(below)


@pytest.mark.parametrize("neither", [2, -1], ids=["2", "minus 1"])
def test_a_parity_is_0_or_1(kata, neither):
    with pytest.raises(ValueError, match="^parity: "):
        kata.MBarrier(2).test_wait(neither)
    with pytest.raises(ValueError, match="^phase: "):
        kata.PipelineState(3, neither)


# ---- PipelineState -------------------------------------------------------------------------


@pytest.mark.parametrize("below", [0, -2], ids=["0", "minus 2"])
def test_rings_without_a_stage_are_refused(kata, below):
    with pytest.raises(ValueError, match="^stages: "):
        kata.PipelineState(below)


@pytest.mark.parametrize("stages", [1, 2, 4], ids=["one stage", "two", "four"])
@pytest.mark.parametrize("phase", [0, 1], ids=["phase 0", "phase 1"])
def test_the_phase_flips_once_a_round(kata, stages, phase):
    state = kata.PipelineState(stages, phase)
    for step in range(3 * stages + 1):
        expected = step % stages, (phase + step // stages) % 2
        assert (state.index, state.phase) == expected, (
            f"PipelineState({stages}, {phase}) after {step} steps: index and phase are "
            f"{(state.index, state.phase)}, expected {expected}"
        )
        state.advance()


def test_a_state_begins_with_phase_0(kata):
    state = kata.PipelineState(2)
    assert (state.index, state.phase) == (0, 0)


# ---- producer and consumers ----------------------------------------------------------------


def assert_each_multiplies_all(block):
    for agent in block.agents[1:]:
        assert agent.multiplied == list(range(block.tiles)), (
            f"{block.tiles} tiles, {block.stages} stages, {len(block.agents) - 1} consumers: "
            f"{agent.name} multiplied {agent.multiplied}, expected each tile once and in order"
        )


@pytest.mark.parametrize("stages", [1, 2, 3, 4], ids=["one stage", "two", "three", "four"])
def test_any_order_of_agents_and_loads(kata, oracle, seed, stages):
    draw = random.Random(seed)
    for consumers in (1, 2, 3):
        for tiles in (0, 1, stages - 1, stages, stages + 1, 4 * stages + 3):
            for _ in range(3):
                block = oracle.Block(kata, tiles, stages, consumers)
                assert_each_multiplies_all(block.run(draw.choice))


@pytest.mark.parametrize("starved", ["producer", "consumer 0", "consumer 1", "loads"])
def test_whoever_is_late(kata, oracle, starved):
    for stages in (1, 2, 3):
        block = oracle.Block(kata, 9, stages, 2)
        assert_each_multiplies_all(block.run(oracle.starving(starved)))


@pytest.mark.parametrize(
    "operand_bytes", [(1024,), (16, 4096), (64, 64, 128)], ids=["one", "uneven", "three"]
)
def test_any_operands(kata, oracle, seed, operand_bytes):
    for stages in (1, 3):
        block = oracle.Block(kata, 8, stages, 2, operand_bytes)
        assert_each_multiplies_all(block.run(random.Random(seed).choice))


def test_loads_hide_behind_products(kata, oracle, cost):
    shares = []
    for stages in (1, 2, 4, 8):
        # bound by the latency, by products, by loads; and all alike
        for load, latency, mma in ((12, 300, 20), (12, 60, 200), (96, 60, 20), (96, 0, 96)):
            block = oracle.Block(kata, 60, stages, 2, (40 * load, 24 * load), latency, mma)
            assert_each_multiplies_all(block.run())
            shares.append(block.now / oracle.closed_form(60, stages, load, latency, mma))
    cost.check("makespan", float(max(shares)))


def test_one_wait_for_each_tile(kata, oracle, cost):
    block = oracle.Block(kata, 40, 3, 2).run()
    assert_each_multiplies_all(block)
    cost.check("waits", float(max(Fraction(agent.waits, 40) for agent in block.agents)))
