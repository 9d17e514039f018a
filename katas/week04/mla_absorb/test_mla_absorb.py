"""Decoding from latents equals attention with all keys written out, and costs what it should."""

from dataclasses import fields, replace

import pytest
import torch

from harness.judge import assert_matches
from harness.meters.dispatch import flop_meter

# no two alike, so that a mistaken axis cannot hide
SMALL = {"d_model": 20, "n_h": 3, "d_h": 8, "d_r": 4, "d_v": 6, "d_c": 14, "d_cq": 10}
# latents wider than a head, as in the real one, and many tokens
WIDE = {"d_model": 64, "n_h": 8, "d_h": 16, "d_r": 8, "d_v": 16, "d_c": 32, "d_cq": 24}


def layer(kata, oracle, device, seed, *, b=1, s=1, dims=SMALL):
    """x, weights as the kata takes them, and the same by name."""
    x, named = oracle.draw(b=b, s=s, dims=dims, device=device, seed=seed)
    return x, kata.Weights(**named), named


def decode_all(kata, x, cache, weights):
    """The outputs of all tokens of x, one step each, and the last cache."""
    outs = []
    for token in x.split(1, dim=1):
        out, cache = kata.mla_decode(token, cache, weights)
        outs.append(out)
    return torch.cat(outs, dim=1), cache


def held_bytes(cache):
    """All memory that a cache keeps alive, whole storages."""
    values = [getattr(cache, field.name) for field in fields(cache)]
    storages = {one.untyped_storage() for one in values if isinstance(one, torch.Tensor)}
    return sum(storage.nbytes() for storage in storages)


@pytest.mark.parametrize(("b", "s"), [(2, 9), (1, 1)], ids=["two sequences", "one token"])
def test_prefill_is_causal_attention(kata, oracle, device, seed, b, s):
    x, weights, named = layer(kata, oracle, device, seed, b=b, s=s)
    exact, trusted = oracle.truth(x, named)
    assert_matches(kata.mla_prefill(x, weights)[0], exact, same_precision=trusted)


@pytest.mark.parametrize("prompt", [1, 5, 8])  # of 9 tokens: nearly all, some, one decoded
def test_decoding_goes_on_where_prefill_ends(kata, oracle, device, prompt, seed):
    x, weights, named = layer(kata, oracle, device, seed, b=2, s=9)
    exact, trusted = oracle.truth(x, named)
    first, cache = kata.mla_prefill(x[:, :prompt], weights)
    rest, _ = decode_all(kata, x[:, prompt:], cache, weights)
    assert_matches(torch.cat((first, rest), dim=1), exact, same_precision=trusted)


def test_decoding_from_an_empty_cache(kata, oracle, device, seed):
    x, weights, named = layer(kata, oracle, device, seed, b=2, s=5)
    empty = kata.LatentCache(c_kv=x.new_empty(2, 0, 14), k_rope=x.new_empty(2, 0, 4))
    exact, trusted = oracle.truth(x, named)
    outs, _ = decode_all(kata, x, empty, weights)
    assert_matches(outs, exact, same_precision=trusted)


def test_step_sees_all_of_a_long_past(kata, oracle, device, seed):
    # float16 has no 5001
    x, weights, named = layer(kata, oracle, device, seed, b=2, s=5002)
    c_kv, k_rope = (kept[:, :5001] for kept in oracle.latents(x, named))
    out, _ = kata.mla_decode(x[:, 5001:], kata.LatentCache(c_kv=c_kv, k_rope=k_rope), weights)
    exact, trusted = oracle.truth(x, named, first=5001)
    # forty values are too few to judge float32 by: rounded to float16 they must be right
    assert_matches(out.half(), exact, same_precision=trusted.half())


def test_prompt_may_be_long(kata, oracle, device, seed):
    # float16 has no odd number above 2048, bfloat16 none above 256
    x, weights, named = layer(kata, oracle, device, seed, s=2060)
    exact, trusted = oracle.truth(x, named, first=2050)
    out, _ = kata.mla_prefill(x, weights)
    assert_matches(out[:, 2050:], exact, same_precision=trusted)


def test_scores_may_be_large(kata, oracle, device, seed):
    # they grow with the square of x: some 10 000 up or down, of which exp is no number
    x, weights, named = layer(kata, oracle, device, seed, b=8, s=9)
    first, cache = kata.mla_prefill(100 * x[:, :5], weights)
    rest, _ = decode_all(kata, 100 * x[:, 5:], cache, weights)
    assert torch.cat((first, rest), dim=1).isfinite().all()
    # a first token sees itself alone, however low its score
    exact, trusted = oracle.truth(100 * x[:, :1], named)
    assert_matches(first[:, :1], exact, same_precision=trusted)


