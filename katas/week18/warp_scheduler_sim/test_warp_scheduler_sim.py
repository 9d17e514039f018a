"""Schedules by hand and cycle by cycle, closed forms, an H200's occupancy sweep, bounds."""

import random
from dataclasses import asdict, replace

import pytest


def same(kata, oracle, program, warps, policy):
    """The statistics, which have to be those of the simulation of every cycle."""
    found = kata.simulate(program, warps, policy)
    expected, trace = oracle.every_cycle(program, warps, policy)
    for name, value in expected.items():
        assert asdict(found)[name] == (
            pytest.approx(value) if isinstance(value, float) else value
        ), (
            f"{name} of {warps} warps by {policy}: expected {value}, found {asdict(found)[name]}; "
            f"who issues in each cycle: {trace}; the program: {program}"
        )
    return found


# ---- schedules by hand ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "order", "stalls"),
    [
        ("lrr", (0, 1, 2, 0, 1, 2, 0, 1, 2), {"not_selected": 9, "wait": 9, "exited": 3}),
        ("gto", (0, 0, 1, 1, 2, 2, 0, 1, 2), {"not_selected": 7, "wait": 9, "exited": 5}),
    ],
)
def test_whose_turn_it_is_by_hand(kata, policy, order, stalls):
    program = [
        kata.Instr(op="MOV", latency=1, pipe="alu", dst="a"),
        kata.Instr(op="FFMA", latency=4, pipe="fma", srcs=("a",), dst="b"),
        kata.Instr(op="FADD", latency=4, pipe="fma", srcs=("b",), dst="c"),
    ]
    found = kata.simulate(program, 3, policy)
    assert (found.order, found.stalls) == (order, stalls)
    assert (found.cycles, found.issued, found.ipc) == (10, 9, 0.9)


def test_reasons_by_hand(kata):
    program = [
        kata.Instr(op="LDG", latency=10, pipe="l1tex", pipe_interval=3, dst="v"),
        kata.Instr(op="FADD", latency=4, pipe="fma", srcs=("v",), dst="s"),
        kata.Instr(op="STG", latency=9, pipe="l1tex", pipe_interval=3, srcs=("s",)),
    ]
    found = kata.simulate(program, 2, "lrr")
    # 0: 0 and 1 load in 0 and 3, add in 10 and 13, store in 14 and 17
    assert found.order == (0, 1, 0, 1, 0, 1)
    assert found.cycles == 18
    assert found.stalls == {
        "not_selected": 1,
        "math_pipe_throttle": 2,
        "long_scoreboard": 9 + 9,
        "wait": 3 + 3,
        "exited": 3,
    }
    assert found.eligible_avg == pytest.approx(7 / 18)


def test_registers_still_being_written_are_waited_for(kata):
    load = kata.Instr(op="LDG", latency=50, pipe="l1tex", dst="v")
    move = kata.Instr(op="MOV", latency=1, pipe="alu", dst="v")
    found = kata.simulate([load, move], 1, "lrr")
    assert (found.cycles, found.stalls) == (51, {"long_scoreboard": 49})
    assert kata.simulate([load, replace(move, dst="w")], 1, "lrr").cycles == 2
    assert kata.simulate([load, replace(move, dst=None)], 1, "lrr").cycles == 2


def test_the_last_to_land_is_the_reason(kata):
    program = [
        kata.Instr(op="LDG", latency=5, pipe="l1tex", dst="v"),
        kata.Instr(op="MUFU", latency=9, pipe="xu", dst="e"),
        kata.Instr(op="FADD", latency=4, pipe="fma", srcs=("v", "e"), dst="s"),
        kata.Instr(op="FADD", latency=4, pipe="fma", srcs=("e", "s"), dst="t"),
    ]
    stalls = kata.simulate(program, 1, "lrr").stalls
    assert stalls == {"short_scoreboard": 8, "wait": 3}


@pytest.mark.parametrize(
    ("srcs", "dst", "reason"),
    [
        (("v", "e"), "s", "long_scoreboard"),
        (("e", "v"), "s", "short_scoreboard"),
        (("v",), "e", "long_scoreboard"),
        (("e",), "v", "short_scoreboard"),
    ],
)
def test_of_several_that_land_at_once_the_first_is_the_reason(kata, srcs, dst, reason):
    program = [
        kata.Instr(op="LDG", latency=10, pipe="l1tex", dst="v"),
        kata.Instr(op="MUFU", latency=9, pipe="xu", dst="e"),
        kata.Instr(op="FADD", latency=4, pipe="fma", srcs=srcs, dst=dst),
    ]
    assert kata.simulate(program, 1, "lrr").stalls == {reason: 8}


