"""Where the window lies, what each block loads, and what one bad element spoils."""

import numpy as np
import pytest
from numba import cuda

# numba advises against launches that leave most of a GPU idle: short signals are no harder
pytestmark = pytest.mark.filterwarnings("ignore:Grid size")


def floats(*values):
    return np.array(values, dtype=np.float32)


def small_integers(seed, n):
    """Products and sums of these are exact in float32."""
    return np.random.default_rng(seed).integers(-8, 9, n).astype(np.float32)


def convolved(kata, x, w, **options):
    return kata.conv1d_halo(cuda.to_device(x), cuda.to_device(w), **options).copy_to_host()


def summed(kata, x, k):
    return kata.window_sum(cuda.to_device(x), k).copy_to_host()


# ---- the window ----------------------------------------------------------------------------


# in the midst of a block, and the last element of one: its window lies in two
@pytest.mark.parametrize("at", [4, 511])
def test_impulse_brings_out_the_weights_backwards(kata, at):
    x = np.zeros(600, dtype=np.float32)
    x[at] = 1
    odd, even = convolved(kata, x, floats(1, 2, 3)), convolved(kata, x, floats(1, 2, 3, 4, 5, 6))
    assert odd[at - 2 : at + 3].tolist() == [0, 3, 2, 1, 0]
    assert even[at - 4 : at + 4].tolist() == [0, 6, 5, 4, 3, 2, 1, 0]
    assert (np.count_nonzero(odd), np.count_nonzero(even)) == (3, 6)


def test_window_sum_counts_zeros_outside(kata):
    assert summed(kata, floats(1, 2, 3, 4), 3).tolist() == [3, 6, 9, 7]
    assert summed(kata, floats(1, 2, 3, 4), 2).tolist() == [3, 5, 7, 4]
    # the shortest window, and the longest
    assert summed(kata, floats(1, 2, 3, 4), 1).tolist() == [1, 2, 3, 4]
    assert summed(kata, floats(1, 2, 3, 4), 33).tolist() == [10, 10, 10, 10]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_element_spoils_one_window(kata, bad):
    x = np.ones(1032, dtype=np.float32)
    x[512] = bad
    expected = np.full(1032, 5, dtype=np.float32)
    expected[[0, -1]], expected[[1, -2]], expected[510:515] = 3, 4, bad
    np.testing.assert_array_equal(summed(kata, x, 5), expected)


def test_infinity_meets_no_zero_from_outside(kata):
    assert summed(kata, floats(np.inf, 1, 1, 1), 3).tolist() == [np.inf, np.inf, 3, 2]
    assert summed(kata, floats(1, 1, 1, np.inf), 3).tolist() == [2, 3, np.inf, np.inf]


def test_sums_are_float32(kata):
    # in any order: each sum of two of them rounds to the larger one; float64 comes to 2^24 + 2
    assert summed(kata, floats(2**24, 1, 2**-24), 3)[1] == 2**24


# ---- the kernel ----------------------------------------------------------------------------


# with the longest window no element of the tile is left over
@pytest.mark.parametrize(("order", "k"), [("forward", 7), ("reversed", 33)])
def test_threads_may_run_in_any_order(kata, simt, seed, order, k):
    x, w, out = small_integers(seed, 600), small_integers(seed + 1, k), np.zeros(600, np.float32)
    with simt(order=order):
        kata.conv1d[kata.blocks_for(600), kata.BLOCK](x, w, out)
    expected = np.correlate(np.pad(x, k // 2), w, "valid")
    np.testing.assert_array_equal(out, expected, err_msg=f"with the threads in {order} order")


def test_each_block_loads_its_inputs_once(kata, simt, seed, cost):
    x, w, out = small_integers(seed, 2048), small_integers(seed + 1, 5), np.zeros(2048, np.float32)
    with simt() as counted:
        kata.conv1d_halo(x, w, out=out)
    np.testing.assert_array_equal(out, np.correlate(np.pad(x, 2), w, "valid"))
    assert counted.of(x).load.elements >= x.size, "x is read where it is"
    outputs = (counted.of(out).load.elements, counted.of(out).store.elements)
    assert outputs == (0, out.size), "sums stay with their threads until the end"
    cost.check("signal_loads", counted.of(x).load.elements)
    cost.check("weight_loads", counted.of(w).load.elements)


def test_lanes_read_neighbouring_banks(kata, simt, seed, cost):
    x, w, out = small_integers(seed, 512), small_integers(seed + 1, 5), np.zeros(512, np.float32)
    with simt() as counted:
        kata.conv1d[1, kata.BLOCK](x, w, out)
    np.testing.assert_array_equal(out, np.correlate(np.pad(x, 2), w, "valid"))
    assert counted.shared_store.elements >= x.size, "inputs go through shared memory"
    worst = max(counted.shared_load.max_wavefronts, counted.shared_store.max_wavefronts)
    cost.check("bank_conflicts", worst)


def test_result_goes_into_out(kata):
    x, w = cuda.to_device(floats(1, 2)), cuda.to_device(floats(10))
    out = cuda.to_device(floats(0, 0))
    assert kata.conv1d_halo(x, w, out=out) is out
    assert out.copy_to_host().tolist() == [10, 20]


# ---- refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, 34])
def test_no_and_too_many_weights_are_refused(kata, k):
    with pytest.raises(ValueError, match="w: "):
        convolved(kata, floats(1, 2), np.ones(k, dtype=np.float32))
    with pytest.raises(ValueError, match="k: "):
        summed(kata, floats(1, 2), k)
