"""Who has the answer after a reduction, which of equals it is, and what it takes."""

import math

import numpy as np
import pytest
from numba import cuda

# numba advises against launches that leave most of a GPU idle, and against arrays of the host: a
# few rows are no harder
pytestmark = [pytest.mark.filterwarnings(f"ignore:{what}") for what in ("Grid size", "Host array")]

INF, NAN = math.inf, math.nan
ROOM = 32  # float32 of shared memory, as the kata says


def float32(values):
    return np.asarray(values, dtype=np.float32)


@pytest.fixture
def warp_sums(kata):
    """`warp_sum` of each thread's value."""
    function = kata.warp_sum

    @cuda.jit
    def kernel(values, sums):
        at = cuda.grid(1)
        sums[at] = function(values[at])

    def run(values, block=32):
        sums = np.zeros_like(values)
        kernel[len(values) // block, block](values, sums)
        return sums

    return run


@pytest.fixture
def warp_argmaxima(kata):
    """`warp_argmax` of each lane's pair, in one warp."""
    function = kata.warp_argmax

    @cuda.jit
    def kernel(values, indices, tops, places):
        at = cuda.grid(1)
        tops[at], places[at] = function(values[at], indices[at])

    def run(values, indices):
        values, indices = float32(values), np.asarray(indices, dtype=np.int32)
        tops, places = np.zeros_like(values), np.zeros_like(indices)
        kernel[1, 32](values, indices, tops, places)
        return tops, places

    return run


@pytest.fixture
def block_sums(kata):
    """`block_sum` of each row of values, one after the other in the same room."""
    function = kata.block_sum

    @cuda.jit
    def kernel(values, sums):
        room = cuda.shared.array(ROOM, np.float32)
        thread = cuda.threadIdx.x
        for call in range(values.shape[0]):
            sums[call, thread] = function(values[call, thread], room)

    def run(values):
        sums = np.zeros_like(values)
        kernel[1, values.shape[1]](values, sums)
        return sums

    return run


# ---- a warp ------------------------------------------------------------------------------------


def test_lane_zero_has_the_sum_of_its_warp(warp_sums, seed):
    values = float32(np.random.default_rng(seed).integers(-99, 100, 256))
    # two blocks of two warps, and four of them
    for block in (64, 128):
        sums, expected = warp_sums(values, block)[::32], values.reshape(8, 32).sum(axis=1)
        np.testing.assert_array_equal(sums, expected, f"lane 0 of each warp, blocks of {block}")


LANES = {
    "one above the others": ([0] * 17 + [1] + [0] * 14, range(32), 17),
    "equal values": ([2.5] * 32, range(32), 0),
    "equal values, indices from above": ([2.5] * 32, range(31, -1, -1), 0),
    "two of the largest, the lower index in the higher lane": (
        [-1] * 3 + [7] + [-1] * 20 + [7] + [-1] * 7,
        [*range(100, 124), 50, *range(200, 207)],
        50,
    ),
    "only -inf": ([-INF] * 32, range(40, 72), 40),
    "inf twice": ([INF] + [0] * 30 + [INF], range(31, -1, -1), 0),
    "NaN above inf": ([INF] * 8 + [NAN] + [INF] * 23, range(32), 8),
    "two NaNs": ([1] * 9 + [NAN] + [1] * 9 + [NAN] + [INF] * 12, range(63, 31, -1), 44),
    "zeros of both signs": ([-0.0, 0.0] * 16, range(32), 0),
    "indices past 2^24": ([1] * 32, range(2**31 - 1, 2**31 - 33, -1), 2**31 - 32),
    "below zero": (range(-32, 0), range(32), 31),
    "indices below zero": ([1] * 32, range(15, -17, -1), -16),
}


@pytest.mark.parametrize(("values", "indices", "place"), LANES.values(), ids=LANES)
def test_every_lane_has_the_argmax(warp_argmaxima, values, indices, place):
    tops, places = warp_argmaxima(values, indices)
    lane = list(indices).index(place)
    assert places.tolist() == [place] * 32
    np.testing.assert_array_equal(tops, float32([values[lane]] * 32))
    assert np.signbit(tops).all() == np.signbit(float32(values[lane])), "of zeros, the one there"


def test_all_lanes_agree_on_numpys_argmax(warp_argmaxima, seed):
    generator = np.random.default_rng(seed)
    for _ in range(8):
        in_order = generator.choice(float32([-INF, -2, -0.0, 0.0, 1e-40, 2, INF, NAN]), 32)
        indices = generator.permutation(32)
        _, places = warp_argmaxima(in_order[indices], indices)
        lanes = f"values {in_order[indices].tolist()}, indices {indices.tolist()}"
        assert places.tolist() == [int(np.argmax(in_order))] * 32, (
            f"{lanes}: expected {int(np.argmax(in_order))}, found {places.tolist()}"
        )


def test_five_shuffles_for_each_register(warp_sums, warp_argmaxima, simt, cost):
    with simt() as counted:
        sums = warp_sums(float32(range(32)))
    assert sums[0] == 496
    cost.check("warp_sum_shuffles", counted.shuffles)
    with simt() as counted:
        _, places = warp_argmaxima(range(32), range(32))
    assert places[0] == 31
    cost.check("warp_argmax_shuffles", counted.shuffles)


# ---- a block -----------------------------------------------------------------------------------


# one warp, two, eight, and all that a block can have
@pytest.mark.parametrize("block", [32, 64, 256, 1024])
def test_every_thread_has_the_same_sum(block_sums, seed, block):
    values = float32(np.random.default_rng(seed).uniform(0.5, 1.5, (1, block)))
    sums = block_sums(values)[0]
    np.testing.assert_allclose(sums[0], values.sum(dtype=np.float64), rtol=1e-6)
    np.testing.assert_array_equal(sums, sums[0], "every thread's sum, against the first thread's")


@pytest.mark.parametrize("order", ["forward", "reversed", "random"])
def test_the_next_sum_may_use_the_same_room(block_sums, simt, seed, order):
    values = float32(np.arange(1, 4)[:, None] * np.arange(96))
    with simt(order=order, seed=seed):
        sums = block_sums(values)
    expected = np.repeat(values.sum(axis=1, keepdims=True), 96, axis=1)
    np.testing.assert_array_equal(sums, expected, f"three sums in a row, threads {order}")


def test_a_block_waits_twice(block_sums, simt, cost):
    values = np.ones((1, 256), dtype=np.float32)
    with simt() as counted:
        sums = block_sums(values)
    assert sums[0, 255] == 256
    cost.check("block_sum_shuffles", counted.shuffles)
    cost.check("block_sum_barriers", counted.barriers_per_block)


# ---- rows --------------------------------------------------------------------------------------


def rows_with(*places, cols=200, value=9.0, others=-3.0):
    """A row that holds `value` at these places, as an array of one row."""
    x = np.full((1, cols), others, dtype=np.float32)
    x[0, list(places)] = value
    return x


ROWS = {
    "the last element": (rows_with(199, value=0.1), 199),
    "equal in one thread": (rows_with(70, 134), 70),
    "equal across lanes": (rows_with(67, 90), 67),
    "equal across warps, the later first": (rows_with(33, 64), 33),
    "equal across three warps": (rows_with(95, 100, 131, cols=300), 95),
    "only -inf": (rows_with(others=-INF), 0),
    "-inf, fewer than lanes": (rows_with(others=-INF, cols=5), 0),
    "inf twice": (rows_with(40, 190, value=INF), 40),
    "NaN after inf": (rows_with(150, value=NAN, others=INF), 150),
    "two NaNs": (rows_with(35, 65, value=NAN), 35),
    "only NaN": (rows_with(others=NAN, cols=7), 0),
    "-0.0 before 0.0": (rows_with(*range(1, 200), value=0.0, others=-0.0), 0),
    "below zero": (rows_with(3, value=-1.0), 3),
}


@pytest.mark.parametrize(("x", "place"), ROWS.values(), ids=ROWS)
def test_the_first_of_the_largest_counts(kata, x, place):
    _, maxima, indices = kata.warp_shuffle_reduce(x, block=96)
    assert indices.tolist() == [place]
    np.testing.assert_array_equal(maxima, x[:, place])
    assert np.signbit(maxima[0]) == np.signbit(x[0, place]), "of zeros, the one at that place"


def test_sums_that_are_no_numbers(kata):
    x = np.ones((4, 70), dtype=np.float32)
    x[0, 66], x[1, 3], x[2, 3], x[2, 66] = NAN, INF, INF, -INF
    sums, _, _ = kata.warp_shuffle_reduce(x, block=64)
    np.testing.assert_array_equal(sums, float32([NAN, INF, NAN, 70]))


@pytest.mark.parametrize("order", ["reversed", "random"])
def test_threads_may_run_in_any_order(kata, oracle, simt, seed, order):
    inputs = oracle.make_inputs(
        rows=2, cols=150, dtype=np.dtype("float32"), device="cpu", seed=seed, block=96
    )
    with simt(order=order, seed=seed):
        found = kata.warp_shuffle_reduce(**inputs)
    for name, got, want in zip(
        ("sums", "maxima", "indices"), found, oracle.reference(**inputs), strict=True
    ):
        np.testing.assert_array_equal(got, want, f"{name}, threads {order}")


def test_rows_may_lie_apart(kata):
    wide = np.full((3, 8), 99, dtype=np.float32)
    wide[:, :5] = [[1, 2, 3, 4, 5], [5, 4, 3, 2, 1], [0, 0, 7, 0, 0]]
    x = cuda.to_device(wide)[:, :5]
    found = [one.copy_to_host().tolist() for one in kata.warp_shuffle_reduce(x, block=32)]
    assert found == [[15, 15, 7], [5, 5, 7], [4, 0, 2]]


def test_a_block_has_the_threads_asked_for(kata, simt):
    for block in (96, 1024):
        with simt() as counted:
            kata.warp_shuffle_reduce(np.ones((1, 40), dtype=np.float32), block=block)
        assert block in counted.extents, f"block = {block}: expected blocks of so many threads"


def test_a_row_takes_few_barriers_and_little_room(kata, simt, cost):
    # rows with gaps behind them, which a copy would close
    x = cuda.to_device(np.resize(np.arange(700, dtype=np.float32), (2, 700)))[:, :600]
    with simt() as counted:
        sums, _, indices = kata.warp_shuffle_reduce(x, block=64)
    assert sums.copy_to_host().tolist() == [599 * 300] * 2
    assert indices.copy_to_host().tolist() == [599] * 2
    loaded = counted.of(x).load.elements
    assert loaded == 1200, f"x is read where it is, each element once: {loaded} loads of 1200"
    stored = counted.global_store.elements
    assert stored == 6, f"one thread stores what a row gives: {stored} stores for two rows"
    cost.check("row_barriers", counted.barriers_per_block)
    cost.check("row_shared_bytes", counted.shared_bytes)


def test_given_arrays_are_used(kata):
    x = np.arange(80, dtype=np.float32).reshape(2, 40)
    mine = [np.full(2, -99, dtype=dtype) for dtype in (np.float32, np.float32, np.int32)]
    found = kata.warp_shuffle_reduce(x, *mine, block=32)
    assert [one.tolist() for one in mine] == [[780, 2380], [39, 79], [39, 39]]
    assert all(one is given for one, given in zip(found, mine, strict=True)), "those returned"
