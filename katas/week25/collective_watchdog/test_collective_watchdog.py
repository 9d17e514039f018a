"""Who is to blame, by tables and by fleets; what it costs; and real ranks that hang and die."""

import math
import threading
import time

import pytest
import torch
import torch.distributed as dist

from harness.simulators.deaths import Moment, point
from harness.simulators.interruptions import interrupted

LIMIT_S = 20.0  # what a hang costs; nothing else depends on it

SUM = ("all_reduce", (4,), "float32")
GATHER = ("all_gather", (4,), "float32")


# ---- diagnoses ---------------------------------------------------------------------------------


def diagnosed(kata, rows, alive=None):
    """Diagnose rows of (seq, signature, done), rank by rank."""
    records = {rank: kata.Record(seq, *what, done) for rank, (seq, what, done) in enumerate(rows)}
    return tuple(kata.diagnose(records, [*records] if alive is None else alive))


BUSY, DONE = (17, SUM, False), (17, SUM, True)
LAST = (16, SUM, True)  # nothing begun since
TABLE = {
    "one has not come": ([BUSY, BUSY, LAST, BUSY], None, ("missing", (2,), 17)),
    "two have not come": ([LAST, BUSY, LAST, BUSY], None, ("missing", (0, 2), 17)),
    "one alone has come": ([LAST, LAST, BUSY], None, ("missing", (0, 1), 17)),
    "nobody waits, and one is behind": ([DONE, DONE, LAST], None, ("missing", (2,), 17)),
    "one is ahead": ([BUSY, LAST, (19, SUM, False)], None, ("missing", (1,), 17)),
    "one has not begun any": ([(1, SUM, False), (0, SUM, True)], None, ("missing", (1,), 1)),
    "another op": ([BUSY, (17, GATHER, False), BUSY], None, ("mismatch", (1,), 17)),
    "one against one": ([BUSY, (17, GATHER, False)], None, ("mismatch", (0, 1), 17)),
    "two against two, and one": (
        [BUSY, (17, GATHER, False), BUSY, (17, GATHER, False), (17, ("send", (), "int8"), False)],
        None, ("mismatch", (0, 1, 2, 3, 4), 17),
    ),
    "two against one and one": (
        [(17, GATHER, False), BUSY, (17, ("send", (), "int8"), False), BUSY],
        None, ("mismatch", (0, 2), 17),
    ),
    "another op in one that is done": ([DONE, (17, GATHER, True), LAST], None,
                                       ("missing", (2,), 17)),
    "another op later on": ([BUSY, (18, GATHER, False), BUSY], None, ("stuck", (0, 2), 17)),
    "another op, and one has not come": ([BUSY, (17, GATHER, False), LAST, BUSY], None,
                                         ("mismatch", (1,), 17)),
    "all have come": ([BUSY, BUSY], None, ("stuck", (0, 1), 17)),
    "all are done": ([DONE, DONE], None, ("stuck", (), 18)),
    "dead where the others wait": ([BUSY, BUSY, BUSY], [0, 2], ("dead", (1,), 17)),
    "dead before it came": ([BUSY, LAST, BUSY], [0, 2], ("dead", (1,), 17)),
    "dead, last heard of long ago": ([BUSY, (3, GATHER, False)], [0], ("dead", (1,), 17)),
    "dead, and another has not come": ([BUSY, LAST, LAST], [0, 1], ("dead", (2,), 17)),
    "dead, and two disagree": ([BUSY, (17, GATHER, False), LAST], [0, 1], ("dead", (2,), 17)),
    "dead later on than another is missing": ([BUSY, LAST, (18, SUM, False)], [0, 1],
                                              ("missing", (1,), 17)),
    "two dead": ([LAST, BUSY, (9, SUM, True), BUSY], [1, 3], ("dead", (0, 2), 17)),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "alive", "want"), TABLE.values(), ids=TABLE)
def test_who_is_to_blame(kata, rows, alive, want):
    assert diagnosed(kata, rows, alive) == want


def test_who_is_to_blame_in_any_fleet(kata, oracle, seed):
    for at in range(300):
        records, alive, want = oracle.fault(seed + at)
        found = kata.diagnose({r: kata.Record(*one) for r, one in records.items()}, alive)
        assert tuple(found) == want, (
            f"records {records}, alive {alive}: {tuple(found)}, expected {want}"
        )


