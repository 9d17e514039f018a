"""Kata week18/warp_scheduler_sim: one scheduler, and how many warps it needs."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

MOST_WARPS = 16  # of one scheduler
POLICIES = ("lrr", "gto")
# what a warp is said to wait for, by the pipe that computes the register; of any other pipe: "wait"
SCOREBOARDS = {"l1tex": "long_scoreboard", "mio": "short_scoreboard", "xu": "short_scoreboard"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instr:
    """
    One instruction of a warp.

    Attributes:
        op: What it is called; nothing depends on it.
        latency: Cycles from its issue until its result can be used, 1 or more.
        pipe: The unit that executes it, which all warps of the scheduler share.
        pipe_interval: Cycles from its issue until the pipe takes another, 1 or more.
        srcs: Registers it reads.
        dst: The register it writes, if any.
    """

    op: str
    latency: int
    pipe: str
    pipe_interval: int = 1
    srcs: tuple[str, ...] = ()
    dst: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """
    What became of a program.

    Attributes:
        cycles: From the first issue to the last, both counted.
        issued: Instructions issued by all warps.
        ipc: Instructions issued per cycle; 0 where there are no cycles.
        eligible_avg: Warps that could have issued, per cycle; 0 where there are no cycles.
        stalls: Cycles of all warps in which they did not issue, by reason, without zeros.
        order: Whose turn it was: the number of a warp for each instruction issued.
    """

    cycles: int
    issued: int
    ipc: float
    eligible_avg: float
    stalls: dict[str, int]
    order: tuple[int, ...]


def fma_chains(n: int, ilp: int = 1) -> list[Instr]:
    """`n` multiply-adds in `ilp` chains by turns, each of which reads what its last one wrote."""
    start = [Instr(op="MOV", latency=1, pipe="alu", dst=f"r{chain}") for chain in range(ilp)]
    names = [f"r{at % ilp}" for at in range(n)]
    return start + [Instr(op="FFMA", latency=4, pipe="fma", srcs=(r,), dst=r) for r in names]


def load_use(n: int, uses: int) -> list[Instr]:
    """`n` loads, each followed by `uses` instructions that read what it has loaded."""
    load = Instr(op="LDG", latency=600, pipe="l1tex", pipe_interval=4, dst="v")
    use = [Instr(op="FADD", latency=4, pipe="fma", srcs=("v",), dst=f"s{i}") for i in range(uses)]
    return [load, *use] * n


def exp_loop(n: int) -> list[Instr]:
    """`n` exponentials: load, scale, exponential, store; `a` is what the last one has left."""
    return [
        Instr(op="LDS", latency=23, pipe="mio", pipe_interval=4, dst="x"),
        Instr(op="FMUL", latency=4, pipe="fma", srcs=("x",), dst="y"),
        Instr(op="MUFU.EX2", latency=17, pipe="xu", pipe_interval=8, srcs=("y",), dst="e"),
        Instr(op="STS", latency=23, pipe="mio", pipe_interval=4, srcs=("e",)),
    ] * n


def simulate(program: Sequence[Instr], warps: int, policy: str) -> Stats:
    """
    Run `program` once on each of `warps` warps of one scheduler.

    Args:
        program: What each warp issues, in this order.
        warps: 1 to `MOST_WARPS`.
        policy: "lrr", loose round robin, or "gto", greedy then oldest.

    Raises:
        ValueError: a bad number of warps, policy or instruction; the message begins with which.

    Source: Nsight Compute Profiling Guide, Warp Scheduler States.
    """
    # check
    _check_warps(warps)
    _check_program(program)
    if policy not in POLICIES:
        raise ValueError(f"policy: expected one of {', '.join(POLICIES)}, found {policy!r}")
    # when each warp can issue
    landing: dict[int, dict[str, tuple[int, str]]] = defaultdict(dict)  # registers of each warp
    free: dict[str, int] = defaultdict(int)  # from when on a pipe takes another
    left = dict.fromkeys(range(warps), 0) if program else {}  # warps with work: where they are
    stalls: Counter[str] = Counter()
    order: list[int] = []
    now = eligible_cycles = 0
    waits = [(now, "wait")] * warps  # for its next instruction: until when, and for what
    last = -1
    while left:
        ready_at = {
            warp: max(now, waits[warp][0], free[program[at].pipe]) for warp, at in left.items()
        }
        # select a warp
        issue = min(ready_at.values())
        eligible = [warp for warp in left if ready_at[warp] == issue]
        if policy == "lrr":
            chosen = min(eligible, key=lambda warp: (warp - last - 1) % warps)
        else:
            chosen = last if last in eligible else min(eligible)
        # account for the cycles
        # nothing changes before the issue, so that all cycles up to it are known at once
        span = issue + 1 - now
        for warp in left:
            until, reason = waits[warp]
            waited = min(max(until - now, 0), span)
            stalls[reason] += waited
            stalls["math_pipe_throttle"] += span - waited - (ready_at[warp] == issue)
        stalls["not_selected"] += len(eligible) - 1
        stalls["exited"] += (warps - len(left)) * span
        eligible_cycles += len(eligible)
        order.append(chosen)
        now, last = issue + 1, chosen

        # issue
        instr = program[left[chosen]]
        free[instr.pipe] = issue + instr.pipe_interval
        if instr.dst is not None:
            reason = SCOREBOARDS.get(instr.pipe, "wait")
            landing[chosen][instr.dst] = issue + instr.latency, reason
        left[chosen] += 1
        if left[chosen] == len(program):
            del left[chosen]
        else:
            following = program[left[chosen]]
            known = (landing[chosen].get(r) for r in (*following.srcs, following.dst))
            waits[chosen] = max(filter(None, known), key=itemgetter(0), default=(now, "wait"))
    return Stats(
        cycles=now,
        issued=len(order),
        ipc=len(order) / now if now else 0.0,
        eligible_avg=eligible_cycles / now if now else 0.0,
        stalls={reason: cycles for reason, cycles in stalls.items() if cycles},
        order=tuple(order),
    )


def ipc_bound(program: Sequence[Instr], warps: int) -> float:
    """
    The instructions per cycle that no order of `warps` warps exceeds.

    Raises:
        ValueError: what `simulate` refuses.
    """
    # check
    _check_warps(warps)
    # bounds
    alone = simulate(program, 1, "lrr").cycles
    if not program:
        return 0.0
    busy = [warps * total - longest + 1 for total, longest in _pipes(program)]
    return warps * len(program) / max(alone, warps * len(program), *busy)


def warps_needed(program: Sequence[Instr]) -> int:
    """
    The fewest warps whose instructions take the scheduler, or a pipe, as long as one warp takes.

    Exact, and in closed form: latencies may be of any size, and the answer above `MOST_WARPS`.

    Raises:
        ValueError: what `simulate` refuses.
    """
    # bounds
    alone = simulate(program, 1, "lrr").cycles
    if not program:
        return 1
    # the scheduler is like a pipe that takes an instruction each cycle
    resources = [(len(program), 1), *_pipes(program)]
    return min(-(-(alone + longest - 1) // total) for total, longest in resources)


def _pipes(program: Sequence[Instr]) -> list[tuple[int, int]]:
    """The intervals of each pipe: all of a program's together, and the longest."""
    intervals = defaultdict(list)
    for instr in program:
        intervals[instr.pipe].append(instr.pipe_interval)
    return [(sum(each), max(each)) for each in intervals.values()]


def _check_warps(warps: int) -> None:
    if not 1 <= warps <= MOST_WARPS:
        raise ValueError(f"warps: expected 1 to {MOST_WARPS}, found {warps}")


def _check_program(program: Sequence[Instr]) -> None:
    defined = set()
    for at, instr in enumerate(program):
        if min(instr.latency, instr.pipe_interval) < 1:
            raise ValueError(f"program[{at}]: expected times of 1 cycle or more, found {instr}")
        for register in instr.srcs:
            if register not in defined:
                raise ValueError(f"program[{at}]: expected a value in {register!r}, found none")
        defined.add(instr.dst)
