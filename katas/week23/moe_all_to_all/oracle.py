"""What is right: token by token who goes where, and the layer of one process in float64."""

import random
from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """What one rank has."""

    x: torch.Tensor
    idx: torch.Tensor
    gates: torch.Tensor


def tokens(*, sizes, experts, k, hidden, seed, choose=None, dtype=torch.float32):
    """
    Draw the tokens of each rank: `sizes` of them, k different experts each.

    Gates do not add up to 1. `choose(draw, rank)` picks the experts of a token otherwise.
    """
    generator, draw = torch.Generator().manual_seed(seed), random.Random(seed)
    choose = choose or (lambda draw, _: draw.sample(range(experts), k))
    found = []
    for rank, size in enumerate(sizes):
        chosen = [choose(draw, rank) for _ in range(size)]
        found.append(
            Tokens(
                x=torch.randn(size, hidden, generator=generator, dtype=torch.float64).to(dtype),
                idx=torch.tensor(chosen, dtype=torch.int64).view(size, k),
                gates=torch.rand(size, k, generator=generator) + 0.1,
            )
        )
    return found


def weights(*, experts, hidden, inner, seed):
    """Draw N(0, 1 / fan-in) for all experts."""
    generator = torch.Generator().manual_seed(seed)
    w_in = torch.randn(experts, hidden, inner, generator=generator) / hidden**0.5
    w_out = torch.randn(experts, inner, hidden, generator=generator) / inner**0.5
    return w_in, w_out


def routed(drawn, experts):
    """For each rank the rows that it receives: (sender, token, experts there, gates there)."""
    here = experts // len(drawn)
    received = [[] for _ in drawn]
    for sender, one in enumerate(drawn):
        for token, (chosen, gates) in enumerate(
            zip(one.idx.tolist(), one.gates.tolist(), strict=True)
        ):
            for rank in sorted({e // here for e in chosen}):
                there = [e // here == rank for e in chosen]
                local = [e % here if yes else -1 for e, yes in zip(chosen, there, strict=True)]
                own = [g if yes else 0.0 for g, yes in zip(gates, there, strict=True)]
                received[rank].append((sender, token, local, own))
    return received


def pairs(drawn, experts, rank):
    """How many rows this rank sends to other ranks, and how many it receives from them."""
    rows = routed(drawn, experts)
    sent = sum(sender == rank for at, some in enumerate(rows) for sender, *_ in some if at != rank)
    received = sum(sender != rank for sender, *_ in rows[rank])
    return sent, received


def layer(drawn, w_in, w_out, seed, dtype=torch.float64):
    """
    Run the layer on the tokens of all ranks, and backward from a weighted sum of what comes out.

    Returns for each rank y, and the gradients of x and gates; then those of all weights.
    """
    w_in, w_out = (w.to(dtype).requires_grad_() for w in (w_in, w_out))
    found = []
    loss = torch.zeros((), dtype=dtype)
    for one, factors in zip(drawn, weights_of_loss(drawn, seed), strict=True):
        x, gates = (t.to(dtype).requires_grad_() for t in (one.x, one.gates))
        rows = [
            sum(
                (
                    gate * (torch.nn.functional.silu(row @ w_in[e]) @ w_out[e])
                    for e, gate in zip(chosen, own, strict=True)
                ),
                torch.zeros_like(row),
            )
            for row, chosen, own in zip(x, one.idx.tolist(), gates, strict=True)
        ]
        y = torch.stack(rows) if rows else torch.zeros_like(x)
        loss = loss + (y * factors.to(dtype)).sum() + 0 * (x.sum() + gates.sum())
        found.append((x, gates, y))
    (loss + 0 * (w_in.sum() + w_out.sum())).backward()
    return [(y.detach(), x.grad, gates.grad) for x, gates, y in found], (w_in.grad, w_out.grad)


def weights_of_loss(drawn, seed):
    """Draw what each output counts."""
    generator = torch.Generator().manual_seed(seed + 1)
    return [torch.randn(one.x.shape, generator=generator) for one in drawn]


def strided(one):
    """Give `x` gaps between its elements, and `idx` and `gates` gaps between their rows."""
    x = torch.stack([one.x, torch.full_like(one.x, 7)], dim=2)[:, :, 0]
    wide = [torch.cat([t, t], dim=1)[:, : t.shape[1]] for t in (one.idx, one.gates)]
    return replace(one, x=x, idx=wide[0], gates=wide[1])