def test_what_a_rank_publishes(kata, oracle):
    store, gathered = oracle.Store(), ("all_gather", (2, 3), "torch.bfloat16")
    dog = kata.Watchdog(store, 3, 4, timeout_s=9.0, poll_s=1.0, silence_s=9.0)
    dog.poll()
    assert kata.unpack(store.data["3"]) == (1, kata.NOTHING)
    with dog.guard("all_gather", torch.Size([2, 3]), torch.bfloat16):
        dog.poll()
        assert kata.unpack(store.data["3"]) == (2, (1, *gathered, False))
    dog.poll()
    assert kata.unpack(store.data["3"]) == (3, (1, *gathered, True))


# ---- fleets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [2, 3, 4])
def test_all_ranks_name_the_one_that_has_not_come(kata, oracle, seed, world):
    fleet = oracle.Fleet(kata, world, seed=seed)
    fleet.all_do(16)
    late = world - 1
    fleet.begin(set(range(world)) - {late})
    fleet.tick(30)
    assert fleet.verdicts == [("missing", (late,), 17)] * world
    with pytest.raises(kata.CollectiveTimeout) as raised:
        fleet.begin([late])
    assert tuple(raised.value.diagnosis) == ("missing", (late,), 17)
    with pytest.raises(kata.CollectiveTimeout):
        fleet.end([0])


def test_all_ranks_name_the_one_that_does_something_else(kata, oracle, seed):
    others = (
        ("all_gather", (4,), torch.float32), ("all_reduce", (2, 2), torch.float32),
        ("all_reduce", (4,), torch.float64),
    )  # fmt: skip
    for other in others:
        fleet = oracle.Fleet(kata, 3, seed=seed)
        fleet.tick(3)
        fleet.begin([0, 2], "all_reduce", [4], torch.float32)  # of a torch.Size or a list
        fleet.begin([1], other[0], [*other[1]], other[2])
        fleet.tick(30)
        assert fleet.verdicts == [("mismatch", (1,), 1)] * 3, f"all_reduce (4,) float32, {other}"


def test_the_dead_are_named(kata, oracle, seed):
    fleet = oracle.Fleet(kata, 4, seed=seed)
    fleet.all_do(5)
    fleet.tick(2)
    fleet.living -= {1}
    fleet.begin(fleet.living)
    fleet.tick(30)
    del fleet.dogs[1]
    assert fleet.verdicts == [("dead", (1,), 6)] * 3
    # who has never given a sign of life
    fleet = oracle.Fleet(kata, 3, seed=seed)
    fleet.living -= {2}
    fleet.begin(fleet.living)
    fleet.tick(30)
    assert fleet.verdicts == [("dead", (2,), 1)] * 2 + [None]
    # who comes back is told at once, though nobody else polls any more
    fleet.living |= {2}
    fleet.tick()
    assert fleet.verdicts == [("dead", (2,), 1)] * 3


def test_who_is_silent_for_a_while_is_not_dead(kata, oracle, seed):
    """Silence counts from the moment that somebody listens, on his own clock."""
    fleet = oracle.Fleet(kata, 3, seed=seed, silence_s=8.0)
    fleet.begin([0, 1])
    fleet.living -= {2}
    fleet.tick(16)  # alarm at 10, first looks then or at 11
    assert fleet.verdicts == [None] * 3
    fleet.living |= {2}
    fleet.tick(3)
    assert fleet.verdicts == [("missing", (2,), 1)] * 3


@pytest.mark.parametrize("before", [0, 1, 5])
def test_a_sign_of_life_after_the_first_look_is_enough(kata, oracle, before):
    fleet = oracle.Fleet(kata, 3)
    fleet.begin([0])
    for rank in (1, 2):
        for _ in range(before):
            fleet.dogs[rank].poll()
    fleet.now = 10.0
    fleet.dogs[0].poll()
    for rank in (1, 2):  # one at a time
        assert fleet.verdicts[0] is None, f"before a beat of rank {rank}"
        if rank == 1:
            fleet.begin([1])
        fleet.now += 1.0
        fleet.dogs[rank].poll()
        fleet.dogs[0].poll()
    assert fleet.verdicts[0] == ("missing", (2,), 1), (
        f"{before} beats each of ranks 1 and 2, rank 0's first look after 10 s, then rank 1 comes; "
        "a beat of rank 1 after 11 s, one of rank 2 after 12 s"
    )


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_a_collective_that_was_given_up_causes_no_alarm(kata, oracle, error):
    fleet = oracle.Fleet(kata, 2)
    with pytest.raises(error), fleet.dogs[0].guard(*SUM):
        raise error("of something else")
    fleet.tick(40)
    assert "alarm" not in fleet.store.data, f"40 s after it, in the store: {fleet.store.data}"
    # the record is still there: the collective was never done
    fleet.begin([1])
    fleet.tick(30)
    assert fleet.verdicts == [("stuck", (0, 1), 1)] * 2
    # it passes through where there is a verdict, too
    assert not fleet.open.pop(1).__exit__(error, error("of something else"), None)


