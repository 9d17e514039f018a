"""Order, overlap and bounds by counting; errors and leavers leave nothing; a virtual clock."""

import gc
import itertools
import threading
import time
from fractions import Fraction

import pytest

pytestmark = pytest.mark.timeout(15)  # who waits for what never comes is told so, in each test

# ---- a pipeline ----------------------------------------------------------------------------


def test_items_come_in_order_whatever_order_they_end_in(kata, oracle):
    fetch = oracle.Fetch(held=range(4))
    iterator = iter(kata.PrefetchLoader(fetch, range(6), 4, 4))

    def backwards():
        for index in (3, 2, 1, 0):
            fetch.release(index)
            oracle.until(lambda index=index: index in fetch.ended)

    releaser = threading.Thread(target=backwards)
    releaser.start()
    found = list(iterator)
    releaser.join()
    assert found == [0, 1, 4, 9, 16, 25], f"expected squares in order, found {found}"


@pytest.mark.parametrize(("workers", "depth"), [(1, 1), (3, 1), (1, 5), (4, 4), (9, 3)])
@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_every_item_comes_once(kata, oracle, workers, depth, n):
    fetch = oracle.Fetch()
    found = list(kata.PrefetchLoader(fetch, range(n), workers, depth))
    assert found == [i * i for i in range(n)]
    assert sorted(fetch.begun) == list(range(n))


def test_workers_fetch_at_the_same_time(kata):
    together = threading.Barrier(3)

    def fetch(index):
        together.wait(10)
        return index

    found = list(kata.PrefetchLoader(fetch, range(9), 3, 3))
    assert found == list(range(9))


def test_no_more_than_the_workers_fetch_at_a_time(kata):
    lock, now, most = threading.Lock(), 0, 0

    def fetch(_):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.002)
        with lock:
            now -= 1

    list(kata.PrefetchLoader(fetch, range(12), 2, 8))
    assert most <= 2, f"2 workers, depth 8: expected at most 2 at a time, found {most}"


@pytest.mark.parametrize(("workers", "depth"), [(2, 1), (2, 3), (4, 4)])
def test_depth_items_are_fetched_while_one_is_used(kata, oracle, workers, depth):
    fetch, n = oracle.Fetch(), 12
    iterator = iter(kata.PrefetchLoader(fetch, range(n), workers, depth))
    for asked in range(1, n + 1):
        next(iterator)
        expected = min(n, asked + depth)
        assert oracle.until(lambda expected=expected: len(fetch.begun) >= expected, 5), (
            f"depth {depth}, the consumer uses item {asked - 1}: expected {expected} fetches "
            f"begun, found {len(fetch.begun)}"
        )
        time.sleep(0.002)
        begun = len(fetch.begun)
        assert begun == expected, (
            f"depth {depth}, the consumer uses item {asked - 1}: expected {expected} fetches "
            f"begun, found {begun}"
        )


def test_indices_are_not_read_further_than_needed(kata, oracle):
    read = []
    source = (read.append(index) or index for index in range(1000))
    with kata.PrefetchLoader(oracle.Fetch(), source, 2, 3) as loader:
        found = list(itertools.islice(loader, 5))
    assert found == [0, 1, 4, 9, 16]
    assert len(read) <= 8, f"5 items, depth 3: expected at most 8 indices read, found {len(read)}"


def test_nothing_is_fetched_before_the_first_item_is_asked_for(kata, oracle):
    fetch = oracle.Fetch()
    before = threading.enumerate()
    with kata.PrefetchLoader(fetch, range(5), 2, 2) as loader:
        epoch = iter(loader)
        time.sleep(0.005)
        assert (fetch.begun, oracle.others(before)) == ([], [])
    assert list(epoch) == []
    assert oracle.others(before) == []


def test_any_index_and_any_item(kata):
    items = {"a": None, "b": ValueError("an item"), (1, 2): StopIteration, "c": False}
    indices = ["a", "b", "a", (1, 2), "c", "a"]
    found = list(kata.PrefetchLoader(items.__getitem__, indices, 2, 2))
    expected = [items[index] for index in indices]
    assert found == expected, f"indices {indices}: expected {expected}, found {found}"


def test_every_epoch_begins_anew(kata, oracle):
    before = threading.enumerate()
    indices = [3, 1, 2]
    loader = kata.PrefetchLoader(oracle.Fetch(), indices, 2, 2)
    assert list(loader) == [9, 1, 4]
    indices.reverse()
    assert list(loader) == [4, 1, 9]
    first, second = iter(loader), iter(loader)
    assert [next(first), next(second), next(first), next(second)] == [4, 4, 1, 1]
    loader.close()
    left = oracle.others(before)
    assert left == [], f"closed with two epochs under way: expected no thread, found {left}"
    assert [list(first), list(second)] == [[], []]


