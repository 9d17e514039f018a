"""What is right and what to feed: causal attention over the whole sequence."""

import torch
import torch.nn.functional as F


def sequence(*, tokens, q_heads, kv_heads, d, device, seed, batch=1, dtype=torch.float32):
    """Draw q, k, v of a whole sequence, N(0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, heads, tokens, d) for heads in (q_heads, kv_heads, kv_heads)]
    return [torch.randn(shape, generator=generator).to(dtype).to(device) for shape in shapes]


def causal_attention(q, k, v):
    """The textbook formula, in the dtype of the inputs; `q` is that of the last tokens."""
    k, v = per_query_head(k, q), per_query_head(v, q)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return scores.masked_fill(~visible(q, k), float("-inf")).softmax(dim=-1) @ v


def trusted_attention(q, k, v):
    """What honest computations in the working precision make of it, and then some."""
    truth = causal_attention(q.double(), k.double(), v.double())
    by_hand = causal_attention(q, k, v)
    k, v = per_query_head(k, q), per_query_head(v, q)
    library = F.scaled_dot_product_attention(q, k, v, attn_mask=visible(q, k))
    worse = torch.where((library - truth).abs() > (by_hand - truth).abs(), library, by_hand)
    # a few dozen rows are a small sample of rounding errors: leave room for one twice as large
    return (truth + 2 * (worse - truth)).to(q.dtype)


def per_query_head(x, q):
    """Write each K/V head out once for every query head that reads it."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


def visible(q, k):
    """Which keys are not in a query's future: [t, s] bool."""
    t, s = q.shape[2], k.shape[2]
    return torch.ones(t, s, dtype=torch.bool, device=q.device).tril(s - t)


def make_inputs(*, position, q_heads, kv_heads, d, dtype, device, seed):
    """One decode step: buffers that hold `position` tokens, and a free slot of NaN."""
    q, k, v = sequence(
        tokens=position + 1,
        q_heads=q_heads,
        kv_heads=kv_heads,
        d=d,
        device=device,
        seed=seed,
        dtype=dtype,
    )
    newest = {"q": q[:, :, -1:], "k": k[:, :, -1:].clone(), "v": v[:, :, -1:].clone()}
    k[:, :, -1] = v[:, :, -1] = float("nan")
    return {**newest, "k_cache": k, "v_cache": v, "length": position}


def reference(*, q, k, v, k_cache, v_cache, length):
    keys, values = _all_tokens(k, v, k_cache, v_cache, length)
    return causal_attention(q.double(), keys.double(), values.double())


def recompute(*, q, k, v, k_cache, v_cache, length):
    """Decode without a cache: attend from every token so far and keep the last row."""
    keys, values = _all_tokens(k, v, k_cache, v_cache, length)
    keys, values = per_query_head(keys, q), per_query_head(values, q)
    # a cache keeps no queries: the keys stand in for those of the past, at the same cost
    queries = torch.cat((keys[:, :, :-1], q), dim=2)
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)[:, :, -1:]


def _all_tokens(k, v, k_cache, v_cache, length):
    keys = torch.cat((k_cache[:, :, :length], k), dim=2)
    return keys, torch.cat((v_cache[:, :, :length], v), dim=2)
