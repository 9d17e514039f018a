"""What is right, what to feed and what it costs: each document alone, its scores written out."""

from itertools import pairwise

import torch
import torch.nn.functional as F

from harness.hardware import Cost

STRUCTURED = ("cu_seqlens",)
SCALES = (2.0, 1 / 128)  # scores grow with the square of the inputs
WIDTH = 4096  # of the rows that `packed` documents fill


def make_inputs(
    *, hq, d, dtype, device, seed,
    first=0, second=0, lengths=(), packed=0, hkv=None, causal=True, scale=None, layout="nhd",
):  # fmt: skip
    """
    Queries, keys and values N(0, 1) of documents one after another.

    Args:
        hq: Heads of the queries.
        d: Size of a head.
        dtype: Of the operands.
        device: Where they are.
        seed: Of the draw; lengths do not depend on it.
        first: Length of a document, none if 0.
        second: Of the one that follows.
        lengths: Of the documents after these.
        packed: As many rows of 4096 instead, each cut into four documents at random.
        hkv: Heads of keys and values, as many as queries if None.
        causal: Hide later keys.
        scale: Of the scores.
        layout: "fused" has q, k and v side by side in memory, as one projection leaves them;
            "hnd" has the heads outside.
    """
    lengths = [*filter(None, (first, second)), *lengths, *_quarters(packed)]
    hkv = hkv or hq
    n = sum(lengths)
    generator = torch.Generator().manual_seed(seed)
    heads = (hq, hkv, hkv)
    if layout == "fused":
        x = torch.randn(n, sum(heads), d, generator=generator)
        q, k, v = x.to(dtype).to(device).split(heads, dim=1)
    elif layout == "hnd":
        x = [torch.randn(h, n, d, generator=generator) for h in heads]
        q, k, v = (one.to(dtype).to(device).transpose(0, 1) for one in x)
    else:
        x = [torch.randn(n, h, d, generator=generator) for h in heads]
        q, k, v = (one.to(dtype).to(device) for one in x)
    ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return {
        "q": q, "k": k, "v": v, "cu_seqlens": ends.to(device),
        "max_seqlen": max(lengths, default=0), "causal": causal, "scale": scale,
    }  # fmt: skip


def _quarters(rows):
    """Lengths of documents that fill rows of WIDTH, 4 to a row."""
    if not rows:
        return []
    cuts = torch.rand(rows, 3, generator=torch.Generator().manual_seed(0)).sort(dim=1).values
    inner = (cuts * WIDTH).long()
    edges = [torch.zeros(rows, 1).long(), inner, torch.full((rows, 1), WIDTH)]
    return torch.cat(edges, dim=1).diff(dim=1).flatten().tolist()


def reference(*, q, k, v, cu_seqlens, max_seqlen, causal=True, scale=None):
    return _one_by_one(q, k, v, cu_seqlens, causal, scale, torch.float64)


def same_precision(*, q, k, v, cu_seqlens, max_seqlen, causal=True, scale=None):
    """Eager attention in the dtype of the inputs."""
    out, lse = _one_by_one(q, k, v, cu_seqlens, causal, scale, q.dtype)
    return out, lse.float()


def _one_by_one(q, k, v, cu_seqlens, causal, scale, dtype):
    """(out, lse) of every document and head; one matrix of scores at a time."""
    n, h, d = q.shape
    group = h // k.shape[1]
    scale = d**-0.5 if scale is None else scale
    out, lse = q.new_zeros(q.shape, dtype=dtype), q.new_zeros(h, n, dtype=dtype)
    for begin, end in pairwise(cu_seqlens.tolist()):
        at = slice(begin, end)
        hidden = torch.ones(end - begin, end - begin, dtype=torch.bool, device=q.device)
        hidden = hidden.triu(1) if causal else ~hidden
        for i in range(h if end > begin else 0):
            own = (q[at, i].to(dtype), k[at, i // group].to(dtype), v[at, i // group].to(dtype))
            scores = (own[0] @ own[1].T * scale).masked_fill_(hidden, -torch.inf)
            lse[i, at] = torch.logsumexp(scores, dim=-1)
            out[at, i] = torch.softmax(scores, dim=-1) @ own[2]
    return out, lse


def cost(*, q, k, v, cu_seqlens, max_seqlen, causal=True, scale=None):
    """Two products and one exponential for each score that is visible."""
    n, h, d = q.shape
    lengths = [end - begin for begin, end in pairwise(cu_seqlens.tolist())]
    scores = h * sum(length * (length + 1) // 2 if causal else length**2 for length in lengths)
    tensors = 2 * q.numel() + k.numel() + v.numel()  # the result is as large as q
    return Cost(
        flops=4 * d * scores,
        bytes=tensors * q.element_size() + 4 * h * n + cu_seqlens.nbytes,
        special=scores,
    )


def dense_mask(*, q, k, v, cu_seqlens, max_seqlen, causal=True, scale=None):
    """Rows of WIDTH tokens, and a mask that has all pairs of each row."""
    n, h, d = q.shape
    tokens = torch.arange(n, device=q.device, dtype=torch.int32)
    seq = torch.searchsorted(cu_seqlens, tokens, right=True).view(-1, WIDTH)
    mask = (seq[:, :, None] == seq[:, None, :]).tril()[:, None]
    q, k, v = (
        x.view(-1, WIDTH, x.shape[1], d).transpose(1, 2).repeat_interleave(h // x.shape[1], dim=1)
        for x in (q, k, v)
    )
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
