"""FLOPs: hand numbers of published models, every product of random ones, and the growth laws."""

import math
import random
from dataclasses import asdict
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

LENGTH = st.integers(1, 5000)


def config(kata, fields):
    return kata.ModelConfig(**fields)


@st.composite
def fields(draw, oracle):
    """A small model."""
    return oracle.random_config(draw(st.randoms(use_true_random=False)))


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        ("LLAMA2_7B", 6_607_077_376),  # all 6 738 415 616 but the token table and the norms
        ("LLAMA3_8B", 7_504_658_432),  # grouped: k and v are 4096 x 1024
        ("GPT2", 123_532_032),  # 12 · 12 d² and the head, which is tied and works all the same
        ("BERT_BASE", 84_934_656),  # 12 · 12 d²
    ],
    ids=["llama2-7b", "llama3-8b", "gpt2", "bert-base"],
)
def test_weights_that_multiply(kata, oracle, model, weights):
    assert kata.matmul_params(config(kata, getattr(oracle, model))) == weights


def test_prefill_of_llama2_7b(kata, oracle):
    cfg = config(kata, oracle.LLAMA2_7B)
    full = kata.forward_flops(cfg, batch=32, q_len=2048, kv_len=2048, causal=False)
    assert full.head == 2 * 32 * 2048 * 4096 * 32000
    assert full.linear + full.head == 866_002_845_827_072
    assert full.attention == 70_368_744_177_664  # 8.1 % of the rest
    assert full.total == 936_371_590_004_736
    causal = kata.forward_flops(cfg, batch=32, q_len=2048, kv_len=2048, causal=True)
    assert causal.attention == 4 * 32 * 32 * 4096 * sum(t + 1 for t in range(2048))


def test_sentence_through_bert(kata, oracle):
    cfg = config(kata, oracle.BERT_BASE)
    flops = kata.forward_flops(cfg, batch=1, q_len=128, kv_len=128, causal=False)
    assert flops.total == 22_347_251_712  # 2 · 128 · 84 934 656 and 4 · 12 · 768 · 128²


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_decode_step_grows_with_the_cache_in_attention_alone(kata, oracle, causal):
    cfg = config(kata, oracle.LLAMA2_7B)
    for kv_len in (1, 2048, 131_072):
        step = kata.forward_flops(cfg, batch=1, q_len=1, kv_len=kv_len, causal=causal)
        assert step.linear + step.head == 2 * 6_607_077_376
        assert step.attention == 4 * 32 * 4096 * kv_len


def test_no_product_is_unaccounted_for(kata, oracle, cost, seed):
    dice, gap = random.Random(seed), 0
    for _ in range(50):
        cfg = config(kata, oracle.random_config(dice))
        batch, q_len, past = dice.randint(1, 2), dice.randint(1, 6), dice.randint(0, 5)
        kv_len = q_len if cfg.encoder else q_len + past
        causal = not cfg.encoder and dice.random() < 0.5
        expected = oracle.forward(cfg, batch, q_len, kv_len, causal).flops
        found = kata.forward_flops(cfg, batch=batch, q_len=q_len, kv_len=kv_len, causal=causal)
        gap += sum(abs(flops - expected[part]) for part, flops in asdict(found).items())
    cost.check("unaccounted_flops", gap)


@given(data=st.data(), sequences=st.integers(1, 2), seq=st.integers(1, 6))
def test_training_takes_both_gradients_of_every_product(kata, oracle, data, sequences, seq):
    cfg = config(kata, data.draw(fields(oracle)))
    tape = oracle.forward(cfg, sequences, seq, seq, causal=not cfg.encoder)
    tape.backward()
    assert kata.train_flops(cfg, tokens=sequences * seq, seq=seq) == sum(tape.flops.values())


@pytest.mark.parametrize(
    ("model", "tokens", "seq", "params", "six_nd", "ratio"),
    [  # table D.1 of the GPT-3 paper; by hand 6 (weights + L d (S + 1)), for BERT 6 (… + 2 L d S)
        ("GPT3_175B", 300 * 10**9, 2048, 174_600e6, 3.14e23, 1.015),
        ("GPT3_SMALL", 300 * 10**9, 2048, 125e6, 2.25e20, 1.139),  # attention is forgotten
        ("BERT_BASE", 250 * 10**9, 128, 109e6, 1.64e20, 0.799),  # the tables are no products
        ("ROBERTA_LARGE", 2000 * 10**9, 512, 355e6, 4.26e21, 0.922),
    ],
    ids=["gpt3-175b", "gpt3-small", "bert-base", "roberta-large"],
)
def test_where_six_nd_goes_wrong(kata, oracle, model, tokens, seq, params, six_nd, ratio):
    assert math.isclose(6 * params * tokens, six_nd, rel_tol=0.005)  # it has three digits
    counted = kata.train_flops(config(kata, getattr(oracle, model)), tokens=tokens, seq=seq)
    assert math.isclose(counted / six_nd, ratio, abs_tol=0.005)


