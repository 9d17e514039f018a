"""Any order of threads, what each request costs, and values that must stay where they are."""

import numpy as np
import pytest
from numba import cuda

# numba advises against launches that leave most of a GPU idle: small matrices are no harder
pytestmark = pytest.mark.filterwarnings("ignore:Grid size")

SENTINEL = -99.0


def small_integers(seed, *shape):
    """Products and sums of these are exact in float32."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


def product(kata, a, b, **options):
    return kata.smem_matmul(cuda.to_device(a), cuda.to_device(b), **options).copy_to_host()


# ---- the kernel ----------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["forward", "reversed"])
def test_threads_may_run_in_any_order(kata, simt, seed, order):
    # three steps along k: a tile is loaded while another might still be in use
    a, b = small_integers(seed, 8, 24), small_integers(seed + 1, 24, 8)
    c = np.zeros((8, 8), dtype=np.float32)
    with simt(order=order):
        kata.matmul[kata.tiles(8, 8), kata.BLOCK](a, b, c)
    np.testing.assert_array_equal(c, a @ b, err_msg=f"with the threads in {order} order")


def test_writes_nothing_around_c(kata, seed):
    # one element past a tile along each axis; what c held before is no part of the product
    a, b = small_integers(seed, 33, 5), small_integers(seed + 1, 5, 33)
    frame = cuda.to_device(np.full((97, 97), SENTINEL, dtype=np.float32))
    kata.matmul[kata.tiles(33, 33), kata.BLOCK](
        cuda.to_device(a), cuda.to_device(b), frame[32:65, 32:65]
    )
    found = frame.copy_to_host()
    np.testing.assert_array_equal(found[32:65, 32:65], a @ b)
    found[32:65, 32:65] = SENTINEL
    assert (found == SENTINEL).all(), "memory around `c` was written to"


def test_each_load_serves_a_whole_tile(kata, simt, seed, cost):
    a, b = small_integers(seed, 16, 24), small_integers(seed + 1, 24, 16)
    c = np.zeros((16, 16), dtype=np.float32)
    with simt() as counted:
        kata.smem_matmul(a, b, out=c)
    np.testing.assert_array_equal(c, a @ b)
    of_c = (counted.of(c).load.elements, counted.of(c).store.elements)
    assert of_c == (0, c.size), "sums stay with their threads until the end"
    loads = counted.of(a).load.elements + counted.of(b).load.elements
    assert loads == counted.global_load.elements, "a and b are read where they are"
    cost.check("global_loads", loads)
    cost.check("barriers", counted.barriers_per_block)
    cost.check("load_sectors", counted.global_load.sectors_per_request)
    cost.check("store_sectors", counted.global_store.sectors_per_request)


def test_tiles_may_have_another_size(kata, simt, seed, monkeypatch):
    monkeypatch.setattr(kata, "TILE", 4)
    monkeypatch.setattr(kata, "BLOCK", (4, 4))
    a, b = small_integers(seed, 5, 9), small_integers(seed + 1, 9, 6)
    with simt():
        found = kata.smem_matmul(a, b)
    np.testing.assert_array_equal(found, a @ b, err_msg="with TILE = 4, as it is 32 on a GPU")


def test_tiles_have_no_bank_conflicts(kata, simt, seed, cost):
    a, b = small_integers(seed, 8, 8), small_integers(seed + 1, 8, 8)
    c = np.zeros((8, 8), dtype=np.float32)
    with simt() as counted:
        kata.matmul[kata.tiles(8, 8), kata.BLOCK](a, b, c)
    np.testing.assert_array_equal(c, a @ b)
    assert counted.shared_store.elements >= a.size + b.size, "both tiles go through shared memory"
    worst = max(counted.shared_load.max_wavefronts, counted.shared_store.max_wavefronts)
    cost.check("bank_conflicts", worst)


# ---- values --------------------------------------------------------------------------------


def test_nan_stays_in_its_row_and_its_column(kata, seed):
    a, b = small_integers(seed, 10, 11), small_integers(seed + 1, 11, 12)
    expected = a @ b
    a[3, 10], b[0, 7] = np.nan, np.nan
    expected[3, :], expected[:, 7] = np.nan, np.nan
    np.testing.assert_array_equal(product(kata, a, b), expected)


def test_infinity_meets_no_zero_from_outside(kata):
    # the last ones along k, in a tile that is not full
    a, b = np.ones((3, 11), dtype=np.float32), np.ones((11, 3), dtype=np.float32)
    a[0, 10], b[10, 1] = np.inf, np.inf
    expected = [[np.inf, np.inf, np.inf], [11, np.inf, 11], [11, np.inf, 11]]
    assert product(kata, a, b).tolist() == expected


def test_sums_are_float32(kata):
    # in any order: each sum of two of them rounds to the larger one; float64 comes to 2^24 + 2
    a, ones = np.array([[2**24, 1, 2**-24]], np.float32), np.ones((3, 1), np.float32)
    assert product(kata, a, ones).tolist() == [[2**24]]


def test_strided_views_go_through_the_wrapper(kata, seed):
    a, b = small_integers(seed, 12, 40), small_integers(seed + 1, 20, 9)
    frame = cuda.to_device(np.full((14, 11), SENTINEL, dtype=np.float32))
    kata.smem_matmul(cuda.to_device(a)[:, ::2], cuda.to_device(b), out=frame[1:13, 1:10])
    np.testing.assert_array_equal(frame.copy_to_host()[1:13, 1:10], a[:, ::2] @ b)


def test_strided_views_are_not_copied(kata, simt, seed):
    a = cuda.to_device(small_integers(seed, 8, 16))[:, ::2]
    b = cuda.to_device(small_integers(seed + 1, 8, 16))[:, 1::2]
    with simt() as counted:
        kata.smem_matmul(a, b)
    loads = [counted.of(matrix).load.elements for matrix in (a, b)]
    assert loads == [64, 64], "a and b are read where they are"


def test_product_goes_into_out(kata):
    out = cuda.to_device(np.full((1, 1), SENTINEL, dtype=np.float32))
    two = cuda.to_device(np.full((1, 1), 2, dtype=np.float32))
    assert kata.smem_matmul(two, two, out=out) is out
    assert out.copy_to_host().tolist() == [[4]]
