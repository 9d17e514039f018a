"""Kata week23/moe_all_to_all: tokens go to their experts' ranks, and sums come back.

Per forward pass: an all-to-all of counts, one of rows, one of results; two in backward.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from harness.meters.collectives import Collectives


def expert(
    x: Float[Tensor, "n hidden"],
    w_in: Float[Tensor, "hidden inner"],
    w_out: Float[Tensor, "inner hidden"],
) -> Float[Tensor, "n hidden"]:
    """Apply one expert to its rows."""
    return torch.nn.functional.silu(x @ w_in) @ w_out


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
    # TODO(kata): check, who goes where, exchange counts, send the rows (about 60 lines with
    # helpers)
    raise NotImplementedError


def combine(y_partial: Float[Tensor, "r hidden"], ctx: object) -> Float[Tensor, "t hidden"]:
    """
    Send each row back to where it came from, and add up the rows of each token there.

    `ctx` is what `dispatch` returned. Differentiable.
    """
    raise NotImplementedError  # TODO(kata): add up what returns (2 lines)


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
    raise NotImplementedError  # TODO(kata): run local experts (about 7 lines)
