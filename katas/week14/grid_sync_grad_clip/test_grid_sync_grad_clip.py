"""What is clipped and what is left alone, in which order it is summed, and how many blocks fit."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numba import cuda

# numba advises against launches that leave most of a GPU idle, and against arrays of the host: a
# few elements are no harder
pytestmark = [pytest.mark.filterwarnings(f"ignore:{what}") for what in ("Grid size", "Host array")]

INF, NAN = math.inf, math.nan


def float32(values):
    return np.asarray(values, dtype=np.float32)


def assert_same_bits(found, expected, what):
    same = found.view(np.uint32) == expected.view(np.uint32)
    at = int(np.argmin(same))
    assert same.all(), f"{what}: element {at}: expected {expected[at]!r}, found {found[at]!r}"


# ---- clipping ------------------------------------------------------------------------------------


def test_the_gradient_is_clipped_in_place(kata):
    g = float32([3, 0, 0, -4])
    same, norm = kata.grid_sync_grad_clip(g, 2.0, block=32)
    assert same is g
    assert norm.tolist() == [5.0]
    np.testing.assert_allclose(g, [1.2, 0, 0, -1.6], rtol=1e-6)


# the limit in units of the norm: far above it, and above it by little more than what is added
@pytest.mark.parametrize("limit", [7.0, 5.000002], ids=["well below", "just below"])
def test_what_is_below_the_limit_keeps_its_bits(kata, limit):
    g = float32([3, -0.0, 1e-40, -4] + [0.0] * 40)
    before = g.copy()
    _, norm = kata.grid_sync_grad_clip(g, limit, block=32)
    assert norm.tolist() == [5.0]
    assert_same_bits(g, before, f"norm 5, limit {limit}")


def test_the_norm_is_divided_with_what_is_added_to_it(kata):
    g = float32([3e-6, -4e-6])
    _, norm = kata.grid_sync_grad_clip(g, 5e-6, block=32)
    np.testing.assert_allclose(norm, [5e-6], rtol=1e-6)
    # 5 of 5 + 1 millionths
    np.testing.assert_allclose(g, float32([3e-6, -4e-6]) * (5 / 6), rtol=1e-6)


def test_products_are_float64_and_rounded_once(kata):
    # whole numbers, whose squares add up exactly
    before = float32(range(-200, 200))
    norm = math.sqrt(np.sum(np.square(before, dtype=np.float64)))
    for limit in (1000.0, 77.0):
        g, expected = before.copy(), float32(before.astype(np.float64) * (limit / (norm + 1e-6)))
        kata.grid_sync_grad_clip(g, limit, block=32)
        assert_same_bits(g, expected, f"norm {norm}, limit {limit}")


def test_zeros_keep_their_signs(kata):
    g = float32([0.0, -0.0] * 50)
    before = g.copy()
    _, norm = kata.grid_sync_grad_clip(g, 1e-9, block=32)
    assert norm.tolist() == [0.0]
    assert_same_bits(g, before, "zeros of both signs, limit 1e-9")


NOT_FINITE = {
    "NaN": (NAN, NAN, [NAN, NAN, NAN]),
    "inf": (INF, INF, [0.0, NAN, -0.0]),
    "-inf": (-INF, INF, [0.0, NAN, -0.0]),
}


@pytest.mark.parametrize(("value", "norm", "clipped"), NOT_FINITE.values(), ids=NOT_FINITE)
def test_what_is_not_finite_shows_in_the_norm(kata, value, norm, clipped):
    g = float32([1, value, -2])
    _, found = kata.grid_sync_grad_clip(g, 1.0, block=32)
    np.testing.assert_array_equal(found, [norm])
    np.testing.assert_array_equal(g, float32(clipped), f"[1, {value}, -2] clipped to 1")


# squares above the largest float32, and below the smallest
@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_squares_do_not_fit_into_float32(kata, size):
    g = float32([size] * 100)
    expected = 10 * float(g[0])
    _, norm = kata.grid_sync_grad_clip(g, 1.0, blocks=2, block=32)
    np.testing.assert_allclose(norm, [expected], rtol=1e-12)
    np.testing.assert_allclose(g, float32([min(size, 0.1)] * 100), rtol=1e-6)


def test_small_squares_count_beside_a_large_one(kata):
    g = float32([4096.0] + [0.5] * 999)
    _, norm = kata.grid_sync_grad_clip(g, 1e9, blocks=4, block=32)
    np.testing.assert_allclose(norm, [math.sqrt(4096**2 + 999 / 4)], rtol=1e-12)


def test_given_arrays_are_used_and_nothing_in_them_is_read(kata):
    norm, partials = np.full(1, NAN), np.full(7, NAN)
    for g, expected in ((float32([2] * 100), 20.0), (float32([1] * 36), 6.0)):
        _, found = kata.grid_sync_grad_clip(g, 5.0, norm, partials, blocks=4, block=32)
        assert found is norm
        assert norm.tolist() == [expected]
    assert np.isnan(partials[4:]).all(), f"4 blocks: 4 partial sums, found {partials}"
    assert not np.isnan(partials[:4]).any(), f"4 blocks: 4 partial sums, found {partials}"


# ---- the grid ------------------------------------------------------------------------------------


def machine_of(kata, **limits):
    """Two SMs that hold no more than two blocks of any kind."""
    given = {"sms": 2, "warps": 64, "blocks": 2, "registers": 65536, "partitions": 4}
    given |= {"register_unit": 256, "smem_bytes": 65536, "smem_unit": 128, "smem_reserved": 0}
    return kata.Machine(**(given | limits))


def launched(kata, n, **options):
    """How many blocks there were: each leaves one partial sum."""
    partials = np.full(64, NAN)
    g = np.ones(n, np.float32)
    _, norm = kata.grid_sync_grad_clip(g, 1e9, partials=partials, block=32, **options)
    np.testing.assert_allclose(norm, [math.sqrt(n)], rtol=1e-12)
    return np.count_nonzero(~np.isnan(partials))


def test_the_grid_is_as_large_as_all_blocks_are_resident(kata, simt):
    for sms in (1, 2, 3):
        with simt(resident_blocks=2 * sms):
            blocks = launched(kata, 1000, machine=machine_of(kata, sms=sms))
        assert blocks == 2 * sms, f"{sms} SMs for 2 blocks: expected {2 * sms}, found {blocks}"


# one element, a block, one more, as many as the grid holds, one more
@pytest.mark.parametrize(
    ("n", "blocks"), [(0, 1), (1, 1), (32, 1), (33, 2), (128, 4), (129, 4)], ids=str
)
def test_no_block_is_without_an_element(kata, n, blocks):
    found = launched(kata, n, machine=machine_of(kata))
    assert found == blocks, f"{n} elements, blocks of 32: expected {blocks}, found {found}"


def test_blocks_asked_for_are_launched_up_to_those_that_are_resident(kata):
    machine = machine_of(kata)
    for blocks in (1, 3, 4):
        assert launched(kata, 1000, machine=machine, blocks=blocks) == blocks
    assert launched(kata, 5, machine=machine, blocks=4) == 4
    with pytest.raises(ValueError, match="^blocks: "):
        launched(kata, 1000, machine=machine, blocks=5)


def test_a_block_that_fits_nowhere_is_refused(kata):
    g = np.full(40, 7, np.float32)
    with pytest.raises(ValueError, match="^block: "):
        kata.grid_sync_grad_clip(g, 1.0, machine=machine_of(kata, warps=1), block=64)
    assert g.tolist() == [7] * 40


def test_the_first_of_several_mistakes_is_told_and_nothing_is_changed(kata):
    given = {"g": np.ones(40, np.float32), "norm": np.full(1, 7.0), "partials": np.full(1, 9.0)}
    before = {name: values.tolist() for name, values in given.items()}
    for machine, limit, blocks, name in (
        (machine_of(kata, warps=1), 0.0, 9, "max_norm"),
        (machine_of(kata, warps=1), 1.0, 9, "block"),
        (machine_of(kata), 1.0, 9, "blocks"),
        (machine_of(kata), 1.0, 3, "partials"),
    ):
        with pytest.raises(ValueError, match=f"^{name}: "):
            kata.grid_sync_grad_clip(
                **given, max_norm=limit, machine=machine, blocks=blocks, block=64
            )
        found = {name: values.tolist() for name, values in given.items()}
        assert found == before, f"{name} refused: expected {before}, found {found}"


def test_there_may_be_more_partial_sums_than_threads(kata):
    g = np.arange(1, 1501, dtype=np.float32)
    machine = machine_of(kata, sms=25)
    _, norm = kata.grid_sync_grad_clip(g, 1e9, machine=machine, block=32, blocks=37)
    np.testing.assert_allclose(norm, [math.sqrt(1500 * 1501 * 3001 / 6)], rtol=1e-12)


def test_the_order_of_blocks_makes_no_difference(kata, simt):
    # 96 in each block but the first, whose 2**60 swallows such a sum, and not several of them
    g = float32([2.0**30] + [0] * 31 + [math.sqrt(3)] * 608)
    norms = {}
    for order in ("forward", "reversed", "random"):
        with simt(order=order):
            _, norm = kata.grid_sync_grad_clip(
                g, 1e10, machine=machine_of(kata, sms=10), blocks=20, block=32
            )
        norms[order] = norm.tolist()
    assert len({*map(tuple, norms.values())}) == 1, f"norms by the order of blocks: {norms}"


# ---- how many are resident -----------------------------------------------------------------------

H100 = {
    "sms": 132,
    "warps": 64,
    "blocks": 32,
    "registers": 65536,
    "partitions": 4,
    "register_unit": 256,
    "smem_bytes": 233472,
    "smem_unit": 128,
    "smem_reserved": 1024,
}

FITTING = {
    "warps": ((256, 32, 0), 132 * 8),
    "a warp of one thread": ((1, 16, 0), 132 * 32),
    "registers": ((256, 40, 0), 132 * 6),
    # 33 * 32 registers are 1280 in portions, 12 warps of them in a partition
    "no warp straddles partitions": ((128, 33, 0), 132 * 12),
    "shared memory": ((128, 16, 101 * 1024), 132 * 2),
    "shared memory to the byte": ((128, 16, 113 * 1024), 132 * 2),
    "one byte too many": ((128, 16, 113 * 1024 + 1), 132),
    # 24917 + 1024 bytes are 25984 in portions, of which 8 fit; 9 would without
    "shared memory in portions": ((128, 16, 24917), 132 * 8),
    "none": ((1024, 255, 0), 0),
}


@pytest.mark.parametrize(("asked", "blocks"), FITTING.values(), ids=FITTING)
def test_blocks_that_an_h100_holds(kata, asked, blocks):
    assert kata.max_coresident_blocks(*asked, kata.Machine(**H100)) == blocks


@given(
    threads=st.integers(1, 1024),
    regs=st.integers(1, 255),
    smem=st.sampled_from([0, 1, 256, 3000, 8192, 40000]),
    limits=st.fixed_dictionaries(
        {
            "sms": st.sampled_from([1, 3, 108]),
            "warps": st.sampled_from([1, 16, 48]),
            "blocks": st.sampled_from([1, 5, 24]),
            "registers": st.sampled_from([4096, 65536]),
            "partitions": st.sampled_from([1, 2, 4]),
            "register_unit": st.sampled_from([64, 256, 512]),
            "smem_bytes": st.sampled_from([8192, 100000]),
            "smem_unit": st.sampled_from([1, 128, 256]),
            "smem_reserved": st.sampled_from([0, 100, 1024]),
        }
    ),
)
@example(threads=64, regs=40, smem=0, limits=H100 | {"partitions": 1})
@example(threads=64, regs=255, smem=0, limits=H100 | {"smem_reserved": 0})
def test_as_many_fit_as_can_be_placed_one_by_one(kata, oracle, threads, regs, smem, limits):
    machine = kata.Machine(**limits)
    expected = oracle.coresident_blocks(threads, regs, smem, machine)
    assert kata.max_coresident_blocks(threads, regs, smem, machine) == expected


def test_the_driver_counts_as_many(kata, device):
    if device != "cuda":
        pytest.skip("the driver counts on a GPU")
    kernel = kata.clip_blocks.compile(kata.SIGNATURE)
    regs, smem = kata.footprint()
    for threads in (32, 96, 256, 1024):
        expected = kernel.max_cooperative_grid_blocks(threads)
        assert kata.max_coresident_blocks(threads, regs, smem, kata.this_machine()) == expected


# ---- a tile of a warp ----------------------------------------------------------------------------


@pytest.fixture
def tile_sums(kata):
    """`tile_sum` of each lane's value, in the lanes from `low` to `high` only."""
    function = kata.tile_sum

    @cuda.jit
    def kernel(values, width, low, high, sums):
        at = cuda.grid(1)
        if low <= at % 32 and at % 32 < high:
            sums[at] = function(values[at], width)

    def run(values, width, low=0, high=32):
        sums = np.full_like(values, NAN)
        kernel[1, len(values)](values, width, low, high, sums)
        return sums

    return run


