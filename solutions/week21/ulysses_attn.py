"""Kata week21/ulysses_attn: one all-to-all swaps the axis that is cut, rows for heads and back.

Between two of them each rank has the whole sequence, of some of the heads.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from harness.meters.collectives import Collectives


def seq_to_head(x: Float[Tensor, "b s h d"], comm: Collectives) -> Float[Tensor, "b rows part d"]:
    """
    Take this rank's rows of all heads, return all rows of its part of the heads.

    Raises:
        ValueError: x: the ranks do not divide its heads. Nothing has been sent then.
    """
    # check
    if x.shape[2] % comm.world:
        raise ValueError(f"x: expected a multiple of {comm.world} heads, found {x.shape[2]}.")
    # rows to heads
    return _SeqToHead.apply(x, comm)


def head_to_seq(x: Float[Tensor, "b rows part d"], comm: Collectives) -> Float[Tensor, "b s h d"]:
    """
    Take all rows of this rank's part of the heads, return its rows of all heads.

    Raises:
        ValueError: x: the ranks do not divide its rows. Nothing has been sent then.
    """
    # check
    if x.shape[1] % comm.world:
        raise ValueError(f"x: expected a multiple of {comm.world} rows, found {x.shape[1]}.")
    # heads to rows
    return _HeadToSeq.apply(x, comm)


def ulysses_attn(
    q: Float[Tensor, "b s h d"],
    k: Float[Tensor, "b s kv d"],
    v: Float[Tensor, "b s kv d"],
    comm: Collectives,
    *,
    causal: bool,
) -> Float[Tensor, "b s h d"]:
    """
    Attend with this rank's rows to those of all ranks, scores divided by sqrt(d); autograd works.

    Raises:
        ValueError: q: its heads are no multiple of those of k, or of the ranks. k: its heads are
            neither a multiple of the ranks nor a divisor. Nothing has been sent then.

    Source: Jacobs et al., DeepSpeed Ulysses (arXiv 2309.14509), section 3.
    """
    # check
    heads, kv_heads, world = q.shape[2], k.shape[2], comm.world
    for divisor in (kv_heads, world):
        if heads % divisor:
            raise ValueError(f"q: expected a multiple of {divisor} heads, found {heads}.")
    if kv_heads % world and world % kv_heads:
        raise ValueError(f"k: expected a multiple or a divisor of {world} heads, found {kv_heads}.")
    # repeat the key heads
    if kv_heads < world:
        k, v = (one.repeat_interleave(world // kv_heads, dim=2) for one in (k, v))
    # rows to heads
    q, k, v = (seq_to_head(one, comm).transpose(1, 2) for one in (q, k, v))
    # attend
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    # heads to rows
    return head_to_seq(out.transpose(1, 2), comm)


class _SeqToHead(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, comm: Collectives) -> Tensor:
        ctx.comm = comm
        return _to_heads(x, comm)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return _to_rows(grad, ctx.comm), None


class _HeadToSeq(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, comm: Collectives) -> Tensor:
        ctx.comm = comm
        return _to_rows(x, comm)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return _to_heads(grad, ctx.comm), None


def _to_heads(x: Tensor, comm: Collectives) -> Tensor:
    by_heads = x.unflatten(2, (comm.world, -1)).movedim(2, 0)  # [ranks, b, s, h / ranks, d]
    return _exchanged(by_heads, comm).movedim(0, 1).flatten(1, 2)


def _to_rows(x: Tensor, comm: Collectives) -> Tensor:
    by_rows = x.unflatten(1, (comm.world, -1)).movedim(1, 0)  # [ranks, b, s, h / ranks, d]
    return _exchanged(by_rows, comm).movedim(0, 2).flatten(2, 3)


def _exchanged(parts: Tensor, comm: Collectives) -> Tensor:
    """Send part r to rank r; what came from rank r is part r of the result."""
    arrived = torch.empty_like(parts, memory_format=torch.contiguous_format)
    comm.all_to_all(arrived, parts.contiguous()).wait()
    return arrived
