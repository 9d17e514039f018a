"""What the Triton traffic meter counts, against numbers worked out by hand."""

import os

import numpy as np
import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels are interpreted in CPU sessions only", allow_module_level=True)

import torch
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

from harness.base.errors import HarnessError
from harness.meters.triton_traffic import (
    traffic_meter,
)
from harness.simulators.triton_guards import (
    Bfloat16InInterpreter,
    GridTooLarge,
    OutOfBounds,
    TooManyWarps,
    install_bf16_guard,
    install_bounds_guard,
    refuse_bf16,
    refuse_large_grid,
)


@triton.jit
def strided_copy_kernel(x_ptr, y_ptr, n, stride, BLOCK: tl.constexpr):
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < n
    tl.store(y_ptr + cols, tl.load(x_ptr + cols * stride, mask=mask), mask=mask)


def strided_copy(x, y, *, stride=1, block=1024):
    strided_copy_kernel[(triton.cdiv(y.numel(), block),)](x, y, y.numel(), stride, BLOCK=block)


@triton.jit
def total_kernel(x_ptr, total_ptr, BLOCK: tl.constexpr):
    total = 0.0
    for start in range(0, 2 * BLOCK, BLOCK):
        total += tl.sum(tl.load(x_ptr + start + tl.arange(0, BLOCK)))
    tl.store(total_ptr, total)


@triton.jit
def block_pointer_kernel(x_ptr, y_ptr, rows, cols, B: tl.constexpr):
    row, col = tl.program_id(0) * B, tl.program_id(1) * B
    x = tl.make_block_ptr(x_ptr, (rows, cols), (cols, 1), (row, col), (B, B), (1, 0))
    y = tl.make_block_ptr(y_ptr, (rows, cols), (cols, 1), (row, col), (B, B), (1, 0))
    tl.store(y, tl.load(x, boundary_check=(0, 1)), boundary_check=(0, 1))


@triton.jit
def host_descriptor_kernel(x, y, B: tl.constexpr):
    corner = [tl.program_id(0) * B, tl.program_id(1) * B]
    y.store(corner, x.load(corner))


@triton.jit
def device_descriptor_kernel(x_ptr, y_ptr, rows, cols, B: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [rows, cols], [cols, 1], [B, B])
    y = tl.make_tensor_descriptor(y_ptr, [rows, cols], [cols, 1], [B, B])
    corner = [tl.program_id(0) * B, tl.program_id(1) * B]
    y.store(corner, x.load(corner))


