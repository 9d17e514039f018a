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
    # TODO(kata): check, fold the group, scores, hide the future, weigh the values (about 15 lines
    # with helpers)
    raise NotImplementedError


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
    raise NotImplementedError  # TODO(kata): check, mean of a group (about 7 lines)
