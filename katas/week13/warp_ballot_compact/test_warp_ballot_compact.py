"""What is kept, in which order, and what it takes: distinct values, so that places show."""

import math

import numpy as np
import pytest
from numba import cuda

# numba advises against launches that leave most of a GPU idle, and against arrays of the host: a
# few elements are no harder
pytestmark = [pytest.mark.filterwarnings(f"ignore:{what}") for what in ("Grid size", "Host array")]

INF, NAN = math.inf, math.nan
GROUP = 32


def keeping(n, places):
    """1, 2, 3 … at these places, and negative numbers elsewhere."""
    x = -np.arange(1, n + 1, dtype=np.float32)
    places = list(places)
    x[places] = np.arange(1, len(places) + 1)
    return x


def assert_compacted(kata, x, threshold=0.0, **options):
    """Fail unless just the right elements are there, each group's together and in order."""
    options = {"block": 32, **options}
    found = kata.warp_ballot_compact(x, threshold, **options).tolist()
    kept = [x[at : at + GROUP] for at in range(0, len(x), GROUP)]
    kept = [group[group > np.float32(threshold)].tolist() for group in kept]
    shown = f"{len(x)} elements, block = {options['block']}"
    expected = sorted(value for group in kept for value in group)
    assert sorted(found) == expected, f"{shown}: expected the values {expected}, found {found}"
    for number, group in enumerate(kept):
        if group:
            at = found.index(group[0])
            stretch = found[at : at + len(group)]
            assert stretch == group, f"{shown}: group {number}: expected {group}, found {stretch}"


PLACES = {
    "the last lane": (96, [31, 63, 95]),
    "lane 0": (96, [0, 32, 64]),
    "one lane of a warp in the middle": (2000, [1037]),
    "neighbours across groups": (100, [31, 32, 63, 64]),
    "every other": (130, range(1, 130, 2)),
    "all of one group": (96, range(32, 64)),
    "all": (70, range(70)),
    "none": (70, []),
    "the last element": (65, [64]),
    "all but the first and the last": (64, range(1, 63)),
}


@pytest.mark.parametrize(("n", "places"), PLACES.values(), ids=PLACES)
def test_groups_stay_together_and_in_order(kata, n, places):
    assert_compacted(kata, keeping(n, places))


# one warp; several; more threads than elements; the largest block
@pytest.mark.parametrize(("n", "block"), [(1, 32), (1500, 32), (700, 96), (33, 1024)])
def test_random_elements_in_blocks_of_any_size(kata, seed, n, block):
    generator = np.random.default_rng(seed)
    assert_compacted(kata, keeping(n, np.flatnonzero(generator.random(n) < 0.4)), block=block)


@pytest.mark.parametrize("order", ["reversed", "random"])
def test_threads_may_run_in_any_order(kata, simt, seed, order):
    x = keeping(1300, np.flatnonzero(np.random.default_rng(seed).random(1300) < 0.3))
    with simt(order=order, seed=seed):
        assert_compacted(kata, x, block=64)


THRESHOLDS = {
    "equal is not above": ([1.0, 2.0, 3.0], 2.0, [3.0]),
    "NaN is never above": ([NAN, 1.0, NAN], 0.0, [1.0]),
    "NaN is not above -inf": ([NAN, -INF, -3e38], -INF, [-3e38]),
    "inf is above all numbers": ([INF, 3.4e38, -INF], 3.3e38, [INF, 3.4e38]),
    "nothing is above inf": ([INF, 3.4e38, NAN], INF, []),
    "the zeros are equal": ([0.0, -0.0, 1e-40, -1e-40], -0.0, [1e-40]),
    "below zero": ([-3.0, -1.0, -2.0], -2.5, [-1.0, -2.0]),
    "a threshold that float32 rounds up": ([0.1, 0.2], 0.1, [0.2]),
    "a threshold past float32": ([3.4e38, 1.0], 1e300, []),
}


@pytest.mark.parametrize(("values", "threshold", "kept"), THRESHOLDS.values(), ids=THRESHOLDS)
def test_above_means_above(kata, values, threshold, kept):
    # unlike Python's, a float64 of NumPy is compared as one also where there is no GPU
    x, threshold = np.array(values, dtype=np.float32), np.float64(threshold)
    found = kata.warp_ballot_compact(x, threshold, block=32)
    assert found.tolist() == np.array(kept, dtype=np.float32).tolist()


def test_what_is_kept_stays_as_it_is(kata):
    # -0.0 and numbers too small to be normal, which arithmetic might have changed
    x = np.array([-0.0, 0.0, 1e-45, -1e-45, -1e-40], dtype=np.float32)
    found = kata.warp_ballot_compact(x, -1.0, block=32)
    assert found.view(np.int32).tolist() == x.view(np.int32).tolist(), (
        f"{x}, all kept: found {found}, which has other bits"
    )


def test_groups_that_keep_nothing_need_no_atomic(kata, simt, cost):
    # the first warp's and the last one's element, and none of those between
    x = keeping(6000, [5, 5990])
    with simt() as counted:
        found = kata.warp_ballot_compact(x, 0.0, block=32)
    assert sorted(found.tolist()) == [1, 2]
    cost.check("atomics_per_group", counted.global_atomics / 2)
    loaded = counted.of(x).load.elements
    assert loaded == 6000, f"x is read where it is, each element once: {loaded} loads of 6000"
    cost.check("sectors_per_load", counted.of(x).load.full_sectors_per_request)


def test_a_group_takes_one_atomic_and_no_shared_memory(kata, simt, cost):
    x = keeping(1024, range(1024))
    with simt() as counted:
        assert_compacted(kata, x, block=64)
    cost.check("atomics_per_group", counted.global_atomics / 32)
    cost.check("shared_bytes", counted.shared_bytes)
    stored = counted.global_store.elements
    assert stored == 1024, f"what is kept is stored once: {stored} stores of 1024 elements"


def test_a_given_array_is_used_and_not_past_its_front(kata):
    x, out = keeping(100, range(40, 70)), np.full(120, -99, dtype=np.float32)
    found = kata.warp_ballot_compact(x, 0.0, out=out, block=32)
    assert found.size == 30
    assert np.shares_memory(found, out), "the front of out is returned"
    assert sorted(out[:30].tolist()) == list(range(1, 31))
    assert out[30:].tolist() == [-99] * 90


def test_elements_may_lie_apart(kata, simt):
    x = cuda.to_device(np.arange(-20, 60, dtype=np.float32))[::2]
    with simt() as counted:
        found = kata.warp_ballot_compact(x, 9.0, block=32).copy_to_host()
    assert sorted(found.tolist()) == list(range(10, 60, 2))
    loaded = counted.of(x).load.elements
    assert loaded == 40, f"x is read where it is: {loaded} loads of 40 elements"


def test_of_no_elements_none_are_kept(kata):
    found = kata.warp_ballot_compact(np.empty(0, np.float32), 0.0, np.ones(3, np.float32))
    assert found.tolist() == []


def test_a_block_has_the_threads_asked_for(kata, simt):
    for block in (32, 96, 1024):
        with simt() as counted:
            kata.warp_ballot_compact(np.ones(40, dtype=np.float32), 0.0, block=block)
        assert block in counted.extents, f"block = {block}: expected blocks of so many threads"


def test_every_call_counts_from_zero(kata):
    for places in ([3, 4], [60], range(64)):
        assert_compacted(kata, keeping(64, places))
