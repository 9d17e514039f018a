"""Exact products, cycles and lines counted, tiles that do not fill the array, formulas by hand."""

import numpy as np
import pytest

SHAPES = [  # m, k, n
    (1, 1, 1),
    (7, 5, 3),
    (1, 4, 6),  # one row of activations, as in decode
    (6, 1, 4),  # no sums to add
    (4, 6, 1),  # nothing moves to the right
    (3, 8, 8),  # fewer rows than the array
    (20, 2, 3),
]
NAMES = [f"{m}x{k} times {k}x{n}" for m, k, n in SHAPES]


def assert_equal(found, expected):
    assert (found.dtype, found.shape) == (np.float64, expected.shape), (
        f"expected float64 of {expected.shape}, found {found.dtype} of {found.shape}"
    )
    np.testing.assert_array_equal(found, expected)


# ---- one pass ------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "k", "n"), SHAPES, ids=NAMES)
def test_product_is_exact(kata, oracle, seed, m, k, n):
    a, w = oracle.integers(seed, m, k), oracle.integers(seed + 1, k, n)
    assert_equal(kata.systolic_pass(a, w, oracle.SystolicArray(k, n)), a @ w)


@pytest.mark.parametrize(("m", "k", "n"), SHAPES, ids=NAMES)
def test_no_cycle_more_than_the_last_result_takes(kata, oracle, seed, m, k, n):
    array = oracle.SystolicArray(k, n)
    kata.systolic_pass(oracle.integers(seed, m, k), oracle.integers(seed + 1, k, n), array)
    assert (array.cycles, array.loads) == (m + k + n - 2, 1)


def test_the_array_is_filled_in_few_steps(kata, oracle, seed, lines, cost):
    a, w = oracle.integers(seed, 64, 64), oracle.integers(seed + 1, 64, 64)
    array = oracle.SystolicArray(64, 64)
    with lines(limit=60_000) as counted:
        kata.systolic_pass(a, w, array)
    cost.check("cycles", array.cycles)
    cost.check("lines", counted.lines)


@pytest.mark.parametrize("function", ["systolic_pass", "mxu_matmul"])
def test_nan_stays_in_its_row(kata, oracle, seed, function):
    a, w = oracle.integers(seed, 6, 4), oracle.integers(seed + 1, 4, 4)
    a[2, 1] = np.nan
    found = getattr(kata, function)(a, w, oracle.SystolicArray(4, 4))
    assert np.isnan(found).any(axis=1).tolist() == [False, False, True, False, False, False]
    assert_equal(found, a @ w)


@pytest.mark.parametrize("left_over", [7.0, np.nan])
def test_registers_may_hold_anything(kata, oracle, seed, left_over):
    array = oracle.SystolicArray(4, 3, left_over)
    a, w = oracle.integers(seed, 5, 4), oracle.integers(seed + 1, 4, 3)
    assert_equal(kata.systolic_pass(a, w, array), a @ w)


@pytest.mark.parametrize("function", ["systolic_pass", "mxu_matmul"])
def test_operands_are_read_only_and_strided(kata, oracle, seed, function):
    a, w = oracle.integers(seed, 8, 9)[::2, ::3].T, oracle.integers(seed + 1, 4, 4).T
    before = a.copy(), w.copy()
    a.flags.writeable = w.flags.writeable = False
    found = getattr(kata, function)(a, w, oracle.SystolicArray(4, 4))
    assert_equal(found, before[0] @ before[1])
    assert np.array_equal(a, before[0])
    assert np.array_equal(w, before[1])


# ---- tiles ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "k", "n", "tiles"),
    [
        (5, 4, 4, 1),  # just one tile
        (5, 3, 2, 1),  # smaller than the array both ways
        (3, 8, 12, 6),  # a multiple of it
        (3, 5, 4, 2),  # one row over
        (3, 4, 5, 2),  # one column over
        (1, 11, 6, 6),  # neither divides
    ],
)
def test_tiles_are_padded_and_added_up(kata, oracle, seed, m, k, n, tiles):
    a, w = oracle.integers(seed, m, k), oracle.integers(seed + 1, k, n)
    array = oracle.SystolicArray(4, 4)
    assert_equal(kata.mxu_matmul(a, w, array), a @ w)
    assert (array.loads, array.cycles) == (tiles, tiles * (m + 2 * 4 - 2))


def test_tiles_of_zeros_take_their_pass(kata, oracle, seed):
    a, w = oracle.integers(seed, 3, 8), oracle.integers(seed + 1, 8, 8)
    w[4:, :4] = 0
    array = oracle.SystolicArray(4, 4)
    assert_equal(kata.mxu_matmul(a, w, array), a @ w)
    assert (array.loads, array.cycles) == (4, 4 * (3 + 2 * 4 - 2))


