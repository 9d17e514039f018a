"""Kata week16/modulo_schedule: software pipelining and warp specialization, by exact search."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf


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
    # check
    if len({op.name for op in ops}) < len(ops):
        raise ValueError(f"ops: expected each name once, found {[op.name for op in ops]}")
    # bounds of the interval
    busy = dict.fromkeys(units, 0)
    for op in ops:
        if op.unit not in busy or op.cycles < 1:
            raise ValueError(f"ops: expected a known unit and 1 cycle or more, found {op}")
        busy[op.unit] += op.cycles
    return max([1, *busy.values()])


def rec_mii(ops: Sequence[Op], deps: Sequence[Dep]) -> int:
    """
    Least interval that the recurrences allow; 1 without any.

    Raises:
        ValueError: a dependence names an unknown operation, has a negative latency or distance, or
            is on a cycle whose distances add up to 0. The message begins with "deps: ".
    """
    # check
    names = [op.name for op in ops]
    for dep in deps:
        if {dep.src, dep.dst} - {*names} or min(dep.latency, dep.distance) < 0:
            raise ValueError(f"deps: expected known operations and nothing negative, found {dep}")
    if _bounds(names, [(dep.src, dep.dst, 1) for dep in deps if dep.distance == 0]) is None:
        raise ValueError("deps: expected a distance of 1 or more on every cycle, found one of 0")
    # bounds of the interval
    latencies = sum(dep.latency for dep in deps)
    return _least(1, latencies, lambda ii: _bounds(names, _edges(deps, ii)) is not None)


def schedule(ops: Sequence[Op], deps: Sequence[Dep], units: Collection[str]) -> Schedule:
    """
    The schedule with the shortest interval; of those, one with the fewest stages.

    Raises:
        ValueError: what `res_mii` and `rec_mii` refuse.

    Source: Soi et al. 2025 (arXiv 2512.18134) for attention as a modulo scheduling problem.
    """
    # shortest interval and fewest stages
    shortest = max(res_mii(ops, units), rec_mii(ops, deps))
    if not ops:
        return Schedule(ii=shortest, start={}, stages=0)
    latencies = sum(dep.latency for dep in deps)
    # one operation after the other, and every latency in between
    longest = sum(op.cycles for op in ops) + latencies

    def most_stages(ii: int) -> int:
        # an operation waits for latencies, and less than an interval for its unit
        return len(ops) + latencies // ii

    # idle cycles at the end of the interval make a schedule one for a longer interval
    ii = _least(shortest, longest, lambda ii: _starts(ops, deps, ii, most_stages(ii)) is not None)
    stages = _least(1, most_stages(ii), lambda stages: _starts(ops, deps, ii, stages) is not None)
    start = _starts(ops, deps, ii, stages)
    return Schedule(ii=ii, start=start, stages=stages)


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
    # registers of each result
    regs = {op.name: op.regs * _copies(schedule, op, ops, deps) for op in ops}
    if max(regs.values(), default=0) > regs_per_warp:
        raise ValueError(f"regs_per_warp: expected room for each of {regs}, found {regs_per_warp}")
    # pack into warps
    for count in range(max_warps + 1):
        warps = _pack(schedule, ops, regs, [[] for _ in range(count)], regs_per_warp)
        if warps is not None:
            return {op.name: at for at, warp in enumerate(warps) for op in warp}
    raise ValueError(f"max_warps: expected enough for {len(ops)} operations, found {max_warps}")


def _least(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The least of `low` … `high` that fits, as all above it do; `high`, if none below it does."""
    # bounds of the interval
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return low


# the second starts so many cycles after the first, or later
Edge = tuple[str | None, str | None, int]
# the same for every pair, -inf where nothing is known
Bounds = dict[tuple[str | None, str | None], float]
LOOP = None  # stands for cycle 0


def _edges(deps: Sequence[Dep], ii: int) -> list[Edge]:
    return [(dep.src, dep.dst, dep.latency - dep.distance * ii) for dep in deps]


