"""Keys that order as floats do; ties, zeros, NaN and infinities; what a row costs to read."""

import math

import numpy as np
import pytest
from numba import cuda

# numba advises against launches that leave most of a GPU idle, and against arrays of the host: a
# few rows are no harder
pytestmark = [pytest.mark.filterwarnings(f"ignore:{what}") for what in ("Grid size", "Host array")]

INF, NAN = math.inf, math.nan


@pytest.fixture
def keys(kata):
    """`float_key` of each float32, through its bits."""
    function = kata.float_key

    @cuda.jit
    def kernel(bits, found):
        at = cuda.grid(1)
        if at < bits.size:
            found[at] = function(bits[at])

    def run(values):
        bits = np.asarray(values, dtype=np.float32).view(np.uint32).astype(np.int64)
        found = np.full(bits.size, -99, dtype=np.int64)
        kernel[-(-bits.size // 32), 32](bits, found)
        return found

    return run


def row_of(values, vocab, others=-5.0):
    """A row that holds these values at these places."""
    x = np.full((1, vocab), others, dtype=np.float32)
    for place, value in values.items():
        x[0, place] = value
    return x


def assert_selected(kata, x, k, expected, block=32):
    """Fail unless just these columns are taken from one row, with what stands there."""
    x = np.asarray(x, dtype=np.float32).reshape(1, -1)
    values, indices = kata.radix_topk(x, k, block=block)
    line = x[0].tolist()
    shown = line if len(line) <= 8 else f"{line[:6]} … ({len(line)} elements)"
    given = f"k = {k}, block = {block}, {shown}"
    expected = list(expected)
    off = np.flatnonzero(indices[0] != expected)
    assert off.size == 0, (
        f"{given}: at place {off[0]} of the result: expected column {expected[off[0]]}, "
        f"found {indices[0, off[0]]}"
    )
    want = x[0, expected]
    off = np.flatnonzero(values.view(np.int32)[0] != want.view(np.int32))
    assert off.size == 0, (
        f"{given}: at place {off[0]} of the result: expected {want[off[0]]}, to the bit, "
        f"found {values[0, off[0]]}"
    )


# ---- keys --------------------------------------------------------------------------------------

ASCENDING = [
    *(-INF, -3.4028235e38, -2.0, np.nextafter(np.float32(-1), np.float32(-2)), -1.0, -1e-30),
    *(-1e-45, 0.0, 1e-45, 1e-40, 1.1754944e-38, 1e-30, 1.0, np.nextafter(np.float32(1), 2)),
    *(2.0, 3.4028235e38, INF),
]


def test_keys_ascend_with_the_floats(keys, seed):
    with np.errstate(over="ignore"):
        random = np.random.default_rng(seed).standard_cauchy(60) ** 9
        floats = np.unique(np.float32([*ASCENDING, *random]))
    found = keys(floats)
    wrong = np.flatnonzero(np.diff(found) <= 0)
    assert wrong.size == 0, (
        f"{floats[wrong[0]]} < {floats[wrong[0] + 1]}: expected ascending keys, "
        f"found {found[wrong[0]]} and {found[wrong[0] + 1]}"
    )
    assert found.min() >= 0, f"expected keys from 0 on, found {found.min()}"
    assert found.max() < 2**32, f"expected keys below 2^32, found {found.max()}"


def test_both_zeros_have_one_key(keys):
    zeros = keys([-0.0, 0.0])
    assert zeros[0] == zeros[1]


def test_every_nan_has_the_largest_key(keys):
    odd = np.array([0x7F800001, 0xFF800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    found = keys([NAN, -NAN, *odd])
    assert found.tolist() == [2**32 - 1] * 5
    assert keys([INF])[0] < 2**32 - 1


# ---- what is taken -----------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3, 6])
def test_negative_numbers_are_in_order(kata, k):
    x = [-4.0, -1.0, -6.0, -2.0, -5.0, -3.0]
    assert_selected(kata, x, k, sorted(np.argsort(x)[::-1][:k].tolist()))


# ties within a warp's load, across them, across two warps, and across steps of all three
@pytest.mark.parametrize(("vocab", "block"), [(20, 64), (70, 64), (300, 64), (1700, 96)])
def test_of_equal_elements_the_first_are_taken(kata, vocab, block):
    x = row_of(dict.fromkeys(range(1, vocab, 2), 1.0) | {vocab - 1: 2.0}, vocab)
    k = vocab // 3
    assert_selected(kata, x, k, [*range(1, 2 * k - 2, 2), vocab - 1], block=block)


def test_all_equal(kata):
    assert_selected(kata, np.full(257, 0.1), 100, range(100))


def test_all_of_a_row(kata, seed):
    x = np.random.default_rng(seed).standard_normal(100)
    assert_selected(kata, x, 100, range(100))


# around one step of 32 threads with 8 loads each, and two
@pytest.mark.parametrize("vocab", [31, 33, 255, 256, 257, 511, 512, 513])
def test_rows_that_end_anywhere(kata, vocab):
    x = row_of({0: 1.0, vocab - 2: 2.0, vocab - 1: 2.0}, vocab)
    assert_selected(kata, x, 2, [vocab - 2, vocab - 1])


def test_masked_logits_come_last(kata):
    x = row_of({3: 1.0, 200: -3e38, 90: -1.0}, 210, others=-INF)
    assert_selected(kata, x, 3, [3, 90, 200])
    assert_selected(kata, x, 5, [0, 1, 3, 90, 200])


def test_nan_counts_as_the_largest(kata):
    x = row_of({5: NAN, 40: INF, 41: -NAN, 80: NAN, 81: 7.0}, 100)
    assert_selected(kata, x, 2, [5, 41])
    assert_selected(kata, x, 3, [5, 41, 80])
    assert_selected(kata, x, 5, [5, 40, 41, 80, 81])


def test_zeros_of_both_signs_are_equal(kata):
    x = row_of({10: -0.0, 20: 0.0, 30: -0.0, 40: 0.0, 50: -1e-45, 60: 1e-45}, 70)
    assert_selected(kata, x, 3, [10, 20, 60])
    assert_selected(kata, x, 6, [10, 20, 30, 40, 50, 60])


# the last digit, and where one digit carries into the next
@pytest.mark.parametrize("low", [0x3F800000, 0x3F8000FE, 0x3F80FFFE, 0x3FFFFFFE, 0xBF8000FE])
def test_every_bit_of_a_key_counts(kata, low):
    bits = np.array([low, low + 3, low + 1, low + 2] * 10, dtype=np.uint32)
    x = bits.view(np.float32)
    order = np.argsort(-x.astype(np.float64), kind="stable")
    for k in (15, 25):
        assert_selected(kata, x, k, sorted(order[:k].tolist()))


def test_one_that_is_far_above_the_others(kata):
    # one bin has one element, another all the rest
    assert_selected(kata, row_of({150: 1e30}, 200), 1, [150])
    assert_selected(kata, row_of({150: 1e30}, 200), 2, [0, 150])


# ---- how it gets there -------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["reversed", "random"])
def test_threads_may_run_in_any_order(kata, oracle, simt, seed, order):
    inputs = oracle.make_inputs(
        rows=1, vocab=300, k=60, dtype=np.dtype("float32"), device="cpu", seed=seed, block=96
    )
    with simt(order=order, seed=seed):
        found = kata.radix_topk(**inputs)
    for name, got, want in zip(
        ("values", "indices"), found, oracle.reference(**inputs), strict=True
    ):
        np.testing.assert_array_equal(got, want, f"{name}, threads {order}")


def test_a_row_is_read_five_times(kata, oracle, simt, seed, cost):
    # two rows, with gaps behind them that a copy would close
    wide = np.random.default_rng(seed).permutation(2064).reshape(2, 1032).astype(np.float32)
    x = cuda.to_device(wide)[:, :512]
    with simt() as counted:
        _, indices = kata.radix_topk(x, 50, block=64)
    expected = oracle.reference(x=wide[:, :512], k=50)[1]
    np.testing.assert_array_equal(indices.copy_to_host(), expected)
    read = counted.of(x).load
    assert read.elements >= x.size, "x is read where it is"
    stored = counted.global_store.elements
    assert stored == 200, f"each result is stored once: {stored} stores of 2 rows of 2 x 50"
    cost.check("reads_of_a_row", read.sectors * 8 / x.size)
    cost.check("shared_bytes", counted.shared_bytes)


def test_rows_may_lie_apart(kata):
    wide = np.full((3, 8), 99, dtype=np.float32)
    wide[:, :5] = [[1, 2, 3, 4, 5], [5, 4, 3, 2, 1], [0, 0, 7, 0, 0]]
    x = cuda.to_device(wide)[:, :5]
    values, indices = (one.copy_to_host().tolist() for one in kata.radix_topk(x, 2, block=32))
    assert indices == [[3, 4], [0, 1], [0, 2]]
    assert values == [[4, 5], [5, 4], [0, 7]]


def test_a_block_has_the_threads_asked_for(kata, simt):
    for block in (96, 512):
        with simt() as counted:
            kata.radix_topk(np.ones((1, 40), dtype=np.float32), 3, block=block)
        assert block in counted.extents, f"block = {block}: expected blocks of so many threads"


def test_given_arrays_are_used(kata):
    x = np.float32([[3, 1, 2], [4, 6, 5]])
    values, indices = np.full((2, 2), -99, np.float32), np.full((2, 2), -99, np.int32)
    found = kata.radix_topk(x, 2, values, indices, block=32)
    assert found[0] is values
    assert found[1] is indices
    assert indices.tolist() == [[0, 2], [1, 2]]
    assert values.tolist() == [[3, 2], [6, 5]]