@given(data=st.data(), chunks=st.lists(st.integers(1, 400), min_size=1, max_size=6))
def test_any_chunking_of_a_prompt_costs_the_same(kata, oracle, data, chunks):
    cfg = config(kata, data.draw(fields(oracle)) | {"encoder": False})
    length = sum(chunks)
    whole = kata.forward_flops(cfg, batch=2, q_len=length, kv_len=length, causal=True)
    steps = [
        kata.forward_flops(cfg, batch=2, q_len=chunk, kv_len=end, causal=True)
        for chunk, end in zip(chunks, accumulate(chunks), strict=True)
    ]
    assert sum(step.attention for step in steps) == whole.attention
    assert sum(step.total for step in steps) == whole.total


@given(data=st.data(), length=LENGTH)
def test_twice_the_length_is_four_times_the_attention(kata, oracle, data, length):
    cfg = config(kata, data.draw(fields(oracle)))
    once, twice = (
        kata.forward_flops(cfg, batch=1, q_len=n, kv_len=n, causal=False)
        for n in (length, 2 * length)
    )
    assert twice.attention == 4 * once.attention
    assert (twice.linear, twice.head) == (2 * once.linear, 2 * once.head)


@pytest.mark.parametrize(
    ("model", "causal", "length"),
    [
        ("LLAMA2_7B", False, 25_204),  # 6 607 077 376 / (2 · 32 · 4096)
        ("LLAMA2_7B", True, 50_407),  # (S + 1) / 2 keys on average
        ("BERT_BASE", False, 6 * 768),  # 12 d² against 2 d S
    ],
    ids=["llama2-7b", "llama2-7b causal", "bert-base"],
)
def test_where_attention_takes_over(kata, oracle, model, causal, length):
    assert kata.attention_crossover(config(kata, getattr(oracle, model)), causal) == length


@pytest.mark.parametrize(("causal", "length"), [(False, 21), (True, 41)], ids=["full", "causal"])
def test_at_the_crossover_both_are_equal(kata, oracle, causal, length):
    # 4 · 4² + 2 · 4 · 8 + 4 · 10 = 168 weights, against 2 · 4 · S or 4 · (S + 1)
    cfg = config(kata, oracle.decoder(1, 4, 2, d_ff=8, vocab=10))
    assert kata.attention_crossover(cfg, causal) == length
    there = kata.forward_flops(cfg, batch=1, q_len=length, kv_len=length, causal=causal)
    assert there.attention == there.linear + there.head


@pytest.mark.parametrize(
    ("causal", "length"), [(False, 18.75), (True, 36.5)], ids=["full", "causal"]
)
def test_crossover_may_lie_between_two_lengths(kata, oracle, causal, length):
    # 2 · 128 + 4 · 11 = 300 weights, against 2 · 8 · S or 8 · (S + 1)
    cfg = config(kata, oracle.decoder(2, 4, 2, d_ff=8, vocab=11))
    assert kata.attention_crossover(cfg, causal) == length


def test_counts_past_the_digits_of_a_float_are_exact(kata, oracle, lines):
    cfg = config(kata, oracle.decoder(1, 4, 2, d_ff=8, vocab=10))
    tokens = 10**18 + 1  # odd, and 2**53 is 9 · 10**15
    with lines(limit=1000):  # no loop over tokens
        once = kata.forward_flops(cfg, batch=1, q_len=tokens, kv_len=tokens, causal=True)
    assert once.linear + once.head == 2 * 168 * tokens
    assert once.attention == 8 * tokens * (tokens + 1)
    # single tokens, each of which meets itself: 4 · 4 more
    assert kata.train_flops(cfg, tokens=tokens, seq=1) == 3 * (2 * 168 + 16) * tokens


def test_nothing_is_allocated(kata, oracle, cost, host_memory):
    cfg = config(kata, oracle.LLAMA2_7B)
    with host_memory() as held:
        found = kata.forward_flops(cfg, batch=1, q_len=1024, kv_len=1024, causal=True)
    assert found.attention == 4 * 32 * 4096 * 524_800, "1024 · 1025 / 2 pairs"
    cost.check("peak_memory", held.peak_bytes)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    ("q_len", "kv_len"), [(5, 4), (0, 4), (-1, 4)], ids=["past the cache", "none", "negative"]
)
def test_impossible_number_of_queries_is_refused(kata, oracle, q_len, kv_len, causal):
    cfg = config(kata, oracle.LLAMA2_7B)
    with pytest.raises(ValueError, match="q_len"):
        kata.forward_flops(cfg, batch=1, q_len=q_len, kv_len=kv_len, causal=causal)


CAUSAL_ALONE = r"^(?!.*q_len).*\bcausal\b"


def test_encoder_neither_decodes_nor_hides(kata, oracle):
    cfg = config(kata, oracle.BERT_BASE)
    with pytest.raises(ValueError, match="q_len"):
        kata.forward_flops(cfg, batch=1, q_len=3, kv_len=4, causal=False)
    with pytest.raises(ValueError, match=CAUSAL_ALONE):
        kata.forward_flops(cfg, batch=1, q_len=4, kv_len=4, causal=True)
    with pytest.raises(ValueError, match=CAUSAL_ALONE):
        kata.attention_crossover(cfg, causal=True)


@pytest.mark.parametrize("tokens", [1025, 1023], ids=["one more", "one less"])
def test_part_of_a_sequence_is_refused(kata, oracle, tokens):
    with pytest.raises(ValueError, match="tokens"):
        kata.train_flops(config(kata, oracle.GPT2), tokens=tokens, seq=1024)
