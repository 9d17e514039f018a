"""What is right: the rules as edges between moments, and every path between two of them."""

from collections import Counter


class CountedClock:
    """A vector clock that counts joins and comparisons, in `counts`."""

    def __init__(self, limit=10**7):
        self._steps = {}
        self._limit = limit
        self.counts = Counter()

    def join(self, other):
        self._count("joins")
        later = self._steps | other._steps
        for timeline, steps in self._steps.items():
            later[timeline] = max(steps, later[timeline])
        return self._with(later)

    def tick(self, timeline):
        return self._with(self._steps | {timeline: self._steps.get(timeline, 0) + 1})

    def leq(self, other):
        self._count("comparisons")
        theirs = other._steps
        return all(steps <= theirs.get(timeline, 0) for timeline, steps in self._steps.items())

    def __repr__(self):
        return f"CountedClock({self._steps})"

    def _with(self, steps):
        clock = CountedClock(self._limit)
        clock._steps, clock.counts = steps, self.counts
        return clock

    def _count(self, what):
        self.counts[what] += 1
        if self.counts[what] > self._limit:
            raise AssertionError(f"stopped after {self._limit} {what}")


def ordered(kata, program):
    """
    before[i][j]: whether i's effect comes before j's.

    An operation has two moments: its effect (2 i), and the host's return from the call (2 i + 1).
    """
    edges = [0] * (2 * len(program))  # the moments right behind each moment, as bits

    def then(first, second):
        edges[first] |= 1 << second

    last_record = {}
    for j, op in enumerate(program):
        effect, returned = 2 * j, 2 * j + 1
        if j:
            then(returned - 2, effect)
            then(returned - 2, returned)
        if not _queued(kata, op):
            then(effect, returned)
        for i, earlier in enumerate(program[:j]):
            if _queued(kata, earlier) and _waits(kata, op, earlier.stream):
                then(2 * i, effect)
        if isinstance(op, kata.Wait | kata.EventSync) and op.event in last_record:
            then(2 * last_record[op.event], effect)
        if isinstance(op, kata.Record):
            last_record[op.event] = j
    # Warshall's transitive closure, a row of bits at once
    for middle in range(len(edges)):
        for first in range(len(edges)):
            if edges[first] >> middle & 1:
                edges[first] |= edges[middle]
    return [
        [bool(edges[2 * i] >> 2 * j & 1) for j in range(len(program))] for i in range(len(program))
    ]


def races(kata, program):
    """Every pair of accesses, tried."""
    before = ordered(kata, program)
    accesses = [i for i, op in enumerate(program) if isinstance(op, kata.Launch | kata.Host)]
    return {
        (i, j)
        for i in accesses
        for j in accesses
        if i < j and not before[i][j] and _conflict(program[i], program[j])
    }


def _queued(kata, op):
    return isinstance(op, kata.Launch | kata.Record | kata.Wait)


def _waits(kata, op, stream):
    """Whether `op` waits for what is in `stream` when it is called."""
    if isinstance(op, kata.DeviceSync):
        return True
    if isinstance(op, kata.Host | kata.EventSync):
        return False
    if stream == op.stream:
        return True
    if stream == kata.LEGACY:
        return isinstance(op.stream, kata.Blocking)
    if op.stream == kata.LEGACY:
        return isinstance(stream, kata.Blocking) and _queued(kata, op)
    return False


def _conflict(one, other):
    return bool({*one.writes} & {*other.reads, *other.writes} or {*one.reads} & {*other.writes})


def random_program(kata, random, n):
    """Few streams, few buffers, few events: nearly everything meets everything."""
    streams = (kata.Blocking(0), kata.NonBlocking(0), kata.NonBlocking(1), kata.Blocking(1))
    streams = tuple(random.sample(streams, random.randint(0, 4)))

    def buffers():
        return tuple(random.choices(("x", "y", 0), k=random.choice((0, 1, 1, 2))))

    def one():
        stream = random.choice((kata.LEGACY, *streams, *streams))
        kind = random.choices(range(7), (8, 3, 4, 4, 2, 2, 1))[0]
        if kind == 0:
            return kata.Launch(stream, buffers(), buffers())
        if kind == 1:
            return kata.Host(buffers(), buffers())
        if kind == 2:
            return kata.Record(random.choice((0, "e")), stream)
        if kind == 3:
            return kata.Wait(random.choice((0, "e")), stream)
        if kind == 4:
            return kata.StreamSync(stream)
        return kata.EventSync(random.choice((0, "e"))) if kind == 5 else kata.DeviceSync()

    return tuple(one() for _ in range(n)), streams


def copy_pipeline(kata, chunks, ring, missing=()):
    """
    Chunks copied in, computed and copied out by three streams, in a ring of device buffers.

    A chunk in `missing` is copied in without waiting for the
    copy out that last read its buffer.
    """
    streams = (kata.NonBlocking(0), kata.NonBlocking(1), kata.NonBlocking(2))
    copy_in, compute, copy_out = streams
    program = []
    for chunk in range(chunks):
        slot = chunk % ring
        if chunk not in missing:
            program.append(kata.Wait(("out", slot), copy_in))
        program += [
            kata.Launch(copy_in, reads=("source",), writes=(("device", slot),)),
            kata.Record(("in", slot), copy_in),
            kata.Wait(("in", slot), compute),
            kata.Launch(compute, reads=(("device", slot),), writes=(("device", slot),)),
            kata.Record(("done", slot), compute),
            kata.Wait(("done", slot), copy_out),
            kata.Launch(copy_out, reads=(("device", slot),), writes=("result", ("part", chunk))),
            kata.Record(("out", slot), copy_out),
        ]
    return (
        *program,
        kata.EventSync(("out", (chunks - 1) % ring)),
        kata.Host(reads=("result",)),
    ), streams
