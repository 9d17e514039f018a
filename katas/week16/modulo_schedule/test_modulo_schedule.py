"""Intervals, schedules and warps: by hand, for real loops, and against everything tried."""

import random

import pytest

UNITS = ("TC", "EXP", "TMA")


@pytest.fixture(scope="module")
def solve(kata, oracle):
    """(interval, stages) of a right schedule of a loop."""

    def run(ops, deps, units=UNITS):
        asked = list(ops), list(deps)
        found = kata.schedule(*asked, units)
        assert asked == (list(ops), list(deps)), "ops or deps changed by schedule"
        said = oracle.problems(found, ops, deps)
        assert not said, f"ops = {ops}, deps = {deps}: {found} is wrong: {said}"
        return found.ii, found.stages

    return run


# ---- bounds --------------------------------------------------------------------------------


def test_the_busiest_unit_bounds_the_interval(kata):
    ops = [kata.Op("a", "TC", 3), kata.Op("b", "EXP", 4), kata.Op("c", "TC", 2)]
    assert kata.res_mii(ops, UNITS) == 5
    assert kata.res_mii(ops[1:], {"EXP": 1, "TC": 1}) == 4
    assert kata.res_mii([], UNITS) == 1
    assert kata.res_mii([], ()) == 1


def test_recurrences_bound_the_interval(kata):
    ops = [kata.Op(name, "TC", 1) for name in "abc"]
    forward = [kata.Dep("a", "b", 4), kata.Dep("b", "c", 3)]
    for back, expected in (
        ([], 1),
        ([kata.Dep("c", "a", 2, 1)], 9),
        ([kata.Dep("c", "a", 2, 2)], 5),  # 4.5
        ([kata.Dep("c", "a", 2, 3)], 3),
        ([kata.Dep("c", "a", 2, 20)], 1),
        ([kata.Dep("c", "a", 0, 1)], 7),
        ([kata.Dep("b", "b", 6, 1)], 6),
        ([kata.Dep("c", "a", 2, 3), kata.Dep("b", "a", 5, 1)], 9),
        ([kata.Dep("b", "b", 0, 1)], 1),
    ):
        assert kata.rec_mii(ops, forward + back) == expected
    assert kata.rec_mii([], []) == 1


def test_recurrences_are_the_worst_cycle(kata, oracle, seed):
    draw = random.Random(seed)
    for _ in range(30):
        ops, deps = oracle.random_loop(kata, draw, draw.randint(1, 6))
        assert kata.rec_mii(ops, deps) == oracle.longest_recurrence(ops, deps)


def test_bounds_are_exact_past_the_integers_of_a_float(kata):
    ops = [kata.Op("a", "TC", 2**70), kata.Op("b", "TC", 2**70 + 1)]
    assert kata.res_mii(ops, UNITS) == 2**71 + 1
    assert kata.rec_mii(ops, [kata.Dep("a", "a", 2**71 - 1, 2)]) == 2**70


# ---- schedules -----------------------------------------------------------------------------


def test_attention_overlaps_with_itself(kata, oracle):
    ops, deps = oracle.attention(kata, 1, 1, 1)
    found = kata.schedule(tuple(ops), tuple(deps), UNITS)
    assert oracle.problems(found, ops, deps) == []
    # the product with the values comes behind the next scores
    assert (found.ii, found.start, found.stages) == (2, {"S": 0, "P": 1, "O": 3}, 2)


@pytest.mark.parametrize(
    ("cycles", "expected"),
    [
        ((1024, 1024, 1024), (2048, 2)),  # bf16, 128 by 128 scores, d 128: tensor cores
        ((512, 1024, 512), (1024, 2)),  # d 64: both units without a gap
        ((256, 1024, 256), (1024, 2)),  # FP8, d 64: exponentials
        ((1031, 1019, 1013), (2044, 2)),  # no common divisor
        ((4096, 1024, 1024), (5120, 2)),
        ((2**70 + 1, 2**70, 2**70 + 1), (2**71 + 2, 2)),
    ],
    ids=["d 128", "d 64", "fp8", "primes", "long scores", "past 2**63"],
)
def test_attention_on_an_h100(kata, oracle, solve, cycles, expected):
    assert solve(*oracle.attention(kata, *cycles)) == expected


