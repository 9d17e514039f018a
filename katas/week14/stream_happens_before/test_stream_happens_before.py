"""Clocks against every path of edges, races against every pair, and programs worked by hand."""

import random

import pytest


@pytest.fixture(scope="module")
def races(kata, oracle):
    def find(program, streams):
        asked = list(program), list(streams)
        found = kata.find_races(*asked, oracle.CountedClock())
        assert asked == (list(program), list(streams)), "program or streams changed by find_races"
        return found

    return find


# ---- every rule at once --------------------------------------------------------------------


def test_clocks_order_what_paths_of_waits_order(kata, oracle, seed):
    draw = random.Random(seed)
    for trial in range(60):
        program, streams = oracle.random_program(kata, draw, trial // 5 + 1)  # short ones first
        found = kata.clocks(program, streams, oracle.CountedClock())
        before = [[i != j and a.leq(b) for j, b in enumerate(found)] for i, a in enumerate(found)]
        expected = oracle.ordered(kata, program)
        assert before == expected, (
            f"streams = {streams}, program = {program}: clocks order "
            f"{pairs(before)}, expected {pairs(expected)}"
        )


def pairs(table):
    return [(i, j) for i, row in enumerate(table) for j, ordered in enumerate(row) if ordered]


def test_races_are_the_unordered_conflicts(kata, oracle, races, seed):
    draw = random.Random(seed)
    for trial in range(80):
        program, streams = oracle.random_program(kata, draw, trial // 6 + 2)
        assert races(program, streams) == oracle.races(kata, program)


# ---- one rule at a time --------------------------------------------------------------------

# a kernel writes x and another reads it: what is between, and whether that orders them
RULES = {
    "one stream": ("B0", [], "B0", True),
    "two streams": ("B0", [], "B1", False),
    "same number, other kind": ("B0", [], "N0", False),
    "legacy behind blocking": ("B0", [], "L", True),
    "blocking behind legacy": ("L", [], "B0", True),
    "legacy behind non-blocking": ("N0", [], "L", False),
    "non-blocking behind legacy": ("L", [], "N0", False),
    "legacy kernel between": ("B0", ["launch L"], "B1", True),
    "legacy record between": ("B0", ["record other L"], "B1", True),
    "legacy wait for nothing between": ("B0", ["wait other L"], "B1", True),
    "legacy sync between": ("B0", ["sync L"], "B1", False),
    "non-blocking kernel between": ("B0", ["launch N0"], "B1", False),
    "an event": ("N0", ["record e N0", "wait e N1"], "N1", True),
    "an event, wait first": ("N0", ["wait e N1", "record e N0"], "N1", False),
    "an event nobody records": ("N0", ["wait e N1"], "N1", False),
    "an event nobody waits for": ("N0", ["record e N0"], "N1", False),
    "an event recorded again elsewhere": (
        "N0", ["record e N0", "record e B0", "wait e N1"], "N1", False,
    ),
    "an event recorded again behind the wait": (
        "N0", ["record e N0", "wait e N1", "record e B0"], "N1", True,
    ),
    "a stream in between": (
        "N0", ["record e N0", "wait e B0", "record f B0", "wait f N1"], "N1", True,
    ),
    "the host waits for the stream": ("N0", ["sync N0"], "N1", True),
    "the host waits for the other stream": ("N0", ["sync N1"], "N1", False),
    "the host waits for the device": ("N0", ["device"], "N1", True),
    "the host waits for the device and its legacy stream": ("L", ["device"], "N0", True),
    "the host waits for the event": ("N0", ["record e N0", "event e"], "N1", True),
    "the host waits for no event": ("N0", ["event e"], "N1", False),
    "the host waits for a blocking stream": ("L", ["sync B0"], "N0", True),
    "host code between": ("N0", ["host"], "N1", False),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_what_orders_two_kernels(kata, races, rule):
    first, between, second, ordered = rule
    stream = {
        "L": kata.LEGACY,
        "B0": kata.Blocking(0),
        "B1": kata.Blocking(1),
        "N0": kata.NonBlocking(0),
        "N1": kata.NonBlocking(1),
    }
    make = {
        "launch": lambda name: kata.Launch(stream[name]),
        "record": lambda event, name: kata.Record(event, stream[name]),
        "wait": lambda event, name: kata.Wait(event, stream[name]),
        "sync": lambda name: kata.StreamSync(stream[name]),
        "event": kata.EventSync,
        "device": kata.DeviceSync,
        "host": kata.Host,
    }
    program = [
        kata.Launch(stream[first], writes=("x",)),
        *(make[word](*rest) for word, *rest in map(str.split, between)),
        kata.Launch(stream[second], reads=("x",)),
    ]
    streams = [stream[name] for name in ("B0", "N1", "B1", "N0")]
    assert races(program, streams) == (set() if ordered else {(0, len(program) - 1)})


def test_the_device_has_a_legacy_stream_where_it_has_no_blocking_one(kata, races):
    stream = kata.NonBlocking(0)
    program = [
        kata.Launch(kata.LEGACY, writes=("x",)),
        kata.Launch(stream, reads=("x",)),
        kata.DeviceSync(),
        kata.Launch(stream, reads=("x",)),
    ]
    assert races(program, [stream]) == {(0, 1)}


# ---- the host ------------------------------------------------------------------------------


def test_the_host_touches_what_a_kernel_still_uses(kata, races):
    stream = kata.Blocking(0)
    program = [
        kata.Host(writes=("x",)),  # before the launch: seen by the kernel
        kata.Launch(stream, reads=("x",), writes=("y",)),
        kata.Host(reads=("x",)),  # nobody writes it
        kata.Host(writes=("x",)),
        kata.Host(reads=("y",)),
        kata.StreamSync(stream),
        kata.Host(reads=("y",), writes=("x",)),
    ]
    assert races(program, [stream]) == {(1, 3), (1, 4)}


def test_every_race_is_told_and_not_only_the_last(kata, races):
    a, b, c = streams = [kata.NonBlocking(i) for i in range(3)]
    program = [
        kata.Launch(a, reads=("x",)),
        kata.Launch(a, writes=("x",)),
        kata.Launch(a, writes=("x",)),
        kata.Launch(b, reads=("x",), writes=("x",)),
        kata.Launch(b, reads=("x",)),
        kata.Launch(c, reads=("x",), writes=("y", "x")),
        kata.Host(reads=("y", "x")),
    ]
    found = races(program, streams)
    assert sorted(found) == [
        (0, 3), (0, 5),
        (1, 3), (1, 4), (1, 5), (1, 6),
        (2, 3), (2, 4), (2, 5), (2, 6),
        (3, 5), (3, 6), (4, 5), (5, 6),
    ]  # fmt: skip


def test_programs_without_work_have_no_races(kata, races):
    assert races([], []) == set()
    assert races([], [kata.Blocking(0)]) == set()
    assert races([kata.Launch(kata.LEGACY, ("x",), ("x", "x"))], []) == set()


# ---- how much work -------------------------------------------------------------------------


def test_a_clock_takes_a_few_joins(kata, oracle, seed, cost):
    draw = random.Random(seed)
    start = oracle.CountedClock(limit=100_000)
    parts = [oracle.random_program(kata, draw, 12)[0] for _ in range(200)]
    streams = [kind(i) for kind in (kata.Blocking, kata.NonBlocking) for i in range(2)]
    program = sum(parts, ())
    kata.clocks(program, streams, start)
    cost.check("joins", start.counts["joins"] / len(program))


def test_a_long_program_is_not_compared_pair_by_pair(kata, oracle, cost):
    chunks, missing = 1000, (500, 700)
    start = oracle.CountedClock(limit=200_000)
    program, streams = oracle.copy_pipeline(kata, chunks, 4, missing)
    found = kata.find_races(program, streams, start)
    # copy in and kernel meet what is left of the slot's last chunk: its kernel and its copy out
    copies = [at for at, op in enumerate(program) if getattr(op, "reads", ()) == ("source",)]
    uses = [(copies[chunk - 4], copies[chunk]) for chunk in missing]
    overlaps = [(3, 0), (6, 0), (6, 3)]  # of copy in 0, kernel 3, copy out 6
    assert found == {(last + old, this + new) for last, this in uses for old, new in overlaps}
    accesses = sum(
        len({*op.reads, *op.writes}) for op in program if isinstance(op, kata.Launch | kata.Host)
    )
    cost.check("comparisons", start.counts["comparisons"] / accesses)


def test_a_long_program_takes_a_few_lines_an_operation(kata, oracle, lines, cost):
    program, streams = oracle.copy_pipeline(kata, 250, 4)
    with lines(limit=1_000_000) as counted:
        kata.find_races(program, streams, oracle.CountedClock())
    cost.check("lines", counted.lines / len(program))


# ---- bad input -----------------------------------------------------------------------------


def test_streams_that_do_not_exist_are_refused(kata, oracle):
    start = oracle.CountedClock()
    for op in (
        kata.Launch(kata.NonBlocking(0)),
        kata.Record("e", kata.Blocking(1)),
        kata.Wait("e", kata.Blocking(1)),
        kata.StreamSync(kata.NonBlocking(0)),
        kata.Launch(kata.HOST),
    ):
        for ask in (kata.clocks, kata.find_races):
            with pytest.raises(ValueError, match=r"^program\[1\]: "):
                ask([kata.DeviceSync(), op], [kata.Blocking(0)], start)


def test_streams_named_twice_are_refused(kata, oracle):
    for streams in ([kata.Blocking(3)] * 2, [kata.LEGACY]):
        for ask in (kata.clocks, kata.find_races):
            with pytest.raises(ValueError, match="^streams: "):
                ask([], streams, oracle.CountedClock())