@triton.jit
def histogram_kernel(x_ptr, bins_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(bins_ptr + tl.load(x_ptr + i, mask=i < n), 1, mask=i < n)


@triton.jit
def claim_kernel(lock_ptr, owner_ptr):
    tl.store(owner_ptr + tl.program_id(0), tl.atomic_cas(lock_ptr, 0, 1))


@triton.jit
def last_program_wins_kernel(out_ptr):
    tl.store(out_ptr, tl.program_id(0) * 100 + tl.program_id(1) * 10 + tl.program_id(2))


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, K, B: tl.constexpr):
    i = tl.arange(0, B)
    acc = tl.zeros((B, B), tl.float32)
    for k in range(0, K, B):
        a = tl.load(a_ptr + i[:, None] * K + k + i[None, :])
        b = tl.load(b_ptr + (k + i[:, None]) * B + i[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + i[:, None] * B + i[None, :], acc)


@triton.jit
def gather_kernel(table_ptr, index_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    picked = tl.load(index_ptr + i, mask=i < n, other=0)
    tl.store(out_ptr + i, tl.load(table_ptr + picked, mask=i < n), mask=i < n)


@triton.jit
def as_words_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    words = tl.load(x_ptr.to(tl.pointer_type(tl.int32)) + i)
    tl.store(y_ptr + i, words)


def test_strided_load_wastes_seven_eighths_of_each_sector():
    x, y = torch.randn(80_000), torch.empty(10_000)
    with traffic_meter() as t:
        strided_copy(x, y, stride=8)
    assert torch.equal(y, x[::8])
    assert t.loaded_bytes == 40_000
    assert t.load_sectors * 32 == 320_000
    assert t.stored_bytes == 40_000
    assert t.store_sectors * 32 == 40_000
    assert (t.bytes_moved, t.sectors) == (80_000, 11_250)
    assert (t.programs, t.launches, t.kernels) == (10, 1, ["strided_copy_kernel"])


@pytest.mark.parametrize(
    ("n", "sectors"), [(1, 1), (8, 1), (9, 2), (1023, 128), (1024, 128), (1025, 129)]
)
def test_lanes_beyond_the_mask_move_nothing(n, sectors):
    x, y = torch.randn(2048), torch.zeros(2048)
    with traffic_meter() as t:
        strided_copy(x[:n], y[:n])
    assert t.loaded_bytes == t.stored_bytes == 4 * n
    assert t.load_sectors == t.store_sectors == sectors
    assert not y[n:].any()


def test_misaligned_block_touches_one_more_sector():
    x, y = torch.randn(1025), torch.empty(1024)
    with traffic_meter() as t:
        strided_copy(x[1:], y)
    assert t.load_sectors == 129
    assert t.store_sectors == 128


def test_each_instruction_counts_its_own_sectors():
    x, total = torch.ones(16), torch.empty(1)
    with traffic_meter() as t:
        total_kernel[(3,)](x, total, BLOCK=8)
    assert total.item() == 16
    assert t.loaded_bytes == 3 * 16 * 4
    assert t.load_sectors == 3 * 2
    assert t.stored_bytes == 3 * 4
    assert t.store_sectors == 3


def test_lanes_sharing_an_address_count_in_bytes_and_share_the_sector():
    x, y = torch.ones(1), torch.empty(64)
    with traffic_meter() as t:
        strided_copy(x, y, stride=0, block=64)
    assert t.loaded_bytes == 64 * 4
    assert t.load_sectors == 1
    assert t.loads_of(x).tolist() == [64]


def block_pointers(x, y):
    block_pointer_kernel[(2, 2)](x, y, *x.shape, B=16)


def device_descriptors(x, y):
    device_descriptor_kernel[(2, 2)](x, y, *x.shape, B=16)


def host_descriptors(x, y):
    tiles = [TensorDescriptor.from_tensor(tensor, [16, 16]) for tensor in (x, y)]
    host_descriptor_kernel[(2, 2)](*tiles, B=16)


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
@pytest.mark.parametrize("copy", [block_pointers, device_descriptors, host_descriptors])
def test_tiles_that_stick_out_count_only_what_is_inside(copy):
    x, y = torch.randn(20, 24), torch.zeros(20, 24)
    with traffic_meter() as t:
        copy(x, y)
    assert torch.equal(x, y)
    assert t.loaded_bytes == t.stored_bytes == 20 * 24 * 4
    # rows of 96 bytes: 64 in one tile and 32 in the other, three sectors
    assert t.load_sectors == t.store_sectors == 20 * 3
    assert (t.stores_of(y) == 1).all()


def test_atomics_are_counted_apart_and_move_twice():
    x, bins = torch.arange(100, dtype=torch.int32) % 4, torch.zeros(4, dtype=torch.int32)
    with traffic_meter() as t:
        histogram_kernel[(2,)](x, bins, 100, BLOCK=64)
    assert bins.tolist() == [25, 25, 25, 25]
    assert (t.atomics, t.atomic_bytes) == (100, 400)
    assert (t.loaded_bytes, t.stored_bytes) == (400, 0)
    assert t.bytes_moved == 400 + 2 * 400
    assert t.sectors == 13 + 2 * 2  # 8 and 5 of x, one of bins in each program
    assert t.of(bins).atomic_bytes == 400
    assert t.of(bins).loaded_bytes == t.of(x).atomic_bytes == 0
    assert not t.stores_of(bins).any()


def test_compare_and_swap_is_an_atomic():
    lock, owner = torch.zeros(1, dtype=torch.int32), torch.empty(3, dtype=torch.int32)
    with traffic_meter() as t:
        claim_kernel[(3,)](lock, owner)
    assert owner.tolist() == [0, 1, 1]
    assert (t.atomics, t.atomic_bytes) == (3, 12)


def test_reversed_order_swaps_first_and_last_program():
    out = torch.zeros(1, dtype=torch.int32)
    with traffic_meter():
        last_program_wins_kernel[(2, 3, 4)](out)
    assert out.item() == 123
    with traffic_meter(order="reversed") as t:
        last_program_wins_kernel[(2, 3, 4)](out)
    assert out.item() == 0
    assert t.programs == 24
    last_program_wins_kernel[(2, 3, 4)](out)
    assert out.item() == 123


def test_dots_and_launches_add_up():
    a = torch.randint(-8, 9, (16, 48)).float()  # exact in tf32
    b, c = torch.randint(-8, 9, (48, 16)).float(), torch.empty(16, 16)
    with traffic_meter() as t:
        matmul_kernel[(1,)](a, b, c, 48, B=16)
        matmul_kernel[(1,)](a, b, c, 48, B=16)
        strided_copy(a, torch.empty(16))
    assert bool((c == a @ b).all())
    assert t.dots == 6
    assert t.kernels == ["matmul_kernel", "matmul_kernel", "strided_copy_kernel"]
    assert t.of(a).loaded_bytes == 2 * a.nbytes + 64


def test_one_tensor_of_many():
    x, y = torch.randn(1000), torch.empty(1000)
    with traffic_meter() as t:
        strided_copy(x, y, block=64)
        strided_copy(x[:500], y[:500], block=64)
    of_x = t.of(x)
    assert (of_x.loaded_bytes, of_x.stored_bytes, of_x.atomic_bytes) == (6000, 0, 0)
    assert of_x.load_sectors == 125 + 63
    assert of_x.loads_per_element == 1.5
    assert t.of(y).store_sectors == 125 + 63
    assert t.of(torch.empty(10)).loaded_bytes == 0
    assert t.of(x[:0]).loads_per_element == 0
    assert t.stores_of(y).tolist() == [2] * 500 + [1] * 500
    assert t.loads_of(x).sum() == 1500


def test_a_warm_up_launches_nothing():
    x = torch.randn(64)
    with traffic_meter() as t:
        strided_copy_kernel.warmup(x, torch.empty(64), 64, 1, BLOCK=64, grid=(1,))
    assert (t.kernels, t.launches, t.programs) == ([], 0, 0)


def test_views_of_one_storage_are_told_apart():
    pairs = torch.randn(64, 2)
    even, odd, y = pairs[:, 0], pairs[:, 1], torch.empty(64)
    with traffic_meter() as t:
        strided_copy(odd, y, stride=2, block=64)
    assert t.of(odd).loaded_bytes == 256
    assert t.of(even).loaded_bytes == 0
    assert t.of(even).load_sectors == t.of(odd).load_sectors == 16
    assert t.loads_of(pairs).tolist() == [0, 1] * 64


def test_bytes_are_attributed_whatever_the_width_of_the_access():
    x, y = torch.arange(64, dtype=torch.int8), torch.empty(8, dtype=torch.int32)
    with traffic_meter() as t:
        as_words_kernel[(1,)](x, y, BLOCK=8)
    assert torch.equal(y, x.view(torch.int32)[:8])
    assert t.of(x).loaded_bytes == 32
    assert t.loads_of(x).tolist() == [1] * 32 + [0] * 32


def test_memory_freed_in_the_block_is_not_mistaken_for_another_tensor():
    x = torch.randn(4096)
    with traffic_meter() as t:
        strided_copy(x, torch.empty(4096))
        y = torch.empty(4096)
    assert not t.stores_of(y).any()


def test_counts_merged_early_stay_right(monkeypatch):
    monkeypatch.setattr("harness.meters.triton_traffic._AddressCounts.pending_limit", 100)
    x, y = torch.randn(500), torch.empty(500)
    with traffic_meter() as t:
        strided_copy(x, y, block=64)
        strided_copy(x[::2], y[:250], stride=2, block=64)
    assert t.loads_of(x).tolist() == [2, 1] * 250
    assert t.stores_of(y).tolist() == [2] * 250 + [1] * 250
    assert t.of(x).loaded_bytes == 4 * 750


def test_nested_meters_both_count():
    x, y = torch.randn(64), torch.empty(64)
    with traffic_meter() as outer:
        strided_copy(x, y)
        with traffic_meter() as inner:
            strided_copy(x, y)
        strided_copy(x, y)
    strided_copy(x, y)
    assert (outer.launches, inner.launches) == (3, 1)
    assert (outer.loaded_bytes, inner.loaded_bytes) == (768, 256)


def crash_inside_a_meter():
    with traffic_meter(order="reversed"):
        raise ZeroDivisionError


def test_no_hook_outlives_a_crash():
    builder = interpreter.InterpreterBuilder
    before = dict(vars(builder))
    with pytest.raises(ZeroDivisionError):
        crash_inside_a_meter()
    assert dict(vars(builder)) == before


@pytest.fixture
def guarded(monkeypatch):
    function = interpreter.InterpretedFunction
    monkeypatch.setattr(function, "run", function.run)
    install_bf16_guard()
    return function


def test_bf16_arguments_are_refused_by_name(guarded):
    x, y = torch.ones(64), torch.ones(64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"strided_copy_kernel: .* bfloat16 in argument 'y_ptr'"):
        strided_copy(x, y)
    with pytest.raises(Bfloat16InInterpreter, match="'x_ptr'"):
        strided_copy_kernel[(1,)](y_ptr=x, x_ptr=y, n=1, stride=1, BLOCK=64)
    strided_copy(x, y.float())


def test_bf16_is_found_inside_descriptors_and_tuples(guarded):
    x = torch.ones(16, 16, dtype=torch.bfloat16)
    with pytest.raises(Bfloat16InInterpreter, match="argument 'x'"):
        host_descriptors(x, x.float())
    with pytest.raises(Bfloat16InInterpreter, match="argument 'pair'"):
        refuse_bf16("kernel", {"n": 3, "pair": (x.float(), x)})
    with pytest.raises(Bfloat16InInterpreter, match="argument 'seen'"):
        refuse_bf16("kernel", {"seen": triton.reinterpret(x.half(), tl.bfloat16)})


def test_guard_is_installed_once_and_survives_a_meter(guarded):
    run = guarded.run
    install_bf16_guard()
    assert guarded.run is run
    with traffic_meter():
        install_bf16_guard()
        with pytest.raises(Bfloat16InInterpreter):
            strided_copy(torch.ones(4).bfloat16(), torch.ones(4))
    assert guarded.run is run


def test_operators_between_launches_count_once_they_are_asked_for():
    x, y = torch.ones(100), torch.empty(100)
    with traffic_meter() as kernels_only:
        strided_copy(x, y)
        y.add_(x[:1])
    assert kernels_only.bytes_moved == 800
    with traffic_meter() as t, t.operators:
        strided_copy(x, y)
        y.add_(x[:1])
    assert (t.loaded_bytes, t.stored_bytes) == (400 + 404, 400 + 400)
    assert t.bytes_moved == 1604
    # 404 bytes are more than 12 sectors, and so are 400
    assert t.load_sectors - kernels_only.load_sectors == 13
    assert t.store_sectors - kernels_only.store_sectors == 13
    assert t.launches == 1


def test_unknown_order_is_refused():
    with pytest.raises(HarnessError, match="expected order forward or reversed, found 'random'"):
        traffic_meter(order="random").__enter__()


def test_unknown_triton_is_named(monkeypatch):
    monkeypatch.delattr(interpreter.InterpreterBuilder, "create_masked_load")
    monkeypatch.setattr(triton, "__version__", "9.9")
    with pytest.raises(HarnessError, match=r"triton 9\.9: expected InterpreterBuilder\.create_m"):
        traffic_meter().__enter__()


def test_compiled_kernels_are_refused(monkeypatch):
    monkeypatch.setattr(tl, "cdiv", lambda x, y: None)
    with pytest.raises(HarnessError, match="expected TRITON_INTERPRET=1"):
        traffic_meter().__enter__()


def test_reads_of_random_addresses_match_a_brute_force():
    generator = torch.Generator().manual_seed(5)
    table, out = torch.randn(300), torch.empty(700)
    index = torch.randint(0, 300, (700,), generator=generator)
    with traffic_meter() as t:
        gather_kernel[(11,)](table, index, out, 700, BLOCK=64)
    assert torch.equal(out, table[index])
    assert t.loads_of(table).tolist() == torch.bincount(index, minlength=300).tolist()
    rows = (table.data_ptr() + 4 * index.numpy()) // 32
    blocks = np.split(rows, range(64, 700, 64))
    assert t.of(table).load_sectors == sum(len(set(block)) for block in blocks)


@triton.jit
def _copy_without_mask(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at))


@triton.jit
def _write_before(y_ptr, BLOCK: tl.constexpr):
    tl.store(y_ptr - BLOCK + tl.arange(0, BLOCK), tl.zeros([BLOCK], tl.float32))


@triton.jit
def _copy_through_an_address(address, y_ptr, BLOCK: tl.constexpr):
    x_ptr = tl.load(address).to(tl.pointer_type(tl.float32))
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at))


