"""Sums that come out exact, in any order of threads, and what each rung of the ladder wastes."""

import math

import numpy as np
import pytest
from numba import cuda

# numba advises against launches that leave most of a GPU idle: small sums are no harder
pytestmark = pytest.mark.filterwarnings("ignore:Grid size")


def counting(n):
    """1, 2, 3 … in float32: every sum of them here is exact, whatever its order."""
    return np.arange(1, n + 1, dtype=np.float32)


def unwritten(size):
    """For results, filled with what no sum is."""
    return cuda.to_device(np.full(size, -99, dtype=np.float32))


def total(kata, x, **options):
    return kata.parallel_reduction(cuda.to_device(x), **options).copy_to_host()


# ---- the kernels ---------------------------------------------------------------------------


# one element; one past a warp; a last block whose second half is missing, and one within it; the
# largest block
@pytest.mark.parametrize(("n", "block"), [(1, 32), (33, 32), (640, 128), (1000, 128), (1500, 1024)])
def test_sequential_sums_two_elements_a_thread(kata, n, block):
    x, blocks = counting(n), -(-n // (2 * block))
    partial = unwritten(blocks)
    kata.block_sum_sequential[blocks, block](cuda.to_device(x), partial)
    expected = np.add.reduceat(x, range(0, n, 2 * block))
    np.testing.assert_array_equal(partial.copy_to_host(), expected)


# blocks without elements; a tail shorter than a step of the grid; the largest block
@pytest.mark.parametrize(("n", "blocks", "block"), [(33, 3, 32), (1000, 2, 128), (1500, 1, 1024)])
def test_warp_kernel_is_right_on_any_grid(kata, n, blocks, block):
    partial = unwritten(blocks)
    kata.block_sum_warp[blocks, block](cuda.to_device(counting(n)), partial)
    assert partial.copy_to_host().sum() == n * (n + 1) // 2


def test_blocks_share_the_elements_evenly(kata):
    # 8 for each of 3 * 32 threads; partial[b] is how many block b has summed
    partial = unwritten(3)
    kata.block_sum_warp[3, 32](cuda.to_device(np.ones(768, dtype=np.float32)), partial)
    assert partial.copy_to_host().tolist() == [256, 256, 256]


@pytest.mark.parametrize("order", ["forward", "reversed"])
@pytest.mark.parametrize("kernel", ["block_sum_sequential", "block_sum_warp"])
def test_threads_may_run_in_any_order(kata, simt, kernel, order):
    partial = np.zeros(1, dtype=np.float32)
    with simt(order=order):
        getattr(kata, kernel)[1, 128](counting(256), partial)
    assert partial[0] == 256 * 257 // 2, f"with the threads in {order} order"


# 2^24, 1 and 2^-24 in threads of their own, in one thread, and in warps of their own: in any order
# each sum of two rounds to the larger one, while float64 comes to 2^24 + 2
@pytest.mark.parametrize(
    ("kernel", "block", "places"),
    [
        ("block_sum_sequential", 64, [0, 16, 32]),
        ("block_sum_warp", 64, [0, 64, 128]),
        ("block_sum_warp", 128, [0, 32, 64]),
    ],
)
def test_sums_are_float32(kata, kernel, block, places):
    x, partial = np.zeros(192, dtype=np.float32), unwritten(2)
    x[places] = 2**24, 1, 2**-24
    getattr(kata, kernel)[1, block](cuda.to_device(x), partial)
    assert partial.copy_to_host()[0] == 2**24


@pytest.mark.parametrize("kernel", ["block_sum_sequential", "block_sum_warp"])
def test_one_thread_of_a_block_stores_its_sum(kata, simt, kernel):
    partial = np.zeros(2, dtype=np.float32)
    with simt() as counted:
        getattr(kata, kernel)[2, 64](counting(256), partial)
    assert partial.sum() == 256 * 257 // 2
    assert counted.of(partial).store.elements == 2, "a thread that has not waited may be the last"


# ---- what they waste -----------------------------------------------------------------------


def test_sequential_keeps_warps_whole_and_banks_apart(kata, simt, cost):
    partial = np.zeros(1, dtype=np.float32)
    with simt() as counted:
        kata.block_sum_sequential[1, 128](counting(256), partial)
    assert partial[0] == 256 * 257 // 2
    assert counted.global_load.elements == 256, "each element is loaded once"
    cost.check("sequential_shared_stores", counted.shared_store.elements)
    cost.check("partial_warp_stores", counted.shared_store.partial_requests)
    worst = max(counted.shared_load.max_wavefronts, counted.shared_store.max_wavefronts)
    cost.check("bank_conflicts", worst)
    cost.check("sequential_barriers", counted.barriers_per_block)


def test_warps_meet_only_once(kata, simt, cost):
    partial = np.zeros(1, dtype=np.float32)
    with simt() as counted:
        kata.block_sum_warp[1, 128](counting(256), partial)
    assert partial[0] == 256 * 257 // 2
    cost.check("warp_barriers", counted.barriers_per_block)
    cost.check("warp_shared_stores", counted.shared_store.elements)


def test_threads_sum_several_elements_each(kata, simt, cost):
    x, block = counting(1024), 32
    partial, out = np.zeros(4096, dtype=np.float32), np.zeros(1, dtype=np.float32)
    with simt() as counted:
        kata.parallel_reduction(x, block=block, partial=partial, out=out)
    assert out[0] == 1024 * 1025 // 2
    blocks = counted.of(partial).store.elements
    cost.check("elements_per_thread", counted.of(x).load.elements / (blocks * block))
    assert blocks > 1, "one block alone leaves the rest of a GPU idle"


class Grids:
    """Stands in for a kernel: runs nothing, and keeps how many blocks it was to have."""

    def __init__(self):
        self.blocks = []

    def __getitem__(self, launch):
        self.blocks.append(int(np.prod(launch[0])))
        return lambda *arguments: None


# each thread has 8 elements: none at all, one more than a block's, twice what 4096 blocks have
@pytest.mark.parametrize(
    ("n", "block", "blocks"), [(0, 32, 1), (257, 32, 2), (8193, 1024, 2), (2**21, 32, 4096)]
)
def test_grid_grows_up_to_max_blocks(kata, monkeypatch, n, block, blocks):
    grids = Grids()
    monkeypatch.setattr(kata, "block_sum_warp", grids)
    kata.parallel_reduction(cuda.device_array(n, np.float32), block=block)
    assert grids.blocks == [blocks, 1], "blocks of the first pass, and of the second"


# ---- the sum -------------------------------------------------------------------------------


def alternating():
    """Large values that cancel, with small ones between them: 187.5, to within 6."""
    return np.resize(np.array([1e4, 0.25, -1e4, 0.5], dtype=np.float32), 1000)


def giant_first():
    """2^24, where float32 begins to swallow a 1 that is added to it."""
    return np.array([2**24] + [1] * 1023, dtype=np.float32)


@pytest.mark.parametrize("values", [alternating, giant_first])
def test_errors_grow_with_the_depth_of_the_tree(kata, values):
    x = values()
    depth = math.ceil(math.log2(x.size))
    bound = depth * np.finfo(np.float32).eps * np.abs(x).sum(dtype=np.float64)
    assert abs(float(total(kata, x)[0]) - math.fsum(x)) <= bound


def test_two_to_the_24th_is_no_end(kata, device):
    if device != "cuda":
        pytest.skip("16 million elements are too many for a simulator: pytest --device cuda")
    # an even number, so that float32 holds it
    assert total(kata, np.ones(2**24 + 6, dtype=np.float32)).tolist() == [2**24 + 6]


def test_order_of_the_blocks_does_not_show(kata, simt):
    # 16 blocks of 32 threads: the first sums 2^24, each other 1; 2^24 + 1 rounds to 2^24
    x = np.full(4096, 1 / 256, dtype=np.float32)
    x[0] = 2**24
    sums = []
    for order in ("forward", "reversed"):
        with simt(order=order):
            sums.append(kata.parallel_reduction(x, block=32)[0])
    assert sums[0] == sums[1], "blocks in reversed order give another sum"


def test_infinities_that_meet_are_nan(kata):
    x = counting(300)
    x[7] = np.inf
    assert total(kata, x).tolist() == [np.inf]
    x[290] = -np.inf
    assert np.isnan(total(kata, x)).all()


def test_given_arrays_are_used(kata):
    out, partial = unwritten(3), unwritten(4096)
    assert total(kata, counting(10), out=out, partial=partial, block=32).tolist() == [55]
    assert out.copy_to_host().tolist() == [55, -99, -99]
    assert partial.copy_to_host()[:2].tolist() == [55, -99]