def test_cache_holds_latents_and_turned_rotary_keys(kata, oracle, device, seed):
    x, weights, named = layer(kata, oracle, device, seed, b=2, s=7)
    exact = oracle.latents(x.double(), {name: weight.double() for name, weight in named.items()})
    _, prompt = kata.mla_prefill(x[:, :5], weights)
    _, cache = decode_all(kata, x[:, 5:], prompt, weights)
    for kept, tokens in ((cache, 7), (prompt, 5)):  # a step leaves the cache it was given alone
        for found, want, similar in zip(
            (kept.c_kv, kept.k_rope), exact, oracle.latents(x, named), strict=True
        ):
            assert_matches(found, want[:, :tokens], same_precision=similar[:, :tokens])


def test_cache_keeps_nothing_else(kata, oracle, device, cost, seed):
    x, weights, _ = layer(kata, oracle, device, seed, b=2, s=9, dims=WIDE)
    _, prompt = kata.mla_prefill(x[:, :6], weights)
    _, cache = decode_all(kata, x[:, 6:], prompt, weights)
    per_token = {held_bytes(prompt) / 12, held_bytes(cache) / 18}
    cost.check("cache_bytes", max(per_token))
    assert len(per_token) == 1, "prefill and decode keep different amounts for a token"


def test_step_costs_no_more_than_attention_to_latents(kata, oracle, device, cost, seed):
    x, weights, named = layer(kata, oracle, device, seed, b=2, s=257, dims=WIDE)
    exact, trusted = oracle.truth(x, named)
    flops = ideal = 0
    for past in (8, 256):
        _, cache = kata.mla_prefill(x[:, :past], weights)
        with flop_meter() as meter:
            out, _ = kata.mla_decode(x[:, past : past + 1], cache, weights)
        flops += meter.flops
        ideal += oracle.decode_flops(WIDE, past + 1, 2)
        assert_matches(out, exact[:, past : past + 1], same_precision=trusted[:, past : past + 1])
    cost.check("flops", flops, ideal=ideal)


def test_step_writes_no_key_of_any_head(kata, oracle, device, dispatch, cost, seed):
    # what is made elementwise counts no FLOPs, but it has to be put somewhere
    x, weights, named = layer(kata, oracle, device, seed, b=2, s=257, dims=WIDE)
    _, cache = kata.mla_prefill(x[:, :256], weights)
    with dispatch() as ops:
        out, _ = kata.mla_decode(x[:, 256:], cache, weights)
    cost.check("step_bytes", ops.allocated_bytes)
    exact, trusted = oracle.truth(x, named, first=256)
    assert_matches(out, exact, same_precision=trusted)


def test_published_figures_of_deepseek_v2(kata):
    dims = kata.DEEPSEEK_V2
    assert kata.cache_elements(dims) == 576
    assert kata.reduction_vs_mha(dims) == pytest.approx(32768 / 576)  # 56.9
    # the 64 that is often quoted leaves the rotary key out
    assert kata.reduction_vs_mha(replace(dims, d_r=0)) == 64
    # against DeepSeek 67B: 95 layers of 8 K/V heads of 128, 16 bits; here 60 layers of 6 bits
    share = 60 * kata.cache_elements(dims) * 6 / (95 * 2 * 8 * 128 * 16)
    assert round(100 * (1 - share), 1) == 93.3


def test_values_may_be_narrower_than_keys(kata):
    dims = replace(kata.DEEPSEEK_V2, d_v=64)
    assert kata.reduction_vs_mha(dims) == pytest.approx(128 * (128 + 64) / 576)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("c_kv", (2, 3, 15)),
        ("k_rope", (2, 3, 1)),  # one channel would broadcast,
        ("k_rope", (2, 0, 4)),  # and so would one score,
        ("k_rope", (1, 3, 4)),  # and so would one sequence
        ("k_rope", (2, 4, 4)),
        ("k_rope", (3, 2, 4)),  # as many tokens in all
    ],
)
def test_cache_of_other_weights_is_refused(kata, oracle, device, seed, name, shape):
    x, weights, _ = layer(kata, oracle, device, seed, b=2)
    shapes = {"c_kv": (2, 3, 14), "k_rope": (2, 3, 4)} | {name: shape}
    cache = kata.LatentCache(**{key: x.new_zeros(one) for key, one in shapes.items()})
    with pytest.raises(ValueError, match=name):
        kata.mla_decode(x, cache, weights)


@pytest.mark.parametrize(
    ("b", "s"), [(2, 2), (1, 1), (4, 1)], ids=["two tokens", "fewer sequences", "more sequences"]
)
def test_step_that_is_not_one_token_each_is_refused(kata, oracle, device, seed, b, s):
    x, weights, _ = layer(kata, oracle, device, seed, b=b, s=s)
    cache = kata.LatentCache(c_kv=x.new_zeros(2, 3, 14), k_rope=x.new_zeros(2, 3, 4))
    with pytest.raises(ValueError, match=r"\bx\b"):
        kata.mla_decode(x, cache, weights)