@pytest.mark.parametrize("width", [8, 16, 32])
def test_every_lane_has_the_sum_of_its_tile(tile_sums, seed, width):
    values = np.random.default_rng(seed).integers(-99, 100, 96).astype(np.float64)
    expected = np.repeat(values.reshape(-1, width).sum(axis=1), width)
    np.testing.assert_array_equal(tile_sums(values, width), expected, f"tiles of {width}")


@pytest.mark.parametrize(("width", "tile"), [(8, 0), (8, 2), (8, 3), (16, 1)], ids=str)
def test_a_tile_needs_no_other_lanes(tile_sums, width, tile):
    values = np.arange(32.0)
    low, high = tile * width, (tile + 1) * width
    expected = np.full(32, NAN)
    expected[low:high] = values[low:high].sum()
    found = tile_sums(values, width, low, high)
    np.testing.assert_array_equal(found, expected, f"lanes {low} to {high - 1} call alone")


# ---- what it takes -------------------------------------------------------------------------------


def test_one_launch_and_one_grid_barrier(kata, simt, cost):
    # several rounds of all threads, each with other elements
    before = float32(1 + np.arange(4096) % 7)
    g, expected = before.copy(), math.sqrt(np.sum(before**2, dtype=np.float64))
    with simt() as counted:
        _, norm = kata.grid_sync_grad_clip(g, 6.4, blocks=4, block=64)
    np.testing.assert_allclose(norm, [expected], rtol=1e-12)
    np.testing.assert_allclose(g, before * (6.4 / expected), rtol=1e-6)
    cost.check("launches", counted.launches)
    cost.check("grid_barriers", counted.grid_barriers)
    cost.check("bytes_clipped", counted.bytes_moved)
    cost.check("sectors_clipped", counted.sectors)
    cost.check("shared_bytes", counted.shared_bytes)
    assert counted.of(norm).store.elements == 1, "one thread of the grid stores the norm"


def test_what_is_not_clipped_is_read_once(kata, simt, cost):
    g = np.ones(4096, np.float32)
    with simt() as counted:
        _, norm = kata.grid_sync_grad_clip(g, 100.0, blocks=4, block=64)
    assert norm.tolist() == [64.0]
    cost.check("bytes_kept", counted.bytes_moved)
    # a factor of exactly 1
    g = np.zeros(40, np.float32)
    with simt() as counted:
        kata.grid_sync_grad_clip(g, 1e-6, block=32)
    stored = counted.of(g).store.elements
    assert stored == 0, f"norm 0, limit 1e-6: expected no stores to g, found {stored}"


def test_a_tile_takes_five_shuffles(tile_sums, simt, cost):
    with simt() as counted:
        sums = tile_sums(np.arange(32.0), 32)
    assert sums[0] == 496
    cost.check("tile_sum_shuffles", counted.shuffles)
