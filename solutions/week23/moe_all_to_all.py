"""Kata week23/moe_all_to_all: tokens go to their experts' ranks, and sums come back.

Per forward pass: an all-to-all of counts, one of rows, one of results; two in backward.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import FunctionCtx

from harness.meters.collectives import Collectives


def expert(
    x: Float[Tensor, "n hidden"],
    w_in: Float[Tensor, "hidden inner"],
    w_out: Float[Tensor, "inner hidden"],
) -> Float[Tensor, "n hidden"]:
    """Apply one expert to its rows."""
    return torch.nn.functional.silu(x @ w_in) @ w_out


@dataclass(frozen=True, kw_only=True)
class _Routes:
    """Which tokens were sent, by destination, and how many rows each rank sent to each."""

    comm: Collectives
    n_tokens: int
    tokens: Tensor  # [rows sent]
    sent: list[int]
    received: list[int]


def dispatch(
    x: Float[Tensor, "t hidden"],
    idx: Int[Tensor, "t k"],
    gates: Float[Tensor, "t k"],
    E: int,
    comm: Collectives,
) -> tuple[Float[Tensor, "r hidden"], Int[Tensor, "r k"], Float[Tensor, "r k"], object]:
    """
    Send each token to the ranks of its experts, once to each; expert e is on rank e // (E / P).

    Returns the rows received, ordered by sender and token; their experts as numbers of this rank,
    -1 where they are not here; their gates, 0 where they are not; and what `combine` needs. Rows
    and gates are differentiable.

    Raises:
        ValueError: E: the ranks cannot share it evenly; idx: not from 0 to E - 1; gates: not of
            the shape of idx. Nothing has been sent then.
    """
    # check
    if E < 1 or E % comm.world:
        raise ValueError(f"E: expected a multiple of {comm.world} ranks, found {E}.")
    if ((idx < 0) | (idx >= E)).any():
        raise ValueError(f"idx: expected 0 to {E - 1}, found {idx.min()} to {idx.max()}.")
    if gates.shape != idx.shape:
        raise ValueError(f"gates: expected {tuple(idx.shape)}, found {tuple(gates.shape)}.")
    # who goes where
    here = E // comm.world
    owner = idx // here
    goes = torch.zeros(len(x), comm.world, dtype=torch.bool, device=x.device)
    goes.scatter_(1, owner, True)
    dest, tokens = goes.t().nonzero(as_tuple=True)
    # exchange counts
    sent = goes.sum(dim=0)
    received = torch.empty_like(sent)
    comm.all_to_all(received, sent).wait()
    routes = _Routes(
        comm=comm,
        n_tokens=len(x),
        tokens=tokens,
        sent=sent.tolist(),
        received=received.tolist(),
    )
    # send the rows
    dest = dest[:, None]
    there = owner[tokens] == dest
    local = torch.where(there, idx[tokens] - here * dest, -1)
    own_gates = torch.where(there, gates[tokens], 0)
    xr, gates_r, idx_local = _Swap.apply(
        comm, routes.sent, routes.received, x[tokens], own_gates, local
    )
    return xr, idx_local, gates_r, routes


def combine(y_partial: Float[Tensor, "r hidden"], ctx: object) -> Float[Tensor, "t hidden"]:
    """
    Send each row back to where it came from, and add up the rows of each token there.

    `ctx` is what `dispatch` returned. Differentiable.
    """
    # add up what returns
    (back,) = _Swap.apply(ctx.comm, ctx.received, ctx.sent, y_partial)
    return back.new_zeros(ctx.n_tokens, back.shape[1]).index_add(0, ctx.tokens, back)


def moe_ep_forward(
    x: Float[Tensor, "t hidden"],
    idx: Int[Tensor, "t k"],
    gates: Float[Tensor, "t k"],
    w_in: Float[Tensor, "local hidden inner"],
    w_out: Float[Tensor, "local inner hidden"],
    comm: Collectives,
) -> Float[Tensor, "t hidden"]:
    """
    Apply to each token its experts, weighted by its gates; this rank has the weights of some.

    Raises:
        ValueError: as `dispatch`.
    """
    # run local experts
    xr, idx_local, gates_r, ctx = dispatch(x, idx, gates, comm.world * len(w_in), comm)
    y = torch.zeros_like(xr)
    # experts without rows too: every rank needs the same graph, whose backward communicates
    for at in range(len(w_in)):
        rows, slots = (idx_local == at).nonzero(as_tuple=True)
        out = expert(xr[rows], w_in[at], w_out[at])
        y = y.index_add(0, rows, out * gates_r[rows, slots, None].to(out.dtype))
    return combine(y, ctx)


class _Swap(torch.autograd.Function):
    """An all-to-all of the rows of several tensors; backward that of their gradients."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, comm: Collectives, leaving: list[int], arriving: list[int], *parts: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.swap = comm, arriving, leaving
        ctx.floats = [part.is_floating_point() for part in parts]
        return tuple(_swap(comm, leaving, arriving, parts))

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        sent = [grad for grad, is_float in zip(grads, ctx.floats, strict=True) if is_float]
        back = iter(_swap(*ctx.swap, sent))
        return None, None, None, *(next(back) if is_float else None for is_float in ctx.floats)


def _swap(
    comm: Collectives, leaving: list[int], arriving: list[int], parts: Sequence[Tensor]
) -> list[Tensor]:
    """Send rows of `parts`, `leaving` of them to each rank, as bytes in one collective."""
    # send the rows
    rows = [_fresh(part).view(torch.uint8) for part in parts]
    packed = torch.cat(rows, dim=1)
    received = packed.new_empty(sum(arriving), packed.shape[1])
    comm.all_to_all(received, packed, arriving, leaving).wait()
    cuts = received.split([row.shape[1] for row in rows], dim=1)
    return [_fresh(cut).view(part.dtype) for cut, part in zip(cuts, parts, strict=True)]


def _fresh(rows: Tensor) -> Tensor:
    """Copy: what has one row or none is contiguous with any strides, and need not be aligned."""
    return rows.clone(memory_format=torch.contiguous_format)
