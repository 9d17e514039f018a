"""Who shares with whom, what becomes of gradients and checkpoints, and that nothing is copied."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.judge import assert_matches


def draw(oracle, device, seed, **changes):
    shape = {"b": 1, "hq": 8, "hkv": 2, "s": 1, "t": 5, "d": 8, "dtype": torch.float32}
    return oracle.make_inputs(**{**shape, **changes}, device=device, seed=seed)


def assert_right(oracle, out, inputs):
    trusted = oracle.same_precision(**inputs)
    assert_matches(out, oracle.reference(**inputs), same_precision=trusted)


# ---- attention -----------------------------------------------------------------------------


@pytest.mark.parametrize("hkv", [1, 2, 4])
def test_neighbouring_heads_share_keys(kata, device, hkv):
    # v tells the K/V heads apart, and a mean of equal numbers is that number
    q, k = torch.zeros(1, 4, 1, 8, device=device), torch.zeros(1, hkv, 4, 8, device=device)
    v = torch.arange(hkv, device=device).float().reshape(1, hkv, 1, 1).expand(1, hkv, 4, 8)
    out = kata.gqa_attention(q, k, v)
    assert out[0, :, 0, 0].tolist() == [float(h // (4 // hkv)) for h in range(4)]


def test_large_scores_stay_finite(kata, device):
    # scores of 9900 and more, 100 apart: the largest takes all, and exp of it is no number
    q, k = torch.full((1, 4, 1, 1), 100.0, device=device), torch.tensor([98.0, 100, 99])
    out = kata.gqa_attention(q, k.to(device).view(1, 1, 3, 1), k.to(device).view(1, 1, 3, 1))
    assert out.flatten().tolist() == [100.0] * 4


def test_causal_mask_is_aligned_bottom_right(kata, device):
    # all scores are 0: query i of 3 takes the mean of the first i + 3 of 5 values
    q, k = torch.zeros(1, 4, 3, 8, device=device), torch.zeros(1, 2, 5, 8, device=device)
    counts = 2.0 ** torch.arange(5, device=device)
    v = torch.stack((counts, -counts)).reshape(1, 2, 5, 1).expand(1, 2, 5, 8)
    out = kata.gqa_attention(q, k, v, causal=True)
    means = torch.tensor([7 / 3, 15 / 4, 31 / 5], dtype=torch.float64)
    assert_matches(out[0, :, :, 0], torch.stack((means, means, -means, -means)))


def test_hidden_keys_weigh_nothing_beside_the_lowest_scores(kata, device):
    # every score is -1e8: the first query sees the first value alone, the second takes the mean
    q = torch.full((1, 4, 2, 1), -1e4, device=device)
    v = torch.tensor([1.0, 3.0], device=device).view(1, 1, 2, 1)
    out = kata.gqa_attention(q, torch.full_like(v, 1e4), v, causal=True)
    assert out[0, :, :, 0].tolist() == [[1.0, 2.0]] * 4


@given(
    group=st.integers(1, 5),
    hkv=st.integers(1, 4),
    s=st.integers(1, 6),
    past=st.integers(0, 6),
    causal=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_any_number_of_heads(kata, oracle, device, group, hkv, s, past, causal, seed):
    heads = {"hq": group * hkv, "hkv": hkv, "s": s, "t": s + past, "b": 2}
    inputs = draw(oracle, device, seed, **heads, causal=causal)
    assert_right(oracle, kata.gqa_attention(**inputs), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_gradient_of_a_shared_head_is_summed_over_its_group(kata, oracle, device, seed, dtype):
    # a few hundred elements are rounded: fewer would be a poor sample of the worst error
    inputs = draw(oracle, device, seed, b=2, s=8, t=12, d=16, causal=True, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    pull = torch.randn(inputs["q"].shape, generator=generator).to(dtype).to(device)

    def gradients(attention, within):
        leaves = {name: inputs[name].to(within, copy=True).requires_grad_() for name in "qkv"}
        attention(**leaves, causal=True).backward(pull.to(within))
        return tuple(leaf.grad for leaf in leaves.values())

    want = gradients(oracle.expanded, torch.float64)  # autograd adds up what was repeated
    trusted = gradients(oracle.expanded, dtype)
    got = gradients(kata.gqa_attention, dtype)
    assert_matches(got, want, same_precision=trusted)


# a decode step and two queries of a prompt: K by itself is larger than what may be allocated
STEP, CHUNK = {"s": 1, "t": 2048, "d": 128}, {"s": 2, "t": 512, "d": 128, "causal": True}


def test_keys_and_values_are_not_copied(kata, oracle, dispatch, cost, seed):
    # counted on the CPU in every session: a GPU's products may need a workspace
    allocated = []
    for queries, (dtype, layout) in product(
        (STEP, CHUNK), [(torch.float32, "bhsd"), (torch.float16, "bshd")]
    ):
        inputs = draw(oracle, "cpu", seed, **queries, dtype=dtype, layout=layout)
        inputs["q"] /= 4  # scores below 1 or so: larger ones are rounded by more than 1e-3
        with dispatch() as ops:
            out = kata.gqa_attention(**inputs)
        if dtype == torch.float16:  # how exact float32 is, other tests judge
            assert_right(oracle, out, inputs)
        allocated.append(ops.allocated_bytes)
    cost.check("allocated_bytes", max(allocated))


@pytest.mark.parametrize("queries", [STEP, CHUNK], ids=["decode", "two queries"])
def test_a_group_goes_through_one_product(kata, oracle, dispatch, seed, queries):
    inputs = draw(oracle, "cpu", seed, **queries, dtype=torch.float16)
    inputs["q"] /= 4
    with dispatch() as ops:
        out = kata.gqa_attention(**inputs)
    assert_right(oracle, out, inputs)
    products = sum(ops.count(f"aten.{name}") for name in ("mv", "mm", "addmm", "bmm", "baddbmm"))
    assert products <= 2 * 2, "K and V of a shared head were read more than once"


# ---- checkpoints ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_pooling_by_hand(kata, device, dtype):
    # 4 heads of 2 rows each: heads 0 and 1 become one, heads 2 and 3 the other
    w = torch.tensor([[1], [2], [3], [6], [10], [20], [30], [60]], dtype=dtype, device=device)
    pooled = kata.mean_pool_kv(w, heads=4, kv_heads=2)
    assert pooled.dtype == dtype
    assert pooled.tolist() == [[2], [4], [20], [40]]
    for heads in (4, 1):  # as many as before: one of 8 rows, too
        assert kata.mean_pool_kv(w, heads, kv_heads=heads).tolist() == w.tolist()


def test_pooling_large_weights_stays_in_range(kata, device):
    # four times 40 000 is more than float16 holds, their mean is not
    w = torch.full((4, 1), 40_000.0, dtype=torch.float16, device=device)
    assert kata.mean_pool_kv(w, heads=4, kv_heads=1).tolist() == [[40_000]]


def test_pooling_heads_that_agree_changes_nothing(kata, device, seed):
    # four equal numbers add up and divide exactly
    shared = torch.randn(2, 1, 3, 5, generator=torch.Generator().manual_seed(seed)).to(device)
    w = shared.expand(2, 4, 3, 5).reshape(24, 5)
    assert torch.equal(kata.mean_pool_kv(w, heads=8, kv_heads=2), shared.reshape(6, 5))


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "heads", "kv_heads"),
    [
        ("heads", 5, 1),
        ("heads", 0, 1),
        ("heads", -4, 1),
        ("kv_heads", 4, 3),
        ("kv_heads", 4, 8),
        ("kv_heads", 4, 0),
        ("kv_heads", 4, -2),
    ],
)
def test_heads_that_do_not_divide_are_refused(kata, device, name, heads, kv_heads):
    with pytest.raises(ValueError, match=rf"^\W*{name}\b"):
        kata.mean_pool_kv(torch.ones(8, 3, device=device), heads, kv_heads)
