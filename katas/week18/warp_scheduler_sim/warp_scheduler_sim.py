"""Kata week18/warp_scheduler_sim: one scheduler, and how many warps it needs."""

from collections.abc import Sequence
from dataclasses import dataclass

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
    # TODO(kata): check, when each warp can issue, select a warp, account for the cycles, issue
    # (about 65 lines with helpers)
    raise NotImplementedError


def ipc_bound(program: Sequence[Instr], warps: int) -> float:
    """
    The instructions per cycle that no order of `warps` warps exceeds.

    Raises:
        ValueError: what `simulate` refuses.
    """
    raise NotImplementedError  # TODO(kata): check, bounds (about 10 lines with helpers)


def warps_needed(program: Sequence[Instr]) -> int:
    """
    The fewest warps whose instructions take the scheduler, or a pipe, as long as one warp takes.

    Exact, and in closed form: latencies may be of any size, and the answer above `MOST_WARPS`.

    Raises:
        ValueError: what `simulate` refuses.
    """
    raise NotImplementedError  # TODO(kata): bounds (about 5 lines)
