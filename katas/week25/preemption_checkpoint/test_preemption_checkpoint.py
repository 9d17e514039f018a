"""Where ranks stop and what they have saved then; handlers; signals from outside, at any moment."""

import math
import os
import random
import signal
import threading

import pytest
import torch
import torch.distributed as dist

from harness.meters.communication import comm_meter
from harness.simulators.interruptions import interrupted
from harness.simulators.ranks import rank_device

LIMIT_S = 5.0  # it takes a tenth of a second; ranks that disagree wait for ever


# ---- all ranks ---------------------------------------------------------------------------------


def watched(kata, oracle, job, **options):
    """A guard on the job's clock, whose questions the job may answer with a signal."""

    class Watched(kata.PreemptionGuard):
        def should_stop(self, step):
            with job.asked():
                return super().should_stop(step)

    options = {"grace_s": oracle.GRACE_S, "device": rank_device(), "clock": job.clock} | options
    return Watched(**options)


def play(kata, oracle, rank, world, script, options, group=None):
    """Train through one scenario: whether all is done, steps, saves, time left, messages."""
    options = {
        "check_every": 1,
        "step": 0,
        "steps": 9,
        "at_once": None,
        "interrupt": None,
        "save_s": 5.0,
    } | options
    job = oracle.Job(rank, world, script, group=group, step=options["step"])
    with watched(kata, oracle, job, check_every=options["check_every"], group=group) as guard:
        if options["at_once"] and rank == world - 1:
            job.clock.interrupt = options["interrupt"]
            signal.raise_signal(options["at_once"])
        code = kata.train(
            job, guard, steps=options["steps"], save_every=4, save_s=options["save_s"]
        )
    return code, job.step, job.saves, guard.left_s


@pytest.mark.parametrize("world", [2, 3, 4])
def test_all_ranks_stop_at_one_step_and_save_it_once(kata, oracle, ranks, world):
    def job(rank, world):
        return [
            play(kata, oracle, rank, world, script, options)
            for script, options, _ in oracle.SCENARIOS.values()
        ]

    for rank, found in enumerate(ranks(world, job, timeout_s=LIMIT_S)):
        for (name, one), now in zip(oracle.SCENARIOS.items(), found, strict=True):
            script, options, (over, steps, saves, left) = one
            want = (
                0 if over else kata.REQUEUE,
                steps,
                [(step, oracle.weights_at(step, world)) for step in saves],
                math.inf if left is None else float(left),
            )
            assert now == want, (
                f"{name}: {[(r, m, s, n.name) for r, m, s, n in script]}, {options}; rank {rank} "
                f"of {world}: (code, steps, saves, time left) {now}, expected {want}"
            )


def test_it_goes_on_where_it_stopped(kata, oracle, ranks):
    def job(rank, world):
        first = play(kata, oracle, rank, world, ((0, "within", 5, oracle.WARN),), {})
        again = play(kata, oracle, rank, world, (), {"step": first[2][-1][0]})
        return first[1], again[0], again[2]

    world = ranks.world(2)
    # multiples of 4, not every fourth step from where it goes on
    want = (6, 0, [(step, oracle.weights_at(step, world)) for step in (8, 9)])
    assert ranks(world, job, timeout_s=LIMIT_S) == [want] * world


def test_a_question_costs_four_bytes(kata, oracle, ranks, cost):
    def job(rank, world):
        torch.set_default_dtype(torch.float64)  # the question is of float32 all the same
        try:
            return questions(rank, world)
        finally:
            torch.set_default_dtype(torch.float32)

    def questions(rank, world):
        found = []
        for number in (signal.SIGUSR1, signal.SIGTERM):
            clock = oracle.Clock(rank)
            guard = kata.PreemptionGuard(check_every=5, device=rank_device(), clock=clock)

            def asked(step, guard=guard, clock=clock):
                clock.now += 0.25
                return guard.should_stop(step)

            with guard, comm_meter() as meter:
                quiet = [asked(step) for step in range(20)]
                sent = meter.bytes_sent, meter.messages, dict(meter.calls)
                if rank == world - 1:
                    signal.raise_signal(number)
                before = guard.left_s
                stop = [asked(step) for step in range(20, 30)]
            found.append((quiet, sent, before, stop, dict(meter.calls), guard.left_s))
        return found

    world = ranks.world(4)
    for rank, found in enumerate(ranks(world, job, timeout_s=LIMIT_S)):
        # the question comes a quarter of a second after the signal
        for (quiet, sent, before, stop, calls, after), left_s in zip(
            found, (89.75, 29.75), strict=True
        ):
            assert quiet == [False] * 20, f"rank {rank}: should_stop without a signal: {quiet}"
            assert stop == [True] * 10, f"rank {rank}: should_stop after a signal: {stop}"
            assert (sent[2], calls) == ({"all_reduce": 4}, {"all_reduce": 5}), (
                f"rank {rank}: collectives in 20 steps, asked every fifth, and in ten more, a "
                f"signal before the first: {sent[2]}, {calls}; expected 4 and 5 of all_reduce"
            )
            assert (before, after) == (math.inf, left_s), (
                f"rank {rank}: left_s before ranks have agreed, and nine steps after: {before}, "
                f"{after}; expected inf, {left_s}"
            )
            if world == 4:
                cost.check("comm_bytes", sent[0])
                cost.check("comm_steps", sent[1])


