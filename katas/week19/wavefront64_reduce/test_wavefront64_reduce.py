"""The same kernels at both widths: lanes above 31, blocks that end halfway, what it takes."""

import inspect
import math
from types import CodeType

import numpy as np
import pytest
from numba import cuda

# numba advises against launches that leave most of a GPU idle, and against arrays of the host: a
# few rows are no harder
pytestmark = [pytest.mark.filterwarnings(f"ignore:{what}") for what in ("Grid size", "Host array")]

INF, NAN = math.inf, math.nan
WIDTHS = [32, 64]
OF_A_WIDTH = {5, 6, 31, 32, 63, 64, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1}


def keeping(n, places):
    """1, 2, 3 … at these places, and negative numbers elsewhere."""
    x = -np.arange(1, n + 1, dtype=np.float32)
    places = list(places)
    x[places] = np.arange(1, len(places) + 1)
    return x


def wavefronts(n, block, warp):
    """The elements of each wavefront, as slices of n elements."""
    starts = [b + w for b in range(0, n, block) for w in range(0, block, warp)]
    ends = [min(b + w + warp, b + block) for b in range(0, n, block) for w in range(0, block, warp)]
    return [slice(start, end) for start, end in zip(starts, ends, strict=True)]


def assert_compacted(found, x, threshold, block, warp):
    """Fail unless just the right elements are there, each wavefront's together and in order."""
    found, shown = found.tolist(), f"{len(x)} elements, block = {block}, warp = {warp}"
    kept = [x[part] for part in wavefronts(len(x), block, warp)]
    kept = [part[part > np.float32(threshold)].tolist() for part in kept]
    expected = sorted(value for part in kept for value in part)
    assert sorted(found) == expected, f"{shown}: expected the values {expected}, found {found}"
    for number, part in enumerate(kept):
        if part:
            at = found.index(part[0])
            together = found[at : at + len(part)]
            assert together == part, f"{shown}: wavefront {number}: expected {part}, got {together}"


# ---- rows --------------------------------------------------------------------------------------

# columns and threads: fewer than lanes, around 32 and 64, two wavefronts of 64, four
ROWS = [(1, 64), (33, 64), (63, 128), (64, 64), (65, 64), (1000, 128), (70, 256)]


@pytest.mark.parametrize("warp", WIDTHS)
@pytest.mark.parametrize(("cols", "block"), ROWS)
def test_rows_are_summed_at_either_width(kata, simt, seed, warp, cols, block):
    x = np.random.default_rng(seed).integers(-99, 100, (2, cols)).astype(np.float32)
    with simt(warp_size=warp, order="random", seed=seed):
        sums = kata.wavefront64_reduce(x, warp, block)
    np.testing.assert_array_equal(sums, x.sum(axis=1), f"{cols} columns, {block=}, {warp=}")


# half a wavefront and nothing else; one and a half; three and a half
@pytest.mark.parametrize("block", [32, 96, 224])
def test_a_row_takes_half_a_wavefront_of_64(kata, simt, seed, block):
    x = np.random.default_rng(seed).integers(-99, 100, (2, 300)).astype(np.float32)
    with simt(warp_size=64):
        sums = kata.wavefront64_reduce(x, 64, block)
    np.testing.assert_array_equal(sums, x.sum(axis=1), f"300 columns, {block=}, warp=64")


@pytest.mark.parametrize("warp", WIDTHS)
def test_sums_that_are_no_numbers(kata, simt, warp):
    x = np.ones((4, 70), dtype=np.float32)
    x[0, 66], x[1, 3], x[2, 3], x[2, 66] = NAN, INF, INF, -INF
    with simt(warp_size=warp):
        sums = kata.wavefront64_reduce(x, warp, 64)
    np.testing.assert_array_equal(sums, np.array([NAN, INF, NAN, 70], dtype=np.float32))


def test_a_single_wavefront_needs_one_tree(kata, simt, cost):
    for warp in WIDTHS:
        with simt(warp_size=warp) as counted:
            sums = kata.wavefront64_reduce(np.ones((1, 200), dtype=np.float32), warp, warp)
        assert sums.tolist() == [200]
        assert counted.barriers_per_block == 0, f"{warp=}: one wavefront has nobody to wait for"
        stored = counted.shared_store.elements
        assert stored == 0, f"{warp=}: one wavefront has its sum: {stored} stores to shared memory"
        cost.check(f"shuffles_of_{warp}_lanes", counted.shuffles)


def test_a_wavefront_leaves_one_partial_sum(kata, simt, cost):
    with simt(warp_size=64) as counted:
        sums = kata.wavefront64_reduce(np.ones((1, 200), dtype=np.float32), 64, 1024)
    assert sums.tolist() == [200]
    stored = counted.shared_store.elements
    assert stored == 16, f"16 wavefronts, a partial sum each: {stored} stores to shared memory"
    cost.check("shared_bytes_at_64", counted.shared_bytes)
    most = 16 * 6 + 6
    assert counted.shuffles <= most, (
        f"a tree for each of 16 wavefronts, then one for their sums: expected at most {most} "
        f"shuffles, found {counted.shuffles}"
    )


