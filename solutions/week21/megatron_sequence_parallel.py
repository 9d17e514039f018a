"""Kata week21/megatron_sequence_parallel: what tensor parallelism leaves whole is cut by rows.

Each all-reduce becomes a reduce-scatter and an all-gather, with the normalisation in between.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from harness.meters.collectives import Collectives, Pending

EPS = 1e-5


def gathered_linear(
    x: Float[Tensor, "s b h"], w: Float[Tensor, "part h"], comm: Collectives
) -> Float[Tensor, "rows b part"]:
    """
    Gather the rows of all ranks, and multiply by this rank's outputs of a weight.

    Autograd works, and keeps `x`, not what was gathered: that is gathered again.

    Source: Korthikanti et al. (arXiv 2205.05198), section 4.2.2.
    """
    # gather and multiply
    return _GatheredLinear.apply(x, w, comm)


def reduce_scatter_to_sp(x: Float[Tensor, "rows b h"], comm: Collectives) -> Float[Tensor, "s b h"]:
    """
    Sum `x` over the ranks, and return this rank's rows of the sum; autograd works.

    Raises:
        ValueError: x: the ranks do not divide its rows. Nothing has been sent then.
    """
    # check
    if len(x) % comm.world:
        raise ValueError(f"x: expected a multiple of {comm.world} rows, found {len(x)}.")
    # sum and split the rows
    return _ReduceScatterToSP.apply(x, comm)


def sp_mlp_block(
    x: Float[Tensor, "s b h"],
    ln_w: Float[Tensor, " h"],
    ln_b: Float[Tensor, " h"],
    w1: Float[Tensor, "part h"],
    w2: Float[Tensor, "h part"],
    comm: Collectives,
) -> Float[Tensor, "s b h"]:
    """Return `x` + w2 gelu(w1 layer_norm(x)) for this rank's rows, with its part of the weights."""
    # MLP block
    normed = F.layer_norm(x, ln_w.shape, ln_w, ln_b, EPS)
    hidden = F.gelu(gathered_linear(normed, w1, comm))
    return x + reduce_scatter_to_sp(hidden @ w2.T, comm)


def finish_grads(params: Iterable[Tensor], comm: Collectives) -> None:
    """
    Replace the gradients of parameters that every rank has by their sums over the ranks.

    One all-reduce for all of them. Those without a gradient, on all ranks alike, stay without.
    """
    # finish the gradients
    grads = [param.grad for param in params if param.grad is not None]
    if not grads:
        return
    flat = torch.cat([grad.flatten() for grad in grads])
    comm.all_reduce(flat).wait()
    for grad, total in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
        grad.copy_(total.view_as(grad))


class _GatheredLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor, comm: Collectives) -> Tensor:
        ctx.comm = comm
        ctx.save_for_backward(x, w)
        whole, gathering = _gather(x, comm)
        gathering.wait()
        return whole @ w.T

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        # backward with overlap
        x, w = ctx.saved_tensors
        needs_x, needs_w, _ = ctx.needs_input_grad
        dx = dw = None
        if needs_w:
            whole, gathering = _gather(x, ctx.comm)
        if needs_x:
            dx, scattering = _scatter(grad @ w, ctx.comm)
        if needs_w:
            gathering.wait()
            dw = grad.flatten(0, 1).T @ whole.flatten(0, 1)
        if needs_x:
            scattering.wait()
        return dx, dw, None


class _ReduceScatterToSP(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, comm: Collectives) -> Tensor:
        ctx.comm = comm
        part, scattering = _scatter(x, comm)
        scattering.wait()
        return part

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        whole, gathering = _gather(grad, ctx.comm)
        gathering.wait()
        return whole, None


def _gather(part: Tensor, comm: Collectives) -> tuple[Tensor, Pending]:
    """Start to gather the rows of all ranks."""
    whole = part.new_empty(comm.world * part.shape[0], *part.shape[1:])
    return whole, comm.all_gather(whole, part.contiguous())


def _scatter(whole: Tensor, comm: Collectives) -> tuple[Tensor, Pending]:
    """Start to sum over the ranks; each gets its rows."""
    part = whole.new_empty(whole.shape[0] // comm.world, *whole.shape[1:])
    return part, comm.reduce_scatter(part, whole.contiguous())
