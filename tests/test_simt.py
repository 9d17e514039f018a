"""The SIMT simulator and its meter, against counts made by hand."""

import os

os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")  # before anything imports numba

import warnings
from types import FunctionType, SimpleNamespace

import numpy as np
import pytest
from numba import cuda, float32, int32

from harness.base.errors import HarnessError, UsageProblem
from harness.judge.setting import Setting
from harness.meters.simt import simt_meter
from harness.simulators.simt import Settings, SimtError, host, install, launching
from harness.simulators.simt.memory_model import sectors, wavefronts

install()

FULL = 0xFFFFFFFF
LANES = np.arange(32)


@cuda.jit
def copy_strided(x, out, stride):
    at = cuda.grid(1)
    out[at] = x[at * stride]


@cuda.jit
def copy_chunks(x, out, chunk):
    for at in range(cuda.grid(1) * chunk, (cuda.grid(1) + 1) * chunk):
        out[at] = x[at]


@cuda.jit
def copy_grid_stride(x, out):
    for at in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        out[at] = x[at]


# ---- global memory ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "stride", "expected"),
    [
        ("float32", 1, 4),
        ("float32", 2, 8),
        ("float32", 7, 28),  # 31 * 28 + 4 bytes from the start, no sector skipped
        ("float32", 8, 32),
        ("float32", 33, 32),
        ("float16", 1, 2),
        ("float64", 1, 8),
        ("complex128", 1, 16),
    ],
)
def test_sectors_of_a_strided_load(dtype, stride, expected):
    x = np.ones(32 * stride, dtype=dtype)
    with simt_meter() as meter:
        copy_strided[1, 32](x, np.zeros(32, dtype=dtype), stride)
    assert meter.global_load.requests == 1
    assert meter.global_load.sectors_per_request == expected
    assert meter.global_load.bytes == 32 * x.itemsize


def test_slice_of_a_device_array_keeps_its_offset():
    x = cuda.to_device(np.ones(64, dtype=np.float32))
    with simt_meter() as meter:
        copy_strided[1, 32](x[1:], np.zeros(32, dtype=np.float32), 1)
    assert meter.global_load.sectors == 5
    assert meter.global_store.sectors == 4
    assert meter.sectors == 5 + 4


def test_slice_of_a_numpy_array_is_copied_to_an_aligned_place():
    x = np.ones(64, dtype=np.float32)
    with simt_meter() as meter:
        copy_strided[1, 32](x[1:], np.zeros(32, dtype=np.float32), 1)
    assert meter.global_load.sectors == 4


def test_chunk_per_thread_touches_a_sector_per_lane():
    x, out = np.ones(256, dtype=np.float32), np.zeros(256, dtype=np.float32)
    with simt_meter() as meter:
        copy_chunks[1, 32](x, out, 8)
    assert meter.global_load.requests == 8
    assert meter.global_load.full_sectors_per_request == 32
    assert meter.global_store.max_sectors == 32


def test_ragged_end_does_not_blur_full_requests():
    x, out = np.ones(40, dtype=np.float32), np.zeros(40, dtype=np.float32)
    with simt_meter() as meter:
        copy_grid_stride[1, 32](x, out)
    load = meter.global_load
    assert (load.requests, load.full_requests, load.partial_requests) == (2, 1, 1)
    assert load.full_sectors_per_request == 4.0
    assert load.sectors_per_request == 2.5  # 4 and, for 8 lanes, 1
    assert load.sector_efficiency == 1.0


def test_one_address_for_all_lanes_is_one_sector():
    with simt_meter() as meter:
        copy_strided[1, 32](np.ones(1, np.float32), np.zeros(32, np.float32), 0)
    assert meter.global_load.sectors == 1
    assert meter.global_load.elements == 32


def test_averages_over_nothing_fail_every_comparison():
    with simt_meter() as meter:
        pass
    assert not meter.global_load.full_sectors_per_request <= 4.0
    assert meter.launches == 0


def test_rows_and_slices_are_counted_element_by_element():
    @cuda.jit
    def rows(x, out):
        row = x[cuda.threadIdx.x]
        out[cuda.threadIdx.x, :] = row
        out[cuda.threadIdx.x][0] += row[1]

    x = np.arange(64, dtype=np.float32).reshape(32, 2)
    out = np.zeros_like(x)
    with simt_meter() as meter:
        rows[1, 32](x, out)
    np.testing.assert_array_equal(out, x + [1, 0] * x[:, 1:])
    np.testing.assert_array_equal(meter.loads_per_element(x), [[1, 2]] * 32)
    np.testing.assert_array_equal(meter.stores_per_element(out), [[2, 1]] * 32)
    assert meter.of(out).load.elements == 32


# ---- which array, which line -----------------------------------------------------------------


