"""Kata week21/zigzag_ring_attn: causal ring attention that gives every rank the same work.

The sequence is cut into 2 x world chunks; rank r has chunk r and the r-th from the end.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Float32, Int64, Shaped
from torch import Tensor

from harness.meters.ring import RingComm


def block_attn(
    q: Float[Tensor, "b s h d"],
    k: Float[Tensor, "b t kv d"],
    v: Float[Tensor, "b t kv d"],
    *,
    scale: float,
    causal: bool,
) -> tuple[Float32[Tensor, "b s h d"], Float32[Tensor, "b h s"]]:
    """
    Attend to one block: the normalised result, and the log of the sum of exponentials.

    `causal` (with s = t) masks keys in later rows than the query's own.
    """
    k, v = _shared(q, k), _shared(q, v)
    if q.is_cuda and q.dtype != torch.float32:
        heads_first = [one.transpose(1, 2) for one in (q, k, v)]
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        out, lse, *_ = flash(*heads_first, 0.0, causal, scale=scale)
        return out.transpose(1, 2).float(), lse
    scores = _scores(q, k, scale, causal)
    lse = scores.logsumexp(dim=-1)
    weights = scores.sub_(lse[..., None]).exp_()
    return torch.einsum("bhst,bthd->bshd", weights, v.float()), lse


def block_attn_bwd(
    dout: Float[Tensor, "b s h d"],
    q: Float[Tensor, "b s h d"],
    k: Float[Tensor, "b t kv d"],
    v: Float[Tensor, "b t kv d"],
    out: Float[Tensor, "b s h d"],
    lse: Float32[Tensor, "b h s"],
    *,
    scale: float,
    causal: bool,
) -> tuple[Float32[Tensor, "b s h d"], Float32[Tensor, "b t kv d"], Float32[Tensor, "b t kv d"]]:
    """
    Return what one block adds to dq, and to dk and dv of its keys: contiguous, in float32.

    `out` and `lse` are those of attention to all keys, not to this block alone.
    """
    kv = k.shape[2]
    k, v = _shared(q, k).float(), _shared(q, v).float()
    q, dout = q.float(), dout.float()
    weights = (_scores(q, k, scale, causal) - lse[..., None]).exp()
    mean = (dout * out.float()).sum(-1).transpose(1, 2)[..., None]
    dscores = weights * (torch.einsum("bshd,bthd->bhst", dout, v) - mean) * scale
    dq = torch.einsum("bhst,bthd->bshd", dscores, k)
    dk = torch.einsum("bhst,bshd->bthd", dscores, q)
    dv = torch.einsum("bhst,bshd->bthd", weights, dout)
    dk, dv = (one.unflatten(2, (kv, -1)).sum(3) for one in (dk, dv))
    return dq.contiguous(), dk.contiguous(), dv.contiguous()


def _shared(q: Tensor, k: Tensor) -> Tensor:
    """Give each query head its key or value head."""
    return k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)


def _scores(q: Tensor, k: Tensor, scale: float, causal: bool) -> Tensor:
    scores = torch.einsum("bshd,bthd->bhst", q.float(), k.float()) * scale
    if causal:
        scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return scores


def merge(
    out_a: Float[Tensor, "b s h d"],
    lse_a: Float[Tensor, "b h s"],
    out_b: Float[Tensor, "b s h d"],
    lse_b: Float[Tensor, "b h s"],
) -> tuple[Float[Tensor, "b s h d"], Float[Tensor, "b h s"]]:
    """Combine attention to two sets of keys into attention to both."""
    ahead = (lse_a - lse_b).nan_to_num().transpose(1, 2).unsqueeze(-1)
    out = out_a * torch.sigmoid(ahead) + out_b * torch.sigmoid(-ahead)
    return out, torch.logaddexp(lse_a, lse_b)


def zigzag_shard(
    x: Shaped[Tensor, "*whole"], dim: int, rank: int, world: int
) -> Shaped[Tensor, "*part"]:
    """
    Return this rank's two chunks of `x` along `dim`, the earlier one first, in memory of their own.

    Raises:
        ValueError: x: 2 x world does not divide its size along `dim`.
    """
    # check
    if x.shape[dim] % (2 * world):
        raise ValueError(
            f"x: expected a multiple of {2 * world} along axis {dim}, found {x.shape[dim]}."
        )
    # cut and join
    chunks = x.chunk(2 * world, dim)
    return torch.cat([chunks[rank], chunks[-1 - rank]], dim)


def zigzag_unshard(shards: Sequence[Shaped[Tensor, "*part"]], dim: int) -> Shaped[Tensor, "*whole"]:
    """
    Put the shards of all ranks, in the order of the ranks, together again.

    Raises:
        ValueError: shards: the size of one along `dim` is odd.
    """
    # check
    if any(one.shape[dim] % 2 for one in shards):
        sizes = [one.shape[dim] for one in shards]
        raise ValueError(f"shards: expected two equal chunks along axis {dim}, found {sizes}.")
    # cut and join
    pairs = [one.tensor_split(2, dim) for one in shards]
    return torch.cat([first for first, _ in pairs] + [last for _, last in pairs[::-1]], dim)


def zigzag_positions(rows: int, rank: int, world: int) -> Int64[Tensor, " own"]:
    """
    Return where in a sequence of `rows` this rank's rows are.

    Raises:
        ValueError: rows: 2 x world does not divide it.
    """
    # check
    if rows % (2 * world):
        raise ValueError(f"rows: expected a multiple of {2 * world}, found {rows}.")
    # cut and join
    return zigzag_shard(torch.arange(rows), 0, rank, world)


def zigzag_attn(
    q: Float[Tensor, "b s h d"],
    k: Float[Tensor, "b s kv d"],
    v: Float[Tensor, "b s kv d"],
    ring: RingComm,
    *,
    scale: float | None = None,
) -> Float[Tensor, "b s h d"]:
    """
    Attend causally to a sequence cut by `zigzag_shard`; autograd works.

    Without `scale` it is 1 / sqrt(d).

    Raises:
        ValueError: q: an odd number of rows, or heads that are no multiple of those of k. scale:
            not above 0. Nothing has been sent then.

    Source: Llama 3 (arXiv 2407.21783), section 3.3.2, for the chunks.
    """
    # check
    rows, heads, kv_heads = q.shape[1], q.shape[2], k.shape[2]
    if rows % 2:
        raise ValueError(f"q: expected two chunks, an even number of rows, found {rows}.")
    if heads % kv_heads:
        raise ValueError(f"q: expected a multiple of {kv_heads} heads, as k has, found {heads}.")
    if scale is None:
        scale = q.shape[3] ** -0.5
    if not scale > 0:
        raise ValueError(f"scale: expected more than 0, found {scale}.")
    return _ZigzagAttn.apply(q, k, v, ring, scale)


def _reach(step: int, ring: RingComm, rows: int) -> tuple[slice, slice]:
    """Which rows of q meet which of the block at hand: all, or a half of one of them."""
    # choose rows and keys
    half = rows // 2
    if step == 0:
        return slice(rows), slice(rows)
    if step <= ring.rank:  # from a lower rank: its first chunk is before both of this rank's
        return slice(rows), slice(half)
    return slice(half, rows), slice(rows)


class _ZigzagAttn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, ring: RingComm, scale: float) -> Tensor:
        # post
        saved = k, v
        k, v = k.contiguous(), v.contiguous()
        for step in range(ring.world):
            arriving = ring.post(k, v) if step + 1 < ring.world else None
            # attend and merge
            rows, keys = _reach(step, ring, q.shape[1])
            part = block_attn(q[:, rows], k[:, keys], v[:, keys], scale=scale, causal=step == 0)
            if step == 0:
                out, lse = part
            else:
                out[:, rows], lse[..., rows] = merge(out[:, rows], lse[..., rows], *part)
            if arriving is not None:
                k, v = arriving.wait()
        out = out.to(q.dtype)
        ctx.ring, ctx.scale = ring, scale
        ctx.save_for_backward(q, *saved, out, lse)
        return out

    @staticmethod
    def backward(ctx, dout: Tensor) -> tuple[Tensor | None, ...]:
        # post
        q, k, v, out, lse = ctx.saved_tensors
        ring, returning = ctx.ring, None
        dq = torch.zeros_like(q, dtype=torch.float32)
        k, v = k.contiguous(), v.contiguous()
        for step in range(ring.world):
            arriving = ring.post(k, v) if step + 1 < ring.world else None
            # carry the gradients
            rows, keys = _reach(step, ring, q.shape[1])
            dq_part, *dkv_part = block_attn_bwd(
                dout[:, rows], q[:, rows], k[:, keys], v[:, keys], out[:, rows], lse[..., rows],
                scale=ctx.scale, causal=step == 0,
            )  # fmt: skip
            dq[:, rows] += dq_part
            dkv = dkv_part
            if returning is not None:
                # what earlier ranks have summed for the block at hand
                dkv = returning.wait()
                for total, part in zip(dkv, dkv_part, strict=True):
                    total[:, keys] += part
            if ring.world > 1:
                returning = ring.post(*dkv)
            if arriving is not None:
                k, v = arriving.wait()
        # carry the gradients
        if returning is not None:
            dkv = returning.wait()
        dk, dv = (one.to(k.dtype) for one in dkv)
        return dq.to(q.dtype), dk, dv, None, None
