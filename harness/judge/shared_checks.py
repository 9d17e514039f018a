"""
The tests every tensor kata shares; the pytest plugin collects them as ``kata.toml::test_…``.

They need an oracle with `make_inputs` and `reference`, and the `[[cases]]` of kata.toml.
"""

from collections.abc import Mapping, Sequence

import pytest

from harness.content.kata import Case, CostThreshold, SpeedThreshold
from harness.content.promises import Refusal
from harness.judge.correctness.answer import Value, copied
from harness.judge.correctness.matching import diagnose_runs
from harness.judge.correctness.memory import LARGE, NAN
from harness.judge.edges import MOST_WORK, edges_of, least_launched, tiles_of
from harness.judge.guarded import GuardedCall
from harness.judge.promises import (
    assert_keeps_nothing,
    assert_not_finite_stays,
    assert_reaches_past_31_bits,
    assert_read_in_place,
    assert_refused,
    assert_writes_into,
)
from harness.judge.setting import Order, Policy
from harness.judge.trial import Publish, Trial

# hazards show in one run; the values, and which of its names a hazard gets, depend on more of them
SCHEDULES: tuple[Policy, ...] = ("late", "random", "early", "late", "random")


def test_matches_reference(trial: Trial, case: Case) -> None:
    """Each case, on poisoned memory: the answer is as good as its dtype allows."""
    call = trial.prepare(case, seed_offset=0)
    result = call.run(pattern=NAN, checked=True)
    _assert_right(call, result, pattern=LARGE, order="reversed")


def test_any_scale_matches(trial: Trial, float_case: Case) -> None:
    """Large and small inputs, which a clamp, a constant or a short range spares at usual sizes."""
    for scale in trial.scales(float_case):
        call = trial.prepare(float_case, seed_offset=5, scale=scale)
        try:
            call.assert_right(call.run(pattern=NAN))
        except AssertionError as wrong:
            raise AssertionError(f"inputs times {scale:g}: {wrong}") from None


def test_tile_edges(trial: Trial, swept_cases: Sequence[Case]) -> None:
    """The sizes kata.toml names as `edges`, one under, on and one past the tiles it launches."""
    case = least_launched(trial, swept_cases)
    call = trial.prepare(case, seed_offset=7)
    call.assert_right(call.run(pattern=NAN))
    work = call.work
    for edge in edges_of(case, tiles_of(trial, case, call.meter.extents)):
        if work > MOST_WORK:
            break
        call = trial.prepare(edge.case, seed_offset=7)
        try:
            call.assert_right(call.run(pattern=NAN))
        except AssertionError as wrong:
            raise AssertionError(f"at {edge}, by a tile of {edge.tile}: {wrong}") from None
        work += call.work


def test_leaves_inputs_alone(trial: Trial, first_case: Case) -> None:
    """The inputs, the gaps between their rows and the bands around them stay as they were."""
    call = trial.prepare(first_case, seed_offset=1)
    call.run(pattern=NAN)
    meant = trial.submission.kata.writes
    changed = [
        name
        for name, guarded in call.guards.items()
        if (guarded.disturbed_outside() if name in meant else guarded.disturbed())
    ]
    assert not changed, f"input {', '.join(changed)} was written to: expected it unchanged"


def test_writes_every_element(trial: Trial, first_case: Case) -> None:
    """
    Whatever uninitialised memory held before, the kernels give the same answer, within bounds.

    On a simulator programs and threads run in reversed order, which exposes races.
    """
    call = trial.prepare(first_case, seed_offset=2)
    result = call.run(pattern=LARGE, order="reversed")
    _assert_right(call, result, pattern=NAN, order="forward")
    assert call.broken == 0, f"{call.broken} elements were written outside the allocated memory"
    call.assert_from_kernels(result)


