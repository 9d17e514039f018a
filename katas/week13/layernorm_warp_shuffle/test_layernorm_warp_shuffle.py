"""How merges behave, what the variance survives, and what a row takes."""

import math

import numpy as np
import pytest
from numba import cuda

# numba advises against launches that leave most of a GPU idle, and against arrays of the host: a
# few rows are no harder
pytestmark = [pytest.mark.filterwarnings(f"ignore:{what}") for what in ("Grid size", "Host array")]

ERROR = 2e-6  # of a row whose mean is 0


def moments(values):
    """Count, mean and squared differences, rounded to float32."""
    values = np.asarray(values, dtype=np.float64)
    mean = values.mean() if values.size else 0.0
    return np.array([values.size, mean, ((values - mean) ** 2).sum()]).astype(np.float32)


@pytest.fixture
def merged(kata):
    """`welford_merge` of two sets' moments."""
    function = kata.welford_merge

    @cuda.jit
    def kernel(a, b, out):
        out[0], out[1], out[2] = function(a[0], a[1], a[2], b[0], b[1], b[2])

    def run(a, b):
        out = np.full(3, -99, dtype=np.float32)
        kernel[1, 1](a, b, out)
        return out

    return run


def told(x):
    line = x.tolist()
    return line if len(line) <= 6 else f"{line[:4]} … {line[-1]} ({len(line)} elements)"


def assert_normalized(kata, x, eps=1e-5, block=64, error=ERROR):
    """
    Fail at the first row whose mean, rstd or y is off by more than float32 makes it.

    A float32 mean is off by its rounding, which is |mean| / deviation of what the variance is made
    of: so much more may rstd be off, and y.
    """
    x = np.array(x, dtype=np.float32, ndmin=2)
    generator = np.random.default_rng(3)
    gamma, beta = generator.uniform(0.5, 1.5, (2, x.shape[1])).astype(np.float32)
    y, mean, rstd = kata.layernorm_warp_shuffle(x, gamma, beta, eps, block=block)
    for row, values in enumerate(x.astype(np.float64)):
        center = values.mean()
        scale = 1 / math.sqrt(values.var() + eps)
        shown = f"row {row} of {told(x[row])}, eps = {eps}, block = {block}"
        off = abs(float(mean[row]) - center)
        assert off <= error * np.abs(values).max(), (
            f"{shown}: mean: expected {center}, found {mean[row]}"
        )
        growth = 1 + abs(center) * scale
        off = abs(float(rstd[row]) / scale - 1)
        assert off <= error * growth, f"{shown}: rstd: expected {scale}, found {rstd[row]}"
        z = (values - center) * scale
        off = np.abs(y[row] - (z * gamma + beta)) - error * growth * (1 + np.abs(z)) * 2.5
        at = int(np.argmax(off))  # of NaN, too
        assert off[at] <= 0, (
            f"{shown}: y[{at}]: expected {z[at] * gamma[at] + beta[at]}, found {y[row, at]}"
        )


# ---- merging -----------------------------------------------------------------------------------


# many and one; one and many; alike; means far apart; none of either
SETS = [
    (range(7), [9]),
    ([-4], range(20)),
    ([1, 2, 3], [3, 2, 1]),
    ([1000, 1001], [-1000, -1001, -1002]),
    ([0.5] * 9, [0.5] * 4),
]


@pytest.mark.parametrize(("a", "b"), SETS, ids=[f"{len(a)} and {len(b)}" for a, b in SETS])
def test_a_merge_is_the_moments_of_both_sets(merged, a, b):
    both = moments([*a, *b])
    np.testing.assert_allclose(merged(moments(a), moments(b)), both, rtol=1e-6)
    np.testing.assert_allclose(merged(moments(b), moments(a)), both, rtol=1e-6)


def test_merging_is_associative(merged, seed):
    generator = np.random.default_rng(seed)
    a, b, c = (moments(generator.uniform(1, 3, size)) for size in (3, 8, 20))
    left, right = merged(merged(a, b), c), merged(a, merged(b, c))
    np.testing.assert_allclose(left, right, rtol=1e-6)


@pytest.mark.parametrize("values", [[], [0.1] * 3, [3e38], [-1e30, 1.0]], ids=str)
def test_a_set_without_elements_changes_nothing(merged, values):
    with np.errstate(over="ignore"):
        some, none = moments(values), moments([])
    np.testing.assert_array_equal(merged(some, none), some)
    np.testing.assert_array_equal(merged(none, some), some)


# a thousand times a thousand elements; two elements, of whose squares only the half is finite
MERGES_NEAR_THE_LIMIT = {
    "many": ([1000, 0, 0], [1000, 5e17, 0], [2000, 2.5e17, 1.25e38]),
    "two": ([1, 0, 0], [1, 2e19, 0], [2, 1e19, 2e38]),
}


@pytest.mark.parametrize(
    ("a", "b", "both"), MERGES_NEAR_THE_LIMIT.values(), ids=MERGES_NEAR_THE_LIMIT
)
def test_a_merge_overflows_no_sooner_than_its_result(merged, a, b, both):
    found = merged(np.float32(a), np.float32(b))
    np.testing.assert_allclose(found, np.float32(both), rtol=1e-6, err_msg=f"{a} and {b}")


# ---- rows --------------------------------------------------------------------------------------


def test_one_element_is_beta(kata):
    x, gamma = np.float32([[3.7], [-1e5]]), np.float32([2])
    y, mean, rstd = kata.layernorm_warp_shuffle(x, gamma, np.float32([0.25]), 0.25, block=32)
    assert y.tolist() == [[0.25], [0.25]]
    assert mean.tolist() == x[:, 0].tolist()
    assert rstd.tolist() == [2, 2]