def test_arrays_are_told_apart():
    @cuda.jit
    def add_row(x, row, out):
        j, i = cuda.grid(2)
        if i < out.shape[0] and j < out.shape[1]:
            out[i, j] = x[i, j] + row[j]

    x, row = np.ones((5, 40), np.float32), np.ones(40, np.float32)
    out = np.zeros_like(x)
    with simt_meter() as meter:
        add_row[(2, 2), (32, 4)](x, row, out)
    assert meter.of(x).load.elements == meter.of(row).load.elements == 200
    assert meter.of(x).store.requests == 0
    assert meter.of(row).load.sectors == 5 * (4 + 1)
    assert meter.bytes_moved == 3 * 200 * 4
    assert (meter.stores_per_element(out) == 1).all()


def test_stores_are_counted_over_launches_and_found_in_views():
    out = np.zeros(64, np.float32)
    with simt_meter() as meter:
        copy_grid_stride[1, 32](np.ones(32, np.float32), out)
        copy_grid_stride[2, 32](np.ones(48, np.float32), out)
    np.testing.assert_array_equal(meter.stores_per_element(out), np.repeat([2, 1, 0], [32, 16, 16]))
    np.testing.assert_array_equal(meter.stores_per_element(out[::-16]), [0, 1, 2, 2])
    assert meter.launches == 2


def test_copies_the_caller_makes_are_recognised():
    x = np.ones(32, np.float32)
    with simt_meter() as meter:
        out = cuda.device_array(32, np.float32)
        copy_grid_stride[1, 32](cuda.to_device(x), out)
        result = out.copy_to_host()
    assert meter.of(x).load.elements == 32
    assert (meter.stores_per_element(result) == 1).all()
    assert (meter.stores_per_element(out) == 1).all()


def test_array_no_kernel_saw_is_an_error():
    with simt_meter() as meter:
        copy_grid_stride[1, 32](np.ones(8), np.zeros(8))
    with pytest.raises(UsageProblem, match="none saw"):
        meter.of(np.ones(8))


def test_report_names_lines():
    with simt_meter() as meter:
        copy_strided[1, 32](np.ones(64, np.float32), np.zeros(32, np.float32), 2)
    line = f"test_simt.py:{copy_strided.py_func.__code__.co_firstlineno + 3}"
    assert set(meter.by_line) == {line}
    assert meter.by_line[line]["global_load"] == meter.global_load
    first, _ = meter.report().splitlines()
    assert first.split(maxsplit=2) == [line, "global_load", "1 requests, 1 full, 8.00 sectors each"]


# ---- shared memory ---------------------------------------------------------------------------


def transpose_kernel(width, *, lines_per_step=8):
    @cuda.jit
    def transpose(x, out):
        tile = cuda.shared.array((32, width), float32)
        column, line = cuda.threadIdx.x, cuda.threadIdx.y
        for step in range(0, 32, lines_per_step):
            tile[line + step, column] = x[line + step, column]
        cuda.syncthreads()
        for step in range(0, 32, lines_per_step):
            out[line + step, column] = tile[column, line + step]

    return transpose


@pytest.mark.parametrize(("width", "ways"), [(32, 32), (33, 1)])
def test_padding_ends_bank_conflicts(width, ways):
    x = np.random.default_rng(0).random((32, 32), dtype=np.float32)
    out = np.zeros_like(x)
    with simt_meter() as meter:
        transpose_kernel(width)[1, (32, 8)](x, out)
    np.testing.assert_array_equal(out, x.T)
    assert meter.shared_store.wavefronts_per_request == 1
    assert meter.shared_load.wavefronts_per_request == meter.shared_load.max_wavefronts == ways
    assert meter.shared_load.full_requests == meter.shared_load.requests == 32
    assert meter.global_load.full_sectors_per_request == 4
    assert meter.global_store.full_sectors_per_request == 4
    assert meter.barriers == meter.barriers_per_block == 1
    assert meter.shared_bytes == 32 * width * 4


def test_requests_do_not_depend_on_how_warm_the_code_is():
    function, x = transpose_kernel(33).py_func, np.ones((32, 32), np.float32)
    cold = function.__code__.replace()  # CPython specialises it while the threads come by
    kernel = cuda.jit(FunctionType(cold, globals(), closure=function.__closure__))
    for _ in range(2):
        with simt_meter() as meter:
            kernel[1, (32, 8)](x, x.copy())
        assert meter.shared_load.requests == meter.global_load.requests == 32