def test_rows_may_lie_apart(kata, simt):
    x = cuda.to_device(np.resize(np.arange(300, dtype=np.float32), (3, 100)))[:, :70]
    with simt() as counted:
        sums = kata.wavefront64_reduce(x, 32, 32).copy_to_host()
    np.testing.assert_array_equal(sums, np.arange(300.0).reshape(3, 100)[:, :70].sum(axis=1))
    loaded = counted.of(x).load.elements
    assert loaded == 210, f"x is read where it is, each element once: {loaded} loads of 210"


def test_given_sums_are_used(kata):
    sums = np.full(2, -99, dtype=np.float32)
    found = kata.wavefront64_reduce(np.ones((2, 40), dtype=np.float32), 32, 32, sums)
    assert sums.tolist() == [40, 40]
    assert found is sums


# ---- compaction --------------------------------------------------------------------------------

PLACES = {
    "lanes 32 to 63": (64, range(32, 64)),
    "lanes 0 to 31": (64, range(32)),
    "all 64 lanes": (128, range(128)),
    "lane 63": (130, [63, 127]),
    "lanes 31 and 32": (200, [31, 32, 95, 96, 159, 160]),
    "every third": (150, range(1, 150, 3)),
    "the last of a few": (65, [64]),
    "none": (70, []),
}


@pytest.mark.parametrize("warp", WIDTHS)
@pytest.mark.parametrize(("n", "places"), PLACES.values(), ids=PLACES)
def test_lanes_above_31_keep_their_place(kata, simt, seed, warp, n, places):
    x = keeping(n, places)
    with simt(warp_size=warp, order="random", seed=seed):
        found = kata.compact(x, 0.0, warp, 128)
    assert_compacted(found, x, 0.0, 128, warp)


# half a wavefront and nothing else; one and a half, where the block's last element is kept
@pytest.mark.parametrize("block", [32, 96])
def test_half_a_wavefront_of_64_votes(kata, simt, block):
    x = keeping(200, [0, 31, 32, 63, 64, 95, 96, 199])
    with simt(warp_size=64):
        found = kata.compact(x, 0.0, 64, block)
    assert_compacted(found, x, 0.0, block, 64)


@pytest.mark.parametrize("warp", WIDTHS)
def test_above_means_above(kata, simt, warp):
    # in float32 0.1 is a little more than 0.1
    x = np.array([0.1, 0.2, NAN, INF, -INF, -0.0], dtype=np.float32)
    with simt(warp_size=warp):
        found = kata.compact(x, np.float64(0.1), warp, 64)
    assert found.tolist() == [np.float32(0.2), INF]


def test_what_is_kept_stays_as_it_is(kata):
    # -0.0 and numbers too small to be normal, which arithmetic might have changed
    x = np.array([-0.0, 0.0, 1e-45, -1e-45, -1e-40], dtype=np.float32)
    found = kata.compact(x, -1.0, 32, 32)
    assert found.view(np.int32).tolist() == x.view(np.int32).tolist(), (
        f"{x}, all kept: found {found}, which has other bits"
    )


def test_a_wavefront_takes_one_atomic(kata, simt, cost):
    # in three of eight wavefronts of 64 nothing is kept
    x = keeping(512, [*range(128), *range(200, 230), 300, 500])
    with simt(warp_size=64) as counted:
        found = kata.compact(x, 0.0, 64, 128)
    assert_compacted(found, x, 0.0, 128, 64)
    cost.check("atomics_per_wavefront", counted.global_atomics / 5)
    stored = counted.global_store.elements
    assert stored == 160, f"what is kept is stored once: {stored} stores of 160 elements"


def test_every_call_counts_from_zero(kata):
    for places in ([3, 4], [60], range(64)):
        found = kata.compact(keeping(64, places), 0.0, 32, 32)
        assert_compacted(found, keeping(64, places), 0.0, 32, 32)


# ---- one source for both widths ----------------------------------------------------------------


def constants(code):
    """The numbers written in a function and in those defined inside it, in tuples too."""
    waiting = list(code.co_consts)
    for value in waiting:
        if isinstance(value, CodeType):
            waiting += value.co_consts
        elif isinstance(value, tuple | frozenset):
            waiting += value
        elif isinstance(value, int) and not isinstance(value, bool):
            yield value


def test_no_width_is_written_out(kata):
    kata.make_kernels(64)
    written = set(constants(inspect.unwrap(kata.make_kernels).__code__))
    found = sorted(written & OF_A_WIDTH)
    assert not found, f"make_kernels: expected nothing of one width, found the numbers {found}"


def test_kernels_are_made_once_for_each_width(kata):
    made = [kata.make_kernels(warp) for warp in (32, 64, 32, 64)]
    assert made[0] is made[2]
    assert made[1] is made[3]
    assert made[0] is not made[1]


# a warp and a half, all of a block; a wavefront and a half, which nobody rounds up
@pytest.mark.parametrize(("warp", "block"), [(32, 96), (32, 1024), (64, 96)])
def test_a_block_has_the_threads_asked_for(kata, simt, warp, block):
    with simt(warp_size=warp) as summed:
        kata.wavefront64_reduce(np.ones((1, 40), dtype=np.float32), warp, block)
    with simt(warp_size=warp) as compacted:
        kata.compact(np.ones(40, dtype=np.float32), 0.0, warp, block)
    assert block in summed.extents, f"row_sum, {warp=}, {block=}: expected blocks of so many"
    assert block in compacted.extents, f"compact, {warp=}, {block=}: expected blocks of so many"
