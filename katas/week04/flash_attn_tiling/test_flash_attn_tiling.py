"""Attention on a machine that counts: any tiles, any order, masks, extremes, and what it costs."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

# F.scaled_dot_product_attention(q, k, v, is_causal=…) of PyTorch 2.13, in float64: recorded, as
# importing it takes longer than all tests here
SDPA_INPUTS = (
    [[0.5, -1.0], [2.0, 0.25], [-1.5, 1.0]],
    [[1.0, 0.5], [-0.5, 2.0], [0.75, -1.0]],
    [[1.0, 2.0], [3.0, -4.0], [-5.0, 6.0]],
)
SDPA = {
    False: [
        [-3.0170352013604353, 4.430935896093743],
        [-0.7223728868514702, 2.717976667176476],
        [2.640991614445073, -3.3272936359193905],
    ],
    True: [
        [1.0, 2.0],
        [1.270303625345184, 1.1890891239644477],
        [2.640991614445073, -3.3272936359193905],
    ],
}


def attend(kata, oracle, arrays, Br, Bc, causal=False, sm_scale=None):
    """O and L, computed where there is room for the tiles and no more."""
    d = arrays[0].shape[3]
    hbm = oracle.Hbm(*arrays, sram=oracle.room(Br, Bc, d))
    with np.errstate(divide="raise", invalid="raise", over="raise"):  # where NumPy would warn
        kata.flash_attn_tiling(hbm, Br, Bc, causal=causal, sm_scale=sm_scale)
    return oracle.result(hbm)


def assert_attention(oracle, found, arrays, causal=False, sm_scale=None):
    for got, want in zip(found, oracle.attention(*arrays, causal, sm_scale), strict=True):
        oracle.assert_close(got, want)


def column(*numbers):
    """One head with one number a row: [1, 1, n, 1]."""
    return np.array(numbers, dtype=float).reshape(1, 1, -1, 1)


# ---- the result ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sm_scale", "mean", "total"),
    [
        (2.0, -0.8, 10),  # scores 2·ln 1 and 2·ln 3: weights 1/10 and 9/10, so 10/10 - 9·2/10
        (0.0, 4.0, 2),  # all keys are alike: (10 - 2) / 2
        (-2.0, 8.8, 10 / 9),  # weights 9/10 and 1/10: 9·10/10 - 2/10
    ],
)
def test_hand_numbers(kata, oracle, sm_scale, mean, total):
    arrays = column(1), column(0, math.log(3)), column(10, -2)
    out, lse = attend(kata, oracle, arrays, Br=1, Bc=1, sm_scale=sm_scale)
    oracle.assert_close(out, column(mean))
    oracle.assert_close(lse, np.log([[[total]]]))


@pytest.mark.parametrize("causal", [False, True])
def test_agrees_with_pytorch(kata, oracle, causal):
    arrays = [np.array(rows)[None, None] for rows in SDPA_INPUTS]
    out, _ = attend(kata, oracle, arrays, Br=2, Bc=2, causal=causal)
    oracle.assert_close(out, np.array(SDPA[causal])[None, None])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("queries", "keys", "d", "Br", "Bc"),
    [
        (64, 64, 16, 16, 16),  # whole tiles
        (100, 100, 32, 32, 16),  # ragged ones
        (1, 1, 8, 4, 4),  # a tile larger than everything
        (9, 30, 4, 4, 7),  # the diagonal starts inside a tile, more keys than queries
        (7, 40, 4, 1, 8),  # a query at a time
    ],
    ids=["whole", "ragged", "one", "more keys", "single queries"],
)
def test_agrees_with_stored_scores(kata, oracle, seed, queries, keys, d, Br, Bc, causal):
    arrays = oracle.inputs(seed, queries, keys, d)
    found = attend(kata, oracle, arrays, Br, Bc, causal)
    assert_attention(oracle, found, arrays, causal)


@pytest.mark.parametrize("causal", [False, True])
def test_each_head_attends_to_its_own_keys(kata, oracle, seed, causal):
    arrays = oracle.inputs(seed, queries=5, keys=6, d=4, batch=2, heads=3)
    assert_attention(
        oracle, attend(kata, oracle, arrays, Br=2, Bc=4, causal=causal), arrays, causal
    )


@given(order=st.permutations(range(6)), Bc=st.integers(1, 7), Br=st.integers(1, 7))
def test_order_of_the_keys_does_not_matter(kata, oracle, order, Bc, Br):
    # scores 20 apart, so that the maximum moves by far, up or down, with almost every tile
    scores, values = np.arange(6.0) * 20, np.arange(6.0)
    arrays = column(1, -1), column(*scores[order]), column(*values[order])
    out, lse = attend(kata, oracle, arrays, Br, Bc, sm_scale=1.0)
    ratio, powers = math.exp(-20), np.arange(6.0)
    total = (ratio**powers).sum()
    mean = (powers * ratio**powers).sum() / total  # of how far from the best key
    oracle.assert_close(out, column(5 - mean, mean))
    oracle.assert_close(lse, np.array([[[100 + math.log(total), math.log(total)]]]))


def test_large_scores_stay_finite(kata, oracle):
    arrays = column(100, -100), column(97, 98, 99, 100), column(1, 2, 3, 4)
    out, lse = attend(kata, oracle, arrays, Br=2, Bc=1, sm_scale=1.0)
    # the nearest rival of each query is 100 below its maximum, which is far from 0 either way
    oracle.assert_close(out, column(4, 1))
    oracle.assert_close(lse, np.array([[[1e4, -9700.0]]]))


# ---- masks ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("Br", "Bc"), [(1, 1), (2, 2), (4, 8)])
def test_causal_mask_is_aligned_bottom_right(kata, oracle, Br, Bc):
    # all scores are 0, so a query that sees n keys has L = ln n; V counts 1, 2, 4, 8, 16
    arrays = column(0, 0, 0), column(0, 0, 0, 0, 0), column(1, 2, 4, 8, 16)
    out, lse = attend(kata, oracle, arrays, Br, Bc, causal=True)
    oracle.assert_close(out, column(7 / 3, 15 / 4, 31 / 5))
    oracle.assert_close(lse, np.log([[[3.0, 4.0, 5.0]]]))


def test_hidden_keys_weigh_nothing_beside_the_lowest_scores(kata, oracle):
    arrays = column(100, 100), column(-100, -100), column(1, 3)  # every score is -1e4
    out, lse = attend(kata, oracle, arrays, Br=2, Bc=2, causal=True, sm_scale=1.0)
    oracle.assert_close(out, column(1, 2))
    oracle.assert_close(lse, np.array([[[-1e4, math.log(2) - 1e4]]]))


@pytest.mark.parametrize("Br", [2, 3, 8], ids=["whole tile", "part of a tile", "one tile"])
def test_a_query_that_sees_no_key_gets_zero(kata, oracle, Br):
    arrays = column(0, 0, 0, 0, 0, 0), column(0, 0), column(3, 5)
    out, lse = attend(kata, oracle, arrays, Br, Bc=1, causal=True)
    oracle.assert_close(out, column(0, 0, 0, 0, 3, 4))
    oracle.assert_close(lse, np.array([[[-np.inf] * 4 + [0.0, math.log(2)]]]))


# ---- what it costs: 128 queries, 128 keys, d = 32 ------------------------------------------


@pytest.fixture
def counted(kata, oracle, seed):
    """Run once, with any amount of room; the answer is checked."""

    def run(causal=False):
        arrays = oracle.inputs(seed, queries=128, keys=128, d=32)
        hbm = oracle.Hbm(*arrays)
        kata.flash_attn_tiling(hbm, 32, 16, causal=causal)
        assert_attention(oracle, oracle.result(hbm), arrays, causal)
        return hbm

    return run


def test_keys_are_read_once_for_each_tile_of_queries(counted, cost):
    hbm = counted()
    cost.check("loads", hbm.loads)
    cost.check("stores", hbm.stores)


def test_tiles_nobody_sees_are_not_loaded(counted, cost):
    cost.check("causal_loads", counted(causal=True).loads)


@pytest.mark.parametrize(
    ("queries", "keys", "loads"),
    [
        (8, 4, 8 + 2 * (2 + 4)),  # of four tiles of queries two see nothing
        (5, 9, 5 + 2 * (6 + 8 + 9)),  # the first one sees keys 0 to 5
    ],
    ids=["more queries", "more keys"],
)
def test_no_shape_loads_tiles_nobody_sees(kata, oracle, queries, keys, loads):
    arrays = oracle.inputs(0, queries, keys, d=1)
    hbm = oracle.Hbm(*arrays)
    kata.flash_attn_tiling(hbm, Br=2, Bc=2, causal=True)
    assert_attention(oracle, oracle.result(hbm), arrays, causal=True)
    assert hbm.loads <= loads, f"loads: expected at most {loads} elements, found {hbm.loads}"


def test_little_is_computed_besides_products(counted, cost):
    hbm = counted()
    cost.check("multiplications", hbm.multiplications)
    cost.check("divisions", hbm.divisions)
    cost.check("exponentials", hbm.exponentials)


def test_chip_holds_one_tile_of_scores(counted, cost):
    cost.check("sram", counted().sram_peak)


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, -1])
@pytest.mark.parametrize("name", ["Br", "Bc"])
def test_tiles_without_rows_are_refused(kata, oracle, name, size):
    hbm = oracle.Hbm(column(1), column(1), column(1))
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        kata.flash_attn_tiling(hbm, **{"Br": 1, "Bc": 1, name: size})


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("K", (1, 3, 5, 8)),
        ("K", (3, 3, 5, 8)),  # one batch too many
        ("K", (2, 1, 5, 8)),  # one head would do for batch 0, and never be missed
        ("K", (2, 3, 5, 4)),
        ("K", (3, 2, 5, 8)),  # as many heads in all
        ("V", (2, 3, 6, 8)),  # one value too many
        ("V", (2, 3, 5, 4)),
        ("V", (2, 4, 5, 8)),  # one head that nobody would miss
        ("V", (3, 3, 5, 8)),
        ("V", (3, 2, 5, 8)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(kata, oracle, name, shape):
    arrays = {"Q": np.ones((2, 3, 4, 8)), "K": np.ones((2, 3, 5, 8)), "V": np.ones((2, 3, 5, 8))}
    arrays["V"] = np.ones(shape)
    if name == "K":  # V has its shape, so that nothing is wrong with V
        arrays["K"] = np.ones(shape)
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        kata.flash_attn_tiling(oracle.Hbm(**arrays), 2, 2)
