"""What kernels compute on the simulator is what NumPy computes."""

import numpy as np
import pytest

from harness.simulators.ptx.formats import bf16_to_f32, f32_to_bf16
from harness.simulators.ptx.fragments import fragment_a, fragment_b, fragment_c

either_way = pytest.mark.parametrize("schedule", [None, 1], ids=["lockstep", "warp by warp"])


def floats(rng, *shape):
    return rng.standard_normal(shape, dtype=np.float32)


@either_way
@pytest.mark.parametrize("n", [1, 31, 1000])
def test_vectors_are_added(run, rng, n, schedule):
    a, b, c = *floats(rng, 2, n), np.zeros(n, np.float32)
    found = run("vadd", [a, b, c, n], grid=2, block=128, schedule=schedule)
    assert (c == a + b).all()
    assert found.found == []
    assert found.counters["global_load_bytes"] == 8 * n
    assert found.counters["global_load_sectors"] == 2 * -(-n // 8)


@either_way
def test_a_tiled_product_with_ragged_edges(run, rng, schedule):
    a, b, c = floats(rng, 50, 70), floats(rng, 70, 40), np.zeros((50, 40), np.float32)
    sizes = {"grid": (3, 4), "block": (16, 16)}
    found = run("matmul", [a, b, c, 50, 40, 70], schedule=schedule, **sizes)
    np.testing.assert_allclose(c, a.astype(float) @ b, rtol=1e-4, atol=1e-4)
    assert found.found == []


@pytest.mark.parametrize(("pad", "ways"), [(0, 32), (1, 1)])
def test_padding_a_tile_by_one_ends_its_conflicts(run, rng, pad, ways):
    x, y = floats(rng, 64, 64), np.zeros((64, 64), np.float32)
    found = run("transpose", [x, y, 64], grid=(2, 2), block=(32, 8), PAD=str(pad))
    assert (y == x.T).all()
    requests = found.counters["shared_load_requests"]
    assert found.counters["shared_load_wavefronts"] == ways * requests
    assert found.bank_conflicts == (ways - 1) * requests


def test_a_register_is_no_zero_before_it_is_written(run, rng):
    x, sums, numbers = floats(rng, 32), np.zeros(32, np.float32), np.zeros(32, np.int32)
    run("small", [x, sums, numbers], name="unwritten")
    assert np.isnan(sums).all()
    assert (numbers == -1).all()


def test_a_reduction_by_shuffles(run, rng):
    x, out = floats(rng, 5000), np.zeros(1, np.float32)
    found = run("reduce", [x, out, 5000], grid=4, block=256)
    assert abs(out[0] - x.astype(float).sum()) < 1e-3
    assert found.found == []
    assert found.counters["shuffles"] == 4 * (8 * 5 + 5)


@either_way
def test_a_scan_in_dynamic_shared_memory(run, rng, schedule):
    x, y = rng.integers(0, 100, 512).astype(np.int32), np.zeros(512, np.int32)
    found = run("scan", [x, y, 512], grid=2, block=256, smem=1024, schedule=schedule)
    assert (y.reshape(2, 256) == x.reshape(2, 256).cumsum(1)).all()
    assert found.found == []


@pytest.mark.parametrize(("file", "block", "sizes"), [("wmma", 128, [64, 64, 64]), ("mma", 32, [])])
def test_products_on_tensor_cores(run, rng, file, block, sizes):
    a, b = floats(rng, 2, 64, 64).astype(np.float16)
    c = np.zeros((64, 64), np.float32)
    found = run(file, [a, b, c, *sizes], block=block)
    assert np.abs(c - a.astype(float) @ b.astype(float)).max() < 1e-4
    assert found.found == []
    assert found.counters["tensor_flops"] == 2 * 64**3


@pytest.mark.parametrize(
    ("shape", "operand", "result", "dtypes"),
    [
        ((32, 8, 16), "half", "float", (np.float16, np.float32)),
        ((8, 32, 16), "half", "half", (np.float16, np.float16)),
        ((16, 16, 16), "signed char", "int", (np.int8, np.int32)),
        ((8, 8, 4), "double", "double", (np.float64, np.float64)),
    ],
    ids=["m32n8", "m8n32", "bytes", "double"],
)
def test_fragments_of_other_shapes_and_types(run, rng, shape, operand, result, dtypes):
    m, n, k = shape
    a, b = (rng.integers(-4, 5, size).astype(dtypes[0]) for size in ((m, k), (n, k)))
    c = np.zeros((m, n), dtypes[1])
    macros = {"SHAPE": f"{m}, {n}, {k}", "OPERAND": operand, "RESULT": result}
    found = run("wmma", [a, b, c], name="one_product", DEPTH=str(k), WIDTH=str(n), **macros)
    assert found.found == []
    assert (c == a.astype(float) @ b.astype(float).T).all()


@pytest.mark.parametrize("wrong", [{"FRAG1": "2", "FRAG2": "1"}, {"TRANS": '""'}])
def test_a_wrong_fragment_gives_wrong_values(run, rng, wrong):
    a, b = floats(rng, 2, 64, 64).astype(np.float16)
    c = np.zeros((64, 64), np.float32)
    run("mma", [a, b, c], **wrong)
    assert np.abs(c - a.astype(float) @ b.astype(float)).max() > 1


def _flat(shape, stride, index):
    """A coordinate of one of CuTe's layouts."""
    out = 0
    for extent, step in zip(shape, stride, strict=True):
        out, index = out + index % extent * step, index // extent
    return out


@pytest.mark.parametrize(
    ("fragment", "rows", "threads", "values"),
    [
        (fragment_a(16, 16), 16, (32, 1), ((2, 2, 2), (16, 8, 128))),
        (fragment_c(32), 16, (32, 1), ((2, 2), (16, 8))),
        (tuple(reversed(fragment_b(16, 16))), 8, (16, 1), ((2, 2), (8, 64))),
    ],
    ids=["A", "C", "B"],
)
def test_fragments_are_those_of_cutes_layouts(fragment, rows, threads, values):
    row, column = fragment
    per = row.shape[2]
    for lane in range(32):
        for value in range(np.prod(values[0])):
            at = _flat((4, 8), threads, lane) + _flat(*values, value)
            place = value // per, lane, value % per
            assert (row[place], column[place]) == (at % rows, at // rows)


def layernorm(run, rng, rows=5, columns=512, **changes):
    x = f32_to_bf16(floats(rng, rows, columns) * 3 + 1)
    scale, shift = f32_to_bf16(floats(rng, columns)), f32_to_bf16(floats(rng, columns))
    y = np.zeros((rows, columns), np.uint16)
    arguments = [x, scale, shift, y, rows, columns, 1e-5]
    found = run("layernorm", arguments, grid=2, block=128, smem=4 * columns, **changes)
    wide = bf16_to_f32(x).astype(float)
    normal = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    error = np.abs(bf16_to_f32(y) - (normal * bf16_to_f32(scale) + bf16_to_f32(shift))).max()
    return found, error


def test_copies_in_flight_while_others_are_waited_for(run, rng):
    found, error = layernorm(run, rng)
    assert error < 0.05
    assert found.found == []
    assert found.counters["cp_async_bytes"] == 5 * 512 * 2
    # all rows but the first of each block are on their way when a wait returns: for each warp
    assert found.counters["bytes_left_in_flight"] == 4 * 3 * 512 * 2
    waits_for_all, _ = layernorm(run, rng, WAIT="__pipeline_wait_prior(0);")
    assert waits_for_all.counters["bytes_left_in_flight"] == 0
    assert waits_for_all.counters["data_waits"] == 4 * 5


def test_a_histogram_by_atomics(run, rng):
    x, out = rng.integers(0, 256, 4000).astype(np.uint8), np.zeros(256, np.uint32)
    found = run("hist", [x, out, 4000], grid=2, block=256)
    assert (out == np.bincount(x, minlength=256)).all()
    assert found.found == []
    assert found.counters["shared_atomics"] == 4000


def test_a_function_that_is_called_a_loop_and_an_array_of_a_threads_own(run, rng):
    def collatz(n):
        steps = 0
        while n != 1:
            n, steps = (3 * n + 1 if n & 1 else n // 2), steps + 1
        return steps

    x, y = rng.integers(1, 40, 64).astype(np.int32), np.zeros(64, np.int32)
    found = run("local", [x, y, 64], block=64)
    for value, got in zip(x.tolist(), y.tolist(), strict=True):
        last = {(index * value) & 7: index for index in range(8)}
        assert got == collatz(value) * 8 + last.get(value & 7, 0)
    assert found.counters["local_stores"] == 512


def test_integers(run, rng):
    a = rng.integers(-(2**31), 2**31, 64).astype(np.int32)
    b = rng.integers(-(2**31), 2**31, 64).astype(np.int32)
    b[::2] = rng.integers(1, 100, 32)
    out = np.zeros((64, 16), np.int32)
    run("small", [a, b, out], name="arith", block=64)
    for x, y, got in zip(a.tolist(), b.tolist(), out.tolist(), strict=True):
        assert [value & 0xFFFFFFFF for value in got] == _integers(x, y)


def _integers(x, y):
    """What the kernel `arith` computes, in Python's integers."""
    ux, uy, shift = x & 0xFFFFFFFF, y & 0xFFFFFFFF, y & 31
    quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    both = ux.to_bytes(4, "little") + uy.to_bytes(4, "little")
    picked = int.from_bytes(bytes(both[at] for at in (0, 4, 1, 5)), "little")
    values = [
        quotient, x - y * quotient, ux // uy, ux % uy, x * y >> 32, ux * uy >> 32,
        32 - ux.bit_length(), ux.bit_count(), picked, ((uy << 32 | ux) << shift) >> 32,
        (ux & -ux).bit_length(), x >> shift, ux << shift, x * y >> 13, abs(x) ^ ~y,
        int(f"{ux:032b}"[::-1], 2),
    ]  # fmt: skip
    return [value & 0xFFFFFFFF for value in values]


def test_conversions_saturate_and_nan_becomes_0(run):
    x = np.array(
        [0.5, 1.5, 2.5, -0.5, -1.5, 1e10, -1e10, np.nan, np.inf, 0.3, 100.7, -100.7, 255.9, 127.5,
         -129, 3], np.float32,
    )  # fmt: skip
    out = np.zeros((16, 8), np.int32)
    run("small", [x, out], name="convert", block=16)
    wide = np.nan_to_num(x.astype(float), posinf=1e30)
    signed = -(2**31), 2**31 - 1
    assert (out[:, 0] == np.clip(np.trunc(wide), *signed)).all()
    assert (out[:, 1] == np.clip(np.rint(wide), *signed)).all()
    assert (out[:, 2].view(np.uint32) == np.clip(np.trunc(wide), 0, 2**32 - 1)).all()
    assert np.array_equal(out[:, 4].view(np.float32), np.floor(x), equal_nan=True)
    squares = (x.astype(float) ** 2 - 1).astype(np.float32)
    assert np.array_equal(out[:, 5].view(np.float32), squares, equal_nan=True)
    assert (out[:, 6] == (x < 0.5)).all()
    assert (out[:, 7] == np.isnan(x)).all()


def test_packed_halves(run, rng):
    x, y, z = floats(rng, 64).astype(np.float16), np.zeros(64, np.float16), np.zeros(64, np.uint16)
    run("features", [x, y, z], name="half2k")
    halves = (x * np.float16(0.5)).astype(float)
    assert (y == (x.astype(float) ** 2 + halves).astype(np.float16)).all()
    once = f32_to_bf16(x.astype(np.float32))
    assert (z == f32_to_bf16(bf16_to_f32(once) + 1)).all()


def test_a_switch_and_a_loop_of_compare_and_swap(run, rng):
    a, b = rng.integers(0, 9, 64).astype(np.int32), np.zeros(64, np.int32)
    run("features", [a, b], name="sw", block=64)
    for i, (v, got) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        assert got == [10, v * 7 + i, 99, i * i, -1, i ^ 21, 5 - i, 1000, 1000][v]
    total = np.zeros(1)
    run("features", [total], name="dadd", grid=2, block=48)
    assert total[0] == 1.5 * 96


def test_barriers_that_count(run, rng):
    a, b = rng.integers(0, 9, 64).astype(np.int32), np.zeros(64, np.int32)
    run("features", [a, b], name="cnt", block=64)
    assert (b == (a & 1).sum() * 100 + 10 * (a == 3).any() + 1).all()


@pytest.mark.parametrize("schedule", [None, 0, 1])
def test_warps_that_hand_over_by_named_barriers(run, schedule):
    x = np.arange(128, dtype=np.int32)
    want = 2 * x.reshape(4, 32)[:, ::-1]
    found = run("features", [x], name="named", block=64, schedule=schedule)
    assert (x.reshape(4, 32) == want).all()
    assert found.found == []


def test_blocks_that_wait_for_each_other(run):
    flag, out = np.zeros(1, np.int32), np.zeros(6, np.int32)
    run("features", [flag, out], name="grid2", grid=6)
    assert (out == 6).all()


def test_lanes_that_wait_for_each_other(run):
    x = np.zeros(4, np.int32)
    assert run("small", [x], name="handshake").found == []
    assert x[:2].tolist() == [1, 7]


def test_printf(run):
    printed = run("small", [1.5], name="hello").printed
    assert printed == [f"thread {t} says 1.50 and {5 * t}000000000%\n" for t in (3, 19)]


@pytest.mark.parametrize("schedule", [None, 0])
def test_a_softmax_over_a_cluster(run, rng, schedule):
    found, error = cluster_softmax(run, rng, schedule=schedule)
    assert error < 1e-6
    assert found.found == []
    assert found.counters["dsmem_bytes"] > 0


def cluster_softmax(run, rng, first="CLUSTER_SYNC", last="CLUSTER_SYNC", schedule=None):
    x, y = floats(rng, 3, 4096), np.zeros((3, 4096), np.float32)
    changes = {"SYNC1": first, "SYNC2": last, "arch": "sm_90", "schedule": schedule}
    found = run("cluster", [x, y, 3, 4096], grid=12, block=128, smem=4096, **changes)
    powers = np.exp(x - x.max(1, keepdims=True))
    return found, np.abs(y - powers / powers.sum(1, keepdims=True)).max()


@pytest.mark.parametrize("selector", [0, 1])
def test_a_product_of_2_to_4_sparsity(run, rng, selector):
    a, values, places = np.zeros((16, 32)), np.zeros((16, 16), np.float16), np.zeros((16, 8), int)
    pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    for row in range(16):
        for group in range(8):
            p, q = pairs[rng.integers(6)]
            two = rng.integers(-8, 8, 2)
            values[row, 2 * group : 2 * group + 2], places[row, group] = two, p | q << 2
            a[row, 4 * group + p], a[row, 4 * group + q] = two
    b = rng.integers(-8, 8, (32, 8)).astype(np.float16)
    (row, column), (k, n) = fragment_a(16, 16), fragment_b(16, 32)
    left, right = values[row, column].transpose(1, 0, 2), b[k, n].transpose(1, 0, 2)
    metadata = np.full(32, 0xDEADBEEF, np.uint32)
    for lane in range(32):
        if lane % 4 // 2 == selector:
            metadata[lane] = sum(
                int(places[lane // 4 + 8 * high, 4 * (lane % 2) + group]) << (4 * group + 16 * high)
                for high in range(2)
                for group in range(4)
            )
    out = np.zeros((16, 8), np.float32)
    packed = [np.ascontiguousarray(one).reshape(32, -1).view(np.uint32) for one in (left, right)]
    run("mma_sp", [*packed, metadata, out], SEL=f'"0x{selector}"')
    assert (out == a @ b.astype(float)).all()
