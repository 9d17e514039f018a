"""What is right, what to feed and what it costs: causal attention over the whole sequence."""

import torch
import torch.nn.functional as F


def causal_attention(q, k, v):
    """
    Attention of a whole sequence, q [b, h_q, s, d] and k, v [b, h_kv, s, d], in the dtype given.

    The textbook formula, with every key written out once for each query head.
    """
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(dim=-1) @ v


def sequence(*, tokens, q_heads, kv_heads, d, device, seed, batch=1, dtype=torch.float32):
    """Draw q, k, v of a whole sequence, N(0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, heads, tokens, d) for heads in (q_heads, kv_heads, kv_heads)]
    return [torch.randn(shape, generator=generator).to(dtype).to(device) for shape in shapes]


def make_inputs(*, position, q_heads, kv_heads, d, dtype, device, seed):
    """One decode step at `position`: buffers that hold what came before, and one free slot."""
    # one sequence leaves most of a GPU idle even in the recomputation: feed it more of them
    batch = 1 if device == "cpu" else 64
    q, k, v = sequence(
        tokens=position + 1,
        q_heads=q_heads,
        kv_heads=kv_heads,
        d=d,
        device=device,
        seed=seed,
        batch=batch,
        dtype=dtype,
    )
    return {
        "q": q[:, :, -1:].clone(),
        "k": k[:, :, -1:].clone(),
        "v": v[:, :, -1:].clone(),
        "k_cache": k,
        "v_cache": v,
        "length": position,
    }


def reference(*, q, k, v, k_cache, v_cache, length):
    """The newest token sees every key."""
    keys = torch.cat((k_cache[:, :, :length], k), dim=2).double()
    values = torch.cat((v_cache[:, :, :length], v), dim=2).double()
    return _newest(q.double(), keys, values)


def same_precision(*, q, k, v, k_cache, v_cache, length):
    keys = torch.cat((k_cache[:, :, :length], k), dim=2)
    return _newest(q, keys, torch.cat((v_cache[:, :, :length], v), dim=2))


def _newest(q, keys, values):
    group = q.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    return (q @ keys.mT / q.shape[-1] ** 0.5).softmax(dim=-1) @ values


def recompute(*, q, k, v, k_cache, v_cache, length):
    """Decoding without a cache: attention of every token so far, of which the last row is kept."""
    keys = torch.cat((k_cache[:, :, :length], k), dim=2)
    values = torch.cat((v_cache[:, :, :length], v), dim=2)
    group = q.shape[1] // k.shape[1]
    keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    # a cache keeps no queries: the keys stand in for those of the past, at the same cost
    queries = torch.cat((keys[:, :, :-1], q), dim=2)
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)[:, :, -1:]
