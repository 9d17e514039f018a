"""What is special about a cache: any chunking, nothing copied, nothing read past its length."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.judge import HostClock, Samples, assert_matches, assert_sound


def attend_in_chunks(kata, cache, q, k, v, chunks):
    """The outputs of all tokens, fed in chunks of these sizes."""
    parts = zip(*(x.split(chunks, dim=2) for x in (q, k, v)), strict=True)
    return torch.cat([kata.attend(*part, cache) for part in parts], dim=2)


def cache_for(kata, k, max_len=None):
    """An empty cache that takes keys like `k`; by default they fill it."""
    batch, kv_heads, tokens, d = k.shape
    return kata.KVCache.allocate(batch, max_len or tokens, kv_heads, d, k.dtype, k.device)


def assert_untouched(cache):
    """A `zeroed_cache` is still empty, and zero."""
    assert cache.length == 0
    for buffer in (cache.k, cache.v):
        assert not buffer.any(), "what was refused has been written"


def zeroed_cache(kata, device):
    cache = kata.KVCache.allocate(2, 16, 2, 8, device=device)
    for buffer in (cache.k, cache.v):
        buffer.zero_()
    return cache


def decode_64_steps(kata, oracle, dispatch, seed, dtype):
    """What 64 right steps after a prompt of 128 tokens cost, on the CPU in every session."""
    # a GPU's attention may arrange its output by a copy
    q, k, v = oracle.sequence(
        tokens=192, q_heads=8, kv_heads=2, d=64, device="cpu", seed=seed, dtype=dtype
    )
    cache = cache_for(kata, k, max_len=256)
    kata.attend(q[:, :, :128], k[:, :, :128], v[:, :, :128], cache)
    steps = [x[:, :, 128:].contiguous().split(1, dim=2) for x in (q, k, v)]
    with dispatch() as ops:
        # a copy by NumPy is not counted, and lets go of the tensor
        out = [kata.attend(*step, cache).numpy().copy() for step in zip(*steps, strict=True)]
    assert_causal(oracle, torch.from_numpy(np.concatenate(out, axis=2)), q[:, :, 128:], k, v)
    return ops


def assert_causal(oracle, out, q, k, v):
    truth = oracle.causal_attention(q.double(), k.double(), v.double())
    assert_matches(out, truth, same_precision=oracle.trusted_attention(q, k, v))


@settings(max_examples=25, deadline=None)
@given(
    tokens=st.integers(1, 48),
    cuts=st.sets(st.integers(1, 47)),
    spare=st.integers(0, 2),
    seed=st.integers(0, 2**31),
)
def test_any_chunking_gives_the_same_outputs(kata, oracle, device, tokens, cuts, spare, seed):
    edges = [0, *sorted(cut for cut in cuts if cut < tokens), tokens]
    chunks = [end - start for start, end in pairwise(edges)]
    q, k, v = oracle.sequence(
        tokens=tokens, q_heads=2, kv_heads=2, d=8, device=device, seed=seed, batch=2
    )
    cache = cache_for(kata, k, tokens + spare)
    assert_causal(oracle, attend_in_chunks(kata, cache, q, k, v, chunks), q, k, v)


@pytest.mark.parametrize(
    "chunks",
    [
        [37],  # prefill alone
        [1] * 37,  # decode alone
        [30, 7],  # a chunk of several queries after a prefix
        [20, 1, 15, 1],  # chunked prefill between decode steps
    ],
)
def test_query_heads_share_keys_in_groups(kata, oracle, device, seed, chunks):
    q, k, v = oracle.sequence(tokens=37, q_heads=8, kv_heads=2, d=16, device=device, seed=seed)
    cache = cache_for(kata, k)
    assert_causal(oracle, attend_in_chunks(kata, cache, q, k, v, chunks), q, k, v)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_dtypes_are_as_good_as_eager_attention(kata, oracle, device, seed, dtype):
    q, k, v = oracle.sequence(
        tokens=65, q_heads=4, kv_heads=2, d=32, device=device, seed=seed, dtype=dtype
    )
    if dtype != torch.float16:
        v *= 2**20  # float16 ends at 65504
    out = attend_in_chunks(kata, cache_for(kata, k), q, k, v, [40, 24, 1])
    truth = oracle.causal_attention(q.double(), k.double(), v.double())
    eager = float((oracle.causal_attention(q, k, v).double() - truth).norm())
    error = float((out.double() - truth).norm())
    # another order of the same operators may be twice as far off; the truth itself is float64
    limit = 2 * eager + 8 * torch.finfo(torch.float64).eps * float(truth.norm())
    assert out.dtype == dtype
    assert error <= limit, f"expected an error of at most {limit:.2g}, found {error:.2g}"


def test_one_head_one_token_sees_itself(kata, device, seed):
    q, k, v = torch.randn(3, 1, 1, 1, 4, generator=torch.Generator().manual_seed(seed)).to(device)
    assert_matches(kata.attend(q, k, v, cache_for(kata, k)), v.double())


def test_attend_needs_no_more_of_a_cache_than_append(kata, oracle, device, seed):
    q, k, v = oracle.sequence(tokens=37, q_heads=8, kv_heads=2, d=16, device=device, seed=seed)
    out = attend_in_chunks(kata, kata.CatCache(), q, k, v, [20, 15, 1, 1])
    assert_causal(oracle, out, q, k, v)


def test_buffers_have_the_dtype_and_device_asked_for(kata):
    # the meta device, which holds no numbers, stands for any that is not the default
    cache = kata.KVCache.allocate(2, 16, 3, 8, torch.float16, "meta")
    for buffer in (cache.k, cache.v):
        assert buffer.shape == (2, 3, 16, 8)
        assert (buffer.dtype, buffer.device.type) == (torch.float16, "meta")


def test_append_returns_views_of_the_buffers(kata, device):
    cache = kata.KVCache.allocate(1, 5, 2, 4, device=device)
    homes = cache.k.data_ptr(), cache.v.data_ptr()
    for tokens, length in ((3, 3), (1, 4), (1, 5)):  # the last one fills it exactly
        new = torch.full((1, 2, tokens, 4), float(length), device=device)
        keys, values = cache.append(new, -new)
        assert cache.length == length
        assert keys.shape == values.shape == (1, 2, length, 4)
        assert (keys.data_ptr(), values.data_ptr()) == homes, "the past was moved or copied"
    expected = torch.tensor([3.0, 3.0, 3.0, 4.0, 5.0], device=device)
    assert torch.equal(keys[0, 1, :, 2], expected)
    assert torch.equal(values[0, 0, :, 3], -expected)


@pytest.mark.parametrize("past", [20, 5000], ids=["short", "long"])
def test_nothing_past_the_length_is_read(kata, oracle, device, seed, past):
    # in a long cache too a chunk's queries see all of the past and none of their future
    q, k, v = oracle.sequence(
        tokens=past + 17, q_heads=8, kv_heads=2, d=16, device=device, seed=seed
    )
    buffers = [F.pad(x[:, :, :past], (0, 0, 0, 28), value=float("nan")) for x in (k, v)]
    chunk = [x[:, :, past:] for x in (q, k, v)]
    assert_causal(oracle, kata.kv_cache_decode(*chunk, *buffers, past), chunk[0], k, v)


def test_a_step_taken_again_sees_its_new_tokens(kata, oracle, device, seed):
    q, k, v = oracle.sequence(tokens=23, q_heads=4, kv_heads=2, d=16, device=device, seed=seed)
    buffers = [F.pad(x[:, :, :20], (0, 0, 0, 3)) for x in (k, v)]
    draft = [x[:, :, 20:] for x in (q, k, v)]
    for _ in range(2):
        assert_causal(oracle, kata.kv_cache_decode(*draft, *buffers, 20), draft[0], k, v)
        for x in draft:
            x.neg_()  # rejected: other tokens in the same memory, at the same length


def test_a_decode_step_copies_its_own_token_and_no_more(kata, oracle, dispatch, cost, seed):
    ops = decode_64_steps(kata, oracle, dispatch, seed, torch.float32)
    cost.check("copied_bytes", ops.copied_bytes)
    cost.check("peak_memory", ops.peak_live_bytes)


def test_a_float16_step_casts_nothing_held(kata, oracle, dispatch, seed):
    ops = decode_64_steps(kata, oracle, dispatch, seed, torch.float16)
    written = 64 * 2 * 2 * 64 * 2  # steps, K and V, heads, d, bytes
    assert ops.copied_bytes <= written, "more was copied, or cast, than the new keys and values"


def test_a_chunk_copies_no_past(kata, oracle, dispatch, seed):
    # counted on the CPU in every session; d is large, so that scores are small beside the keys
    q, k, v = oracle.sequence(tokens=514, q_heads=8, kv_heads=2, d=128, device="cpu", seed=seed)
    cache = cache_for(kata, k)
    kata.attend(q[:, :, :512], k[:, :, :512], v[:, :, :512], cache)
    chunk = [x[:, :, 512:] for x in (q, k, v)]
    with dispatch() as ops:
        out = kata.attend(*chunk, cache)
    assert_causal(oracle, out, chunk[0], k, v)
    half = 514 * 128 * 4 // 2  # of one head's keys
    assert ops.peak_live_bytes <= half, "there was room for a copy of the past"


def test_decoding_beats_recomputing(kata, oracle, cost, seed, one_thread):
    # on the CPU in every session: on a GPU a size this small measures nothing but launches
    step = oracle.make_inputs(
        position=2048, q_heads=2, kv_heads=1, d=32, dtype=torch.float32, device="cpu", seed=seed
    )
    asked, found = [], []
    numbers = torch.Generator()
    numbers.seed()  # by nobody foreseen: neither an answer kept nor one made ahead is right

    def ask_anew():
        asked.append({name: step[name].normal_(generator=numbers).clone() for name in "qkv"})

    calls = [
        lambda: oracle.recompute(**step),
        lambda: found.append(kata.kv_cache_decode(**step)),
    ]
    HostClock().time_rounds(calls, 3, ask_anew)
    forwards, steps = HostClock().time_rounds(calls, 30, ask_anew)
    for newest, out in zip(asked[1::2], found, strict=True):
        assert_sound(out, step, writes=("k_cache", "v_cache"))
        # two rows are too few to judge float32 by: rounded to float16 they must be right
        assert_matches(out.half(), oracle.reference(**step | newest), name="a timed step")
    ratios = Samples(tuple(a / b for a, b in zip(forwards, steps, strict=True)))
    cost.check("speedup", ratios.median)


def test_more_than_max_len_tokens_are_refused(kata, device):
    cache = kata.KVCache.allocate(1, 4, 2, 8, device=device)
    cache.k.zero_()
    held = torch.ones(1, 2, 3, 8, device=device)
    cache.append(held, held)
    for tokens in (2, 9):  # one too many, and more than the whole cache
        new = torch.full((1, 2, tokens, 8), 7.0, device=device)
        with pytest.raises(ValueError, match="max_len"):
            cache.append(new, new)
        assert cache.length == 3
        assert cache.k.sum() == held.sum(), "a refused token was written"


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("k", (2, 1, 3, 8)),  # one K/V head would broadcast over both
        ("k", (1, 2, 3, 8)),  # and so would one sequence
        ("k", (2, 2, 3, 4)),
        ("k", (2, 2, 3, 1)),  # and one channel over eight
        ("v", (2, 2, 1, 8)),  # one token would broadcast over three
        ("v", (2, 1, 3, 8)),
        ("v", (1, 2, 3, 8)),
        ("v", (2, 2, 3, 1)),
        ("v", (2, 3, 2, 8)),  # as many numbers
    ],
)
def test_keys_and_values_that_do_not_fit_are_refused(kata, device, name, shape):
    cache = zeroed_cache(kata, device)
    # values like their keys, so that it is the keys that are refused
    shapes = {"k": shape, "v": shape} if name == "k" else {"k": (2, 2, 3, 8), "v": shape}
    new = {axis: torch.ones(one, device=device) for axis, one in shapes.items()}
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        cache.append(**new)
    assert_untouched(cache)


@pytest.mark.parametrize(
    "shape",
    [
        (2, 3, 5, 8),  # 3 query heads cannot share 2 K/V heads
        (2, 1, 5, 8),  # nor can 1
        (1, 4, 5, 8),  # would broadcast over the batch
        (4, 4, 5, 8),  # two sequences of queries for each of keys
        (2, 4, 1, 8),  # fewer queries than keys: where they stand would be a guess
        (2, 4, 5, 4),
    ],
)
def test_queries_that_do_not_fit_are_refused(kata, device, shape):
    cache = zeroed_cache(kata, device)
    k, v = torch.ones(2, 2, 2, 5, 8, device=device)
    with pytest.raises(ValueError, match=r"\bq\b"):
        kata.attend(torch.ones(shape, device=device), k, v, cache)
    assert_untouched(cache)