@pytest.mark.parametrize(
    ("words", "size", "load", "store"),
    [
        (LANES, 4, 1, 1),
        (LANES * 2, 4, 2, 2),
        (LANES * 6, 4, 2, 2),  # gcd(6, 32)
        (LANES * 32, 4, 32, 32),
        (LANES * 0, 4, 1, 1),
        (LANES[::-1], 4, 1, 1),
        (LANES * 2, 8, 2, 2),
        (LANES * 0, 8, 1, 2),
        (LANES // 2 * 2, 8, 1, 2),
        (LANES * 4, 16, 4, 4),
        (LANES * 0, 16, 2, 4),
        (LANES * 32, 8, 32, 32),
        (LANES * 32, 16, 32, 32),
        (LANES * 4, 8, 4, 4),  # half a warp wants 32 words of 16 banks
    ],
)
def test_wavefronts_follow_the_measured_law(words, size, load, store):
    offsets, active = words[None] * 4, np.ones((1, 32), dtype=bool)
    assert wavefronts(offsets, active, size, store=False).tolist() == [load]
    assert wavefronts(offsets, active, size, store=True).tolist() == [store]


def test_inactive_lanes_cost_nothing():
    offsets = np.stack([LANES * 128, LANES * 128])
    active = np.stack([LANES < 3, LANES < 0])
    assert sectors(offsets, active).tolist() == [3, 0]
    assert wavefronts(offsets, active, 4, store=False).tolist() == [3, 0]
    assert wavefronts(offsets, active, 8, store=False).tolist() == [3, 0]


@pytest.mark.parametrize("whole_block", [True, False])
def test_accesses_after_a_barrier_are_not_mixed_with_those_before(whole_block):
    @cuda.jit
    def widening(out, whole_block):
        shared = cuda.shared.array(64, float32)
        lane, width = cuda.threadIdx.x, 1
        while width <= 32:  # lane 31 comes to the store in the last round only
            if lane < width:
                shared[lane + width] = width
            if whole_block:
                cuda.syncthreads()
            else:
                cuda.syncwarp()
            width *= 2
        out[lane] = width

    with simt_meter() as meter:
        widening[1, 32](np.zeros(32, np.float32), whole_block)
    store = meter.shared_store
    assert (store.requests, store.full_requests, store.elements) == (6, 1, 63)
    assert store.wavefronts == 6  # neighbours in every round; lanes 8 and 16 clash across rounds


def test_two_shared_arrays_on_one_line_are_two():
    @cuda.jit
    def two(out):
        a, b = cuda.shared.array(32, float32), cuda.shared.array(32, np.float64)
        at = cuda.threadIdx.x
        a[at] = 1
        b[at] = 2
        cuda.syncthreads()
        out[at] = a[31 - at] + 10 * b[31 - at]

    out = np.zeros(32)
    with simt_meter() as meter:
        for _ in range(3):  # CPython specialises the call in between
            two[1, 32](out)
    assert (out == 21).all()
    assert meter.shared_bytes == 32 * 12


def test_dynamic_shared_memory_is_one_allocation():
    @cuda.jit
    def overlay(out):
        halves, words = cuda.shared.array(0, np.uint16), cuda.shared.array(0, np.uint32)
        halves[cuda.threadIdx.x] = 1
        cuda.syncthreads()
        if cuda.threadIdx.x < words.size:
            out[cuda.threadIdx.x] = words[cuda.threadIdx.x]

    out = np.zeros(16, np.uint32)
    with simt_meter() as meter:
        overlay[1, 32, 0, 64](out)
    assert (out == 0x10001).all()
    assert meter.shared_bytes == 64


def test_shared_and_local_memory_start_poisoned_in_every_block():
    @cuda.jit
    def peek(out):
        shared, local = cuda.shared.array(1, float32), cuda.local.array(1, np.int32)
        out[cuda.blockIdx.x, 0] = shared[0]
        out[cuda.blockIdx.x, 1] = local[0]
        shared[0] = 1

    out = np.zeros((2, 2), np.float32)
    peek[2, 1](out)
    np.testing.assert_array_equal(out, [[np.nan, -1]] * 2)


# ---- barriers and order ----------------------------------------------------------------------


@cuda.jit
def reverse_without_barrier(x, out):
    shared = cuda.shared.array(64, float32)
    at = cuda.threadIdx.x
    shared[at] = x[at]
    out[at] = shared[63 - at]


def test_missing_barrier_shows_in_any_order():
    x = np.arange(64, dtype=np.float32)
    for settings in (Settings(), Settings(order="reversed"), Settings(order="random", seed=5)):
        out = np.zeros_like(x)
        with launching(settings):
            reverse_without_barrier[1, 64](x, out)
        assert (out != x[::-1]).sum() == 32  # whoever runs first reads what is not there yet


def test_orders_are_what_they_say():
    @cuda.jit
    def sign_in(log):
        log[1 + cuda.atomic.add(log, 0, 1)] = cuda.grid(1)

    def log(**settings):
        found = np.zeros(9, np.int64)
        with launching(Settings(**settings)):
            sign_in[2, 4](found)
        return found[1:].tolist()

    assert log() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert log(order="reversed") == [7, 6, 5, 4, 3, 2, 1, 0]
    shuffled = log(order="random", seed=1)
    assert sorted(shuffled) == log()
    assert shuffled == log(order="random", seed=1) != log(order="random", seed=2)


def test_one_barrier_where_two_are_needed_depends_on_order():
    @cuda.jit
    def rotate(out):
        shared = cuda.shared.array(32, np.int32)
        at = cuda.threadIdx.x
        for step in range(2):
            shared[at] = 100 * step + at
            cuda.syncthreads()
            out[step, at] = shared[(at + 1) % 32]  # and no barrier before it is overwritten

    expected = np.array([[(at + 1) % 32 + 100 * step for at in range(32)] for step in range(2)])
    wrong = {}
    for order in ("forward", "reversed"):
        out = np.zeros((2, 32), np.int32)
        with launching(Settings(order=order)):
            rotate[1, 32](out)
        wrong[order] = int((out != expected).sum())
    assert wrong == {"forward": 1, "reversed": 31}


def test_barriers_are_counted_by_block():
    @cuda.jit
    def some(out):
        for _ in range(cuda.blockIdx.x):
            cuda.syncthreads()
        out[0] = 1

    with simt_meter() as meter:
        some[4, 8](np.zeros(1))
    assert meter.barriers == 0 + 1 + 2 + 3
    assert meter.barriers_per_block == 3


def test_barriers_with_predicates():
    @cuda.jit
    def vote(out):
        at = cuda.threadIdx.x
        out[at, 0] = cuda.syncthreads_count(int32(at < 5))
        out[at, 1] = cuda.syncthreads_and(int32(at < 5))
        out[at, 2] = cuda.syncthreads_or(int32(at < 5))

    out = np.zeros((48, 3), np.int32)
    vote[1, 48](out)
    np.testing.assert_array_equal(out, [[5, 0, 1]] * 48)


UNTYPED = [  # what numba-cuda 0.30 answers with a TypingError
    (lambda x: cuda.syncthreads_count(x[0] > 0), "float32", "an integer predicate, found bool"),
    (lambda x: cuda.syncthreads_and(True), "float32", "an integer predicate, found bool"),
    (lambda x: cuda.syncthreads_or(x[0]), "float32", "an integer predicate, found float32"),
    (lambda x: cuda.ballot_sync(1, x[0]), "float32", "an integer or a bool, found float32"),
    (lambda x: cuda.all_sync(1, x[0] / 2), "int32", "an integer or a bool, found float64"),
    (lambda x: cuda.any_sync(1, x[0]), "float16", "an integer or a bool, found float16"),
    (lambda x: cuda.shfl_sync(1, x[0], 0), "bool", "an integer or a float, found bool"),
    (lambda x: cuda.shfl_xor_sync(1, x[0], 0), "complex64", "or a float, found complex64"),
    (lambda x: cuda.atomic.add(x, 0, 1), "float16", "uint32, uint64, found float16"),
    (lambda x: cuda.atomic.max(x, 0, 1), "int16", "uint32, uint64, found int16"),
    (lambda x: cuda.atomic.exch(x, 0, 1), "float32", "an array of int32, int64, uint32, uint64,"),
    (lambda x: cuda.atomic.cas(x, 0, 0, 1), "float64", "uint32, uint64, found float64"),
    (lambda x: cuda.atomic.inc(x, 0, 1), "int32", "an array of uint32, uint64, found int32"),
    (lambda x: cuda.atomic.compare_and_swap(x.reshape(1, 1), 0, 1), "int32", "found 2 axes"),
]


@pytest.mark.parametrize(("call", "dtype", "said"), UNTYPED)
def test_what_numbas_compiler_does_not_type_is_refused(call, dtype, said):
    @cuda.jit
    def kernel(x):
        call(x)

    with pytest.raises(SimtError, match=r"test_simt.py:\d+: thread \(0, 0, 0\)") as caught:
        kernel[1, 1](np.zeros(1, dtype))
    assert said in str(caught.value)
    assert "on a GPU this does not compile" in str(caught.value)


def test_what_numbas_compiler_types_is_taken():
    @cuda.jit
    def kernel(x, out):
        total = 0
        total += x[0]  # int64 for Numba, where NumPy keeps uint8
        out[0] = cuda.syncthreads_count(x[0])
        out[1] = cuda.ballot_sync(1, x[0])
        out[2] = cuda.shfl_sync(1, total, 0)
        out[3] = cuda.shfl_sync(1, 1.5, 0)
        out[4] = cuda.any_sync(1, x[0] > 0)

    out = np.zeros(5, np.float32)
    kernel[1, 1](np.full(1, 3, np.uint8), out)
    assert out.tolist() == [1, 1, 3, 1.5, 1]


def test_threads_that_return_early_are_not_waited_for_but_counted():
    @cuda.jit
    def guarded(x, out):
        shared = cuda.shared.array(32, float32)
        at = cuda.threadIdx.x
        if at >= x.size:
            return
        shared[at] = x[at]
        cuda.syncthreads()
        cuda.syncthreads()
        out[at] = shared[x.size - 1 - at]

    x, out = np.arange(20, dtype=np.float32), np.zeros(20, np.float32)
    with simt_meter() as meter:
        guarded[1, 32](x, out)
    np.testing.assert_array_equal(out, x[::-1])
    assert meter.exited_before_barrier == 12
    assert meter.barriers == 2


def test_grid_barrier_waits_for_every_block():
    @cuda.jit
    def total(x, partial, out):
        partial[cuda.blockIdx.x] = x[cuda.blockIdx.x]
        cuda.cg.this_grid().sync()
        out[cuda.blockIdx.x] = partial[0] + partial[1] + partial[2]

    for order in ("forward", "reversed"):
        out = np.zeros(3)
        with simt_meter(order=order) as meter:
            total[3, 1](np.array([1.0, 2.0, 4.0]), np.zeros(3), out)
        assert out.tolist() == [7, 7, 7]
        assert (meter.grid_barriers, meter.barriers) == (1, 0)


# ---- warps -----------------------------------------------------------------------------------


@cuda.jit(device=True)
def warp_sum(value):
    offset = cuda.warpsize // 2
    while offset:
        value += cuda.shfl_down_sync((1 << cuda.warpsize) - 1, value, offset)
        offset //= 2
    return value


@cuda.jit
def warp_sums(x, out):
    total = warp_sum(x[cuda.grid(1)])
    if cuda.laneid == 0:
        out[cuda.grid(1) // cuda.warpsize] = total


@pytest.mark.parametrize(("warp_size", "shuffles"), [(32, 4 * 5), (64, 2 * 6)])
@pytest.mark.parametrize("order", ["forward", "reversed", "random"])
def test_shuffles_reduce_a_warp(warp_size, shuffles, order):
    x = np.arange(128, dtype=np.float32)
    out = np.zeros(128 // warp_size, np.float32)
    with simt_meter(warp_size=warp_size, order=order) as meter:
        warp_sums[1, 128](x, out)
    np.testing.assert_array_equal(out, x.reshape(-1, warp_size).sum(axis=1))
    assert meter.shuffles == shuffles
    assert meter.global_load.full_requests == 128 // warp_size
    assert meter.global_load.full_sectors_per_request == warp_size / 8


def test_each_shuffle_reads_the_lane_it_names():
    @cuda.jit
    def shuffles(out):
        lane = cuda.laneid
        out[0, lane] = cuda.shfl_sync(FULL, lane, lane + 5)
        out[1, lane] = cuda.shfl_up_sync(FULL, lane, 3)
        out[2, lane] = cuda.shfl_down_sync(FULL, lane, 3)
        out[3, lane] = cuda.shfl_xor_sync(-1, lane, 6)

    out = np.zeros((4, 32), np.int32)
    shuffles[1, 32](out)
    np.testing.assert_array_equal(out[0], (LANES + 5) % 32)
    np.testing.assert_array_equal(out[1], np.where(LANES < 3, LANES, LANES - 3))
    np.testing.assert_array_equal(out[2], np.where(LANES > 28, LANES, LANES + 3))
    np.testing.assert_array_equal(out[3], LANES ^ 6)


def test_value_of_a_lane_outside_the_mask_is_poison():
    @cuda.jit
    def half(out):
        lane = cuda.laneid
        if lane < 16:
            out[lane] = cuda.shfl_down_sync(0xFFFF, np.float32(lane), 8)

    out = np.zeros(32, np.float32)
    half[1, 32](out)
    np.testing.assert_array_equal(out[:16], [*range(8, 16), *[np.nan] * 8])


def test_votes_and_masks():
    @cuda.jit
    def compact(x, out, counter):
        at, lane = cuda.grid(1), cuda.laneid
        keep = x[at] > 0
        ballot = cuda.ballot_sync(FULL, keep)
        if cuda.any_sync(FULL, keep) and not cuda.all_sync(FULL, keep):
            base = 0
            leader = cuda.ffs(ballot) - 1
            if lane == leader:
                base = cuda.atomic.add(counter, 0, cuda.popc(ballot))
            base = cuda.shfl_sync(FULL, base, leader)
            if keep:
                out[base + cuda.popc(ballot & cuda.lanemask_lt())] = x[at]

    x = np.full(96, -1.0, np.float32)
    x[[3, 7, 31, 64, 95]] = [1, 2, 3, 4, 5]
    out, counter = np.zeros(5, np.float32), np.zeros(1, np.int32)
    with simt_meter() as meter:
        compact[1, 96](x, out, counter)
    assert out.tolist() == [1, 2, 3, 4, 5]
    assert (counter[0], meter.global_atomics, meter.shared_atomics) == (5, 2, 0)
    assert meter.of(counter).atomics == 2
    assert meter.of(counter).load.elements == meter.of(counter).store.elements == 0
    assert meter.votes == 3 + 3 + 2


def test_ballot_of_64_lanes_keeps_the_upper_half():
    @cuda.jit
    def ballot(out):
        votes = cuda.ballot_sync((1 << 64) - 1, cuda.laneid >= 40)
        out[cuda.laneid] = cuda.popc(votes), cuda.ffs(votes)

    out = np.zeros((64, 2), np.int32)
    with launching(Settings(warp_size=64)):
        ballot[1, 64](out)
    np.testing.assert_array_equal(out, [[24, 41]] * 64)


def test_bit_counts_follow_the_width_of_the_type():
    @cuda.jit
    def bits(x, out):
        out[0], out[1], out[2], out[3] = (
            cuda.clz(x[0]), cuda.popc(x[0]), cuda.ffs(x[0]), cuda.brev(x[0])
        )  # fmt: skip

    for value, expected in (
        (np.uint32(6), [29, 2, 2, 0x60000000]),
        (np.uint64(6), [61, 2, 2, 0x6 << 60]),
        (np.int32(-2), [0, 31, 2, 0x7FFFFFFF]),
        (np.int32(0), [32, 0, 0, 0]),
    ):
        out = np.zeros(4, np.uint64)
        bits[1, 1](np.array([value]), out)
        assert out.tolist() == expected


def test_syncwarp_orders_lanes():
    @cuda.jit
    def exchange(out):
        shared = cuda.shared.array(48, np.int32)
        at = cuda.threadIdx.x
        shared[at] = at
        cuda.syncwarp()
        out[at] = shared[at ^ 1]

    for order in ("forward", "reversed"):
        out = np.zeros(48, np.int32)
        with simt_meter(order=order) as meter:
            exchange[1, 48](out)  # the second warp has 16 lanes
        np.testing.assert_array_equal(out, np.arange(48) ^ 1)
        assert (meter.warp_barriers, meter.barriers) == (2, 0)


# ---- what would hang or is undefined ---------------------------------------------------------


def line_of(kernel, offset):
    return f"test_simt.py:{kernel.py_func.__code__.co_firstlineno + offset}"


@pytest.mark.parametrize("lane", [7, 31])  # before some others come, and after all have
def test_shuffle_with_a_lane_that_returned(lane):
    @cuda.jit
    def kernel(x):
        if cuda.laneid == lane:
            return
        x[cuda.laneid] = cuda.shfl_down_sync(FULL, 1.0, 1)

    with pytest.raises(SimtError, match=f"lane {lane}, which has returned") as caught:
        kernel[1, 32](np.zeros(32))
    assert line_of(kernel, 4) in caught.value.message
    assert "shfl_down_sync with mask 0xffffffff" in caught.value.message
    assert "of block (0, 0, 0)" in caught.value.message


@pytest.mark.parametrize(("warp_size", "block"), [(32, 48), (64, 32)])
def test_mask_with_lanes_the_block_does_not_have(warp_size, block):
    with (
        launching(Settings(warp_size=warp_size)),
        pytest.raises(SimtError, match=r"lane (16|32), which the block does not have"),
    ):
        warp_sums[1, block](np.zeros(block, np.float32), np.zeros(2, np.float32))


def test_mask_without_the_caller():
    @cuda.jit
    def kernel():
        cuda.ballot_sync(0xFFFF, True)

    with pytest.raises(SimtError, match="own lane 16 in it"):
        kernel[1, 32]()


def test_shuffle_in_a_branch_against_a_barrier_is_a_named_deadlock():
    @cuda.jit
    def kernel(x):
        at = cuda.threadIdx.x
        if at < 40:
            x[at] = cuda.shfl_xor_sync(FULL, x[at], 1)
        cuda.syncthreads()

    with pytest.raises(SimtError) as caught:
        kernel[(1, 2), 64](np.zeros(64))
    message = caught.value.message
    assert message.startswith(f"{line_of(kernel, 4)}: thread (32, 0, 0) of block (0, 0, 0)")
    assert "expected thread (40, 0, 0) of block (0, 0, 0) at shfl_xor_sync too" in message
    assert f"waiting at syncthreads ({line_of(kernel, 5)})" in message


def test_block_and_grid_barrier_against_each_other_is_a_named_deadlock():
    @cuda.jit
    def kernel():
        if cuda.threadIdx.x == 0:
            cuda.syncthreads()
        cuda.cg.this_grid().sync()

    with pytest.raises(SimtError, match=r"at syncthreads too, found it waiting at this_grid"):
        kernel[2, 2]()


def test_grid_barrier_some_threads_never_reach():
    @cuda.jit
    def kernel():
        if cuda.blockIdx.x < 3:
            cuda.cg.this_grid().sync()

    with pytest.raises(SimtError, match="found 8 that have returned"):
        kernel[4, 8]()


def test_grid_barrier_with_more_blocks_than_fit():
    @cuda.jit
    def kernel():
        cuda.cg.this_grid().sync()

    with launching(Settings(resident_blocks=4)):
        kernel[4, 1]()
        with pytest.raises(SimtError, match="room for all 5 blocks"):
            kernel[5, 1]()


def test_kernel_can_be_launched_again_after_a_deadlock():
    with pytest.raises(SimtError):
        warp_sums[1, 48](np.zeros(48, np.float32), np.zeros(2, np.float32))
    out = np.zeros(1, np.float32)
    warp_sums[1, 32](np.ones(32, np.float32), out)
    assert out[0] == 32


@pytest.mark.parametrize(("grid", "block"), [(0, 32), (1, 0), (1, 1025), ((1, 1), (32, 8, 5))])
def test_launches_cuda_refuses(grid, block):
    with pytest.raises(SimtError, match="CUDA refuses"):
        copy_grid_stride[grid, block](np.ones(1), np.ones(1))


def test_activemask_is_refused():
    @cuda.jit
    def kernel():
        cuda.activemask()

    with pytest.raises(SimtError, match="ballot_sync"):
        kernel[1, 1]()


# ---- the kernel's own errors, and Numba's side -----------------------------------------------


def test_a_kernels_own_exception_names_thread_and_block():
    with pytest.raises(IndexError, match=r"^tid=\[2, 0, 0\] ctaid=\[1, 0, 0\]: index 6 is out"):
        copy_strided[2, 4](np.ones(6), np.zeros(8), 1)


def test_a_stub_raises_its_own_error():
    @cuda.jit
    def stub():
        raise NotImplementedError

    with pytest.raises(NotImplementedError, match=r"^tid=\[0, 0, 0\] ctaid=\[0, 0, 0\]$"):
        stub[1, 32]()


def test_context_managers_of_threads_that_wait_are_left_when_another_fails():
    left = []

    class Guard:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            left.append(cuda)

    @cuda.jit
    def kernel():
        with Guard():
            if cuda.threadIdx.x == 2:
                raise ValueError("no")
            cuda.syncthreads()

    with pytest.raises(ValueError, match="no"):
        kernel[1, 4]()
    assert len(left) == 3  # two were waiting, one failed, the last had not begun


def test_arithmetic_wraps_without_warning():
    @cuda.jit
    def wrap(x):
        x[0] += x[1]
        cuda.syncthreads()
        x[1] *= x[1]

    x = np.array([2**32 - 1, 2**31], dtype=np.uint32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrap[1, 1](x)
    assert x.tolist() == [2**31 - 1, 0]


def test_atomics():
    @cuda.jit
    def atomics(x, old, bins, wrapped):
        at = cuda.threadIdx.x
        shared = cuda.shared.array(1, np.int32)
        shared[0] = 0
        cuda.syncthreads()
        cuda.atomic.add(shared, 0, at)
        old[at] = cuda.atomic.add(x, 0, 2)
        cuda.atomic.max(x, 1, at)
        cuda.atomic.min(x, 2, -at)
        cuda.atomic.cas(x, 3, 0, at + 1)
        cuda.atomic.exch(x, 4, at)
        cuda.atomic.sub(x, 5, 1)
        cuda.atomic.inc(wrapped, 0, 3)
        cuda.atomic.add(bins, (at % 2, 1), 1)
        cuda.syncthreads()
        bins[0, 0] = shared[0]

    x, old, bins = np.zeros(6, np.int32), np.zeros(8, np.int32), np.zeros((2, 2), np.int32)
    wrapped = np.full(1, 2, np.uint32)
    with simt_meter() as meter:
        atomics[1, 8](x, old, bins, wrapped)
    assert x.tolist() == [16, 7, -7, 1, 7, -8]
    assert wrapped.tolist() == [2]  # 3, 0, 1, 2, and the same once more
    assert old.tolist() == list(range(0, 16, 2))
    assert bins.tolist() == [[28, 4], [0, 4]]
    assert (meter.atomics, meter.shared_atomics, meter.of(x).atomics) == (9 * 8, 8, 6 * 8)


def test_indices_of_a_three_dimensional_launch():
    @cuda.jit
    def indices(out):
        x, y, z = cuda.grid(3)
        out[x, y, z] = cuda.threadIdx.x + 10 * cuda.threadIdx.y + 100 * cuda.blockIdx.z
        if x == y == z == 0:
            out[0, 0, 0] = cuda.laneid + sum(cuda.gridsize(3))

    out = np.full((4, 6, 3), -1)
    indices[(2, 3, 3), (2, 2, 1)](out)
    assert out[0, 0, 0] == 4 + 6 + 3
    assert out[3, 5, 2] == 1 + 10 + 200
    assert out[2, 1, 0] == 10


@pytest.mark.parametrize("options", [{"max_registers": 64}, {"lineinfo": True}])
def test_options_that_only_a_compiler_sees_are_taken(options):
    @cuda.jit(device=True, **options)
    def half(x):
        return x / 2

    @cuda.jit(**options)
    def halve(x, out):
        out[cuda.grid(1)] = half(x[cuda.grid(1)])

    x, out = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    with simt_meter() as meter:
        halve[1, 32](x, out)
    np.testing.assert_array_equal(out, x / 2)
    assert meter.global_load.requests == 1


def test_an_option_that_cuda_has_not_is_refused():
    with pytest.raises(TypeError, match="max_register"):
        cuda.jit(max_register=64)


def test_input_hints_copy_one_way():
    x, out = np.ones(4), np.zeros(4)
    with simt_meter() as meter:
        copy_grid_stride[1, 4](cuda.In(x), cuda.Out(out))
        copy_grid_stride[1, 4](np.zeros(4), cuda.In(x))
    assert out.tolist() == x.tolist() == [1, 1, 1, 1]
    assert meter.of(x).load.elements == meter.of(x).store.elements == 4


def test_configured_kernels_are_independent():
    small, large = copy_grid_stride[1, 1], copy_grid_stride[2, 32]
    with simt_meter() as meter:
        small(np.ones(64), np.zeros(64))
        large(np.ones(64), np.zeros(64))
    assert meter.global_load.requests == 64 + 2


def test_arrays_offer_only_what_cuda_has():
    @cuda.jit
    def kernel(x):
        x.reshape(4)[3] = x.ravel()[0] + len(x) + x.T.shape[0] + x.view(np.int64).size

    @cuda.jit
    def cheat(x):
        x[0, 0] = x.sum()

    x = np.ones((2, 2))
    kernel[1, 1](x)
    assert x[1, 1] == 1 + 2 + 2 + 4
    with pytest.raises(AttributeError, match="sum"):
        cheat[1, 1](x)


def test_foreign_arrays_and_structures_are_refused():
    class Foreign:
        def __array__(self):
            return np.zeros(1)

    with pytest.raises(TypeError, match="found Foreign"):
        copy_grid_stride[1, 1](Foreign(), np.zeros(1))
    with pytest.raises(TypeError, match="array of numbers"):
        copy_grid_stride[1, 1](np.zeros(1, dtype="i4,f4"), np.zeros(1))


def test_one_meter_at_a_time():
    with simt_meter(), pytest.raises(UsageProblem, match="one meter"), simt_meter():
        pass


@pytest.mark.parametrize(
    "settings", [{"order": "sideways"}, {"warp_size": 16}, {"resident_blocks": 0}]
)
def test_machines_that_do_not_exist(settings):
    with pytest.raises(UsageProblem, match=next(iter(settings))):
        Settings(**settings)


def test_unknown_numba_is_named(monkeypatch):
    monkeypatch.setitem(host.PARTS, "kernel_class", ("simulator.kernel", "NoSuchKernel"))
    with pytest.raises(HarnessError, match=r"numba-cuda \d.*NoSuchKernel"):
        host.numba_parts.__wrapped__()


def test_a_thousand_threads_meet_at_their_barriers():
    @cuda.jit
    def barriers(x):
        for _ in range(8):
            x[cuda.grid(1)] += 1
            cuda.syncthreads()

    x = np.zeros(1024)
    barriers[8, 128](x)
    with simt_meter() as meter:
        barriers[8, 128](x)
    assert (x == 16).all()
    assert meter.barriers == 64


@cuda.jit
def _neighbour_warp_after_syncwarp(out):
    shared = cuda.shared.array(64, np.float32)
    me = cuda.threadIdx.x
    shared[me] = me
    cuda.syncwarp()
    out[me] = shared[(me + 32) % 64]


@pytest.mark.parametrize("order", ["forward", "reversed"])
def test_a_warp_barrier_orders_no_other_warp(order):
    out = np.zeros(64, np.float32)
    with simt_meter(order=order):
        _neighbour_warp_after_syncwarp[1, 64](out)
    assert not np.array_equal(out, (np.arange(64) + 32) % 64)


def test_numbas_own_simulator_serves_where_numba_cuda_is_not_built(monkeypatch):
    def missing(_):
        raise host.metadata.PackageNotFoundError

    monkeypatch.setattr(host.metadata, "version", missing)
    parts = host.numba_parts.__wrapped__()
    assert parts.as_dtype.__module__ == "numba.np.numpy_support"
    assert issubclass(parts.by_reference, parts.hint_class)


def test_threads_that_leave_a_device_function_of_another_file_take_nothing_from_the_others():
    # Numba's own simulator puts the module back when the first thread leaves
    there = {"cuda": cuda, "jit": cuda.jit(device=True)}
    exec("@jit\ndef wait(i):\n    cuda.syncthreads()\n    return cuda.threadIdx.x + i\n", there)
    wait = there["wait"]

    @cuda.jit
    def twice(out):
        out[cuda.threadIdx.x] = wait(wait(0))

    out = np.zeros(64, np.int32)
    twice[1, 64](out)
    np.testing.assert_array_equal(out, 2 * np.arange(64))
    assert there["cuda"] is cuda


# ---- in what order a judge has them run ----------------------------------------------------


@cuda.jit
def _in_turn(count, out):
    """Which thread comes at which turn."""
    out[cuda.atomic.add(count, 0, 1)] = cuda.grid(1)


def test_a_judge_runs_threads_in_an_order_of_its_seed():
    numba_kata = SimpleNamespace(kata=SimpleNamespace(backend="numba"))
    setting = Setting(submission=numba_kata, oracle=None, device="cpu")

    def turns(order, seed=0):
        count, out = np.zeros(1, np.int64), np.zeros(64, np.int64)
        with setting.ordered(order, seed=seed):
            _in_turn[2, 32](count, out)
        return out.tolist()

    assert turns("forward") == list(range(64))
    assert turns("reversed") == list(range(64))[::-1]
    first, second = (turns("random", seed) for seed in (1, 2))
    assert first == turns("random", 1)
    assert len({*map(tuple, (first, second, turns("forward"), turns("reversed")))}) == 4
    assert sorted(first) == list(range(64))
