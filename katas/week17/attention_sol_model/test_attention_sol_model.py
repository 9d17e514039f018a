"""Times by hand and by counting, published kernels against the bounds, tensor memory, links."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def gpus(oracle, profile):
    """By name: profiles with the figures of real GPUs, and "toy" for sums by hand."""
    return {name: replace(profile, id=name, **figures) for name, figures in oracle.GPUS.items()}


def close(expected):
    return pytest.approx(expected, rel=1e-12)


# ---- the time of each unit -----------------------------------------------------------------


def test_times_by_hand(kata, gpus):
    """64 x 96 scores of 2 heads: 12,288 of them, and 64 · (64 + 2 · 96 + 64) elements a head."""
    found = kata.attention_times(1, 2, 64, 96, 64, False, "float16", gpus["toy"])
    assert found.flops == 4 * 12_288 * 64
    assert found.tensor_s == close(0.256)  # 3,145,728 FLOP of 12,288,000 a second
    assert found.exp_s == close(1.024)  # 12,288 of 12,000 a second
    assert found.hbm_s == close(81_920 / 6e4)


def test_fp8_is_read_as_bytes_and_written_in_16_bits(kata, gpus):
    found = kata.attention_times(1, 2, 64, 96, 64, False, "float8", gpus["toy"])
    assert found.tensor_s == close(0.128)
    assert found.exp_s == close(1.024)
    assert found.hbm_s == close((2 * 64 * (64 + 192) + 2 * 64 * 64 * 2) / 6e4)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    ("sq", "sk"),
    [(1, 1), (1, 9), (9, 1), (7, 7), (5, 8), (8, 5), (4, 3), (12, 2)],
    ids=["one", "one query", "one key", "square", "wide", "tall", "tall by one", "very tall"],
)
def test_every_score_counts_once(kata, oracle, gpus, sq, sk, causal):
    """With more queries than keys, the first see nothing."""
    for heads in (1, 3):
        found = kata.attention_times(2, heads, sq, sk, 16, causal, "float16", gpus["toy"])
        seen = 2 * heads * oracle.scores(sq, sk, causal)
        assert found == kata.Times(
            flops=64 * seen,
            tensor_s=close(64 * seen / 12.288e6),
            exp_s=close(seen / 12e3),
            hbm_s=close(2 * heads * 16 * 2 * (2 * sq + 2 * sk) / 6e4),
        )


def test_a_causal_mask_leaves_the_bytes(kata, gpus):
    full, causal = (
        kata.attention_times(1, 2, 64, 96, 64, mask, "float16", gpus["toy"])
        for mask in (False, True)
    )
    assert causal.hbm_s == full.hbm_s
    # of 64 rows the last sees 96 keys, the first 33
    assert causal.exp_s == close(2 * 64 * (33 + 96) / 2 / 12e3)


def test_long_sequences_are_counted_exactly(kata, gpus, lines):
    s = 2**40 + 1
    with lines(limit=1000):
        found = kata.attention_times(1, 3, s, s, 128, True, "float16", gpus["h100"])
    assert found.flops == 4 * 128 * 3 * s * (s + 1) // 2


def test_one_query_waits_for_the_memory(kata, gpus):
    for name in ("a100", "h100", "h200", "b200"):
        decode = kata.attention_times(8, 32, 1, 8192, 128, True, "bfloat16", gpus[name])
        assert decode.hbm_s > 10 * max(decode.tensor_s, decode.exp_s)
        # all queries: from 1024 keys on, without a mask, the memory never is what takes longest
        prefill = kata.attention_times(8, 32, 1024, 1024, 128, False, "bfloat16", gpus[name])
        assert prefill.hbm_s < max(prefill.tensor_s, prefill.exp_s)


# ---- exponentials against products ---------------------------------------------------------


@pytest.mark.parametrize(
    ("d", "dtype", "gpu", "ratio"),
    [
        (128, "float16", "h100", 0.5), (64, "float16", "h100", 1.0),
        (256, "bfloat16", "h100", 0.25), (512, "float16", "h100", 0.125),
        (128, "float8", "h100", 1.0), (64, "float8", "h100", 2.0), (128, "float16", "a100", 0.25),
        (128, "bfloat16", "b200", 1.0), (128, "float8", "b200", 2.0),
        (48, "float16", "toy", 16 / 3),
    ],
    ids=[
        "h100", "h100 d64", "h100 d256", "h100 d512", "h100 fp8", "h100 fp8 d64", "a100", "b200",
        "b200 fp8", "toy d48",
    ],
)  # fmt: skip
def test_exp_ratio_by_hand(kata, gpus, d, dtype, gpu, ratio):
    assert kata.exp_ratio(d, dtype, gpus[gpu]) == close(ratio)


# ---- bounds --------------------------------------------------------------------------------


def test_nothing_hidden_is_two_thirds_of_the_peak(kata, gpus):
    times = kata.attention_times(4, 16, 8448, 8448, 128, False, "float16", gpus["h100"])
    assert kata.tflops(times, 0) == close(989.42976 * 2 / 3)
    assert kata.tflops(times, 0.5) == close(989.42976 / 1.25)
    assert kata.tflops(times, 1) == close(989.42976)


@pytest.mark.parametrize(
    ("tensor", "exp", "hbm", "hidden", "efficiency", "seconds"),
    [
        (4.0, 2.0, 1.0, 0.25, 1.0, 5.5),
        (4.0, 2.0, 1.0, 0.25, 0.5, 9.5),  # the products alone take 8
        (4.0, 2.0, 7.0, 0.25, 1.0, 7.0),  # memory takes longest
        (2.0, 8.0, 1.0, 1.0, 1.0, 8.0),  # of 8 only 2 can be hidden
        (2.0, 8.0, 1.0, 0.5, 1.0, 8.0),  # 0.25 of them, to be exact
        (2.0, 8.0, 1.0, 0.125, 1.0, 9.0),
        (2.0, 8.0, 1.0, 1.0, 0.2, 10.0),
    ],
    ids=[
        "a quarter", "slow products", "memory", "longer exp", "longer exp, half",
        "longer exp, less", "longer exp, slow products",
    ],
)  # fmt: skip
def test_no_unit_is_faster_than_its_own_work(kata, tensor, exp, hbm, hidden, efficiency, seconds):
    times = kata.Times(flops=72 * 10**12, tensor_s=tensor, exp_s=exp, hbm_s=hbm)
    assert kata.tflops(times, hidden, efficiency) == close(72 / seconds)


# ---- what must have been hidden ------------------------------------------------------------


@pytest.mark.parametrize(
    ("measured", "efficiency", "needed"),
    [  # 60 TFLOP: 4 s of products, 2 s of exponentials
        (15.0, 1.0, 1.0), (12.0, 1.0, 0.5), (10.0, 1.0, 0.0), (5.0, 1.0, 0.0), (6.0, 0.4, 1.0),
        (5.0, 0.4, 0.0), (7.5, 0.5, 1.0), (0.125, 1.0, 0.0),
    ],
    ids=["all", "half", "none", "slow", "all of slow ones", "slow ones", "half rate", "crawl"],
)  # fmt: skip
def test_hidden_share_by_hand(kata, measured, efficiency, needed):
    times = kata.Times(flops=60 * 10**12, tensor_s=4.0, exp_s=2.0, hbm_s=1.0)
    assert kata.hidden_needed(measured, times, efficiency) == pytest.approx(needed, abs=1e-12)


@given(hidden=st.floats(0, 1), efficiency=st.floats(0.5, 1), d=st.sampled_from([64, 128, 256]))
def test_hidden_needed_undoes_tflops(kata, gpus, hidden, efficiency, d):
    """Up to what can be hidden; at the bound itself rounding decides nothing."""
    times = kata.attention_times(2, 16, 4096, 4096, d, True, "bfloat16", gpus["b200"])
    most = min(1, times.tensor_s / efficiency / times.exp_s)
    found = kata.hidden_needed(kata.tflops(times, hidden, efficiency), times, efficiency)
    assert found == pytest.approx(min(hidden, most), abs=1e-9)
    assert 0 <= found <= 1


def test_rounding_at_the_bound_is_no_measurement_above_it(kata):
    times = kata.Times(flops=60 * 10**12, tensor_s=4.0, exp_s=2.0, hbm_s=1.0)
    assert 1 - 1e-8 <= kata.hidden_needed(15 * (1 + 5e-10), times) <= 1


def test_measured_above_the_bound_is_refused(kata):
    times = kata.Times(flops=60 * 10**12, tensor_s=4.0, exp_s=2.0, hbm_s=1.0)
    memory = replace(times, hbm_s=6.0)
    special = replace(times, exp_s=6.0)
    for one, measured, efficiency in (
        (times, 15.001, 1.0), (times, 15 * (1 + 2e-9), 1.0), (times, 12.001, 0.8),
        (memory, 10.001, 1.0), (special, 10.001, 1.0),
        (times, 0.0, 1.0), (times, -3.0, 1.0), (times, math.inf, 1.0), (times, math.nan, 1.0),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="^measured_tflops: "):
            kata.hidden_needed(measured, one, efficiency)


def test_shares_out_of_range_are_refused(kata):
    times = kata.Times(flops=60 * 10**12, tensor_s=4.0, exp_s=2.0, hbm_s=1.0)
    for hidden in (-0.01, 1.01, math.nan):
        with pytest.raises(ValueError, match="^hidden_exp: "):
            kata.tflops(times, hidden)
    for efficiency in (0.0, -0.5, 1.01, math.nan):
        with pytest.raises(ValueError, match="^tensor_eff: "):
            kata.tflops(times, 1.0, efficiency)
        with pytest.raises(ValueError, match="^tensor_eff: "):
            kata.hidden_needed(5.0, times, efficiency)


def test_published_kernels_are_explained(kata, oracle, gpus, cost):
    explained, brackets = 0, []
    for point in oracle.POINTS:
        profile = gpus[point.gpu]
        times = kata.attention_times(*point.shape, point.causal, point.dtype, profile)
        bound, unhidden = kata.tflops(times, 1), kata.tflops(times, 0)
        needed = kata.hidden_needed(point.tflops, times) if point.tflops <= bound else math.inf
        explained += 0 <= needed <= 1 and (needed > 0) == point.overlaps
        brackets.append(bound / unhidden)
    cost.check("explained", explained / len(oracle.POINTS))
    cost.check("bracket", sum(brackets) / len(brackets))


def test_the_ablation_has_its_flops(kata, oracle, gpus):
    times = kata.attention_times(4, 16, 8448, 8448, 128, False, "float16", gpus["h100"])
    found = {name: round(times.flops / s / 1e12) for name, s in oracle.ABLATION_S.items()}
    assert found == {"both": 661, "no pipelining": 582, "no warp specialization": 570}


# ---- tensor memory -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tile", "columns"),
    [  # tile_m, block_n, d, q_tiles, p_aliases_s
        ((128, 128, 128, 2, True), 512),  # full to the last column
        ((128, 128, 64, 2, True), 512),  # 384, and only powers of two are given out
        ((128, 128, 128, 1, True), 256),
        ((128, 128, 128, 1, False), 512),  # 320
        ((64, 128, 128, 1, True), 256),  # half of the lanes, and just as many columns
        ((64, 128, 128, 2, True), 512),  # which two of them do not share
        ((128, 48, 32, 3, True), 256),  # 240: it is the sum that is rounded up
        ((128, 16, 16, 1, True), 32),
        ((64, 16, 16, 1, False), 64),  # 40
        ((128, 96, 128, 1, False), 512),  # 272
        ((128, 112, 144, 2, True), 512),
    ],
    ids=repr,
)
def test_columns_by_hand(kata, tile, columns):
    assert kata.tmem_plan(*tile) == columns


@given(
    block_n=st.integers(1, 16), d=st.integers(1, 16), q_tiles=st.integers(1, 4), alias=st.booleans()
)
def test_columns_are_a_power_of_two_that_suffices(kata, oracle, block_n, d, q_tiles, alias):
    needed = oracle.tmem_columns(16 * block_n, 16 * d, q_tiles, alias)
    if needed > 512:
        with pytest.raises(ValueError, match="^columns: "):
            kata.tmem_plan(128, 16 * block_n, 16 * d, q_tiles, alias)
    else:
        found = kata.tmem_plan(128, 16 * block_n, 16 * d, q_tiles, alias)
        assert found == min(n for n in (32, 64, 128, 256, 512) if n >= needed)


def test_a_third_tile_does_not_fit(kata):
    with pytest.raises(ValueError, match="^columns: "):
        kata.tmem_plan(128, 128, 128, 3, True)
    with pytest.raises(ValueError, match="^columns: "):
        kata.tmem_plan(128, 128, 128, 2, False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tile_m", 0), ("tile_m", 96), ("tile_m", 256), ("block_n", 0), ("block_n", 24), ("d", 0),
        ("d", 72), ("d", -16), ("block_n", -16), ("q_tiles", 0), ("q_tiles", -1),
    ],
    ids=lambda value: str(value),
)  # fmt: skip
def test_impossible_tiles_are_refused(kata, name, value):
    sound = {"tile_m": 128, "block_n": 128, "d": 64, "q_tiles": 1, "p_aliases_s": True}
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.tmem_plan(**sound | {name: value})


# ---- links ---------------------------------------------------------------------------------


def test_links_send_one_way(kata):
    assert kata.link_time(900_000_000, 4) == close(2e-3)
    assert kata.link_time(900_000_000, 5) == close(1e-3)
    assert kata.link_time(0, 5) == 0


def test_unknown_links_are_refused(kata):
    with pytest.raises(ValueError, match="^num_bytes: "):
        kata.link_time(-1, 4)
    for generation in (0, 3, 6):
        with pytest.raises(ValueError, match="^generation: "):
            kata.link_time(1, generation)


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("b", 0), ("h", 0), ("sq", 0), ("sk", 0), ("b", -2), ("h", -2), ("sq", -8), ("sk", -8),
        ("d", 0), ("d", -16), ("d", 24), ("d", 129), ("dtype", "float32"), ("dtype", "tf32"),
        ("dtype", "fp16"),
    ],
    ids=lambda value: str(value),
)  # fmt: skip
def test_impossible_shapes_are_refused(kata, gpus, name, value):
    sound = {"b": 1, "h": 2, "sq": 8, "sk": 8, "d": 64, "causal": True, "dtype": "float16"}
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.attention_times(**sound | {name: value}, profile=gpus["h100"])
    if name in ("d", "dtype"):
        with pytest.raises(ValueError, match=f"^{name}: "):
            kata.exp_ratio(**{"d": 64, "dtype": "float16"} | {name: value}, profile=gpus["h100"])


def test_a_dtype_that_the_tensor_cores_lack_is_refused(kata, gpus):
    with pytest.raises(ValueError, match="^dtype: .*float8"):
        kata.attention_times(1, 1, 8, 8, 64, False, "float8", gpus["a100"])
    with pytest.raises(ValueError, match="^dtype: .*float8"):
        kata.exp_ratio(64, "float8", gpus["a100"])