def _assert_right(call: GuardedCall, result: Value, *, pattern: str, order: Order) -> None:
    """Check an answer; when it is wrong, say whether another run on such memory gives another."""
    __tracebackhide__ = True
    try:
        call.assert_right(result)
    except AssertionError as wrong:
        first = copied(result)
        call.refill(call.original)
        difference = diagnose_runs(first, call.run(pattern=pattern, order=order))
        raise AssertionError(f"{wrong}\n{difference}" if difference else str(wrong)) from None


def test_second_call_sees_new_values(trial: Trial, first_case: Case) -> None:
    """New contents in the same storage give a new answer, and leave the earlier one as it was."""
    call = trial.prepare(first_case, seed_offset=3)
    first = call.run(pattern=NAN)
    as_it_was = copied(first)
    call.refill(trial.inputs(first_case, seed_offset=4))
    call.assert_right(call.run(pattern=NAN))
    call.assert_kept(first, as_it_was)


def test_repeats(trial: Trial, repeated_case: Case) -> None:
    """A kata that promises it gives the same bits every time; a simulator varies the order."""
    call = trial.prepare(repeated_case, seed_offset=6)
    call.assert_repeats(times=50 if trial.device == "cuda" else 4)


def test_any_schedule(trial: Trial, scheduled_case: Case) -> None:
    """
    In whatever order things happen, the answer is right.

    Threads, warps and blocks run in a random order; where copies land by themselves, they land
    late, early and at random, and partitions take turns in other orders.
    """
    if not trial.asynchronous:
        call = trial.prepare(scheduled_case, seed_offset=8)
        try:
            call.assert_right(call.run(pattern=NAN, order="random", seed=trial.seed))
        except AssertionError as wrong:
            raise AssertionError(f"threads in a random order: {wrong}") from None
        return
    for policy in SCHEDULES:
        call = trial.prepare(scheduled_case, seed_offset=8)
        try:
            call.assert_right(call.run(pattern=NAN, policy=policy))
        except AssertionError as wrong:
            raise AssertionError(f"with what is in flight landing {policy}: {wrong}") from None


def test_keeps_nothing(trial: Trial, stateless_case: Case) -> None:
    """A call has no effect on a later one: other cases in between, each answer is right."""
    assert_keeps_nothing(trial, stateless_case)


def test_writes_into(trial: Trial, into: Sequence[str]) -> None:
    """Arrays that are given for the result are written to, and returned."""
    assert_writes_into(trial, into)


def test_not_finite(trial: Trial, not_finite: Sequence[str]) -> None:
    """NaN and infinities in arguments show where the truth has them, and nowhere else."""
    assert_not_finite_stays(trial, not_finite)


def test_refuses(trial: Trial, refusal: Refusal) -> None:
    """What kata.toml says is refused, raises, in words that name the argument."""
    assert_refused(trial, refusal)


def test_reads_in_place(trial: Trial, in_place: Mapping[str, str]) -> None:
    """Arguments with gaps in memory are not copied: no more is allocated than the result."""
    assert_read_in_place(trial, in_place)


def test_rows_past_31_bits(trial: Trial, far_argument: str) -> None:
    """Rows may lie further apart than 31 bits count elements."""
    assert_reaches_past_31_bits(trial, far_argument)


def test_cost(trial: Trial, cost_threshold: CostThreshold) -> None:
    """A counted threshold of kata.toml that has a `case`."""
    verdict = trial.judge_cost(cost_threshold)
    assert verdict.outcome == "passed", verdict.message


def test_speed(trial: Trial, speed_threshold: SpeedThreshold, publish: Publish) -> None:
    """A threshold on the clock."""
    verdict = trial.judge_speed(speed_threshold, publish)
    if verdict.outcome == "ambiguous":
        pytest.skip(f"AMBIGUOUS: {verdict.message}")
    if verdict.outcome == "not_graded":
        pytest.skip(f"NOT GRADED: {verdict.message}")
    assert verdict.outcome == "passed", verdict.message
