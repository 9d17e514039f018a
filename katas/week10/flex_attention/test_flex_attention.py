"""Somebody else's functions, tiles that are skipped, and the tables that say so."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.judge import assert_matches

SPEED_CASE = {"b": 1, "h": 16, "sq": 4096, "sk": 4096, "d": 64, "block": 128, "table": "shared"}


def draw(oracle, device, seed, *, b=1, h=1, sq=1, sk=1, d=16, dtype=torch.float16, **more):
    return oracle.make_inputs(
        b=b, h=h, sq=sq, sk=sk, d=d, dtype=dtype, device=device, seed=seed, **more
    )


def assert_right(kata, oracle, inputs):
    want, trusted = oracle.reference(**inputs), oracle.same_precision(**inputs)
    assert_matches(kata.flex_attention(**inputs), want, same_precision=trusted)


# ---- scores and the softmax ----------------------------------------------------------------


def test_score_mod_sees_scaled_scores(kata, oracle, device, seed):
    # capped at 20, scores of up to 64 differ from scores capped before they are scaled
    inputs = draw(oracle, device, seed, sq=4, sk=50, mask="everything", score="soft_cap", scale=4.0)
    inputs["q"].fill_(1.0)
    inputs["k"][..., 0] = torch.arange(50) / 3
    inputs["k"][..., 1:] = 0
    assert_right(kata, oracle, inputs)


@pytest.mark.parametrize("scale", [0.0, -0.5], ids=["zero", "negative"])
def test_any_scale_is_taken_as_it_is(kata, oracle, device, seed, scale):
    assert_right(kata, oracle, draw(oracle, device, seed, sq=4, sk=50, scale=scale))


def test_hidden_pairs_stay_hidden_whatever_their_scores(kata, oracle, device, seed):
    # ALiBi raises the scores of later keys, which the mask hides: by 63 for the last one
    inputs = draw(oracle, device, seed, sq=3, sk=64, score="alibi")
    inputs["v"][:, :, 3:] = 1000
    o = kata.flex_attention(**inputs)
    assert float(o.abs().max()) < 100


def test_infinite_scores_of_hidden_pairs_do_not_count(kata, oracle, device, seed):
    # in the tiles on the diagonal, and past the last key: infinity that is hidden, not added to
    assert_right(kata, oracle, draw(oracle, device, seed, sq=35, sk=40, score="later_is_inf"))


def test_scores_are_kept_in_float32(kata, oracle, device, seed):
    # 1024 + j / 8, where float16 has steps of 1: the softmax does not see what all have in common
    inputs = draw(oracle, device, seed, sk=40, mask="everything", scale=1.0)
    inputs["q"].zero_()[..., :2] = torch.tensor([32.0, 1.0])
    inputs["k"].zero_()[..., 1] = torch.arange(40) / 8
    want, trusted = oracle.reference(**inputs), oracle.same_precision(**inputs)
    inputs["k"][..., 0] = 32.0
    assert_matches(kata.flex_attention(**inputs), want, same_precision=trusted)


@pytest.mark.parametrize("sign", [1, -1], ids=["positive", "negative"])
def test_scores_far_from_zero(kata, oracle, device, seed, sign):
    # scores of at least 16 · 100 / 4: exp of them is inf, of their negatives 0
    inputs = draw(oracle, device, seed, sq=3, sk=70, mask="first_keys")
    inputs["q"].fill_(sign * 100)
    inputs["k"] = 1 + inputs["k"].abs() / 50
    assert_right(kata, oracle, inputs)


def test_scores_that_rise_from_tile_to_tile(kata, oracle, device, seed):
    # key j scores j / 4 to j: each tile moves the maximum, and the partial one comes last
    inputs = draw(oracle, device, seed, sq=4, sk=100, mask="everything", scale=0.25)
    inputs["q"].zero_()[..., 0] = torch.arange(1, 5)
    inputs["k"][..., 0] = torch.arange(100)
    assert_right(kata, oracle, inputs)


def test_sums_are_kept_in_float32(kata, oracle, device, seed):
    # the sum of 512 times 0.1 is 51.2, where float16 has steps of 1/32
    inputs = draw(oracle, device, seed, sk=512, mask="everything")
    inputs["q"].zero_()
    inputs["v"].fill_(0.1)
    o = kata.flex_attention(**inputs)
    assert o.flatten().tolist() == inputs["v"][0, 0, 0].tolist()


def test_a_query_that_sees_no_key_gets_zero(kata, oracle, device, seed):
    # of 11 keys none is later than the last 30 queries
    inputs = draw(
        oracle, device, seed, sq=40, sk=11, mask="later", score="hide_key_3", dtype=torch.float32
    )
    inputs["v"].fill_(1.0)
    o = kata.flex_attention(**inputs)
    assert o[0, 0, :, 0].half().tolist() == [1.0] * 10 + [0.0] * 30


def test_a_query_whose_only_key_scores_minus_infinity_gets_zero(kata, oracle, device, seed):
    # queries 3 on see the key of their own position alone: query 3 is left without any
    inputs = draw(oracle, device, seed, sq=5, sk=5, mask="own_key", score="hide_key_3")
    inputs["v"].fill_(1.0)
    o = kata.flex_attention(**inputs)
    assert o[0, 0, :, 0].tolist() == [1.0, 1.0, 1.0, 0.0, 1.0]


# ---- positions and heads -------------------------------------------------------------------


def test_batch_and_head_reach_both_functions(kata, oracle, device, seed):
    inputs = draw(oracle, device, seed, b=3, h=2, sq=5, sk=70, mask="by_head", score="by_batch")
    assert_right(kata, oracle, inputs)


@pytest.mark.parametrize(
    ("mask", "shared"),
    [("by_head_alone", (1, 2)), ("by_batch_alone", (2, 1)), ("causal", (1, 1))],
    ids=["batches", "heads", "both"],
)
def test_tables_may_serve_all_batches_or_heads(kata, oracle, device, seed, mask, shared):
    inputs = draw(oracle, device, seed, b=2, h=2, sq=4, sk=70, mask=mask)
    for name in oracle.STRUCTURED:
        inputs[name] = inputs[name][: shared[0], : shared[1]].contiguous()
    assert_right(kata, oracle, inputs)


def test_each_head_is_led_by_its_own_table(kata, oracle, device, seed):
    # head (b, h) sees 30 (b + 1) + 5 h keys but one: 30 to 95
    inputs = draw(oracle, device, seed, b=3, h=2, sq=4, sk=130, mask="by_head")
    assert_right(kata, oracle, inputs)


def test_the_tables_decide_what_is_masked(kata, oracle, device, seed):
    # all tiles named full: mask_mod, which hides everything, is not asked
    inputs = draw(oracle, device, seed, sq=32, sk=64, mask="everything")
    want, trusted = oracle.reference(**inputs), oracle.same_precision(**inputs)
    inputs["mask_mod"] = oracle.MASKS["nothing"]
    assert_matches(kata.flex_attention(**inputs), want, same_precision=trusted)


def test_each_tensor_has_strides_of_its_own(kata, oracle, device, seed):
    inputs = draw(oracle, device, seed, b=2, h=2, sq=4, sk=40, layout="cache")
    inputs["v"] = inputs["v"].mT.contiguous().mT
    assert_right(kata, oracle, inputs)


def test_the_result_is_contiguous_whatever_the_queries_are(kata, oracle, device, seed):
    inputs = draw(oracle, device, seed, b=2, h=2, sq=5, sk=5, layout="bshd")
    assert kata.flex_attention(**inputs).stride() == (160, 80, 16, 1)


# ---- what is not done ----------------------------------------------------------------------


def test_hidden_tiles_are_not_loaded(kata, oracle, device, seed, traffic):
    # rows of 4 tiles see 1, 2, 3 and 3: 9 of 16, each 32 keys of 32 numbers of 2 bytes
    inputs = draw(oracle, device, seed, sq=128, sk=128, d=32, mask="window_40")
    tiles = int(inputs["kv_num"].sum() + inputs["full_num"].sum())
    with traffic() as moved:
        kata.flex_attention(**inputs)
    for name in "kv":
        assert moved.of(inputs[name]).loaded_bytes == tiles * 32 * 32 * 2, (
            f"{name}: expected {tiles} tiles to be loaded once each"
        )


def test_mask_is_evaluated_in_partial_tiles_only(kata, oracle, device, seed, traffic, cost):
    inputs = draw(oracle, device, seed, sq=128, sk=128)
    inputs["mask_mod"] = oracle.noted_causal
    oracle.evaluated.clear()
    with traffic():
        kata.flex_attention(**inputs)
    assert oracle.evaluated, "mask_mod: expected it to be called, found that it was not"
    cost.check("evaluations", sum(map(math.prod, oracle.evaluated)))


def test_only_listed_entries_of_the_tables_are_read(kata, oracle, device, seed, traffic):
    # 4 rows of tiles of causal attention: 2 counts each, 6 full tiles and 4 partial ones
    inputs = draw(oracle, device, seed, sq=128, sk=128)
    with traffic() as moved:
        kata.flex_attention(**inputs)
    read = {name: moved.of(inputs[name]).loaded_bytes // 4 for name in oracle.STRUCTURED}
    assert read == {"kv_num": 4, "kv_idx": 4, "full_num": 4, "full_idx": 6}


# ---- tables --------------------------------------------------------------------------------


def listed(num, idx):
    """Tiles (batch, head, row, column) that a pair of tables names, with how often."""
    return Counter(
        (i, j, row, int(idx[i, j, row, at]))
        for i, j, row in torch.cartesian_prod(*map(torch.arange, num.shape)).tolist()
        for at in range(int(num[i, j, row]))
    )


def assert_lists(kata, oracle, mask, b, h, sq, sk, block):
    found = kata.create_block_mask(mask.fn, b, h, sq, sk, block)
    kv_num, kv_idx, full_num, full_idx = oracle.tables(mask, b, h, sq, sk, block)
    given = f"{mask.fn.__name__}, b = {b}, h = {h}, sq = {sq}, sk = {sk}, block = {block}"
    for name, one, want in (
        ("partial", found[:2], (kv_num, kv_idx)),
        ("full", found[2:], (full_num, full_idx)),
    ):
        for table, like in zip(one, want, strict=True):
            assert table.dtype == torch.int32, f"{given}: {name}: {table.dtype}, expected int32"
            assert table.shape == like.shape, (
                f"{given}: {name}: shape {tuple(table.shape)}, expected {tuple(like.shape)}"
            )
        tiles, expected = listed(*one), listed(*want)
        assert tiles == expected, (
            f"{given}: {name} tiles (batch, head, row, column): {sorted(tiles)}, "
            f"expected {sorted(expected)}"
        )


@pytest.mark.parametrize(
    ("mask", "sq", "sk"),
    [
        ("causal", 128, 128),
        ("causal", 100, 70),  # the last row of tiles is not full, though nothing in it is hidden
        ("everything", 64, 70),
        ("everything", 70, 64),
        ("nothing", 40, 40),
        ("documents", 128, 128),
        ("by_head", 64, 130),
        ("hole", 64, 64),
        ("speck", 64, 64),
        ("everything", 0, 40),
        ("everything", 40, 0),
    ],
)
def test_tiles_are_sorted(kata, oracle, mask, sq, sk):
    assert_lists(kata, oracle, oracle.MASKS[mask], 2, 2, sq, sk, 32)


@given(
    mask=st.sampled_from(["causal", "window_40", "prefix", "later", "by_head"]),
    sq=st.integers(1, 100),
    sk=st.integers(1, 100),
    block=st.sampled_from([16, 32, 64]),
)
def test_tiles_of_any_size_are_sorted(kata, oracle, mask, sq, sk, block):
    assert_lists(kata, oracle, oracle.MASKS[mask], 1, 2, sq, sk, block)


def test_large_tiles_are_counted_exactly(kata, oracle):
    # 65535 of 65536 pairs: more than int16 holds, and all of them to float16
    assert_lists(kata, oracle, oracle.MASKS["hole"], 1, 1, 256, 256, 256)


def test_columns_rise_within_a_row(kata, oracle):
    for mask in ("prefix", "documents"):
        found = kata.create_block_mask(oracle.MASKS[mask].fn, 1, 1, 256, 256, 16)
        for num, idx in (found[:2], found[2:]):
            for row in range(16):
                columns = idx[0, 0, row, : int(num[0, 0, row])].tolist()
                assert columns == sorted(columns), f"{mask}, row {row}: {columns}"


def test_one_bool_may_speak_for_all_pairs(kata):
    found = kata.create_block_mask(
        lambda b, h, qi, ki: torch.ones((), dtype=bool), 2, 1, 32, 64, 32
    )
    assert found[2].tolist() == [[[2]], [[2]]]
    assert found[3].tolist() == [[[[0, 1]]], [[[0, 1]]]]


def test_tables_are_made_where_they_are_wanted(kata, oracle):
    found = kata.create_block_mask(oracle.causal.fn, 1, 1, 40, 40, 32, device="meta")
    assert [table.device.type for table in found] == ["meta"] * 4


def test_own_tables_lead_the_kernel(kata, oracle, device, seed):
    inputs = draw(oracle, device, seed, b=2, h=2, sq=50, sk=80, mask="by_head")
    made = kata.create_block_mask(oracle.MASKS["by_head"].fn, 2, 2, 50, 80, 32, device=device)
    inputs |= dict(zip(oracle.STRUCTURED, made, strict=True))
    assert_right(kata, oracle, inputs)


# ---- bad input -----------------------------------------------------------------------------


def test_nothing_is_allocated_for_a_call_that_is_refused(kata, oracle, device, seed, dispatch):
    inputs = draw(oracle, device, seed, sq=40, sk=40)
    inputs["full_idx"] = inputs["full_idx"][..., :1]
    with dispatch() as ops, pytest.raises(ValueError, match="^full_idx: "):
        kata.flex_attention(**inputs)
    assert ops.allocated_bytes == 0, "expected the check before the result is allocated"


def test_bfloat16_on_the_cpu_is_refused(kata, oracle, seed):
    inputs = draw(oracle, "cpu", seed, sq=3, sk=3, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="^q: "):
        kata.flex_attention(**inputs)


@pytest.mark.parametrize("block", [0, -16, 8, 24])
def test_tables_for_tiles_of_no_power_of_two_are_refused(kata, oracle, block):
    with pytest.raises(ValueError, match="^block: "):
        kata.create_block_mask(oracle.causal.fn, 1, 1, 50, 50, block)


# ---- the build -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "instruction", "dtype"),
    [("sm_90", "wgmma.mma_async", "float16"), ("sm_80", "mma.sync", "bfloat16")],
)
def test_products_run_on_tensor_cores(kata, compiled, target, instruction, dtype):
    kernels = compiled(target=target, **SPEED_CASE, mask="causal", dtype=dtype)
    assert kernels, "no kernel was launched"
    assert all(kernel.has(instruction) for kernel in kernels)


def test_float32_is_not_rounded_to_tf32(compiled):
    shape = {"b": 1, "h": 1, "sq": 128, "sk": 128, "d": 64, "block": 64}
    (kernel,) = compiled(target="sm_80", dtype="float32", **shape)
    assert "tf32" not in kernel.ptx, 'expected input_precision="ieee" in both products'
