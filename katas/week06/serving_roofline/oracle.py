"""What is right: every token and every key that it sees counted one by one, in exact fractions."""

from dataclasses import replace
from fractions import Fraction

KV_BYTES = 2  # of each key and value, and of each activation: 16 bits


def machine(profile, **figures):
    """`profile` with the A100's figures, or others, so that numbers by hand hold on any device."""
    known = {"peak": 312e12, "bandwidth": 2.039e12, "launch_s": 3e-6, "memory_bytes": 80 * 10**9}
    known |= figures
    return replace(profile, **known | {"peak": {"float16": known["peak"]}})


def small_model(kata, *, linear_params, layers=1, heads=1, kv_heads=1, d_head=1):
    """A model of any size; no table, no norms."""
    return kata.ServedModel(
        params=linear_params,
        linear_params=linear_params,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        d_head=d_head,
    )


def times(cfg, prefill, decode_ctx, profile, bits):
    """((compute, memory) of the linear layers, (compute, memory) of attention), in seconds."""
    peak, bandwidth = Fraction(profile.peak["float16"]), Fraction(profile.bandwidth)
    chunks = [*prefill, *((1, ctx - 1) for ctx in decode_ctx)]
    tokens = pairs = cached = 0
    for chunk, past in chunks:
        cached += past
        for at in range(chunk):
            tokens += 1
            cached += 1
            pairs += past + at + 1
    weight_bytes = Fraction(cfg.linear_params * bits, 8) if tokens else 0
    cache_bytes = 2 * cfg.kv_heads * cfg.d_head * cfg.layers * KV_BYTES * cached
    # a product with a key, and one with a value, for each channel of each query head
    flops = 2 * 2 * cfg.heads * cfg.d_head * cfg.layers * pairs
    return (
        (2 * cfg.linear_params * tokens / peak, weight_bytes / bandwidth),
        (flops / peak, cache_bytes / bandwidth),
    )


def crossovers(cfg, ctx, profile, bits, hi=10**6):
    """Both batches, by trying one after the other; None where more and more is lacking."""
    linear, attention = times(cfg, [], [ctx], profile, bits)
    weights_s = linear[1]
    whole_compute_s = linear[0] + attention[0]

    def first(compute_s, cache_s):
        if compute_s <= cache_s:
            return None
        return next(
            batch for batch in range(1, hi) if batch * compute_s >= weights_s + batch * cache_s
        )

    return first(linear[0], 0), first(whole_compute_s, attention[1])
