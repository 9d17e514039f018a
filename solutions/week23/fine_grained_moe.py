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
    # check
    t, experts = scores.shape
    if n_group < 1 or experts % n_group:
        raise ValueError(f"n_group: expected a divisor of {experts}, found {n_group}")
    if not 1 <= topk_group <= n_group:
        raise ValueError(f"topk_group: expected 1 to {n_group}, found {topk_group}")
    size = experts // n_group
    if not 1 <= k <= topk_group * size:
        raise ValueError(f"k: expected 1 to {topk_group * size}, found {k}")
    # score the groups
    groups = scores.reshape(t, n_group, size)
    of_groups = groups.topk(min(2, size)).values.sum(2)
    # a stable sort, since topk leaves open which of equal ones it takes
    best = of_groups.sort(descending=True, stable=True).indices[:, :topk_group]
    # choose in the best
    closed = torch.ones_like(of_groups, dtype=torch.bool).scatter(1, best, False)
    allowed = groups.masked_fill(closed[:, :, None], -math.inf).reshape(t, experts)
    ranked, ranking = allowed.sort(descending=True, stable=True)
    return ranked[:, :k], ranking[:, :k]


def split_experts(experts: Experts, m: int) -> Experts:
    """
    Cut each expert into `m` along its hidden channels; part j of expert e is expert e · m + j.

    Raises:
        ValueError: `m` is below 1, or does not divide the hidden channels.
    """
    # check
    e, d, f = experts.w_gate.shape
    if m < 1 or f % m:
        raise ValueError(f"m: expected a divisor of {f}, found {m}")
    # cut along f
    w_gate, w_up = (
        weights.reshape(e, d, m, f // m).permute(0, 2, 1, 3).reshape(e * m, d, f // m)
        for weights in experts[:2]
    )
    return Experts(w_gate, w_up, experts.w_down.reshape(e * m, f // m, d))


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
    # check
    experts, d = routed.w_gate.shape[:2]
    if len(router_w) != experts:
        raise ValueError(f"router_w: expected {experts} rows, found {len(router_w)}")
    # choose in the best
    affinity = torch.sigmoid(x @ router_w.T)
    gates, idx = group_limited_topk(affinity, n_group, topk_group, k)
    gates = scale * gates / gates.sum(1, keepdim=True)
    # run the experts
    order = idx.flatten().argsort()
    parts = x[order // k].split(idx.flatten().bincount(minlength=experts).tolist())
    done = torch.cat([swiglu(routed, e, part) for e, part in enumerate(parts)])
    y = (gates[:, :, None] * done[order.argsort()].view(len(x), k, d)).sum(1)
    for e in range(len(shared.w_gate)):
        y = y + swiglu(shared, e, x)
    return y


def n_combinations(experts: int, k: int, n_group: int = 1, topk_group: int = 1) -> int:
    """
    Count the sets of `k` experts that a token can choose: those within `topk_group` groups.

    All are positive, and `n_group` divides `experts`; where no set is possible there are 0.
    """
    # count the sets
    size = experts // n_group
    # by inclusion and exclusion: sets that touch each of j given groups
    return sum(
        math.comb(n_group, j) * math.comb(j, i) * (-1) ** (i + j) * math.comb(i * size, k)
        for j in range(topk_group + 1)
        for i in range(j + 1)
    )