def test_silence_has_an_end(kata, oracle):
    for first in (10, 100):  # at once, or by a thread that has been held up
        fleet = oracle.Fleet(kata, 2, silence_s=5.0)
        fleet.living = {1}
        fleet.begin([1])
        fleet.now = first - 1.0
        fleet.tick(5)
        assert fleet.verdicts[1] is None, f"a first look after {first} s, 4 s of silence"
        fleet.tick()
        assert fleet.verdicts[1] == ("dead", (0,), 1), (
            f"a first look after {first} s, 5 s of silence"
        )


def test_groups_do_not_mix(kata, oracle, seed):
    for polled, late in ((90, 0), (0, 2)):  # the second has its beats from 1 on
        fleet = oracle.Fleet(kata, 3, seed=seed)
        fleet.tick(polled)
        fleet.begin({0, 1, 2} - {late})
        fleet.tick(30)
        assert fleet.verdicts == [("missing", (late,), 1)] * 3
    fleet = oracle.Fleet(kata, 2, seed=seed)
    fleet.tick(40)
    fleet.living = {0}
    fleet.begin([0])
    fleet.tick(30)
    assert fleet.verdicts[0] == ("dead", (1,), 1)


def test_slow_ones_are_left_in_peace(kata, oracle, seed):
    fleet = oracle.Fleet(kata, 3, seed=seed)
    for late in (0, 2, 1):
        fleet.begin({0, 1, 2} - {late})
        fleet.tick(9)
        fleet.begin([late])
        fleet.end([0, 1, 2])
    fleet.tick(40)  # between collectives, for as long as they like
    fleet.all_do(1)
    assert fleet.verdicts == [None] * 3
    assert "alarm" not in fleet.store.data, f"in the store: {fleet.store.data}"


def test_a_poll_may_come_at_any_moment(kata, oracle):
    """The thread's turn comes between any two instructions of a guard."""
    for at in range(1, 151):
        store, now = oracle.Store(), [0.0]
        dog = kata.Watchdog(
            store, 0, 2, timeout_s=10.0, poll_s=1.0, silence_s=5.0, clock=lambda now=now: now[0]
        )

        def collective(dog=dog):
            with dog.guard(*SUM):
                pass

        collective()
        now[0] = 100.0  # a long time after the first, and no time passes within the second
        interrupted(collective, kata.__file__, at, dog.poll)
        dog.poll()
        assert "alarm" not in store.data, (
            f"a poll at instruction {at} of a guard that takes no time, 100 s after another: in "
            f"the store {store.data}, expected no alarm"
        )


def test_nothing_is_sent_for_a_collective(kata, oracle, cost):
    fleet = oracle.Fleet(kata, 1)
    for _ in range(20):
        fleet.all_do(100)
        fleet.tick()
    assert fleet.verdicts == [None]
    assert fleet.store.calls["get"] == 0, f"calls of the store: {fleet.store.calls}"
    cost.check("store", fleet.store.accesses / 20)


def test_it_does_not_take_long(kata, oracle, cost, seed):
    late = []
    for at in range(5):
        fleet = oracle.Fleet(kata, 4, seed=seed + at)
        fleet.now = 0.5
        fleet.begin([0, 1, 3])
        while None in fleet.verdicts and fleet.now < 50:
            fleet.tick()
        late.append(fleet.now - 0.5)
    cost.check("latency", max(late))


def test_there_is_one_verdict(kata, oracle, seed):
    """Who comes to another one, because it looked later or at the same time, takes the first."""

    class Contended(oracle.Store):
        def compare_set(self, key, expected, desired):
            self.data.setdefault(key, kata.pack_verdict(first).encode())
            return super().compare_set(key, expected, desired)

    first = kata.Diagnosis("missing", (2,), 1)
    fleet = oracle.Fleet(kata, 3, seed=seed, store=Contended())
    fleet.begin([0])  # of which each by itself would say that ranks 1 and 2 are missing
    fleet.tick(20)
    assert fleet.verdicts == [tuple(first)] * 3
    before = fleet.store.accesses
    fleet.tick(5)
    assert fleet.store.accesses == before, "polls that follow the verdict: expected no more calls"


# ---- the thread --------------------------------------------------------------------------------


