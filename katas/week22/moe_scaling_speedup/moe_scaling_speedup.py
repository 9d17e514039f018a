"""Kata week22/moe_scaling_speedup: what a sparse model has, what it uses, and what that saves.

Parameters and FLOPs follow from a config, to the last one. What they are worth is read off two
scaling curves, at equal loss.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

Point = tuple[float, float]  # training FLOPs, loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Grouped-query attention: four matrices without biases."""

    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """
    DeepSeek's multi-head latent attention: queries and keys and values through a narrow layer.

    Attributes:
        heads: Query heads, each with keys and values of its own.
        q_rank: Width that queries pass through.
        kv_rank: Width that keys and values pass through.
        nope_dim: Of a head's query and key, the part without a position.
        rope_dim: The part with one; a key's is shared by all heads and comes from x itself.
        v_dim: Of a head's value.
    """

    heads: int
    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """
    A decoder with gated feed-forward layers (three matrices each), some of them of experts.

    Attributes:
        vocab: Tokens.
        d: Width of the model.
        layers: Layers, each with attention, a feed-forward layer and two norms.
        attention: Of every layer.
        dense_layers: How many layers, the first, have no experts.
        dense_ffn: Width of the feed-forward layer of those.
        experts: Routed experts of each other layer, 0 for a model that has none.
        k: How many of them a token has.
        shared: Experts beside them that every token has.
        expert_ffn: Width of an expert, routed or shared.
        router_bias: Whether the router adds a number for each expert, beside its matrix.
        tied: Whether the output head is the embedding again.
    """

    vocab: int
    d: int
    layers: int
    attention: Attention | LatentAttention
    dense_layers: int = 0
    dense_ffn: int = 0
    experts: int = 0
    k: int = 0
    shared: int = 0
    expert_ffn: int = 0
    router_bias: bool = False
    tied: bool = False


class Params(NamedTuple):
    """Parameters of a model, and those that one token meets."""

    total: int
    active: int


LLAMA_2_13B = Config(
    vocab=32_000,
    d=5120,
    layers=40,
    attention=Attention(heads=40, kv_heads=40, head_dim=128),
    dense_layers=40,
    dense_ffn=13_824,
)
MIXTRAL_8X7B = Config(
    vocab=32_000,
    d=4096,
    layers=32,
    attention=Attention(heads=32, kv_heads=8, head_dim=128),
    experts=8,
    k=2,
    expert_ffn=14_336,
)
DEEPSEEK_MOE_16B = Config(
    vocab=102_400,
    d=2048,
    layers=28,
    attention=Attention(heads=16, kv_heads=16, head_dim=128),
    dense_layers=1,
    dense_ffn=10_944,
    experts=64,
    k=6,
    shared=2,
    expert_ffn=1408,
)
DEEPSEEK_V3 = Config(
    vocab=129_280,
    d=7168,
    layers=61,
    attention=LatentAttention(
        heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128
    ),
    dense_layers=3,
    dense_ffn=18_432,
    experts=256,
    k=8,
    shared=1,
    expert_ffn=2048,
    router_bias=True,
)


def moe_params(cfg: Config) -> Params:
    """
    Count a model's parameters, and those that a token meets: all but the experts it does not have.

    Raises:
        ValueError: `dense_layers` is not from 0 to `layers`, or there are layers of experts and
            `k` is not from 1 to `experts`.
    """
    # TODO(kata): check, matrices, norms and embeddings (about 25 lines with helpers)
    raise NotImplementedError


def flops_per_token(cfg: Config, seqlen: int, causal: bool = True) -> int:
    """
    Count the FLOPs of a forward pass for each token of a sequence: of matrix products, two a MAC.

    Causal attention takes half of what attention to all `seqlen` tokens takes.

    Raises:
        ValueError: As `moe_params`, or `seqlen` is below 1.
    """
    raise NotImplementedError  # TODO(kata): check, attention scores (about 8 lines)


def compute_speedup(dense: Sequence[Point], moe: Sequence[Point], loss: float) -> float:
    """
    Divide the training FLOPs that `dense` needs for `loss` by those that `moe` needs.

    Between two points of a curve, log C is linear in log loss.

    Raises:
        ValueError: A curve has fewer than two points, or numbers that are not positive, or its C
            does not rise or its loss does not fall from point to point; or `loss` lies outside of
            one of them.
    """
    raise NotImplementedError  # TODO(kata): check, interpolate (about 15 lines with helpers)


def crossover_compute(
    law_a: Callable[[float], float],
    law_b: Callable[[float], float],
    lo: float,
    hi: float,
    rtol: float,
) -> float:
    """
    Find the training FLOPs from `lo` to `hi` at which both laws give the same loss.

    The laws cross once in between; the result is off by no more than a share of `rtol`.

    Raises:
        ValueError: `lo` is not positive or not below `hi`, `rtol` is below 1e-12, or the same law
            is lower at both ends.
    """
    raise NotImplementedError  # TODO(kata): check, bisect (about 15 lines)
