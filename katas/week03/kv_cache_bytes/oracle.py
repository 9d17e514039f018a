"""What is right: bytes per token as published, and caches that a decoder of arrays really holds."""

from collections import deque

import numpy as np

SIZES = {"float32": np.float32, "float16": np.float16, "int8": np.int8}  # as NumPy has them


def attention(layers, heads, d_head, *, kv_heads=None, max_seq=4096, windows=(None,)):
    return {
        "kind": "gqa", "layers": layers, "heads": heads, "kv_heads": kv_heads or heads,
        "d_head": d_head, "max_seq": max_seq, "windows": windows,
    }  # fmt: skip


LLAMA2_7B = attention(32, 32, 128)
LLAMA2_70B = attention(80, 64, 128, kv_heads=8)
LLAMA3_8B = attention(32, 32, 128, kv_heads=8, max_seq=131_072)
MISTRAL_7B = attention(32, 32, 128, kv_heads=8, max_seq=131_072, windows=(4096,))
GEMMA2_9B = attention(42, 16, 256, kv_heads=8, max_seq=8192, windows=(4096, None))
DEEPSEEK_V2 = {
    "kind": "mla", "layers": 60, "heads": 128, "d_head": 128, "d_c": 512, "d_rope": 64,
    "max_seq": 131_072,
}  # fmt: skip

# bytes of one token in float16
PUBLISHED = {
    "llama2-7b": (LLAMA2_7B, 524_288),
    "opt-13b": (attention(40, 40, 128), 819_200),  # the 800 KB of the vLLM paper
    "llama2-70b": (LLAMA2_70B, 327_680),
    "llama3-8b": (LLAMA3_8B, 131_072),
    "gpt2": (attention(12, 12, 64, max_seq=1024), 36_864),
    "gpt3-175b": (attention(96, 96, 128, max_seq=2048), 4_718_592),
    "deepseek-v2": (DEEPSEEK_V2, 69_120),
}


def decoded_bytes(cfg, batch, seq, dtype):
    """Read `seq` tokens into caches that forget what no later token can see; weigh the arrays."""
    caches = [
        deque(maxlen=cfg.windows[layer % len(cfg.windows)])
        for layer in range(cfg.layers)
        for _ in range(batch)
    ]
    for _ in range(seq):
        for cache in caches:
            cache.append(_entry(cfg, SIZES[dtype]))
    return sum(array.nbytes for cache in caches for entry in cache for array in entry)


def _entry(cfg, dtype):
    """One token in one layer: (latent, rotary key) or (key, value)."""
    if cfg.kind == "mla":
        return np.empty(cfg.d_c, dtype), np.empty(cfg.d_rope, dtype)
    return np.empty((cfg.kv_heads, cfg.d_head), dtype), np.empty((cfg.kv_heads, cfg.d_head), dtype)


def random_config(random):
    """A small decoder with every field set; most have windows, a third latents."""
    return {
        "kind": random.choice(["gqa", "gqa", "mla"]),
        "layers": random.randint(1, 5),
        "heads": random.choice([4, 8, 12]),
        "kv_heads": random.choice([1, 2, 4]),
        "d_head": random.randint(1, 8),
        "d_c": random.randint(1, 9),
        "d_rope": random.randint(0, 5),
        "max_seq": random.randint(1, 60),
        "windows": random.choice([(None,), (None,), (5,), (3, None), (7, 7, None, 2)]),
    }