@pytest.mark.parametrize(
    ("buffers", "expected"),
    [
        (1, (728, 1)),  # nothing overlaps
        (5, (146, 5)),  # 728 cycles in five buffers: 145.6
        (6, (128, 5)),  # 1 + ⌈600 / 128⌉: tensor cores without a gap
        (7, (128, 5)),
    ],
    ids=["one buffer", "five", "six", "seven"],
)
def test_gemm_needs_buffers_for_the_latency(kata, oracle, solve, buffers, expected):
    assert solve(*oracle.gemm(kata, 40, 600, 128, buffers)) == expected


@pytest.fixture(scope="module")
def loop(kata):
    """Operations `name: (unit, cycles)` and dependences `(src, dst, latency, distance)`."""
    return lambda ops, *deps: (
        [kata.Op(name, *what) for name, what in ops.items()],
        [kata.Dep(*dep) for dep in deps],
    )


def test_recurrence_may_take_longer_than_any_unit(loop, solve):
    around = loop({"a": ("TC", 2), "b": ("EXP", 2)}, ("a", "b", 5), ("b", "a", 6, 2))
    assert solve(*around) == (6, 1)


def test_both_bounds_may_be_too_short(loop, solve):
    # 4 cycles of the unit, 4 around the loop; but b starts where the next a has to
    apart = loop({"a": ("TC", 2), "b": ("TC", 2)}, ("a", "b", 3), ("b", "a", 1, 1))
    assert solve(*apart) == (5, 1)


