"""Kata week22/sparse_moe_ffn: a layer of SwiGLU experts, trained while its load is watched."""

import math
from collections.abc import Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


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
        # TODO(kata): check, route, sort by expert, run the experts, combine and balance (about 15
        # lines with helpers)
        raise NotImplementedError


def load_entropy(counts: Int[Tensor, " e"]) -> float:
    """How even a load is: its entropy over that of an even one; 1 for a single expert."""
    raise NotImplementedError  # TODO(kata): (about 4 lines)


def train_toy(
    moe: SparseMoE, batches: Iterable[tuple[Tensor, Tensor]], aux_coef: float, lr: float
) -> dict[str, list[float]]:
    """
    One step of Adam for each batch of inputs and targets.

    A step minimises the mean squared error plus `aux_coef` times the balancing loss.

    Returns:
        Lists `loss`, the error alone, and `entropy`, of the load, with an entry for each step.
    """
    raise NotImplementedError  # TODO(kata): training steps (about 10 lines)