def test_a_handler_may_be_interrupted_anywhere(kata, oracle, ranks):
    def interrupted_at(at):
        options = {"grace_s": oracle.GRACE_S, "device": rank_device(), "clock": lambda: 7.0}
        with kata.PreemptionGuard(**options) as guard:
            came = interrupted(
                lambda: signal.raise_signal(oracle.WARN), kata.__file__, at,
                lambda: signal.raise_signal(oracle.TERM),
            )  # fmt: skip
            guard.should_stop(0)
        return guard.left_s, 30.0 if came else 90.0

    def job(rank, world):
        return [interrupted_at(at) for at in range(1, 61)]

    for at, (found, expected) in enumerate(ranks(ranks.world(2), job, timeout_s=LIMIT_S)[0], 1):
        assert found == expected, (
            f"SIGTERM at instruction {at} of the handler of a warning: {found} s left, expected "
            f"{expected}"
        )


def test_no_signal_is_lost_between_two_questions(kata, oracle, ranks):
    """From when the guard listens, a signal counts in the first question or in the second."""

    def asked_twice(at):
        heard, answers = [], []
        before = signal.signal(oracle.WARN, lambda *_: heard.append(1))
        guard = kata.PreemptionGuard(
            grace_s=oracle.GRACE_S, device=rank_device(), clock=lambda: 7.0
        )

        def act():
            guard.__enter__()
            answers.append(guard.should_stop(0))

        try:
            came = interrupted(act, kata.__file__, at, lambda: signal.raise_signal(oracle.WARN))
            answers.append(guard.should_stop(1))
        finally:
            guard.__exit__(None, None, None)
            signal.signal(oracle.WARN, before)
        # it may have come before there was a handler of the guard's
        return came and not heard, (*answers, guard.left_s)

    def job(rank, world):
        never = 10**9
        return [asked_twice(at if rank == world - 1 else never) for at in range(1, 201)]

    found = ranks(ranks.world(2), job, timeout_s=LIMIT_S)
    for at, each in enumerate(zip(*found, strict=True), 1):
        counts, (first, *_) = each[-1]
        want = (first, counts, 90.0 if counts else math.inf)
        for rank, (_, answers) in enumerate(each):
            assert answers == want, (
                f"a warning on the last rank, at instruction {at} of entering and asking; rank "
                f"{rank}: answers to two questions, and left_s: {answers}, expected {want}"
            )


def test_a_group_of_some_ranks_stops_by_itself(kata, oracle, ranks):
    def job(rank, world):
        group = dist.new_group([*range(1, world)])
        if rank == 0:
            return None
        script = ((1, "within", 3, oracle.WARN),)
        return play(kata, oracle, rank - 1, world - 1, script, {}, group=group)[:2]

    world = ranks.world(3)
    found = ranks(world, job, timeout_s=LIMIT_S)[1:]
    if world > 2:
        assert found == [(kata.REQUEUE, 4)] * (world - 1)