def test_the_interval_may_be_far_from_both_bounds(loop, solve):
    # b waits for a, and d for c, and f for e, though no dependence takes any time
    ops = {"a": 9, "b": 1, "c": 9, "d": 1, "e": 9, "f": 1}
    units = {name: UNITS[at // 2] for at, name in enumerate(ops)}
    around = [(one, other, 0) for one, other in zip("abcde", "bcdef", strict=True)]
    body = loop({name: (units[name], ops[name]) for name in ops}, *around, ("f", "a", 0, 1))
    assert solve(*body) == (27, 2)  # the bounds are 10 and 1


def test_in_two_iterations_a_unit_finds_a_gap(loop, solve):
    ops = {"a": ("TC", 2), "b": ("TC", 3), "c": ("TC", 1)}
    assert solve(*loop(ops, ("a", "b", 1), ("b", "c", 2), ("c", "a", 2, 2))) == (6, 1)


def test_unit_is_kept_past_the_end_of_the_interval(loop, solve):
    assert solve(*loop({"a": ("TC", 2), "b": ("EXP", 2)}, ("a", "b", 1))) == (2, 1)
    assert solve(*loop({"a": ("TC", 2), "b": ("EXP", 2)}, ("a", "b", 2))) == (2, 2)


def test_what_is_ready_first_need_not_go_first(loop, solve):
    # b a, and not a b
    backward = loop({"a": ("TC", 3), "b": ("TC", 3)}, ("b", "a", 4, 1))
    assert solve(*backward) == (6, 1)
    # c fits between a and b, if it does not come first
    between = loop({"a": ("TC", 2), "b": ("TC", 2), "c": ("TC", 2)}, ("a", "b", 3))
    assert solve(*between) == (6, 1)
    # b has to leave the first cycle to c, for which d waits
    behind = loop(
        {"b": ("TC", 3), "d": ("EXP", 2), "c": ("TC", 1)}, ("b", "c", 1, 2), ("c", "d", 5)
    )
    assert solve(*behind) == (4, 2)


def test_of_two_dependences_both_are_kept(loop, solve):
    ops = {"a": ("TC", 2), "b": ("EXP", 2)}
    for latencies in ((5, 1), (1, 5)):
        deps = [("a", "b", latency) for latency in latencies]
        assert solve(*loop(ops, *deps)) == (2, 3)
        assert solve(*loop(ops, *deps, ("b", "a", 2, 1), ("b", "a", 5, 2))) == (7, 1)


def test_schedules_are_as_good_as_any(kata, oracle, solve, seed):
    draw = random.Random(seed)
    for _ in range(25):
        ops, deps = oracle.random_loop(kata, draw, draw.choice((2, 3, 3, 4, 4)))
        assert solve(ops, deps) == oracle.best(ops, deps, UNITS), f"ops = {ops}, deps = {deps}"


def test_empty_body_has_an_empty_schedule(kata):
    found = kata.schedule([], [], UNITS)
    assert (found.ii, dict(found.start), found.stages) == (1, {}, 0)
    with pytest.raises(ValueError, match="^deps: "):
        kata.schedule([], [kata.Dep("a", "a", 1, 1)], UNITS)


def test_the_search_is_no_loop_over_cycles(kata, oracle, lines, cost):
    million = 10**6
    # both bounds are two million, but b starts where the next a has to
    ops = [kata.Op("a", "TC", million), kata.Op("b", "TC", million)]
    deps = [kata.Dep("a", "b", 2 * million - 1), kata.Dep("b", "a", 1, 1)]
    attention = oracle.attention(kata, 1031, 1019, 1013)
    far_away = oracle.gemm(kata, 40, 60 * million, 128, million)
    with lines(limit=million) as counted:
        found = [kata.schedule(*loop, UNITS) for loop in (attention, (ops, deps), far_away)]
    expected = [(2044, 2), (3 * million - 1, 1), (128, 60 * million // 128 + 1)]
    assert [(one.ii, one.stages) for one in found] == expected
    cost.check("lines", counted.lines)


# ---- warps ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def warps_of(kata, oracle):
    """The number of warps of a right assignment."""

    def run(schedule, ops, deps, regs_per_warp=255, max_warps=8):
        found = kata.assign_warps(schedule, tuple(ops), tuple(deps), regs_per_warp, max_warps)
        said = oracle.warp_problems(found, schedule, ops, deps, regs_per_warp)
        assert not said, f"{schedule}, ops = {ops}, deps = {deps}: {found} is wrong: {said}"
        return len(set(found.values()))

    return run


def test_whoever_blocks_delays_what_starts_meanwhile(kata, warps_of):
    def count(start, cycles=2, ii=6, **blocking):
        ops = [kata.Op(name, name, cycles, 0, blocking.get(name, False)) for name in start]
        stages = 1 + max(start.values()) // ii
        return warps_of(kata.Schedule(ii=ii, start=start, stages=stages), ops, [])

    assert count({"a": 0, "b": 1}) == 1  # nobody blocks
    assert count({"a": 0, "b": 1}, b=True) == 1  # b begins when a is issued
    assert count({"a": 0, "b": 1}, a=True) == 2
    assert count({"a": 0, "b": 2}, a=True) == 1  # a is over
    assert count({"a": 0, "b": 7}, a=True) == 2  # in the next iteration
    assert count({"a": 5, "b": 6}, a=True) == 2  # around the end of the interval
    assert count({"a": 5, "b": 7}, a=True) == 1
    assert count({"a": 3, "b": 3}, a=True) == 2  # at the same time
    assert count({"a": 3, "b": 3}) == 1
    assert count({"a": 0, "b": 3, "c": 5}, cycles=6, a=True) == 2  # a leaves no cycle
    assert count({"a": 0, "b": 2, "c": 4}, cycles=3, a=True, b=True, c=True) == 3


def test_attention_needs_a_warp_for_the_softmax(kata, oracle, warps_of):
    for cycles in ((1024, 1024, 1024), (512, 1024, 512)):
        _, deps = oracle.attention(kata, *cycles)
        ops = [
            kata.Op("S", "TC", cycles[0]),
            kata.Op("P", "EXP", cycles[1], 0, True),
            kata.Op("O", "TC", cycles[2]),
        ]
        ii = max(cycles[0] + cycles[2], cycles[1])
        start = {"S": 0, "P": cycles[0], "O": cycles[0] + ii}
        assert warps_of(kata.Schedule(ii=ii, start=start, stages=2), ops, deps) == 2


def test_results_take_registers_until_they_are_read(kata, warps_of):
    def fits(room, start, *deps, ii=4, cycles=2):
        """Whether a, of 10 registers, fits."""
        ops = [kata.Op("a", "TMA", cycles, 10), kata.Op("b", "TC", 2), kata.Op("c", "EXP", 3)]
        made = [kata.Dep(*dep) for dep in deps]
        schedule = kata.Schedule(ii=ii, start=start, stages=1 + max(start.values()) // ii)
        try:
            warps_of(schedule, ops, made, regs_per_warp=room)
        except ValueError as error:
            return not str(error).startswith("regs_per_warp: ")
        return True

    start = {"a": 1, "b": 7, "c": 2}
    assert fits(10, start)  # nobody reads it: two cycles
    assert not fits(9, start)
    assert fits(20, start, ("a", "b", 1))  # from 1 to 9: two intervals
    assert not fits(19, start, ("a", "b", 1))
    assert not fits(29, start | {"b": 8}, ("a", "b", 1))  # from 1 to 10
    assert fits(30, start | {"b": 8}, ("a", "b", 1))
    assert fits(20, start, ("a", "b", 1), ("a", "c", 1))  # the last of its readers
    assert not fits(19, start, ("a", "b", 1), ("a", "c", 1))
    assert not fits(19, start, ("a", "c", 1), ("a", "b", 1))
    assert fits(20, start, ("a", "c", 1, 1))  # from 1 to 9, c of the next iteration
    assert not fits(19, start, ("a", "c", 1, 1))
    assert fits(10, start, ("b", "a", 1, 3), ("c", "b", 1))  # what a reads is not its result
    assert fits(10, start, ("a", "c", 1), cycles=4)  # read before it is over: its own cycles


def test_registers_of_a_warp_add_up(kata, warps_of):
    ops = [kata.Op(name, name, 1, regs) for name, regs in zip("abcd", (6, 5, 4, 5), strict=True)]
    schedule = kata.Schedule(ii=2, start=dict.fromkeys("abcd", 0), stages=1)
    assert warps_of(schedule, ops, [], regs_per_warp=20) == 1
    assert warps_of(schedule, ops, [], regs_per_warp=19) == 2
    assert warps_of(schedule, ops, [], regs_per_warp=10) == 2  # 6 + 4 and 5 + 5
    assert warps_of(schedule, ops, [], regs_per_warp=9) == 3
    assert warps_of(schedule, ops, [], regs_per_warp=10, max_warps=2) == 2
    with pytest.raises(ValueError, match="^max_warps: "):
        kata.assign_warps(schedule, ops, [], 10, 1)
    with pytest.raises(ValueError, match="^max_warps: "):
        kata.assign_warps(schedule, ops, [], 10, 0)
    for max_warps in (4, 1, 0):
        with pytest.raises(ValueError, match="^regs_per_warp: "):
            kata.assign_warps(schedule, ops, [], 5, max_warps)


@pytest.mark.parametrize(
    "regs", [(4, 5, 6, 5), (4, 4, 3, 3, 3, 3)], ids=["first fit", "largest first"]
)
def test_room_is_used_by_moving_others(kata, warps_of, regs):
    ops = [kata.Op(f"op{i}", f"unit{i}", 1, taken) for i, taken in enumerate(regs)]
    schedule = kata.Schedule(ii=1, start={op.name: 0 for op in ops}, stages=1)
    assert warps_of(schedule, ops, [], regs_per_warp=10) == 2


def test_no_assignment_has_fewer_warps(kata, oracle, warps_of, seed, cost):
    draw = random.Random(seed)
    extra = 0
    for _ in range(20):
        schedule, ops, deps = oracle.random_schedule(kata, draw, draw.choice((2, 3, 4, 5)))
        room = max(oracle.registers(op, schedule, ops, deps) for op in ops) + draw.randint(0, 6)
        found = warps_of(schedule, ops, deps, room)
        extra += found - oracle.fewest_warps(schedule, ops, deps, room)
    cost.check("extra_warps", extra)


def test_nothing_takes_no_warp(kata):
    assert kata.assign_warps(kata.Schedule(ii=1, start={}, stages=0), [], [], 0, 0) == {}


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ops",
    [
        [("a", "FPU", 1)],
        [("a", "TC", 0)],
        [("b", "TC", 1), ("a", "EXP", -1)],
        [("a", "TC", 1), ("a", "EXP", 1)],
    ],
    ids=["unknown unit", "no cycles", "negative", "one name"],
)
def test_impossible_operations_are_refused(kata, ops):
    made = [kata.Op(*op) for op in ops]
    with pytest.raises(ValueError, match="^ops: "):
        kata.res_mii(made, UNITS)
    with pytest.raises(ValueError, match="^ops: "):
        kata.schedule(made, [], UNITS)


@pytest.mark.parametrize(
    "deps",
    [
        [("a", "x", 1)],
        [("x", "a", 1, 1)],
        [("a", "b", -1)],
        [("a", "b", 1, -1)],
        [("a", "b", 1), ("b", "a", 1)],
        [("a", "a", 0)],
        [("a", "b", 0), ("b", "c", 0), ("c", "a", 0), ("a", "a", 5, 1)],
    ],
    ids=["unknown dst", "unknown src", "latency", "distance", "cycle", "itself", "cycle of three"],
)
def test_impossible_dependences_are_refused(kata, deps):
    ops = [kata.Op(name, "TC", 1) for name in "abc"]
    made = [kata.Dep(*dep) for dep in deps]
    with pytest.raises(ValueError, match="^deps: "):
        kata.rec_mii(ops, made)
    with pytest.raises(ValueError, match="^deps: "):
        kata.schedule(ops, made, UNITS)