def _bounds(names: Sequence[str | None], edges: Sequence[Edge]) -> Bounds | None:
    """Longest paths, None where an operation would have to wait for itself."""
    # bounds of the interval
    apart = {(one, other): 0 if one == other else -inf for one in names for other in names}
    for edge in edges:
        apart = _tightened(apart, names, edge)
        if apart is None:
            return None
    return apart


def _tightened(apart: Bounds, names: Sequence[str | None], edge: Edge) -> Bounds | None:
    """Longest paths with one more edge."""
    # bounds of the interval
    src, dst, cycles = edge
    if apart[dst, src] + cycles > 0:
        return None
    return {
        (one, other): max(known, apart[one, src] + cycles + apart[dst, other])
        for (one, other), known in apart.items()
    }


def _starts(ops: Sequence[Op], deps: Sequence[Dep], ii: int, stages: int) -> dict[str, int] | None:
    """Starts within so many stages, None where there are none."""
    # order on each unit
    names = [LOOP, *(op.name for op in ops)]
    within = [(LOOP, op.name, 0) for op in ops] + [(op.name, LOOP, 1 - stages * ii) for op in ops]
    apart = _bounds(names, within + _edges(deps, ii))
    pairs = [(one, other) for one, other in combinations(ops, 2) if one.unit == other.unit]
    apart = apart and _search(apart, names, pairs, ii)
    return apart and {op.name: apart[LOOP, op.name] for op in ops}


def _search(
    apart: Bounds, names: Sequence[str | None], pairs: Sequence[tuple[Op, Op]], ii: int
) -> Bounds | None:
    """
    Add to `apart` what keeps each unit for one operation at a time.

    Of two operations on a unit the second starts between c₁ + k · ii and (k + 1) · ii - c₂ cycles
    after the first, for a whole k. Once k is chosen, that is two edges more.
    """
    # order on each unit
    if not pairs:
        return apart

    def choices(pair: tuple[Op, Op]) -> range:
        one, other = pair
        least = apart[one.name, other.name] + other.cycles
        most = -apart[other.name, one.name] - one.cycles
        return range(-(-least // ii) - 1, most // ii + 1)

    one, other = fewest = min(pairs, key=lambda pair: choices(pair).stop - choices(pair).start)
    rest = [pair for pair in pairs if pair is not fewest]
    for k in choices(fewest):
        edge = (one.name, other.name, one.cycles + k * ii)
        back = (other.name, one.name, other.cycles - (k + 1) * ii)
        closer = _tightened(_tightened(apart, names, edge), names, back)
        found = _search(closer, names, rest, ii)
        if found:
            return found
    return None


def _copies(schedule: Schedule, op: Op, ops: Sequence[Op], deps: Sequence[Dep]) -> int:
    """How many iterations' results of an operation are needed at the same time."""
    # registers of each result
    cycles = {op.name: op.cycles for op in ops}
    ends = [
        schedule.start[dep.dst] + dep.distance * schedule.ii + cycles[dep.dst]
        for dep in deps
        if dep.src == op.name
    ]
    start = schedule.start[op.name]
    return -(-(max(ends, default=start + op.cycles) - start) // schedule.ii)


def _pack(
    schedule: Schedule,
    ops: Sequence[Op],
    regs: Mapping[str, int],
    warps: list[list[Op]],
    regs_per_warp: int,
) -> list[list[Op]] | None:
    """Put the rest of the operations into these warps, None where they do not fit."""
    # pack into warps
    if not ops:
        return warps
    op, *rest = ops
    for at, warp in enumerate(warps):
        taken = sum(regs[other.name] for other in warp) + regs[op.name]
        if taken <= regs_per_warp and not any(_delays(schedule, op, other) for other in warp):
            more = [*warps[:at], [*warp, op], *warps[at + 1 :]]
            found = _pack(schedule, rest, regs, more, regs_per_warp)
            if found is not None:
                return found
    return None


def _delays(schedule: Schedule, one: Op, other: Op) -> bool:
    """Whether, in one warp, either starts while the other keeps the warp."""
    after = schedule.start[other.name] - schedule.start[one.name]
    return (one.blocking and after % schedule.ii < one.cycles) or (
        other.blocking and -after % schedule.ii < other.cycles
    )
