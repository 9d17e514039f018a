"""Wrong on purpose: keys outside, queries inside: O and L go back and forth."""

import numpy as np


def flash_attn_tiling(hbm, Br, Bc, causal=False, sm_scale=None):
    batch, heads, queries, d = hbm.shape("Q")
    keys = hbm.shape("K")[2]
    if Br < 1 or Bc < 1:
        raise ValueError("Br, Bc: expected 1 or more")
    if hbm.shape("K") != (batch, heads, keys, d) or hbm.shape("V") != hbm.shape("K"):
        raise ValueError("K, V: expected shapes that fit")
    scale = d**-0.5 if sm_scale is None else sm_scale
    for b, h in np.ndindex(batch, heads):
        hbm.store("O", (b, h, slice(0, queries)), np.zeros((queries, d)))
        hbm.store("L", (b, h, slice(0, queries)), np.full(queries, -np.inf))
        for col in range(0, keys, Bc):
            absorb(hbm, b, h, slice(col, min(col + Bc, keys)), Br, causal, scale)


def absorb(hbm, b, h, cols, Br, causal, scale):
    queries, keys = hbm.shape("Q")[2], hbm.shape("K")[2]
    k, v = hbm.load("K", (b, h, cols)), hbm.load("V", (b, h, cols))
    for row in range(0, queries, Br):
        rows = slice(row, min(row + Br, queries))
        limit = np.arange(rows.start, rows.stop)[:, None] + 1 + keys - queries
        if causal and limit[-1, 0] <= cols.start:
            continue
        s = hbm.load("Q", (b, h, rows)) @ k.T * scale
        if causal:
            s[np.arange(cols.start, cols.stop) >= limit] = -np.inf
        old = hbm.load("L", (b, h, rows))[:, None]
        # L alone will do: O is normalised, so its share of the new sum is exp(L - maximum)
        largest = np.maximum(old, s.max(axis=1, keepdims=True))
        base = np.where(largest == -np.inf, 0.0, largest)
        s = np.exp(s - base)
        share = np.exp(old - base)
        total = share + s.sum(axis=1, keepdims=True)
        total = np.where(total == 0.0, 1.0, total)
        hbm.store("O", (b, h, rows), (hbm.load("O", (b, h, rows)) * share + s @ v) / total)
        hbm.store("L", (b, h, rows), (largest + np.log(total))[:, 0])