@pytest.mark.parametrize("value", [0.0, 0.1, -7.3], ids=str)
def test_a_constant_row_has_no_variance(kata, value):
    assert_normalized(kata, np.full((1, 147), value))


# far from 0, by 10 and by 10,000 times the deviation
@pytest.mark.parametrize("offset", [10, -1e4])
def test_a_mean_far_from_zero_leaves_the_variance(kata, offset):
    generator = np.random.default_rng(17)
    assert_normalized(kata, offset + generator.standard_normal((3, 500)))


def test_an_element_far_from_the_others(kata):
    x = np.random.default_rng(18).standard_normal((3, 500))
    x[0, 0] = x[1, 499] = x[2, 200] = 1e4
    assert_normalized(kata, x)


def test_squares_that_float32_just_holds(kata):
    x = np.zeros((2, 500))
    x[0, 77], x[1, 300:] = 1e18, 1e18
    assert_normalized(kata, x)


def test_elements_whose_sum_float32_does_not_hold(kata):
    x = np.full((2, 300), 3e38)
    x[1] *= -1
    assert_normalized(kata, x)


@pytest.mark.parametrize("eps", [1e-12, 1.0])
def test_eps_is_added_to_the_variance(kata, eps):
    assert_normalized(kata, np.random.default_rng(19).standard_normal((2, 90)) / 4, eps)


# around one element for each of 64 threads, and two
@pytest.mark.parametrize("cols", [31, 63, 64, 65, 127, 128, 129])
def test_rows_that_end_anywhere(kata, seed, cols):
    assert_normalized(kata, np.random.default_rng(seed).standard_normal((1, cols)))


def test_small_rows_of_a_large_block(kata):
    # warps without any elements, in blocks that are no power of two, and in the largest
    x = np.random.default_rng(20).standard_normal((1, 37))
    assert_normalized(kata, x, block=96)
    assert_normalized(kata, x, block=512)


def test_a_row_that_is_not_finite_spoils_no_other(kata):
    x = np.random.default_rng(21).standard_normal((4, 70)).astype(np.float32)
    x[0, 3], x[1, 65], x[3, 69] = np.nan, np.inf, -np.inf
    ones = np.ones(70, dtype=np.float32)
    y, _, rstd = kata.layernorm_warp_shuffle(x, ones, ones, 1e-5, block=64)
    assert np.isnan(rstd).tolist() == [True, True, False, True]
    assert np.isnan(y).all(axis=1).tolist() == [True, True, False, True]
    assert np.isfinite(y[2]).all()


@pytest.mark.parametrize("order", ["reversed", "random"])
def test_threads_may_run_in_any_order(kata, simt, seed, order):
    x = np.random.default_rng(22).standard_normal((2, 200))
    with simt(order=order, seed=seed):
        assert_normalized(kata, x, block=96)


def test_rows_may_lie_apart(kata):
    wide = np.full((3, 8), 99, dtype=np.float32)
    wide[:, :4] = [[1, 3, 1, 3], [-2, 2, 2, -2], [0, 8, 8, 0]]
    x, ones = cuda.to_device(wide)[:, :4], cuda.to_device(np.ones(4, dtype=np.float32))
    y, mean, rstd = kata.layernorm_warp_shuffle(x, ones, ones, 1e-12, block=32)
    assert mean.copy_to_host().tolist() == [2, 0, 4]
    assert rstd.copy_to_host().tolist() == [1, 0.5, 0.25]
    assert y.copy_to_host().tolist() == [[0, 2, 0, 2], [0, 2, 2, 0], [0, 2, 2, 0]]


def test_a_block_has_the_threads_asked_for(kata, simt):
    ones = np.ones(40, dtype=np.float32)
    for block in (96, 512):
        with simt() as counted:
            kata.layernorm_warp_shuffle(ones[None], ones, ones, 1e-5, block=block)
        assert block in counted.extents, f"block = {block}: expected blocks of so many threads"


def test_given_arrays_are_used(kata):
    x, ones = np.float32([[1, 3, 1, 3]]), np.ones(4, dtype=np.float32)
    mine = [np.full(shape, -99, dtype=np.float32) for shape in ((1, 4), 1, 1)]
    found = kata.layernorm_warp_shuffle(x, ones, ones, 1e-12, *mine, block=32)
    assert [one.tolist() for one in mine] == [[[0, 2, 0, 2]], [2], [1]]
    assert all(one is given for one, given in zip(found, mine, strict=True)), "those returned"


# ---- what a row takes --------------------------------------------------------------------------


def test_a_row_is_read_once_and_waits_once(kata, simt, seed, cost):
    # with gaps behind the rows, which a copy would close
    wide = np.random.default_rng(seed).standard_normal((2, 700)).astype(np.float32)
    x, ones = cuda.to_device(wide)[:, :600], cuda.to_device(np.ones(600, dtype=np.float32))
    with simt() as counted:
        _, mean, _ = kata.layernorm_warp_shuffle(x, ones, ones, 1e-5, block=128)
    expected = wide[:, :600].mean(axis=1)
    np.testing.assert_allclose(mean.copy_to_host(), expected, rtol=0, atol=1e-5)
    loaded = counted.of(x).load.elements
    assert loaded == 1200, f"x is read where it is, each element once: {loaded} loads of 1200"
    stored = counted.global_store.elements
    assert stored == 1204, f"each result is stored once: {stored} stores of 1204"
    cost.check("row_barriers", counted.barriers_per_block)
    cost.check("row_shared_bytes", counted.shared_bytes)