# ---- every cycle ---------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["lrr", "gto"])
def test_statistics_are_those_of_every_cycle(kata, oracle, seed, policy):
    draw = random.Random(seed)
    for trial in range(45):
        program = oracle.random_program(kata, draw, trial // 5)
        same(kata, oracle, program, draw.choice((1, 2, 3, 5, 16)), policy)


@pytest.mark.parametrize("warps", [1, 2, 4, 16])
def test_every_cycle_of_every_warp_is_accounted_for(kata, oracle, warps):
    for program in (kata.load_use(4, 7), kata.exp_loop(4), kata.fma_chains(20, 3)):
        found = kata.simulate(tuple(program), warps, "gto")
        total = found.issued + sum(found.stalls.values())
        assert total == warps * found.cycles, (
            f"{warps} warps: expected {warps} x {found.cycles} cycles, found {found.issued} of "
            f"issue and {found.stalls}"
        )
        assert 0 not in found.stalls.values()


@pytest.mark.parametrize("warps", [1, 3, 16])
def test_a_program_of_nothing_takes_no_time(kata, warps):
    found = kata.simulate([], warps, "lrr")
    nothing = {"cycles": 0, "issued": 0, "ipc": 0, "eligible_avg": 0, "stalls": {}, "order": ()}
    assert asdict(found) == nothing
    assert kata.ipc_bound([], warps) == 0
    assert kata.warps_needed([]) == 1


def test_a_long_latency_takes_no_long_time(kata, lines, cost):
    chain = [replace(instr, latency=1000) for instr in kata.fma_chains(25)]
    with lines(limit=100_000) as counted:
        found = kata.simulate(chain, 4, "lrr")
    assert found.cycles == 25_000 + 4
    cost.check("lines", counted.lines / found.issued)


# ---- closed forms and an H200 --------------------------------------------------------------


@pytest.mark.parametrize("warps", [1, 2, 3, 4, 5, 16])
def test_chains_follow_the_closed_form(kata, warps):
    for ilp in (1, 2, 4):
        found = kata.simulate(kata.fma_chains(200, ilp), warps, "lrr").ipc
        assert found == pytest.approx(min(1, warps * ilp / 4), rel=0.03), f"ILP {ilp}"


def test_greedy_warps_leave_one_alone_at_the_end(kata):
    # two warps of ILP 2 fill all slots; the third starts when they are done, and fills a half
    chains = kata.fma_chains(200, 2)
    assert kata.simulate(chains, 3, "gto").ipc == pytest.approx(0.75, rel=0.02)
    assert kata.simulate(chains, 3, "lrr").ipc == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("warps", [1, 2, 16])
def test_a_load_and_its_uses_follow_the_closed_form(kata, warps):
    # 7 uses: a round of 8 instructions takes latency + 7 cycles
    found = kata.simulate(kata.load_use(30, 7), warps, "lrr").ipc
    assert found == pytest.approx(min(1, warps * 8 / 607), rel=0.02)


def test_a_busy_pipe_follows_the_closed_form(kata):
    # one in four instructions goes to the pipe that takes one in 8 cycles
    found = kata.simulate(kata.exp_loop(40), 16, "lrr")
    assert found.ipc == pytest.approx(4 / 8, rel=0.03)
    assert found.eligible_avg > 0.5


def test_ipc_is_what_an_h200_measured(kata, oracle, cost):
    stats, worst = {}, 0
    for name, warps, ipc, eligible in oracle.captured():
        program = oracle.chains(kata, 32, *oracle.CAPTURED[name])

        def stats_of(count, name=name, program=program):
            if (name, count) not in stats:
                stats[name, count] = kata.simulate(program, count, "lrr")
            return stats[name, count]

        found, found_eligible = oracle.between(stats_of, warps)
        worst = max(worst, abs(found / ipc - 1))
        if name == "fma_square":
            assert found_eligible == pytest.approx(eligible, rel=0.1), (
                f"{name}, {warps} warps: {found_eligible} eligible, measured {eligible}"
            )
    cost.check("ipc_error", worst)


# ---- bounds --------------------------------------------------------------------------------


def test_nothing_issues_faster_than_the_bound(kata, oracle, seed):
    draw = random.Random(seed)
    for trial in range(40):
        program = oracle.random_program(kata, draw, trial // 4)
        for warps in (1, draw.randint(2, 16)):
            found = oracle.every_cycle(program, warps, "gto")[0]["ipc"]
            bound = kata.ipc_bound(program, warps)
            assert found <= bound * (1 + 1e-12), (
                f"{warps} warps: expected a bound of {found} or more, which a schedule reaches, "
                f"found {bound}; the program: {program}"
            )
            if warps == 1:
                assert bound == pytest.approx(found), (
                    f"one warp: expected its own {found}, found {bound}; the program: {program}"
                )


@pytest.mark.parametrize(("warps", "bound"), [(1, 8 / 26), (2, 16 / 26), (4, 1.0), (16, 1.0)])
def test_bound_by_latency_and_by_issue_slots(kata, warps, bound):
    # alone: MOV in cycle 0, seven of latency 4 in 1, 5 … 25
    assert kata.ipc_bound(kata.fma_chains(7), warps) == pytest.approx(bound)


def test_bound_by_a_pipe(kata):
    exp = kata.Instr(op="MUFU.EX2", latency=17, pipe="xu", pipe_interval=8, dst="e")
    rare = replace(exp, pipe_interval=20, dst="f")
    # 3 warps: 8, 8 and 20 each; the last interval need not pass
    assert kata.ipc_bound([exp, replace(exp, dst="g"), rare], 3) == pytest.approx(9 / (108 - 19))


def test_the_fewest_warps_are_enough(kata, oracle, seed):
    draw = random.Random(seed)
    for trial in range(40):
        program = oracle.random_program(kata, draw, trial // 3)
        alone = oracle.every_cycle(program, 1, "lrr")[0]["cycles"]
        intervals = {}
        for instr in program:
            intervals.setdefault(instr.pipe, []).append(instr.pipe_interval)
        warps = 1
        while alone > max(
            warps * len(program),
            *(warps * sum(each) - max(each) + 1 for each in intervals.values()),
        ):
            warps += 1
        found = kata.warps_needed(program)
        assert found == warps, f"expected {warps}, found {found}; alone {alone} cycles, {program}"


def test_warps_that_hide_common_latencies(kata):
    # a chain of latency 4; four of them; 607 cycles for 8 instructions; 45 for an exponential's 8
    assert kata.warps_needed(kata.fma_chains(100)) == 4
    assert kata.warps_needed(kata.fma_chains(100, 4)) == 1
    assert kata.warps_needed(kata.load_use(100, 7)) == 76
    assert kata.warps_needed(kata.exp_loop(100)) == 6


def test_latencies_are_exact_whatever_their_size(kata):
    chain = [replace(instr, latency=2**60 + 1) for instr in kata.fma_chains(2)]
    # MOV, FFMA and FFMA: two latencies and one cycle
    assert kata.simulate(chain, 1, "gto").cycles == 2**61 + 3
    assert kata.warps_needed(chain) == (2**61 + 3 + 2) // 3


# ---- what is refused -----------------------------------------------------------------------


@pytest.mark.parametrize("warps", [0, -1, 17])
def test_warps_that_a_scheduler_does_not_have_are_refused(kata, warps):
    for program in ([], kata.fma_chains(2)):
        for ask in (lambda p: kata.simulate(p, warps, "lrr"), lambda p: kata.ipc_bound(p, warps)):
            with pytest.raises(ValueError, match="^warps: "):
                ask(program)


@pytest.mark.parametrize("policy", ["rr", "LRR", ""])
def test_unknown_policies_are_refused(kata, policy):
    for program in ([], kata.fma_chains(2)):
        with pytest.raises(ValueError, match="^policy: "):
            kata.simulate(program, 1, policy)


@pytest.mark.parametrize(
    "change",
    [
        {"srcs": ("b",)},
        {"srcs": ("a", "b")},
        {"srcs": ("b",), "dst": "b"},
        {"latency": 0},
        {"pipe_interval": 0},
    ],
    ids=["written later", "one of two", "written by itself", "no latency", "no interval"],
)
def test_bad_instructions_are_refused(kata, change):
    good = kata.Instr(op="MOV", latency=1, pipe="alu", dst="a")
    program = [good, replace(good, **change), replace(good, dst="b")]
    with pytest.raises(ValueError, match=r"^program\[1\]: "):
        kata.simulate(program, 2, "gto")
    with pytest.raises(ValueError, match=r"^program\[1\]: "):
        kata.ipc_bound(program, 2)
    with pytest.raises(ValueError, match=r"^program\[1\]: "):
        kata.warps_needed(program)
