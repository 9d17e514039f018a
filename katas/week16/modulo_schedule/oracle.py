"""What is right: every placement within an interval tried, and schedules checked cycle by cycle."""

from itertools import product


def problems(found, ops, deps):
    """What is wrong with a schedule; an empty list for a right one."""
    names = {op.name for op in ops}
    if set(found.start) != names:
        return [f"starts of {sorted(found.start)}, expected of {sorted(names)}"]
    start, ii = found.start, found.ii
    said = [f"{name} starts at {at}" for name, at in start.items() if at < 0]
    for dep in deps:
        apart = start[dep.dst] + dep.distance * ii - start[dep.src]
        if apart < dep.latency:
            said.append(f"{dep.dst} starts {apart} cycles after {dep.src}, {dep.latency} needed")
    for one in ops:
        for other in ops:
            after = (start[other.name] - start[one.name]) % ii
            shared = one.name < other.name and one.unit == other.unit
            if shared and (after < one.cycles or ii - after < other.cycles):
                said.append(f"{one.name} and {other.name} share {one.unit}")
        if one.cycles > ii:
            said.append(f"{one.name} takes longer than the interval")
    stages = 1 + max(start.values()) // ii if start else 0
    if found.stages != stages:
        said.append(f"{found.stages} stages, expected {stages}")
    return said


def best(ops, deps, units):
    """(interval, stages) of the best schedule: all cycles of the interval for every operation."""
    ii = max([1, *(sum(op.cycles for op in ops if op.unit == unit) for unit in units)])
    while True:
        stages = [found for slots in _slots(ops, ii) if (found := _stages(ops, deps, slots, ii))]
        if stages:
            return ii, min(stages)
        ii += 1


def _slots(ops, ii, slots=(), taken=frozenset()):
    """Cycles of the interval, one for each operation, at which no unit is needed twice."""
    if len(slots) == len(ops):
        yield slots
        return
    op = ops[len(slots)]
    for slot in range(ii):
        busy = {(op.unit, (slot + cycle) % ii) for cycle in range(op.cycles)}
        if len(busy) == op.cycles and not busy & taken:
            yield from _slots(ops, ii, (*slots, slot), taken | busy)


def _stages(ops, deps, slots, ii):
    """Stages that these cycles need at least, 0 where no stages keep the dependences."""
    at = {op.name: slot for op, slot in zip(ops, slots, strict=True)}
    stage = dict.fromkeys(at, 0)
    for _ in range(len(ops) + 1):
        late = False
        for dep in deps:
            cycles = at[dep.src] + dep.latency - at[dep.dst]
            least = stage[dep.src] + -(-cycles // ii) - dep.distance
            if stage[dep.dst] < least:
                stage[dep.dst], late = least, True
        if not late:
            return 1 + max(stage.values())
    return 0


def longest_recurrence(ops, deps):
    """The most that any cycle of dependences asks of the interval, every cycle walked."""
    worst = 1

    def walk(first, here, seen, latency, distance):
        nonlocal worst
        for dep in deps:
            if dep.src == here and dep.dst == first:
                worst = max(worst, -(-(latency + dep.latency) // (distance + dep.distance)))
            elif dep.src == here and dep.dst not in seen:
                walk(
                    first, dep.dst, seen | {dep.dst},
                    latency + dep.latency, distance + dep.distance,
                )  # fmt: skip

    for op in ops:
        walk(op.name, op.name, {op.name}, 0, 0)
    return worst


def warp_problems(warp_of, found, ops, deps, regs_per_warp):
    """What is wrong with an assignment; an empty list for a right one."""
    if set(warp_of) != {op.name for op in ops}:
        return [f"warps of {sorted(warp_of)}, expected of {sorted(op.name for op in ops)}"]
    used = set(warp_of.values())
    said = [] if used == set(range(len(used))) else [f"warps are numbered {sorted(used)}"]
    for warp in used:
        inside = [op for op in ops if warp_of[op.name] == warp]
        taken = sum(registers(op, found, ops, deps) for op in inside)
        if taken > regs_per_warp:
            said.append(f"warp {warp} takes {taken} registers, {regs_per_warp} are there")
        for op in inside:
            if op.blocking:
                kept = {(found.start[op.name] + cycle) % found.ii for cycle in range(op.cycles)}
                said += [
                    f"{other.name} starts while {op.name} keeps warp {warp}"
                    for other in inside
                    if other is not op and found.start[other.name] % found.ii in kept
                ]
    return said


def registers(op, found, ops, deps):
    """Registers of all results of an operation that are needed in the busiest cycle."""
    cycles = {one.name: one.cycles for one in ops}
    needed = op.cycles
    for dep in deps:
        if dep.src == op.name:
            end = found.start[dep.dst] + dep.distance * found.ii + cycles[dep.dst]
            needed = max(needed, end - found.start[op.name])
    # iteration after iteration starts before the first result is gone
    return op.regs * len(range(0, needed, found.ii))


def fewest_warps(found, ops, deps, regs_per_warp):
    """The fewest warps of any assignment, every one tried; None where there is none."""
    for count in range(1, len(ops) + 1):
        for choice in product(range(count), repeat=len(ops)):
            warp_of = dict(zip((op.name for op in ops), choice, strict=True))
            if len(set(choice)) == count and not warp_problems(
                warp_of, found, ops, deps, regs_per_warp
            ):
                return count
    return None if ops else 0


def attention(kata, s, p, o):
    """Attention over blocks of keys: scores, softmax, output; a running maximum and a rescaling."""
    ops = [kata.Op("S", "TC", s), kata.Op("P", "EXP", p), kata.Op("O", "TC", o)]
    deps = [
        kata.Dep("S", "P", s),
        kata.Dep("P", "O", p),
        kata.Dep("P", "P", p, 1),
        kata.Dep("O", "O", o, 1),
    ]
    return ops, deps


def gemm(kata, load, latency, mma, buffers):
    """A GEMM's mainloop; a buffer is loaded again when the product that reads it is done."""
    ops = [kata.Op("load", "TMA", load), kata.Op("mma", "TC", mma)]
    deps = [
        kata.Dep("load", "mma", latency),
        kata.Dep("mma", "mma", mma, 1),
        kata.Dep("mma", "load", mma, buffers),
    ]
    return ops, deps


def random_loop(kata, draw, n):
    """Operations on two units, dependences within an iteration and around the loop."""
    ops = [
        kata.Op(f"op{i}", draw.choice(("TC", "EXP")), draw.randint(1, 3), draw.randint(0, 3),
                draw.random() < 0.4)
        for i in range(n)
    ]  # fmt: skip
    deps = []
    for _ in range(draw.randint(0, n + 2)):
        i, j = draw.randrange(n), draw.randrange(n)
        distance = draw.randint(1, 2) if i >= j else draw.choice((0, 0, 1))
        deps.append(kata.Dep(f"op{i}", f"op{j}", draw.randint(0, 5), distance))
    return draw.sample(ops, n), deps


def random_schedule(kata, draw, n):
    """Operations anywhere, and the dependences that this keeps."""
    ops, deps = random_loop(kata, draw, n)
    ii = draw.randint(3, 8)
    start = {op.name: draw.randrange(3 * ii) for op in ops}
    kept = [
        dep for dep in deps if start[dep.dst] - start[dep.src] >= dep.latency - dep.distance * ii
    ]
    stages = 1 + max(start.values()) // ii
    return kata.Schedule(ii=ii, start=start, stages=stages), ops, kept
