"""What is right and what to feed: causal attention over the whole sequence."""

import torch
import torch.nn.functional as F


def sequence(*, tokens, q_heads, kv_heads, d, device, seed, batch=1, dtype=torch.float32):
    """Draw q, k, v of a whole sequence, N(0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, heads, tokens, d) for heads in (q_heads, kv_heads, kv_heads)]
    return [torch.randn(shape, generator=generator).to(dtype).to(device) for shape in shapes]


def causal_attention(q, k, v):
    """The textbook formula on a whole sequence, in the dtype of the inputs."""
    scores = _scores(q, k)
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(dim=-1) @ _per_query_head(v, q)


def _scores(q, k):
    return q @ _per_query_head(k, q).mT / q.shape[-1] ** 0.5


def _per_query_head(x, q):
    """Write each K/V head out once for every query head that reads it."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


def make_inputs(*, position, max_len, q_heads, kv_heads, d, dtype, device, seed):
    """One decode step: buffers that hold `position` tokens, and NaN past them."""
    q, k, v = sequence(
        tokens=position + 1,
        q_heads=q_heads,
        kv_heads=kv_heads,
        d=d,
        device=device,
        seed=seed,
        dtype=dtype,
    )
    caches = torch.full((2, 1, kv_heads, max_len, d), float("nan"), dtype=dtype, device=device)
    for cache, past in zip(caches, (k, v), strict=True):
        cache[:, :, :position] = past[:, :, :-1]
    return {
        "q": q[:, :, -1:],
        "k": k[:, :, -1:],
        "v": v[:, :, -1:],
        "k_cache": caches[0],
        "v_cache": caches[1],
        "length": position,
    }


def reference(*, q, k, v, k_cache, v_cache, length):
    """The newest token sees every key."""
    keys, values = _all_tokens(k, v, k_cache, v_cache, length)
    return _newest(q.double(), keys.double(), values.double())


def same_precision(*, q, k, v, k_cache, v_cache, length):
    return _newest(q, *_all_tokens(k, v, k_cache, v_cache, length))


def recompute(*, q, k, v, k_cache, v_cache, length):
    """Decode without a cache: attend from every token so far and keep the last row."""
    keys, values = _all_tokens(k, v, k_cache, v_cache, length)
    keys, values = _per_query_head(keys, q), _per_query_head(values, q)
    # a cache keeps no queries: the keys stand in for those of the past, at the same cost
    queries = torch.cat((keys[:, :, :-1], q), dim=2)
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)[:, :, -1:]


def _all_tokens(k, v, k_cache, v_cache, length):
    keys = torch.cat((k_cache[:, :, :length], k), dim=2)
    return keys, torch.cat((v_cache[:, :, :length], v), dim=2)


def _newest(q, keys, values):
    return _scores(q, keys).softmax(dim=-1) @ _per_query_head(values, q)