def test_an_error_of_the_collective_is_explained(kata, oracle):
    threads = threading.active_count()
    options = {"timeout_s": 1e9, "poll_s": 0.002, "silence_s": 1e9}
    callers = set()

    class Watched(oracle.Store):
        def set(self, key, value):
            callers.add(threading.current_thread())
            super().set(key, value)

    store = Watched()
    watchdog = kata.Watchdog(store, 0, 1, **options)
    assert threading.active_count() == threads, "the constructor has started a thread"
    assert store.accesses == 0, f"the constructor has called the store: {store.calls}"
    with watchdog as dog:
        assert dog is watchdog
        callers.clear()
        with dog.guard(*SUM):
            pass
        with pytest.raises(kata.CollectiveTimeout) as raised, dog.guard(*SUM):
            raise RuntimeError("connection closed by peer")
        assert tuple(raised.value.diagnosis) == ("stuck", (0,), 2)
        assert str(raised.value.__cause__) == "connection closed by peer"
        assert threading.main_thread() not in callers, "a guard has called the store"
    assert threading.active_count() == threads, "threads after the block: expected as before"
    with kata.Watchdog(oracle.Store(), 0, 1, **options) as dog:
        with pytest.raises(KeyError), dog.guard(*SUM):
            raise KeyError("of something else")
        assert dog.verdict is None


def work_until_told(kata, store, rank, world, *, clock, sleeps=None, **options):
    """
    Sum up 40 times; return the step of the verdict, and it.

    The rank `sleeps` does not begin the sixth; the others let `clock` go when all of them have.
    """
    with kata.Watchdog(store, rank, world, poll_s=0.02, clock=clock, **options) as dog:
        for step in range(1, 41):
            point(f"step {step}")
            last = step == 6 and sleeps is not None
            while last and rank == sleeps and dog.verdict is None:
                time.sleep(0.01)
            numbers = torch.ones(4)
            try:
                with dog.guard("all_reduce", numbers.shape, numbers.dtype):
                    work = dist.all_reduce(numbers, async_op=True)
                    if last:
                        store.add("begun", 1)
                        while store.add("begun", 0) < world - 1:
                            time.sleep(0.001)
                        clock.go()
                    kata.finish(work, dog)
            except kata.CollectiveTimeout as error:
                return step, tuple(error.diagnosis)
            assert numbers.tolist() == [world] * 4
    return None


def test_a_hung_rank_is_named_by_all(kata, oracle, ranks, tmp_path):
    def job(rank, world):
        store = dist.FileStore(str(tmp_path / "watchdog"), world)
        return work_until_told(
            kata, store, rank, world, clock=oracle.Clock(), sleeps=2, timeout_s=5.0, silence_s=1e9
        )

    if ranks.device != "cpu":
        pytest.skip("the collectives here are gloo's")
    found = ranks(3, job, timeout_s=LIMIT_S)
    assert found == [(6, ("missing", (2,), 6))] * 3


def test_a_killed_rank_is_named_by_the_others(kata, oracle, ranks, tmp_path):
    def job(rank, world):
        store = dist.FileStore(str(tmp_path / "watchdog"), world)
        clock = oracle.Rounds(kata, store, (0, 2))
        return work_until_told(
            kata, store, rank, world, clock=clock, timeout_s=500.0, silence_s=20.0
        )

    if ranks.device != "cpu":
        pytest.skip("the collectives here are gloo's")
    ends = ranks.ends(3, job, dies={1: Moment("step 6")}, timeout_s=LIMIT_S)
    for end in ends:
        if end.error is not None:
            raise end.error
    assert ends[1].killed
    for rank in (0, 2):
        step, verdict = ends[rank].value
        # what was sent at step 5 may have been lost with the connection
        assert verdict in (("dead", (1,), 5), ("dead", (1,), 6)), f"rank {rank}, step {step}"
    assert ends[0].value[1] == ends[2].value[1]


# ---- what is refused ---------------------------------------------------------------------------

FINE = {"rank": 0, "world": 2, "timeout_s": 3.0, "poll_s": 1.0, "silence_s": 2.0}
REFUSED = {
    "no ranks": {"world": 0}, "a rank too many": {"rank": 2}, "a rank below 0": {"rank": -1},
    "no time between polls": {"poll_s": 0.0}, "a timeout of one poll": {"timeout_s": 1.0},
    "a silence of one poll": {"silence_s": 1.0}, "a timeout of NaN": {"timeout_s": math.nan},
    "a silence of NaN": {"silence_s": math.nan},
}  # fmt: skip


@pytest.mark.parametrize("given", REFUSED.values(), ids=REFUSED)
def test_what_is_refused(kata, oracle, given):
    with pytest.raises(ValueError, match=f"^{next(iter(given))}: "):
        kata.Watchdog(oracle.Store(), **FINE | given)
