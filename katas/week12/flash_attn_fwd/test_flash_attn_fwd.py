"""Masks, rows without keys, shared heads, a maximum that moves, and the bytes never moved."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.judge import assert_matches

SPEED_CASE = {"b": 4, "hq": 16, "sq": 4096, "sk": 4096, "d": 128, "dtype": "float16"}


def draw(oracle, device, seed, *, hq=1, sq=1, sk=1, d=16, dtype=torch.float16, **more):
    return oracle.make_inputs(
        b=1, hq=hq, sq=sq, sk=sk, d=d, dtype=dtype, device=device, seed=seed, **more
    )


def blank(device, *shape, dtype=torch.float16):
    return torch.zeros(shape, dtype=dtype, device=device)


def assert_right(kata, oracle, inputs):
    want, trusted = oracle.reference(**inputs), oracle.same_precision(**inputs)
    assert_matches(kata.flash_attn_fwd(**inputs), want, same_precision=trusted)


# ---- the softmax ---------------------------------------------------------------------------


def test_keys_in_order_of_rising_score(kata, oracle, device, seed):
    # scores of j / 4 to j for key j: each outweighs those before, each tile moves the maximum
    inputs = draw(oracle, device, seed, sq=4, sk=100, sm_scale=0.25)
    inputs["q"].zero_()[..., 0] = torch.arange(1, 5)
    inputs["k"][..., 0] = torch.arange(100)
    assert_right(kata, oracle, inputs)


@pytest.mark.parametrize("sign", [1, -1], ids=["positive", "negative"])
def test_scores_far_from_zero(kata, oracle, device, seed, sign):
    # scores of at least 16 · 100 / 4: exp of them is inf, of their negatives 0
    inputs = draw(oracle, device, seed, sq=3, sk=40)
    inputs["q"].fill_(sign * 100)
    inputs["k"] = 1 + inputs["k"].abs() / 50
    assert_right(kata, oracle, inputs)


def test_lse_is_a_natural_logarithm(kata, device):
    q, k = blank(device, 1, 1, 2, 16), blank(device, 1, 1, 7, 16)
    _, lse = kata.flash_attn_fwd(q, k, k)
    assert_matches(lse, torch.full((1, 1, 2), math.log(7), dtype=torch.float64))


def test_scale_multiplies_the_scores(kata, device):
    # q · k is 0 for one key and 16 for the other: weights 1 and exp(16 · ln 3 / 16) = 3
    q, k, v = torch.ones(1, 1, 1, 16), torch.zeros(1, 1, 2, 16), torch.zeros(1, 1, 2, 16)
    k[0, 0, 1] = 1
    v[0, 0, 0] = 4
    q, k, v = q.to(device), k.to(device), v.to(device)
    o, lse = kata.flash_attn_fwd(q, k, v, sm_scale=math.log(3) / 16)
    assert_matches(o, torch.ones(1, 1, 1, 16, dtype=torch.float64))
    assert_matches(lse, torch.full((1, 1, 1), math.log(4), dtype=torch.float64))


def test_output_lies_between_the_values(kata, oracle, device, seed):
    inputs = draw(oracle, device, seed, sq=5, sk=33)  # the second tile holds one key
    inputs["v"] = v = inputs["v"] - 10
    o, _ = kata.flash_attn_fwd(**inputs)
    assert bool((o >= v.amin(dim=2, keepdim=True)).all())
    assert bool((o <= v.amax(dim=2, keepdim=True)).all())


def test_sums_are_kept_in_float32(kata, device):
    # the sum of 512 times 0.1 is 51.2, where float16 has steps of 1/32
    q, k = blank(device, 1, 1, 1, 16), blank(device, 1, 1, 512, 16)
    v = torch.full_like(k, 0.1)
    o, _ = kata.flash_attn_fwd(q, k, v)
    assert o.flatten().tolist() == v[0, 0, 0].tolist()


@settings(max_examples=10)
@given(
    sq=st.integers(
        4, 6
    ),  # with four heads: enough values for the largest error to be a typical one
    sk=st.integers(1, 40),
    seed=st.integers(0, 99),
    random=st.randoms(use_true_random=False),
)
def test_order_of_the_keys_does_not_matter(kata, oracle, device, sq, sk, seed, random):
    inputs = draw(oracle, device, seed, hq=4, hkv=4, sq=sq, sk=sk, dtype=torch.float32)
    order = random.sample(range(sk), sk)
    shuffled = {**inputs, "k": inputs["k"][:, :, order], "v": inputs["v"][:, :, order]}
    want, trusted = oracle.reference(**inputs), oracle.same_precision(**inputs)
    assert_matches(kata.flash_attn_fwd(**shuffled), want, same_precision=trusted)


# ---- masks and heads -----------------------------------------------------------------------


def test_causal_mask_is_aligned_bottom_right(kata, device):
    # all scores are 0, so a query that sees n keys has lse = ln n; v counts 1, 2, 4, 8, 16
    q, k = blank(device, 1, 1, 3, 16), blank(device, 1, 1, 5, 16)
    v = (2.0 ** torch.arange(5, device=device)).half().reshape(1, 1, 5, 1).expand(1, 1, 5, 16)
    o, lse = kata.flash_attn_fwd(q, k, v, causal=True)
    assert_matches(o[0, 0, :, 0], torch.tensor([7 / 3, 15 / 4, 31 / 5], dtype=torch.float64))
    assert_matches(lse[0, 0], torch.tensor([3, 4, 5], dtype=torch.float64).log())


def test_a_query_that_sees_no_key_gets_zero(kata, device):
    # the first 35 of 37 queries: a whole tile of 32 and a part of the next
    q, k = blank(device, 1, 1, 37, 16), blank(device, 1, 1, 2, 16)
    o, lse = kata.flash_attn_fwd(q, k, torch.ones_like(k), causal=True)
    assert o[0, 0, :, 0].tolist() == [0.0] * 35 + [1.0] * 2
    want = torch.tensor([0] * 35 + [1, 2], dtype=torch.float64).log()
    assert_matches(lse[0, 0], want)


@pytest.mark.parametrize("hkv", [1, 2, 4])
def test_neighbouring_heads_share_keys(kata, device, hkv):
    q, k = blank(device, 1, 4, 1, 16), blank(device, 1, hkv, 3, 16)
    v = torch.arange(hkv, device=device).half().reshape(1, hkv, 1, 1).expand(1, hkv, 3, 16)
    o, _ = kata.flash_attn_fwd(q, k, v)
    assert o[0, :, 0, 0].tolist() == [float(h // (4 // hkv)) for h in range(4)]


# ---- memory --------------------------------------------------------------------------------


def test_traffic_of_each_tensor(kata, oracle, device, seed, traffic):
    inputs = draw(oracle, device, seed, sq=128, sk=128, d=32)
    with traffic() as moved:
        o, lse = kata.flash_attn_fwd(**inputs)
    assert moved.of(inputs["q"]).loads_per_element == 1
    assert moved.of(inputs["k"]).loads_per_element <= 4  # once for each tile of 32 queries
    assert moved.of(inputs["v"]).loads_per_element <= 4
    assert moved.stored_bytes == o.nbytes + lse.nbytes


def test_hidden_tiles_are_not_loaded(kata, oracle, device, seed, traffic, cost):
    inputs = draw(oracle, device, seed, sq=128, sk=128, causal=True)
    with traffic() as moved:
        kata.flash_attn_fwd(**inputs)
    loads = max(moved.of(inputs[name]).loads_per_element for name in "kv")
    cost.check("causal_share", loads / 4)  # tiles of 32 queries: 4 passes without a mask


# ---- bad input -----------------------------------------------------------------------------


def test_nothing_is_allocated_for_a_call_that_is_refused(kata, device, dispatch):
    q, k = blank(device, 1, 1, 30, 16), blank(device, 1, 1, 5, 32)
    with dispatch() as ops, pytest.raises(ValueError, match="^k: "):
        kata.flash_attn_fwd(q, k, k)
    assert ops.allocated_bytes == 0, "expected the check before the results are allocated"


def test_bfloat16_on_the_cpu_is_refused(kata):
    q = torch.zeros(1, 1, 3, 16, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="^q: "):
        kata.flash_attn_fwd(q, q, q)


# ---- the build ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "instruction", "dtype", "d"),
    [
        ("sm_90", "wgmma.mma_async", "float16", 128),
        ("sm_90", "wgmma.mma_async", "float16", 96),
        ("sm_80", "mma.sync", "bfloat16", 128),
    ],
)
def test_products_run_on_tensor_cores(kata, compiled, target, instruction, dtype, d):
    kernels = compiled(target=target, **{**SPEED_CASE, "dtype": dtype, "d": d})
    assert kernels, "no kernel was launched"
    assert all(kernel.has(instruction) for kernel in kernels)


def test_float32_is_not_rounded_to_tf32(compiled):
    shape = {"b": 1, "hq": 1, "sq": 128, "sk": 128, "d": 64}
    (kernel,) = compiled(target="sm_80", dtype="float32", **shape)
    assert "tf32" not in kernel.ptx, 'expected input_precision="ieee" in both products'
