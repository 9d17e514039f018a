"""Order, ends, wrap-around; the work of all threads and of each; banks and sectors."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda

# numba advises against launches that leave most of a GPU idle: short scans are no harder
pytestmark = pytest.mark.filterwarnings("ignore:Grid size")

SENTINEL = 99


def words(*values):
    return np.array(values, dtype=np.uint32)


def scan(kata, x, *args, **options):
    return kata.blelloch_scan(cuda.to_device(x), *args, **options).copy_to_host()


# ---- what it says --------------------------------------------------------------------------


def test_each_sum_leaves_its_own_word_out(kata):
    assert scan(kata, words(3, 1, 4, 1, 5), block=2).tolist() == [0, 3, 4, 8, 9]


def test_sums_wrap_around(kata):
    # -1, then + 2
    assert scan(kata, words(2**32 - 1, 2, 5), block=2).tolist() == [0, 2**32 - 1, 1]


def test_maps_are_applied_from_left_to_right(kata):
    # t -> 2 t + 1, then t -> 3 t + 5: 3 (2 t + 1) + 5 = 6 t + 8
    maps = words(2 << 16 | 1, 3 << 16 | 5, 0)
    assert scan(kata, maps, "affine", block=2).tolist() == [1 << 16, 2 << 16 | 1, 6 << 16 | 8]


@settings(max_examples=10)
@given(values=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20))
def test_with_its_own_word_each_sum_is_inclusive(kata, values):
    x = words(*values)
    inclusive = scan(kata, x, block=2) + x
    np.testing.assert_array_equal(inclusive, np.cumsum(x, dtype=np.uint32))


# ---- how it gets there ---------------------------------------------------------------------


@pytest.mark.parametrize("order", ["forward", "reversed"])
def test_threads_may_run_in_any_order(kata, oracle, simt, seed, order):
    # two blocks of four warps: with fewer warps only one is at work in the tree
    inputs = oracle.make_inputs(
        n=1100, op="affine", dtype=np.dtype("uint32"), device="cpu", seed=seed, block=128
    )
    with simt(order=order):
        found = kata.blelloch_scan(**inputs)
    np.testing.assert_array_equal(found, oracle.reference(**inputs))


def test_work_grows_with_n_and_is_shared(kata, simt, seed, cost, monkeypatch):
    combines = Counter()

    def counted_xor(x, y, op):
        combines[kata.cuda.grid(1)] += 1
        return x ^ y

    # in place of a sum, with the same identity: whatever is added elsewhere shows
    monkeypatch.setattr(kata, "combine", counted_xor)
    x = np.random.default_rng(seed).integers(2**32, size=2048, dtype=np.uint32)
    with simt():
        found = kata.blelloch_scan(x, block=8)
    expected = np.bitwise_xor.accumulate(x) ^ x
    assert (found == expected).all(), "words are combined by more than calls of `combine`"
    cost.check("combines", combines.total())
    cost.check("combines_of_one_thread", max(combines.values()))


def test_banks_and_sectors(kata, simt, cost):
    x = np.arange(1024, dtype=np.uint32)
    scratch = np.zeros(kata.scratch_size(x.size, 64), dtype=np.uint32)
    out = np.zeros_like(x)
    with simt() as counted:
        found = kata.blelloch_scan(x, out=out, scratch=scratch, block=64)
    np.testing.assert_array_equal(found, np.cumsum(x, dtype=np.uint32) - x)
    stored = counted.of(scratch).store.elements
    assert 0 < stored <= scratch.size, "one thread of a block stores its total, into `scratch`"
    assert counted.of(out).store.elements == x.size, "results are stored once, into `out`"
    assert counted.of(x).load.elements >= x.size, "x is read where it is"
    assert counted.shared_store.elements >= x.size, "words go through shared memory"
    worst = max(counted.shared_load.max_wavefronts, counted.shared_store.max_wavefronts)
    cost.check("bank_conflicts", worst)
    cost.check("load_sectors", counted.global_load.sectors_per_request)
    cost.check("store_sectors", counted.global_store.sectors_per_request)


def test_levels_share_the_scratch(kata, simt):
    # 513, 65, 9, 2 blocks and one: no word is left for a level that begins too late
    x = np.arange(4097, dtype=np.uint32)
    scratch = np.zeros(kata.scratch_size(x.size, 1), dtype=np.uint32)
    with simt() as counted:
        found = kata.blelloch_scan(x, scratch=scratch, block=1)
    np.testing.assert_array_equal(found, np.cumsum(x, dtype=np.uint32) - x)
    most = counted.stores_per_element(scratch).max()
    assert most == 1, "each word of `scratch` is stored once, by one thread"


def test_given_arrays_are_used(kata):
    out = cuda.to_device(np.full(4, SENTINEL, dtype=np.uint32))
    scratch = cuda.to_device(np.full(8, SENTINEL, dtype=np.uint32))
    x = cuda.to_device(words(1, 2, 3))
    first = out[:3]
    assert kata.blelloch_scan(x, out=first, scratch=scratch, block=1) is first
    assert out.copy_to_host().tolist() == [0, 1, 3, SENTINEL]
