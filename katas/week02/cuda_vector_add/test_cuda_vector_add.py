"""Any launch shape, any strides, each element once, and neighbours that read neighbours."""

import numpy as np
import pytest
from numba import cuda

# numba advises against launches that leave most of a GPU idle: here they are the point
pytestmark = pytest.mark.filterwarnings("ignore:Grid size")

# one warp, several blocks, and blocks that are no whole number of warps
LAUNCHES = [(1, 32), (3, 64), (7, 33)]


def random_vectors(seed, n):
    generator = np.random.default_rng(seed)
    return (generator.standard_normal(n, dtype=np.float32) for _ in range(2))


def device_full(shape, dtype=np.float32):
    """An array for a result, filled with what no sum is."""
    return cuda.to_device(np.full(shape, -99, dtype=dtype))


# ---- vector_add ----------------------------------------------------------------------------


@pytest.mark.parametrize("launch", LAUNCHES)
def test_more_elements_than_threads(kata, seed, launch):
    a, b = random_vectors(seed, 1000)
    out = device_full(1000)
    kata.vector_add[launch](cuda.to_device(a), cuda.to_device(b), out)
    np.testing.assert_array_equal(out.copy_to_host(), a + b)


# nothing; one element for a whole grid; one thread without work; one element past a warp
@pytest.mark.parametrize("n", [0, 1, 31, 33])
def test_few_elements(kata, seed, n):
    a, b = random_vectors(seed, n)
    out = device_full(n)
    kata.vector_add[2, 32](cuda.to_device(a), cuda.to_device(b), out)
    np.testing.assert_array_equal(out.copy_to_host(), a + b)


def test_strided_views(kata, seed):
    a, b = random_vectors(seed, 210)
    out = device_full(140)
    kata.vector_add[1, 32](cuda.to_device(a)[::3], cuda.to_device(b)[5:75], out[::2])
    np.testing.assert_array_equal(out.copy_to_host()[::2], a[::3] + b[5:75])
    assert (out.copy_to_host()[1::2] == -99).all(), "the gaps of `out` were written to"


@pytest.mark.parametrize("launch", LAUNCHES)
def test_each_element_is_stored_once(kata, simt, launch):
    a, b, out = (np.ones(500, dtype=np.float32) for _ in range(3))
    with simt() as counted:
        kata.vector_add[launch](a, b, out)
    assert (out == 2).all()
    assert (counted.stores_per_element(out) == 1).all()


def test_lanes_touch_neighbours(kata, simt, cost):
    # 8 steps of 128 threads: every request is a full one
    a, b, out = (np.ones(1024, dtype=np.float32) for _ in range(3))
    with simt() as counted:
        kata.vector_add[2, 64](a, b, out)
    assert (out == 2).all()
    cost.check("load_sectors", counted.global_load.sectors_per_request)
    cost.check("store_sectors", counted.global_store.sectors_per_request)


# ---- broadcast_add -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "grid", "block"),
    [
        ((1, 1), (1, 1), (8, 4)),
        ((5, 70), (2, 3), (8, 4)),  # loops along x
        ((70, 5), (3, 2), (8, 4)),  # loops along y
        ((33, 31), (2, 2), (32, 32)),  # threads to spare along both
    ],
)
def test_broadcast_over_any_grid(kata, seed, shape, grid, block):
    rows, cols = shape
    generator = np.random.default_rng(seed)
    col = generator.standard_normal((rows, 1), dtype=np.float32)
    row = generator.standard_normal((1, cols), dtype=np.float32)
    out = device_full(shape)
    kata.broadcast_add[grid, block](cuda.to_device(col), cuda.to_device(row), out)
    np.testing.assert_array_equal(out.copy_to_host(), col + row)


# 1 more is lost in a float16, and would be in a float32
@pytest.mark.parametrize(("dtype", "most"), [(np.float16, 2**11), (np.int64, 2**60)])
def test_broadcast_adds_in_its_own_dtype(kata, dtype, most):
    col, row = np.array([[1], [3]], dtype), np.array([[most, 2]], dtype)
    out = device_full((2, 2), dtype)
    kata.broadcast_add[1, (32, 4)](cuda.to_device(col), cuda.to_device(row), out)
    np.testing.assert_array_equal(out.copy_to_host(), col + row)


def test_broadcast_stores_each_element_once_and_coalesced(kata, simt, cost):
    col, row = np.ones((16, 1), dtype=np.float32), np.ones((1, 64), dtype=np.float32)
    out = np.zeros((16, 64), dtype=np.float32)
    with simt() as counted:
        kata.broadcast_add[(1, 2), (32, 4)](col, row, out)
    assert (out == 2).all()
    assert (counted.stores_per_element(out) == 1).all()
    cost.check("broadcast_store_sectors", counted.of(out).store.sectors_per_request)


# ---- the wrapper and the bandwidth ---------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64])
def test_sum_keeps_the_dtype(kata, dtype):
    a, b = (cuda.to_device(np.arange(5, dtype=dtype)) for _ in range(2))
    assert kata.cuda_vector_add(a, b).dtype == dtype


def test_sum_goes_into_out(kata):
    a, b = (cuda.to_device(np.arange(5, dtype=np.float32)) for _ in range(2))
    assert kata.cuda_vector_add(a, b, out=a) is a
    assert a.copy_to_host().tolist() == [0, 2, 4, 6, 8]
    nothing = cuda.to_device(np.empty(0, dtype=np.float32))
    assert kata.cuda_vector_add(nothing, nothing, out=nothing) is nothing


def test_wrapper_copies_nothing(kata, simt):
    # every second element: who wants neighbours would have to copy them
    a, b, out = (cuda.to_device(np.ones(200, dtype=np.float32))[::2] for _ in range(3))
    with simt() as counted:
        kata.cuda_vector_add(a, b, out=out)
    assert (out.copy_to_host() == 2).all()
    reads, writes = [counted.of(x).load.elements for x in (a, b)], counted.of(out).store.elements
    assert (reads, writes) == ([100, 100], 100), "the kernel was launched on other arrays"


def test_sum_in_place_is_not_copied_either(kata, simt):
    a, b = (cuda.to_device(np.ones(100, dtype=np.float32)) for _ in range(2))
    with simt() as counted:
        kata.cuda_vector_add(a, b, out=b)
    assert (b.copy_to_host() == 2).all()
    assert counted.of(b).store.elements == 100, "the kernel stored into another array"


def test_wrapper_launches_as_told(kata, simt, monkeypatch):
    monkeypatch.setattr(kata, "launch_shape", lambda out: (1, 1))
    a, b, out = (cuda.to_device(np.ones(8, dtype=np.float32)) for _ in range(3))
    with simt() as counted:
        kata.cuda_vector_add(a, b, out=out)
    assert counted.of(out).store.requests == 8, "one thread has a request for each element"


def test_bandwidth_counts_two_reads_and_a_write(kata):
    # 2^28 float32 in 1 ms: 3 * 2^30 bytes, 3.22 TB/s
    assert kata.achieved_bandwidth(2**28, 4, 1e-3) == pytest.approx(3.221225472e12, rel=1e-12)
    assert kata.achieved_bandwidth(1, 2, 4) == 1.5
