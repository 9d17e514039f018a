"""Kata week08/activation_memory: the bytes that a transformer layer keeps for its backward pass.

By formula, and measured with hooks on whatever autograd saves.
"""

import torch
from torch import Tensor, nn

RECOMPUTE = ("none", "selective", "full")


def layer_activation_bytes(
    s: int,
    b: int,
    h: int,
    a: int,
    *,
    elt: int = 2,
    dropout: bool = True,
    mask_bytes: int = 1,
    stat_bytes: int = 0,
    flash: bool = False,
    tp: int = 1,
    sp: bool = False,
    recompute: str = "none",
) -> int:
    """
    Bytes that one transformer layer keeps for its backward pass on one rank.

    Sequence `s`, batch `b`, width `h`, `a` heads; an element of an activation has `elt` bytes,
    of a dropout mask `mask_bytes`, and a mean or reciprocal deviation of a norm `stat_bytes`.
    `flash` keeps no s by s matrices, and one fp32 number for each query of each head instead.
    `tp` ranks share heads and hidden units; with `sp` they share the sequence elsewhere. With
    "selective" recomputation what lies between queries, keys, values and the attention's output
    is not kept; with "full" nothing is but the layer's input.

    Raises:
        ValueError: `a` below 1 or no divisor of `h`, `tp` below 1 or no divisor of `a` or, with
            `sp`, of `s`, `sp` where `tp` is 1, `recompute` not in `RECOMPUTE`. The message begins
            with the argument's name.

    Source: Korthikanti et al. 2022, sections 4 and 5.
    """
    # TODO(kata): check, whole on each rank, divided over the ranks, attention core (about 25 lines
    # with helpers)
    raise NotImplementedError


def recompute_flops_overhead(s: int, h: int, mode: str) -> float:
    """
    FLOPs of recomputation as a share of a layer's forward and backward pass without it.

    Matrix products alone; a backward pass has twice the FLOPs of the forward pass.

    Raises:
        ValueError: `mode` is not in `RECOMPUTE`. The message begins with "mode".

    Source: Korthikanti et al. 2022, section 5 and appendix A.
    """
    raise NotImplementedError  # TODO(kata): FLOPs that run twice (about 5 lines)


def measured_bytes(layer: nn.Module, x: Tensor) -> int:
    """
    Bytes that autograd keeps for the backward pass of `layer(x)`, which is run once.

    Each distinct storage counts once, whole, however many views of it are saved. What belongs
    to the layer, its parameters and buffers, does not count; its input does, where it is saved.
    """
    raise NotImplementedError  # TODO(kata): saved storages (about 9 lines)
