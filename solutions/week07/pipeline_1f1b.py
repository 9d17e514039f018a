"""Kata week07/pipeline_1f1b: the order in which pipeline stages work, and what it costs.

The model is cut into p * v parts of some layers each: chunk c of stage s is part c * p + s.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple


class Op(NamedTuple):
    """What a stage does at a time: one pass of one micro-batch through one of its chunks."""

    kind: Literal["F", "B"]
    micro: int
    chunk: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sim:
    """
    What a schedule comes to.

    `makespan` lasts from the first op to the end of the last. `bubble_fraction` is the share of
    it that the stages, taken together, stand idle. `peak_live` has, for each stage, how many
    passes it holds activations of at most.
    """

    makespan: float
    bubble_fraction: float
    peak_live: list[int]


def gpipe(p: int, m: int) -> list[list[Op]]:
    """
    Return each stage's ops: all forwards, then all backwards.

    Raises:
        ValueError: `p` or `m` is below 1; the message names which.
    """
    # check
    _check_sizes(p=p, m=m)
    # order the passes
    return [[Op(kind, micro) for kind in "FB" for micro in range(m)] for _ in range(p)]


def one_f_one_b(p: int, m: int) -> list[list[Op]]:
    """
    Return each stage's ops: as fast as `gpipe`, with activations of at most p - s passes alive.

    Raises:
        ValueError: `p` or `m` is below 1; the message names which.
    """
    # check
    _check_sizes(p=p, m=m)
    # order the passes
    forwards, backwards = ([Op(kind, micro) for micro in range(m)] for kind in "FB")
    # warm up
    # a micro-batch has p - s - 1 stages to go through before its gradient can be on its way back
    return [_alternating(forwards, backwards, warm_up=p - s - 1) for s in range(p)]


def interleaved(p: int, m: int, v: int) -> list[list[Op]]:
    """
    Return each stage's ops over `v` chunks per stage: a v-th of the bubble.

    With one chunk it is `one_f_one_b`.

    Raises:
        ValueError: `p`, `m` or `v` is below 1, or `m` is not a multiple of `p`; the message
            names which.
    """
    # check
    _check_sizes(p=p, m=m, v=v)
    if m % p != 0:
        raise ValueError(f"m: expected a multiple of p ({p}), found {m}.")
    if v == 1:
        return one_f_one_b(p, m)
    # order the passes
    # p micro-batches go through chunk 0, the same through chunk 1 … before the next p set out
    forwards = [Op("F", k // (p * v) * p + k % p, k // p % v) for k in range(m * v)]
    backwards = [Op("B", micro, v - 1 - chunk) for _, micro, chunk in forwards]
    # warm up
    return [
        _alternating(forwards, backwards, warm_up=2 * (p - s - 1) + (v - 1) * p) for s in range(p)
    ]


def simulate(schedule: Sequence[Sequence[Op]], t_f: float, t_b: float, t_comm: float) -> Sim:
    """
    Run each stage's ops in their order, each as soon as what it needs is there.

    An op takes `t_f` or `t_b` seconds; what it sends to another stage is there `t_comm` later, and
    delays neither of them otherwise.

    Raises:
        ValueError: no stage can go on, though there are ops left: "schedule: …".
    """
    # run what is ready
    p = len(schedule)
    last = p * (1 + max(op.chunk for ops in schedule for op in ops)) - 1
    ends: dict[tuple[str, int, int], float] = {}
    clocks = [0.0] * p
    left = [list(reversed(ops)) for ops in schedule]
    stuck = False
    while any(left) and not stuck:
        stuck = True
        for s, ops in enumerate(left):
            while ops and ends.keys() >= (needs := _needs(ops[-1], s, p, last)):
                op = ops.pop()
                # what this stage made itself was there when the op before this one ended
                arrivals = [ends[need] + t_comm for need in needs if need[2] % p != s]
                clocks[s] = max([clocks[s], *arrivals]) + (t_f if op.kind == "F" else t_b)
                ends[op.kind, op.micro, op.chunk * p + s] = clocks[s]
                stuck = False
    if stuck:
        waiting = [f"stage {s} for what {ops[-1]} needs" for s, ops in enumerate(left) if ops]
        raise ValueError(f"schedule: expected it to end, found waiting {', '.join(waiting)}.")
    # measure
    makespan = max(clocks)
    busy = sum(t_f if op.kind == "F" else t_b for ops in schedule for op in ops)
    return Sim(
        makespan=makespan,
        bubble_fraction=1 - busy / (p * makespan),
        peak_live=[max(accumulate(1 if op.kind == "F" else -1 for op in ops)) for ops in schedule],
    )


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}: expected 1 or more, found {size}.")


def _alternating(forwards: list[Op], backwards: list[Op], warm_up: int) -> list[Op]:
    """`warm_up` forwards, then forward and backward in turn, then the backwards that are left."""
    # warm up
    warm_up = min(warm_up, len(forwards))
    ops = forwards[:warm_up]
    # alternate and drain
    for at in range(warm_up, len(forwards)):
        ops += forwards[at], backwards[at - warm_up]
    return ops + backwards[len(forwards) - warm_up :]


def _needs(op: Op, s: int, p: int, last: int) -> set[tuple[str, int, int]]:
    """Name what stage `s` needs for `op`: kind, micro-batch and part."""
    part = op.chunk * p + s
    if op.kind == "F":
        return {("F", op.micro, part - 1)} if part > 0 else set()
    needs = {("F", op.micro, part)}
    if part < last:
        needs.add(("B", op.micro, part + 1))
    return needs
