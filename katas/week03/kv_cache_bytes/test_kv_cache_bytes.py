"""Bytes of the cache: published models, caches really held, windows, and the formula inverted."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

RANDOM = st.randoms(use_true_random=False)


def config(kata, fields, **changes):
    return kata.CacheConfig(**{**fields, **changes})


@pytest.mark.parametrize(
    "name",
    ["llama2-7b", "opt-13b", "llama2-70b", "llama3-8b", "gpt2", "gpt3-175b", "deepseek-v2"],
)
def test_bytes_of_a_token_are_the_published_ones(kata, oracle, name):
    fields, published = oracle.PUBLISHED[name]
    cfg = config(kata, fields)
    assert kata.kv_bytes_per_token(cfg, "float16") == published
    assert kata.kv_bytes_per_token(cfg, "float8_e4m3fn") == published // 2
    assert kata.kv_bytes_per_token(cfg, "float32") == published * 2


def test_no_byte_held_is_unaccounted_for(kata, oracle, cost, seed):
    dice, gap = random.Random(seed), 0
    for fields, published in oracle.PUBLISHED.values():
        gap += abs(kata.kv_cache_bytes(config(kata, fields), 1, 100, "float16") - 100 * published)
    for _ in range(20):
        cfg = config(kata, oracle.random_config(dice))
        batch, seq, dtype = dice.randint(0, 2), dice.randint(0, 12), dice.choice([*oracle.SIZES])
        held = oracle.decoded_bytes(cfg, batch, seq, dtype)
        gap += abs(kata.kv_cache_bytes(cfg, batch, seq, dtype) - held)
    cost.check("unaccounted_bytes", gap)


def test_cache_of_llama2_7b_outweighs_its_weights(kata, oracle):
    cache_bytes = kata.kv_cache_bytes(config(kata, oracle.LLAMA2_7B), 32, 2048, "float16")
    assert cache_bytes == 34_359_738_368  # 32 GiB exactly; the weights are 12.55


@pytest.mark.parametrize(("kv_heads", "share"), [(64, 8), (1, 1 / 8)], ids=["mha", "mqa"])
def test_bytes_follow_the_kv_heads(kata, oracle, kv_heads, share):
    changed = config(kata, oracle.LLAMA2_70B, kv_heads=kv_heads)
    assert kata.kv_bytes_per_token(changed, "float16") == share * 327_680


def test_latent_is_kept_once_and_not_per_head(kata, oracle):
    latent = kata.kv_bytes_per_token(config(kata, oracle.DEEPSEEK_V2), "bfloat16")
    full = config(kata, oracle.DEEPSEEK_V2, kind="gqa", kv_heads=128)
    # 2 · 128 heads · 128 channels against 512 + 64
    assert round(kata.kv_bytes_per_token(full, "bfloat16") / latent, 1) == 56.9


def test_windows_cap_each_layer_on_its_own(kata, oracle):
    cfg = config(kata, oracle.GEMMA2_9B)  # 21 layers see 4096 tokens, 21 all; 8 KiB a token
    assert kata.kv_cache_bytes(cfg, 1, 4096, "float16") == 42 * 4096 * 8192
    assert kata.kv_cache_bytes(cfg, 1, 8192, "float16") == 21 * (4096 + 8192) * 8192
    # a pattern that does not divide the layers starts anew and breaks off: windows 2, -, 2
    odd = config(kata, oracle.GEMMA2_9B, layers=3, windows=(2, None))
    assert kata.kv_cache_bytes(odd, 1, 5, "float16") == (2 + 5 + 2) * 8192
    # repeated, not stretched: windows 1, 2, 3, 4, 5, 1, 2
    longer = config(kata, oracle.GEMMA2_9B, layers=7, windows=(1, 2, 3, 4, 5))
    assert kata.kv_cache_bytes(longer, 1, 10, "float16") == (15 + 3) * 8192


@given(random=RANDOM, length=st.integers(0, 10**6))
def test_without_windows_twice_the_length_is_twice_the_bytes(kata, oracle, random, length):
    cfg = config(kata, oracle.random_config(random), windows=(None,))
    once, twice = (kata.kv_cache_bytes(cfg, 3, seq, "int8") for seq in (length, 2 * length))
    assert twice == 2 * once
    assert once == 3 * length * kata.kv_bytes_per_token(cfg, "int8")


# ---- the formula turned round --------------------------------------------------------------


def test_users_on_one_80_gb_card(kata, oracle):
    free_bytes = 80 * 10**9 - 2 * 6_738_415_616  # what LLaMA-2-7B in float16 leaves
    cfg = config(kata, oracle.LLAMA2_7B)
    assert kata.max_batch(cfg, 2048, "float16", free_bytes) == 61  # at 1 GiB each
    assert kata.max_batch(cfg, 2048, "float8_e4m3fn", free_bytes) == 123
    assert kata.max_context(cfg, 61, "float16", free_bytes) == 2080
    assert kata.max_context(cfg, 1, "float16", free_bytes) == 4096  # 126 882 would fit


@given(random=RANDOM, seq=st.integers(1, 60), free_bytes=st.integers(0, 20_000))
def test_largest_batch_fits_and_one_more_does_not(kata, oracle, random, seq, free_bytes):
    cfg = config(kata, oracle.random_config(random))
    batch = kata.max_batch(cfg, seq, "float16", free_bytes)
    smaller, larger = (kata.kv_cache_bytes(cfg, n, seq, "float16") for n in (batch, batch + 1))
    assert smaller <= free_bytes < larger


@given(random=RANDOM, batch=st.integers(1, 4), free_bytes=st.integers(0, 5000))
def test_longest_context_is_the_one_found_by_trying_all(kata, oracle, random, batch, free_bytes):
    cfg = config(kata, oracle.random_config(random))
    fitting = [
        seq
        for seq in range(cfg.max_seq + 1)
        if oracle.decoded_bytes(cfg, 1, seq, "int8") * batch <= free_bytes
    ]
    assert kata.max_context(cfg, batch, "int8", free_bytes) == fitting[-1]


def test_exact_fit_counts(kata, oracle):
    cfg = config(kata, oracle.LLAMA3_8B)
    assert kata.max_batch(cfg, 1000, "float16", 5 * 131_072_000) == 5
    assert kata.max_batch(cfg, 1000, "float16", 131_072_000 - 1) == 0
    assert kata.max_batch(cfg, 1000, "float16", 10**12 * 131_072_000 - 1) == 10**12 - 1
    assert kata.max_context(cfg, 2, "float16", 2 * 1000 * 131_072) == 1000
    assert kata.max_context(cfg, 2, "float16", 2 * 131_072 - 1) == 0


def test_context_behind_full_windows_is_free(kata, oracle):
    cfg = config(kata, oracle.MISTRAL_7B)
    full_bytes = 4096 * 131_072
    assert kata.max_context(cfg, 1, "float16", full_bytes) == 131_072
    assert kata.max_context(cfg, 1, "float16", full_bytes - 1) == 4095


def test_context_is_searched_and_not_walked(kata, oracle, cost, calls):
    asked = calls("kv_cache_bytes", limit=1000)
    cfg = config(kata, oracle.GEMMA2_9B, max_seq=2**40)
    # up to the windows a token takes 42 · 8 KiB, behind them half of it
    free_bytes = 42 * 8192 * 4096 + 21 * 8192 * 10**9
    assert kata.max_context(cfg, 1, "float16", free_bytes) == 4096 + 10**9
    cost.check("evaluations", asked.calls)
    endless = config(kata, oracle.LLAMA3_8B, max_seq=2**60)  # a float counts up to 2**53
    assert kata.max_context(endless, 1, "float16", 10**17 * 131_072 - 1) == 10**17 - 1


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "seq", "named"),
    [
        (-1, 5, "^(?!.*seq).*batch"),
        (5, -1, "^(?!.*batch).*seq"),
        (0, -1, "^(?!.*batch).*seq"),
        (-2, -3, "batch|seq"),
    ],
    ids=["batch", "seq", "seq of nobody", "both"],
)
def test_negative_sizes_are_refused(kata, oracle, batch, seq, named):
    with pytest.raises(ValueError, match=named):
        kata.kv_cache_bytes(config(kata, oracle.LLAMA2_7B), batch, seq, "float16")


def test_negative_memory_is_refused(kata, oracle):
    cfg = config(kata, oracle.LLAMA2_7B)
    with pytest.raises(ValueError, match="free_bytes"):
        kata.max_batch(cfg, 1, "float16", -1)
    with pytest.raises(ValueError, match="free_bytes"):
        kata.max_context(cfg, 1, "float16", -1)


def test_questions_without_an_answer_are_refused(kata, oracle):
    cfg = config(kata, oracle.LLAMA2_7B)
    with pytest.raises(ValueError, match="seq"):
        kata.max_batch(cfg, 0, "float16", 100)  # any number of empty sequences fits
    with pytest.raises(ValueError, match="batch"):
        kata.max_context(cfg, 0, "float16", 100)


def every_answer(kata, cfg, dtype):
    """Each function, asked for something so small that no byte has to be counted."""
    return [
        lambda: kata.kv_bytes_per_token(cfg, dtype),
        lambda: kata.kv_cache_bytes(cfg, 0, 1, dtype),
        lambda: kata.kv_cache_bytes(cfg, 1, 0, dtype),
        lambda: kata.max_batch(cfg, 1, dtype, 0),
        lambda: kata.max_context(cfg, 1, dtype, 0),
    ]


def test_unknown_kind_is_refused(kata, oracle):
    cfg = config(kata, oracle.LLAMA2_7B, kind="linear")
    for ask in every_answer(kata, cfg, "float16"):
        with pytest.raises(ValueError, match="linear"):
            ask()


@pytest.mark.parametrize("model", ["LLAMA2_7B", "DEEPSEEK_V2"])
def test_unknown_dtype_is_refused(kata, oracle, model):
    for ask in every_answer(kata, config(kata, getattr(oracle, model)), "fp16"):
        with pytest.raises(ValueError, match="fp16"):
            ask()
