"""Kata week16/modulo_schedule: software pipelining and warp specialization, by exact search."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Op:
    """
    An operation of the loop's body.

    It keeps its unit for `cycles` from its start. Its result takes `regs` registers. A blocking
    operation also keeps its warp for `cycles`; any other is issued and left to itself.
    """

    name: str
    unit: str
    cycles: int
    regs: int = 0
    blocking: bool = False


@dataclass(frozen=True, slots=True)
class Dep:
    """`dst` starts `latency` cycles after `src` of `distance` iterations before, or later."""

    src: str
    dst: str
    latency: int
    distance: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """
    Iteration i starts an operation at start[name] + i · ii.

    Attributes:
        ii: The initiation interval: cycles from one iteration to the next.
        start: Cycle from 0 at which each operation of iteration 0 starts.
        stages: Iterations that are under way at the same time, as far as starts go.
    """

    ii: int
    start: Mapping[str, int]
    stages: int


def show(schedule: Schedule, ops: Sequence[Op]) -> str:
    """One line an operation: when it starts, in which stage, and at which cycle of the interval."""
    lines = [f"II {schedule.ii}, stages {schedule.stages}"]
    for op in sorted(ops, key=lambda op: schedule.start[op.name]):
        stage, slot = divmod(schedule.start[op.name], schedule.ii)
        lines.append(f"{op.unit:>6} {op.name:<8} @{schedule.start[op.name]} stage {stage} + {slot}")
    return "\n".join(lines)


def res_mii(ops: Sequence[Op], units: Collection[str]) -> int:
    """
    Least interval that the busiest unit allows; 1 without operations.

    Raises:
        ValueError: two operations have one name, a unit is not in `units`, or `cycles` is below 1.
            The message begins with "ops: ".
    """
    raise NotImplementedError  # TODO(kata): check, bounds of the interval (about 8 lines)


def rec_mii(ops: Sequence[Op], deps: Sequence[Dep]) -> int:
    """
    Least interval that the recurrences allow; 1 without any.

    Raises:
        ValueError: a dependence names an unknown operation, has a negative latency or distance, or
            is on a cycle whose distances add up to 0. The message begins with "deps: ".
    """
    # TODO(kata): check, bounds of the interval (about 35 lines with helpers)
    raise NotImplementedError


def schedule(ops: Sequence[Op], deps: Sequence[Dep], units: Collection[str]) -> Schedule:
    """
    The schedule with the shortest interval; of those, one with the fewest stages.

    Raises:
        ValueError: what `res_mii` and `rec_mii` refuse.

    Source: Soi et al. 2025 (arXiv 2512.18134) for attention as a modulo scheduling problem.
    """
    # TODO(kata): shortest interval and fewest stages, order on each unit (about 40 lines with
    # helpers)
    raise NotImplementedError


def assign_warps(
    schedule: Schedule,
    ops: Sequence[Op],
    deps: Sequence[Dep],
    regs_per_warp: int,
    max_warps: int,
) -> dict[str, int]:
    """
    The warp of each operation: as few warps as possible, numbered from 0.

    Raises:
        ValueError: an operation alone takes more than `regs_per_warp`, or all of them more than
            `max_warps`. The message begins with that name.
    """
    # TODO(kata): registers of each result, pack into warps (about 40 lines with helpers)
    raise NotImplementedError