def test_a_forgotten_mask_is_told_before_memory_is_touched():
    install_bounds_guard()
    x, y = torch.ones(100), torch.zeros(128)
    with pytest.raises(
        OutOfBounds, match="reads 28 elements outside .* the first right past the end"
    ):
        _copy_without_mask[(1,)](x, y, BLOCK=128)
    with pytest.raises(OutOfBounds, match="_copy_without_mask: writes 28 elements"):
        _copy_without_mask[(1,)](torch.ones(128), x, BLOCK=128)
    assert not y.any()


def test_memory_before_a_tensor_is_out_of_bounds():
    install_bounds_guard()
    with pytest.raises(OutOfBounds, match="writes 16 elements"):
        _write_before[(1,)](torch.zeros(64), BLOCK=16)


def test_a_grid_that_no_gpu_launches_is_refused_before_it_runs():
    install_bounds_guard()
    x, y = torch.ones(64), torch.zeros(64)
    for axis, grid in {"y": (1, 65_536), "z": (1, 1, 65_536), "x": (2**31,)}.items():
        with pytest.raises(GridTooLarge, match=rf"_copy_without_mask: .* along {axis} of the grid"):
            _copy_without_mask[grid](x, y, BLOCK=64)
    with pytest.raises(ValueError, match="at most 65,535 programs along y .* found 70,000"):
        _copy_without_mask[lambda meta: (1, 70_000)](x, y, BLOCK=64)
    assert not y.any()


def test_the_largest_grid_is_not_refused():
    refuse_large_grid("kernel", (2**31 - 1, 65_535, 65_535))


def test_warps_that_no_compiled_launch_takes_are_refused_before_it_runs():
    install_bounds_guard()
    x, y = torch.ones(64), torch.zeros(64)
    for warps in (0, 3, 64):
        with pytest.raises(TooManyWarps, match=f"_copy_without_mask: .* up to 32, found {warps}"):
            _copy_without_mask[(1,)](x, y, BLOCK=64, num_warps=warps)
    assert not y.any()
    _copy_without_mask[(1,)](x, y, BLOCK=64, num_warps=32)
    assert y.all()


def test_accesses_within_bounds_pass_the_guard():
    install_bounds_guard()
    install_bounds_guard()
    x, y = torch.randn(256), torch.empty(256)
    _copy_without_mask[(2,)](x, y, BLOCK=128)
    assert torch.equal(x, y)


def test_addresses_computed_from_numbers_are_trusted():
    install_bounds_guard()
    x, y = torch.randn(64), torch.empty(64)
    _copy_through_an_address[(1,)](torch.tensor([x.data_ptr()]), y, BLOCK=64)
    assert torch.equal(x, y)