def test_signals_from_outside_at_any_moment(kata, oracle, ranks, seed):
    """Sent by a thread of rank 0, to some of the others, while all of them train."""

    def job(rank, world):
        pids = [None] * world
        dist.all_gather_object(pids, os.getpid())
        draw, found = random.Random(seed), []
        for _ in range(6):
            targets = draw.sample(pids, draw.randint(1, world))
            delays = [draw.uniform(0.0, 0.02) for _ in targets]
            train = oracle.Job(rank, world, steps_sleep=0.001 * rank)
            options = {"grace_s": {oracle.WARN: 1e6}, "check_every": draw.randint(1, 3)}
            with watched(kata, oracle, train, **options) as guard:
                dist.barrier()  # all listen
                timers = [
                    threading.Timer(delay, os.kill, (pid, oracle.WARN))
                    for delay, pid in zip(delays, targets, strict=True)
                ]
                for timer in timers if rank == 0 else ():
                    timer.start()
                code = kata.train(train, guard, steps=10**6, save_every=10**6, save_s=1.0)
                for timer in timers if rank == 0 else ():
                    timer.join()
                dist.barrier()  # nobody is signalled any more
            found.append((code, train.step, train.saves, options["check_every"]))
        return found

    if ranks.device != "cpu":
        pytest.skip("barriers and pids are exchanged by gloo")
    world = ranks.world(3)
    for rank, found in enumerate(ranks(world, job, timeout_s=LIMIT_S)):
        for code, step, saves, every in found:
            want = [(step, oracle.weights_at(step, world))] if step else []
            assert (code, step % every) == (kata.REQUEUE, 0), (
                f"rank {rank}, asked every {every} steps, stopped at {step} with {code}, expected "
                f"{kata.REQUEUE} at a multiple"
            )
            assert saves == want, f"rank {rank}: {saves}, expected {want}"


# ---- one process -------------------------------------------------------------------------------


@pytest.fixture
def handlers():
    """Handlers before and after: the one of SIGUSR2 is the test's own, SIGUSR1 is ignored."""
    heard = []
    mine = {signal.SIGUSR1: signal.SIG_IGN, signal.SIGUSR2: lambda *_: heard.append(1)}
    mine[signal.SIGTERM] = signal.SIG_IGN
    before = {number: signal.signal(number, handler) for number, handler in mine.items()}
    yield mine, heard
    for number, handler in before.items():
        signal.signal(number, handler)


def now(numbers):
    return {number: signal.getsignal(number) for number in numbers}


def test_handlers_are_those_of_before_afterwards(kata, handlers):
    mine, heard = handlers
    grace = {signal.SIGUSR2: 1.0, signal.SIGTERM: 1.0}
    guard = kata.PreemptionGuard(grace_s=grace)
    assert now(mine) == mine, "the constructor: expected no handler of its own yet"
    mine[signal.SIGTERM] = lambda *_: heard.append(2)  # those of before are those of this moment
    signal.signal(signal.SIGTERM, mine[signal.SIGTERM])
    with guard as found:
        assert found is guard
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN, "SIGUSR1 is not listened to"
        signal.raise_signal(signal.SIGUSR2)
        signal.raise_signal(signal.SIGTERM)
    assert now(mine) == mine
    assert heard == [], "the handler of before was called while the guard listened"
    with pytest.raises(KeyError), kata.PreemptionGuard():
        raise KeyError
    assert now(mine) == mine, "after an exception"
    with kata.PreemptionGuard():
        assert signal.getsignal(signal.SIGUSR2) is mine[signal.SIGUSR2], (
            "SIGUSR2 is none of the two that are listened to by default"
        )
        with kata.PreemptionGuard(grace_s=grace):  # a signal belongs to the innermost
            inner = now(mine)
        assert now(mine)[signal.SIGTERM] is not inner[signal.SIGTERM]
    assert now(mine) == mine, "after two, one within the other"


def test_other_threads_hear_no_signals(kata, handlers):
    mine, _ = handlers
    done = []

    def elsewhere(act):
        def run():
            try:
                done.append(act())
            except Exception as error:  # noqa: BLE001 -- it is looked at below
                done.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if isinstance(done[-1], NotImplementedError):
            raise done[-1]
        return done[-1]

    raised = elsewhere(kata.PreemptionGuard().__enter__)
    assert type(raised) is RuntimeError, f"entered in a thread: {raised!r}, expected a RuntimeError"
    assert now(mine) == mine
    guard = elsewhere(kata.PreemptionGuard)
    assert isinstance(guard, kata.PreemptionGuard), (
        f"constructed in a thread, not yet entered: {guard!r}, expected a guard"
    )
    with guard:
        assert now(mine)[signal.SIGTERM] != mine[signal.SIGTERM], "entered in the main thread"


REFUSED = {
    "no signals": {"grace_s": {}},
    "no time": {"grace_s": {signal.SIGUSR1: 9.0, signal.SIGTERM: 0.0}},
    "less than no time": {"grace_s": {signal.SIGUSR1: -1.0}},
    "a NaN": {"grace_s": {signal.SIGUSR1: 9.0, signal.SIGTERM: math.nan}},
    "never asked": {"check_every": 0},
}


@pytest.mark.parametrize("given", REFUSED.values(), ids=REFUSED)
def test_what_is_refused(kata, given):
    with pytest.raises(ValueError, match=f"^{next(iter(given))}: "):
        kata.PreemptionGuard(**given)
