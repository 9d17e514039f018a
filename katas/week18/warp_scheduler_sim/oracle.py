"""What is right: every warp looked at in every cycle, closed forms, and what an H200 measured."""

import csv
from collections import Counter
from pathlib import Path

SCOREBOARDS = {"l1tex": "long_scoreboard", "mio": "short_scoreboard", "xu": "short_scoreboard"}


def every_cycle(program, warps, policy):
    """The statistics as a dictionary, and who issued in each cycle (None: nobody)."""
    at = [0] * warps
    issued_at = [[] for _ in range(warps)]
    taken_until = {}
    stalls, eligible_sum, trace = Counter(), 0, []
    last = None
    while any(position < len(program) for position in at):
        cycle = len(trace)
        eligible = []
        for warp in range(warps):
            if at[warp] == len(program):
                stalls["exited"] += 1
                continue
            instr = program[at[warp]]
            late = _landing_last(program, issued_at[warp], instr, cycle)
            if late is not None:
                stalls[SCOREBOARDS.get(late.pipe, "wait")] += 1
            elif taken_until.get(instr.pipe, 0) > cycle:
                stalls["math_pipe_throttle"] += 1
            else:
                eligible.append(warp)
        chosen = _choice(eligible, last, warps, policy)
        trace.append(chosen)
        eligible_sum += len(eligible)
        if chosen is not None:
            stalls["not_selected"] += len(eligible) - 1
            instr = program[at[chosen]]
            taken_until[instr.pipe] = cycle + instr.pipe_interval
            issued_at[chosen].append(cycle)
            at[chosen] += 1
            last = chosen
    order = tuple(warp for warp in trace if warp is not None)
    cycles = len(trace)
    return {
        "cycles": cycles,
        "issued": len(order),
        "ipc": len(order) / cycles if cycles else 0.0,
        "eligible_avg": eligible_sum / cycles if cycles else 0.0,
        "stalls": {reason: count for reason, count in stalls.items() if count},
        "order": order,
    }, trace


def _landing_last(program, issued_at, instr, cycle):
    """Of the writers of its registers, the one that lands last, if that is after `cycle`."""
    latest, found = cycle, None
    for register in (*instr.srcs, instr.dst):
        if register is None:
            continue
        writers = [i for i in range(len(issued_at)) if program[i].dst == register]
        if writers and issued_at[writers[-1]] + program[writers[-1]].latency > latest:
            found = program[writers[-1]]
            latest = issued_at[writers[-1]] + found.latency
    return found


def _choice(eligible, last, warps, policy):
    if not eligible:
        return None
    if policy == "gto":
        return last if last in eligible else eligible[0]
    turn = 0 if last is None else last + 1
    while turn % warps not in eligible:
        turn += 1
    return turn % warps


def random_program(kata, draw, n):
    """Few registers and pipes, so that nearly everything waits for everything."""
    defined, program = ["a"], [kata.Instr(op="MOV", latency=1, pipe="alu", dst="a")]
    for _ in range(n):
        program.append(
            kata.Instr(
                op="OP",
                latency=draw.choice((1, 2, 4, 7, 30)),
                pipe=draw.choice(("fma", "xu", "l1tex", "tensor")),
                pipe_interval=draw.choice((1, 1, 2, 8, 11)),
                srcs=tuple(draw.choices(defined, k=draw.choice((0, 1, 1, 2)))),
                dst=draw.choice(("a", "b", "c", None)),
            )
        )
        if program[-1].dst is not None:
            defined.append(program[-1].dst)
    return program


# ---- an H200 -------------------------------------------------------------------------------


def chains(kata, n, ilp, latency, pipe, interval):
    """`n` instructions in `ilp` chains by turns."""
    start = [kata.Instr(op="MOV", latency=1, pipe="alu", dst=f"r{i}") for i in range(ilp)]
    names = [f"r{i % ilp}" for i in range(n)]
    return start + [
        kata.Instr(
            op="OP", latency=latency, pipe=pipe, pipe_interval=interval, srcs=(name,), dst=name
        )
        for name in names
    ]


# chains at a time, latency, pipe, interval: latencies as one warp alone shows them, intervals
# from the lanes of a unit; FFMA R0, R0, R2, R3 reads three registers, which takes two cycles
CAPTURED = {
    "fma_ilp1": (1, 4, "fma", 2),
    "fma_square": (1, 4, "fma", 1),
    "fadd_ilp2": (2, 4, "fma", 1),
    "ex2_chain": (1, 17, "xu", 8),
    "load_shared": (1, 23, "mio", 4),
}


def captured():
    """(program, warps at a time, IPC, eligible warps) of each launch."""
    path = Path(__file__).with_name("data") / "occupancy.csv"
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield row["program"], float(row["warps"]), float(row["ipc"]), float(row["eligible"])


def between(stats_of, warps):
    """IPC and eligible warps of a fractional number of warps."""
    few = min(int(warps), 15)
    share = warps - few
    one, other = stats_of(few), stats_of(few + 1)
    return (
        (1 - share) * one.ipc + share * other.ipc,
        (1 - share) * one.eligible_avg + share * other.eligible_avg,
    )
