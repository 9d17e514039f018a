"""Kata week21/ring_attn_fwd: attention to a sequence of which each rank has a part.

Each rank keeps its queries. Blocks of K and V go round a ring, and partial results are merged.
"""

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from harness.meters.ring import RingComm


def block_attn(
    q: Float[Tensor, "b s h d"],
    k: Float[Tensor, "b s kv d"],
    v: Float[Tensor, "b s kv d"],
    *,
    scale: float,
    causal: bool,
) -> tuple[Float32[Tensor, "b s h d"], Float32[Tensor, "b h s"]]:
    """
    Attend to one block: the normalised result, and the log of the sum of exponentials.

    `causal` masks keys in later rows than the query's own, as where both are the same block.
    """
    k, v = (one.repeat_interleave(q.shape[2] // k.shape[2], dim=2) for one in (k, v))
    if q.is_cuda and q.dtype != torch.float32:
        heads_first = [one.transpose(1, 2) for one in (q, k, v)]
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        out, lse, *_ = flash(*heads_first, 0.0, causal, scale=scale)
        return out.transpose(1, 2).float(), lse
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()) * scale
    if causal:
        scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    lse = scores.logsumexp(dim=-1)
    weights = scores.sub_(lse[..., None]).exp_()
    return torch.einsum("bhqk,bkhd->bqhd", weights, v.float()), lse


def merge(
    out_a: Float[Tensor, "b s h d"],
    lse_a: Float[Tensor, "b h s"],
    out_b: Float[Tensor, "b s h d"],
    lse_b: Float[Tensor, "b h s"],
) -> tuple[Float[Tensor, "b s h d"], Float[Tensor, "b h s"]]:
    """
    Combine attention to two sets of keys into attention to both, in the dtype of the arguments.

    An lse of -inf stands for no keys, and goes with an out of 0. The two shares add up to 1
    however large the lse are.

    Source: Milakov and Gimelshein (arXiv 1805.02867), section 3.1.
    """
    # attend and merge
    # -inf less -inf is no number; any share will do there
    ahead = (lse_a - lse_b).nan_to_num().mT.unsqueeze(-1)
    out = out_a * torch.sigmoid(ahead) + out_b * torch.sigmoid(-ahead)
    return out, torch.logaddexp(lse_a, lse_b)


def ring_attn_fwd(
    q: Float[Tensor, "b s h d"],
    k: Float[Tensor, "b s kv d"],
    v: Float[Tensor, "b s kv d"],
    ring: RingComm,
    *,
    causal: bool,
    scale: float | None = None,
) -> tuple[Float[Tensor, "b s h d"], Float32[Tensor, "b h s"]]:
    """
    Attend to the rows of all ranks: the result in the dtype of `q`, and its lse in float32.

    Rank r has rows r * s to (r + 1) * s - 1 of the sequence. Without `scale` it is 1 / sqrt(d).

    Raises:
        ValueError: q: its heads are no multiple of those of k. scale: not above 0. Nothing has
            been sent then.

    Source: Liu, Zaharia and Abbeel, Ring Attention (arXiv 2310.01889), section 3.
    """
    # check
    heads, kv_heads = q.shape[2], k.shape[2]
    if heads % kv_heads:
        raise ValueError(f"q: expected a multiple of {kv_heads} heads, as k has, found {heads}.")
    if scale is None:
        scale = q.shape[3] ** -0.5
    if not scale > 0:
        raise ValueError(f"scale: expected more than 0, found {scale}.")
    # post
    k, v = k.contiguous(), v.contiguous()
    for step in range(ring.world):
        arriving = ring.post(k, v) if step + 1 < ring.world else None
        # attend and merge
        if step == 0:
            out, lse = block_attn(q, k, v, scale=scale, causal=causal)
        elif step <= ring.rank or not causal:
            out, lse = merge(out, lse, *block_attn(q, k, v, scale=scale, causal=False))
        # wait
        if arriving is not None:
            k, v = arriving.wait()
    return out.to(q.dtype), lse
