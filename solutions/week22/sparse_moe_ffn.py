"""Kata week22/sparse_moe_ffn: a layer of SwiGLU experts, trained while its load is watched."""

import math
from collections.abc import Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import silu


class SparseMoE(nn.Module):
    """`experts` SwiGLU networks from `d` channels over `f` to `d`, of which a token asks `k`."""

    def __init__(self, d: int, f: int, experts: int, k: int, renormalize: bool = True) -> None:
        super().__init__()
        if not 1 <= k <= experts:
            raise ValueError(f"k: expected 1 to {experts}, found {k}")
        self.k = k
        self.renormalize = renormalize
        self.router = nn.Parameter(torch.randn(experts, d) / d**0.5)
        self.w_gate = nn.Parameter(torch.randn(experts, d, f) / d**0.5)
        self.w_up = nn.Parameter(torch.randn(experts, d, f) / d**0.5)
        self.w_down = nn.Parameter(torch.randn(experts, f, d) / f**0.5)

    def forward(self, x: Float[Tensor, "t d"]) -> tuple[Float[Tensor, "t d"], dict[str, Tensor]]:
        """
        The experts' answers, weighted by the router's gates and added up for each token.

        With them come `lb_loss`, the balancing loss with its gradient, and `counts`, how many
        tokens each expert got, int64.

        Raises:
            ValueError: `x` is not 2-D, or has another number of channels than `d`.
        """
        # check
        experts, d = self.router.shape
        if x.ndim != 2 or x.shape[1] != d:
            raise ValueError(f"x: expected [tokens, {d}], found {list(x.shape)}")
        # route
        scores = torch.softmax(x @ self.router.T, dim=1)
        ranked, ranking = scores.sort(dim=1, descending=True, stable=True)
        gates, chosen = ranked[:, : self.k], ranking[:, : self.k]
        if self.renormalize:
            gates = gates / gates.sum(1, keepdim=True)
        # sort by expert
        order = chosen.flatten().argsort()
        counts = chosen.flatten().bincount(minlength=experts)
        parts = x[order // self.k].split(counts.tolist())
        # run the experts
        done = [self._expert(e, part) for e, part in enumerate(parts)]
        # combine and balance
        # back to the tokens by a permutation: nothing is added up in an order left to chance
        out = torch.cat(done)[order.argsort()].view(len(x), self.k, d)
        balance = experts * (counts * scores.sum(0)).sum() / max(chosen.numel() * len(x), 1)
        return (gates[:, :, None] * out).sum(1), {"lb_loss": balance, "counts": counts}

    def _expert(self, e: int, x: Tensor) -> Tensor:
        return (silu(x @ self.w_gate[e]) * (x @ self.w_up[e])) @ self.w_down[e]


def load_entropy(counts: Int[Tensor, " e"]) -> float:
    """How even a load is: its entropy over that of an even one; 1 for a single expert."""
    if len(counts) == 1:
        return 1.0
    share = counts[counts > 0].double() / counts.sum()
    return -(share * share.log()).sum().item() / math.log(len(counts))


def train_toy(
    moe: SparseMoE, batches: Iterable[tuple[Tensor, Tensor]], aux_coef: float, lr: float
) -> dict[str, list[float]]:
    """
    One step of Adam for each batch of inputs and targets.

    A step minimises the mean squared error plus `aux_coef` times the balancing loss.

    Returns:
        Lists `loss`, the error alone, and `entropy`, of the load, with an entry for each step.
    """
    # training steps
    history: dict[str, list[float]] = {"loss": [], "entropy": []}
    optimizer = torch.optim.Adam(moe.parameters(), lr=lr)
    for x, target in batches:
        y, aux = moe(x)
        error = (y - target).square().mean()
        optimizer.zero_grad()
        (error + aux_coef * aux["lb_loss"]).backward()
        optimizer.step()
        history["loss"].append(error.item())
        history["entropy"].append(load_entropy(aux["counts"]))
    return history
