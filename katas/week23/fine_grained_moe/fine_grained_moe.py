"""Kata week23/fine_grained_moe: many small experts, some of them for every token.

A token's own experts are chosen within a few groups, so that it is sent to few GPUs.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import silu


class Experts(NamedTuple):
    """SwiGLU networks of one size, from d channels over f to d; there may be none."""

    w_gate: Float[Tensor, "e d f"]
    w_up: Float[Tensor, "e d f"]
    w_down: Float[Tensor, "e f d"]


def swiglu(experts: Experts, e: int, x: Float[Tensor, "t d"]) -> Float[Tensor, "t d"]:
    """Output of expert `e` for the tokens `x`."""
    w_gate, w_up, w_down = (weights[e] for weights in experts)
    return (silu(x @ w_gate) * (x @ w_up)) @ w_down


def group_limited_topk(
    scores: Float[Tensor, "t e"], n_group: int, topk_group: int, k: int
) -> tuple[Float[Tensor, "t k"], Int64[Tensor, "t k"]]:
    """
    Choose `k` experts for each token within its `topk_group` best groups.

    The experts are cut into `n_group` groups of neighbours; a group is as good as the sum of its
    two largest scores. Choices are ordered by falling score; of equal experts, and of equal
    groups, the first is chosen.

    Returns:
        The scores of the chosen experts, differentiable, and the experts.

    Raises:
        ValueError: `n_group` does not divide the experts, `topk_group` is not from 1 to
            `n_group`, or `k` is not from 1 to the number of experts in `topk_group` groups.
    """
    # TODO(kata): check, score the groups, choose in the best (about 15 lines)
    raise NotImplementedError


def split_experts(experts: Experts, m: int) -> Experts:
    """
    Cut each expert into `m` along its hidden channels; part j of expert e is expert e · m + j.

    Raises:
        ValueError: `m` is below 1, or does not divide the hidden channels.
    """
    raise NotImplementedError  # TODO(kata): check, cut along f (about 8 lines)


def deepseek_moe(
    x: Float[Tensor, "t d"],
    shared: Experts,
    routed: Experts,
    router_w: Float[Tensor, "e d"],
    k: int,
    n_group: int,
    topk_group: int,
    scale: float = 1.0,
) -> Float[Tensor, "t d"]:
    """
    Add the outputs of all shared experts to the weighted outputs of a token's `k` routed experts.

    A token's affinities are the sigmoids of `x @ router_w.T`; its gates are those of the experts
    chosen by `group_limited_topk`, divided by their sum, times `scale`. Every expert computes the
    tokens that chose it and no others.

    Raises:
        ValueError: `router_w` has not one row for each routed expert, or as `group_limited_topk`.
    """
    # TODO(kata): check, choose in the best, run the experts (about 15 lines)
    raise NotImplementedError


def n_combinations(experts: int, k: int, n_group: int = 1, topk_group: int = 1) -> int:
    """
    Count the sets of `k` experts that a token can choose: those within `topk_group` groups.

    All are positive, and `n_group` divides `experts`; where no set is possible there are 0.
    """
    raise NotImplementedError  # TODO(kata): count the sets (about 6 lines)