# ---- errors and leavers --------------------------------------------------------------------


class Quit(BaseException):
    """What no `except Exception` catches."""


@pytest.mark.parametrize("error", [KeyError("row 3"), Quit("now")], ids=["KeyError", "Quit"])
@pytest.mark.parametrize("workers", [1, 3])
def test_an_error_is_raised_at_its_place(kata, oracle, error, workers):
    before = threading.enumerate()
    begun = []

    def fetch(index):
        begun.append(index)
        if index >= 3:
            raise error if index == 3 else OSError(f"later: {index}")
        return index

    iterator = iter(kata.PrefetchLoader(fetch, range(50), workers, 4))
    assert [next(iterator) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(type(error)) as caught:
        next(iterator)
    assert caught.value is error
    assert oracle.others(before) == []
    assert max(begun) <= 6, f"fetch(3) failed, depth 4: expected none past 6, found {max(begun)}"
    assert list(iterator) == []


def test_a_stop_iteration_does_not_end_the_epoch(kata):
    def fetch(index):
        if index == 1:
            raise StopIteration("a broken reader")
        return index

    iterator = iter(kata.PrefetchLoader(fetch, range(5), 2, 2))
    assert next(iterator) == 0
    with pytest.raises(RuntimeError) as caught:
        next(iterator)
    assert isinstance(caught.value.__cause__, StopIteration)


def test_an_error_of_the_indices_leaves_no_thread(kata, oracle):
    before = threading.enumerate()

    def indices():
        yield from (0, 1, 2)
        raise OSError("the list of files is gone")

    found, epoch = [], iter(kata.PrefetchLoader(oracle.Fetch(), indices(), 2, 2))
    with pytest.raises(OSError, match="list of files"):
        found.extend(epoch)  # what comes before the error stays
    assert found == [0], f"0, 1, 2, an error; depth 2: expected [0] before the error, found {found}"
    assert oracle.others(before) == []


def test_who_breaks_off_leaves_no_thread(kata, oracle):
    before = threading.enumerate()
    loader = kata.PrefetchLoader(oracle.Fetch(), range(100), 2, 3)
    for item in loader:
        assert item == 0
        break
    gc.collect()
    left = oracle.others(before)
    assert left == [], f"a for loop was left by break: expected no thread, found {left}"
    assert list(loader)[:3] == [0, 1, 4]


def test_no_thread_is_left_when_all_items_have_come(kata, oracle):
    before = threading.enumerate()
    loader = kata.PrefetchLoader(oracle.Fetch(), range(9), 3, 4)
    list(loader)
    assert oracle.others(before) == []


@pytest.mark.parametrize("leave", ["with", "close", "iterator.close", "error"])
def test_who_leaves_early_leaves_nothing(kata, oracle, leave):
    before = threading.enumerate()
    fetch = oracle.Fetch(held=[1])
    loader = kata.PrefetchLoader(fetch, range(100), 1, 5)
    iterator = iter(loader)
    assert next(iterator) == 0
    assert oracle.until(lambda: 1 in fetch.begun)
    later = threading.Timer(0.02, fetch.release, [1])
    later.start()
    if leave == "with":
        with loader:
            pass
    elif leave == "error":
        with pytest.raises(KeyError, match="mine"), loader:
            raise KeyError("mine")
    else:
        (loader if leave == "close" else iterator).close()
    later.join()
    left = oracle.others(before)
    assert left == [], f"left by {leave}: expected no thread, found {left}"
    assert fetch.begun == [0, 1], f"left by {leave}: expected 0 and 1 begun, found {fetch.begun}"
    assert list(iterator) == []


def test_a_closed_loader_begins_no_epoch(kata, oracle):
    with kata.PrefetchLoader(oracle.Fetch(), range(3), 1, 1) as loader:
        assert isinstance(loader, kata.PrefetchLoader)
        assert list(loader) == [0, 1, 4]
    with pytest.raises(RuntimeError):
        iter(loader)
    loader.close()


# ---- how many workers ----------------------------------------------------------------------

TRACES = {
    "one item": ([4], 2, 1, 1, Fraction(4, 6)),
    "as fast as used": ([2] * 10, 2, 1, 2, Fraction(2, 22)),
    "one worker, slow": ([6] * 10, 2, 1, 4, Fraction(42, 62)),
    "three workers": ([6] * 10, 2, 3, 4, Fraction(6, 26)),
    "one ahead": ([6] * 10, 2, 3, 1, Fraction(42, 62)),
    "no time at all": ([0] * 5, 2, 1, 1, Fraction(0)),
    "one straggler": ([2, 2, 2, 20, 2, 2, 2, 2], 2, 2, 2, None),
}


@pytest.mark.parametrize("example", TRACES.values(), ids=TRACES)
def test_stalls_are_those_of_the_clock(kata, oracle, example):
    load, step, workers, depth, share = example
    total = oracle.ticks(load, step, workers, depth)
    expected = 1 - Fraction(len(load) * step, total)
    assert share in (None, expected)
    found = kata.stall_share(load, step, workers, depth)
    assert found == pytest.approx(float(expected), abs=1e-12), (
        f"loads {load}, step {step}, {workers} workers, depth {depth}: expected {expected}, "
        f"found {found}"
    )


def test_stalls_of_any_trace(kata, oracle, seed):
    for trial in range(40):
        load = oracle.trace(seed + trial, 15, mean=trial % 9, jitter=6)
        step, workers, depth = 1 + trial % 4, 1 + trial % 5, 1 + trial % 7
        total = oracle.ticks(load, step, workers, depth)
        found = kata.stall_share(load, step, workers, depth)
        assert found == pytest.approx(1 - len(load) * step / total, abs=1e-12), (
            f"loads {load}, step {step}, {workers} workers, depth {depth}: expected "
            f"{1 - len(load) * step / total}, found {found}"
        )


def test_one_worker_fewer_would_be_too_few(kata, oracle, seed):
    for trial, max_stall in enumerate([0.05, 0.1, 0.3, 0.6, 0.9] * 2):
        load = oracle.trace(seed + trial, 60, mean=7, jitter=trial % 6)
        stalls = [1 - 60 * 2 / oracle.ticks(load, 2, workers, 9) for workers in range(1, 10)]
        enough = [at for at, stall in enumerate(stalls, 1) if stall <= max_stall]
        expected = enough[0] if enough else None
        found = kata.workers_needed(load, 2, 9, max_stall)
        assert found == expected, (
            f"loads {load}, step 2, depth 9, max_stall {max_stall}: expected {expected}, "
            f"found {found}; stalls with 1, 2, … workers: {stalls}"
        )


@pytest.mark.parametrize(
    ("load", "depth", "max_stall", "expected"),
    [
        ([4], 3, 0.75, 1),  # 4 of 8 s: half of the time whatever is done
        ([4], 3, 0.5, 1),
        ([4], 3, 0.49, None),
        ([0] * 4, 3, 0.0, 1),
        ([16] * 64, 1, 0.85, 1),
        ([16] * 64, 2, 0.5, None),
        ([8, 0, 0, 8], 1, 0.5, 1),
    ],
)  # fmt: skip
def test_the_share_itself_is_allowed(kata, load, depth, max_stall, expected):
    found = kata.workers_needed(load, 4.0, depth, max_stall)
    assert found == expected, (
        f"loads {load}, step 4, depth {depth}, max_stall {max_stall}: expected {expected}, "
        f"found {found}"
    )


def test_worker_counts_are_not_tried_one_by_one(kata, oracle, calls, cost, seed):
    load = oracle.trace(seed, 600, mean=150, jitter=30)
    asked = calls("stall_share", limit=400)
    found = kata.workers_needed(load, 2, 256, 0.2)
    tried = asked.calls
    assert kata.stall_share(load, 2, found, 256) <= 0.2 < kata.stall_share(load, 2, found - 1, 256)
    cost.check("tried", tried)


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("workers", lambda kata: kata.PrefetchLoader(abs, [1], 0, 1)),
        ("depth", lambda kata: kata.PrefetchLoader(abs, [1], 1, 0)),
        ("load_s", lambda kata: kata.stall_share([], 1.0, 1, 1)),
        ("load_s", lambda kata: kata.stall_share([1.0, -0.1], 1.0, 1, 1)),
        ("step_s", lambda kata: kata.stall_share([1.0], 0.0, 1, 1)),
        ("workers", lambda kata: kata.stall_share([1.0], 1.0, 0, 1)),
        ("depth", lambda kata: kata.stall_share([1.0], 1.0, 1, 0)),
        ("load_s", lambda kata: kata.workers_needed([], 1.0, 1)),
        ("step_s", lambda kata: kata.workers_needed([1.0], -1.0, 1)),
        ("depth", lambda kata: kata.workers_needed([1.0], 1.0, 0)),
        ("max_stall", lambda kata: kata.workers_needed([1.0], 1.0, 1, 1.0)),
        ("max_stall", lambda kata: kata.workers_needed([1.0], 1.0, 1, -0.1)),
    ],
    ids=[
        "no workers", "no depth", "no items", "negative load", "step of 0", "stalls, no workers",
        "stalls, no depth", "needed, no items", "needed, negative step", "needed, no depth",
        "stalls always", "stalls less than never",
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(kata, name, ask):
    with pytest.raises(ValueError, match=f"^{name}: "):
        ask(kata)