@pytest.mark.parametrize("function", ["systolic_pass", "mxu_matmul"])
def test_the_next_product_leaves_the_last_alone(kata, oracle, seed, function):
    a, w = oracle.integers(seed, 3, 4), oracle.integers(seed + 1, 4, 4)
    array = oracle.SystolicArray(4, 4)
    found = getattr(kata, function)(a, w, array)
    getattr(kata, function)(a + 1, w, array)
    assert_equal(found, a @ w)


# ---- formulas ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "double_buffer", "cycles"),
    [
        ((1, 1, 1, 1), True, 2),  # one cycle to load, one to multiply
        ((1, 1, 1, 1), False, 2),
        ((10, 4, 4, 4), True, 4 + 16),  # one tile: nothing to load meanwhile
        ((10, 4, 4, 4), False, 4 + 16),
        ((10, 8, 4, 4), True, 4 + 10 + 16),
        ((10, 8, 4, 4), False, 2 * (4 + 16)),
        ((2, 8, 5, 4), True, 4 + 3 * 4 + 8),  # waits for weights: 4 tiles, 2 rows each
        ((4096, 256, 256, 128), True, 128 + 3 * 4096 + 4096 + 254),
    ],
)
def test_cycles_by_hand(kata, problem, double_buffer, cycles):
    assert kata.mxu_cycles(*problem, double_buffer) == cycles


@pytest.mark.parametrize("double_buffer", [True, False], ids=["double", "single"])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 9])
def test_cycles_of_the_simulation(kata, oracle, m, double_buffer):
    for size in (1, 2, 3):
        for k, n in [(1, 1), (size, size), (size + 1, size), (5, 7)]:
            tiles = len(range(0, k, size)) * len(range(0, n, size))
            expected = oracle.simulated_cycles(m, tiles, size, double_buffer)
            assert kata.mxu_cycles(m, k, n, size, double_buffer) == expected


@pytest.mark.parametrize(
    ("problem", "share"),
    [
        ((1, 1, 1, 1), 1 / 2),
        ((4, 4, 4, 4), 64 / (16 * 14)),
        ((10, 3, 5, 4), 150 / (16 * 30)),  # padding is no use
        ((4096, 256, 256, 128), 16384 / 16766),
    ],
)
def test_utilisation_by_hand(kata, problem, share):
    assert kata.utilisation(*problem) == pytest.approx(share, rel=1e-12)


def test_peak_of_tpu_v5e(kata):
    found = kata.peak_flops(4, 128, 1.5e9)
    assert found == pytest.approx(196.608e12, rel=1e-12)
    assert isinstance(found, float)
    assert kata.peak_flops(1, 3, 0.5) == 9.0


# ---- errors --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "w", "cells", "name"),
    [
        ((2, 3), (4, 3), (4, 3), "w"),
        ((2,), (2, 3), (2, 3), "a"),
        ((0, 2), (2, 3), (2, 3), "a"),
        ((2, 3), (3, 0), (3, 3), "w"),
        ((2, 3), (3,), (3, 3), "w"),
        ((2, 3), (3, 4), (4, 3), "array"),
    ],
)
@pytest.mark.parametrize("function", ["systolic_pass", "mxu_matmul"])
def test_shapes_that_do_not_fit(kata, oracle, function, a, w, cells, name):
    array = oracle.SystolicArray(*cells)
    with pytest.raises(ValueError, match=f"^{name}: "):
        getattr(kata, function)(np.ones(a), np.ones(w), array)
    assert (array.loads, array.cycles) == (0, 0)


@pytest.mark.parametrize("cells", [(4, 4), (3, 4), (4, 3)])
def test_a_pass_fills_the_array(kata, oracle, cells):
    with pytest.raises(ValueError, match="^array: "):
        kata.systolic_pass(np.ones((2, 3)), np.ones((3, 3)), oracle.SystolicArray(*cells))


@pytest.mark.parametrize("name", ["m", "k", "n", "size"])
@pytest.mark.parametrize("value", [0, -1])
def test_sizes_below_one(kata, name, value):
    sizes = {"m": 2, "k": 2, "n": 2, "size": 2, name: value}
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.mxu_cycles(**sizes, double_buffer=True)
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.utilisation(**sizes)


@pytest.mark.parametrize(
    ("name", "value"),
    [("mxus", 0), ("size", 0), ("clock_hz", 0.0), ("clock_hz", -1.0), ("clock_hz", np.nan)],
)
def test_no_machine(kata, name, value):
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.peak_flops(**{"mxus": 1, "size": 2, "clock_hz": 1e9, name: value})
