"""Edges, any order of threads, what each request costs, and memory that is not to be touched."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda

# numba advises against launches that leave most of a GPU idle: small matrices are no harder
pytestmark = pytest.mark.filterwarnings("ignore:Grid size")

BLOCK = (32, 8)
SENTINEL = -99.0


def numbered(rows, cols):
    """Every element is different, and is exact in float32."""
    return np.arange(rows * cols, dtype=np.float32).reshape(rows, cols)


@settings(max_examples=10)
@given(rows=st.integers(1, 40), cols=st.integers(1, 40))
def test_twice_is_the_identity(kata, rows, cols):
    a = numbered(rows, cols)
    once = kata.transpose_tiled(cuda.to_device(a))
    np.testing.assert_array_equal(once.copy_to_host(), a.T)
    np.testing.assert_array_equal(kata.transpose_tiled(once).copy_to_host(), a)


# one element past a tile, along rows and along columns
@pytest.mark.parametrize(("rows", "cols"), [(33, 32), (32, 33)])
def test_writes_nothing_around_out(kata, rows, cols):
    a = numbered(rows, cols)
    frame = cuda.to_device(np.full((cols + 64, rows + 64), SENTINEL, dtype=np.float32))
    kata.transpose[(2, 2), BLOCK](cuda.to_device(a), frame[32:-32, 32:-32])
    found = frame.copy_to_host()
    np.testing.assert_array_equal(found[32:-32, 32:-32], a.T)
    found[32:-32, 32:-32] = SENTINEL
    assert (found == SENTINEL).all(), "memory around `out` was written to"


def test_strided_views_go_through_the_wrapper(kata):
    whole = cuda.to_device(numbered(40, 70))
    frame = cuda.to_device(np.full((80, 50), SENTINEL, dtype=np.float32))
    kata.transpose_tiled(whole[3:37, 5:66], out=frame[7:68, 9:43])
    expected = numbered(40, 70)[3:37, 5:66].T
    np.testing.assert_array_equal(frame.copy_to_host()[7:68, 9:43], expected)


@pytest.mark.parametrize("order", ["forward", "reversed"])
def test_threads_may_run_in_any_order(kata, simt, order):
    a, out = numbered(32, 64), np.zeros((64, 32), dtype=np.float32)
    with simt(order=order):
        kata.transpose[(2, 1), BLOCK](a, out)
    np.testing.assert_array_equal(out, a.T, err_msg=f"with the threads in {order} order")


def test_both_global_sides_are_coalesced(kata, simt, cost):
    a, out = numbered(32, 64), np.zeros((64, 32), dtype=np.float32)
    with simt() as counted:
        kata.transpose[(2, 1), BLOCK](a, out)
    np.testing.assert_array_equal(out, a.T)
    cost.check("load_sectors", counted.global_load.sectors_per_request)
    cost.check("store_sectors", counted.global_store.sectors_per_request)


def test_the_tile_has_no_bank_conflicts(kata, simt, cost):
    a, out = numbered(32, 32), np.zeros((32, 32), dtype=np.float32)
    with simt() as counted:
        kata.transpose[(1, 1), BLOCK](a, out)
    np.testing.assert_array_equal(out, a.T)
    moved = (counted.shared_store.elements, counted.shared_load.elements)
    assert moved == (a.size, a.size), "each element goes into the tile once and out of it once"
    worst = max(counted.shared_load.max_wavefronts, counted.shared_store.max_wavefronts)
    cost.check("bank_conflicts", worst)


def test_one_barrier_for_each_tile(kata, simt, cost):
    a, out = numbered(32, 64), np.zeros((64, 32), dtype=np.float32)
    with simt() as counted:
        kata.transpose[(2, 1), BLOCK](a, out)
    np.testing.assert_array_equal(out, a.T)
    cost.check("barriers", counted.barriers_per_block)


# ---- the wrapper ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64])
def test_transpose_keeps_the_dtype(kata, dtype):
    assert kata.transpose_tiled(cuda.to_device(np.ones((2, 3), dtype))).dtype == dtype


def test_transpose_goes_into_out(kata):
    out = cuda.to_device(np.zeros((3, 2), dtype=np.float32))
    assert kata.transpose_tiled(cuda.to_device(numbered(2, 3)), out=out) is out
    assert out.copy_to_host().tolist() == [[0, 3], [1, 4], [2, 5]]


def test_out_of_another_shape_is_refused(kata):
    a = cuda.to_device(numbered(2, 3))
    # `a` itself, and one column too many: the shape is looked at before memory and dtype
    for out in (a, cuda.to_device(np.zeros((3, 3), dtype=np.float64))):
        with pytest.raises(ValueError, match=r"out: (?!.*(dtype|overlap)).*shape"):
            kata.transpose_tiled(a, out=out)


def test_out_of_another_dtype_is_refused(kata):
    # another size, and another kind of the same size
    for dtype in (np.float64, np.int32):
        out = cuda.to_device(np.zeros((3, 2), dtype=dtype))
        with pytest.raises(ValueError, match=r"out: (?!.*overlap).*dtype"):
            kata.transpose_tiled(cuda.to_device(numbered(2, 3)), out=out)
        assert not out.copy_to_host().any(), "written to before it was refused"


def test_out_that_overlaps_a_is_refused(kata):
    buffer = cuda.to_device(numbered(5, 4))
    for out in (buffer[:4], buffer[1:]):  # all of `a`, and all but its first row
        with pytest.raises(ValueError, match=r"out: .*overlap"):
            kata.transpose_tiled(buffer[:4], out=out)


@pytest.mark.parametrize("shape", [(6,), (1, 2, 3)])
def test_only_matrices_are_taken(kata, shape):
    with pytest.raises(ValueError, match=r"a: .*2-D"):
        kata.transpose_tiled(cuda.to_device(np.ones(shape, dtype=np.float32)))
