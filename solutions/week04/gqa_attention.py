"""Kata week04/gqa_attention: query heads in groups that share K and V, nothing repeated.

Per decode step: K and V are read once; nothing of their size is allocated.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def gqa_attention(
    q: Float[Tensor, "b hq s d"],
    k: Float[Tensor, "b hkv t d"],
    v: Float[Tensor, "b hkv t d"],
    causal: bool = False,
) -> Float[Tensor, "b hq s d"]:
    """
    softmax(q kᵀ / sqrt(d)) v, where query head h reads K/V head h // (hq / hkv).

    Strides are free; the result has the dtype of `q`. Causal masks are aligned bottom right:
    query i sees keys up to i + t - s, where s is at most t. Differentiable.

    Raises:
        ValueError: `k` differs from `q` in b or d, or hkv does not divide hq; `v` is not shaped
            like `k`. The message names which.

    Source: Ainslie et al. 2023 (GQA); with hkv = 1, Shazeer 2019 (MQA).
    """
    # check
    _check(q, k, v)
    b, hq, s, d = q.shape
    hkv, t = k.shape[1:3]
    # fold the group
    # the query heads that share a K/V head are rows of one product: no key is repeated
    rows = q.reshape(b, hkv, hq // hkv * s, d)
    # scores
    scores = rows * d**-0.5 @ k.mT  # [b, hkv, group * s, t]
    # hide the future
    if causal and s > 1:
        hidden = torch.ones(s, t, dtype=torch.bool, device=q.device).triu(t - s + 1)
        by_head = scores.view(-1, s, t)
        scores = by_head.masked_fill(hidden, -torch.inf).view_as(scores)
    # weigh the values
    return (scores.softmax(dim=-1) @ v).view(b, hq, s, d)


def mean_pool_kv(
    w: Float[Tensor, "rows model"], heads: int, kv_heads: int
) -> Float[Tensor, "pooled_rows model"]:
    """
    Turn the K or V projection of a multi-head checkpoint into one for `kv_heads` shared heads.

    `w` has the rows of head 0, then those of head 1, and so on, rows / heads for each. Each new
    head is the mean of the heads whose place it takes.

    Raises:
        ValueError: `heads` is below 1 or does not divide the rows of `w`, or `kv_heads` is below
            1 or does not divide `heads`; the message names which of the two.

    Source: Ainslie et al. 2023, section 2.1.
    """
    rows, model = w.shape
    # check
    if heads < 1 or rows % heads:
        raise ValueError(f"heads: expected a divisor of the {rows} rows of w, found {heads}")
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"kv_heads: expected a divisor of heads = {heads}, found {kv_heads}")
    # mean of a group
    grouped = w.reshape(kv_heads, heads // kv_heads, rows // heads, model)
    return grouped.mean(dim=1).flatten(0, 1)


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    # check
    b, hq, _, d = q.shape
    if (k.shape[0], k.shape[3]) != (b, d) or hq % k.shape[1]:
        expected = f"[{b}, a divisor of {hq}, t, {d}]"
        raise ValueError(f"k: expected {expected} to fit q, found {list(k.shape)}")
    if v.shape != k.shape:
        raise ValueError(f"v: expected {list(k.shape)} like k, found {list(v.shape)}")
