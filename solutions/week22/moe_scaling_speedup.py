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


def _attention_params(d: int, attention: Attention | LatentAttention) -> tuple[int, int]:
    """Weights of one layer's matrices, and gains of the norms inside."""
    # matrices
    a = attention
    if isinstance(a, Attention):
        return 2 * d * (a.heads + a.kv_heads) * a.head_dim, 0
    queries = d * a.q_rank + a.q_rank * a.heads * (a.nope_dim + a.rope_dim)
    keys = d * (a.kv_rank + a.rope_dim) + a.kv_rank * a.heads * (a.nope_dim + a.v_dim)
    return queries + keys + a.heads * a.v_dim * d, a.q_rank + a.kv_rank


def _matrices(cfg: Config, experts: int) -> int:
    """Weights of all layers' matrices, with so many of the routed experts."""
    # matrices
    attention, _ = _attention_params(cfg.d, cfg.attention)
    dense = 3 * cfg.d * cfg.dense_ffn
    sparse = cfg.experts * cfg.d + (experts + cfg.shared) * 3 * cfg.d * cfg.expert_ffn
    sparse_layers = cfg.layers - cfg.dense_layers
    return cfg.layers * attention + cfg.dense_layers * dense + sparse_layers * sparse


def _check(cfg: Config) -> None:
    if not 0 <= cfg.dense_layers <= cfg.layers:
        limit = f"0 to {cfg.layers} of {cfg.layers} layers"
        raise ValueError(f"dense_layers: expected {limit}, found {cfg.dense_layers}")
    if cfg.dense_layers < cfg.layers and not 1 <= cfg.k <= cfg.experts:
        raise ValueError(f"k: expected 1 to {cfg.experts} experts for a token, found {cfg.k}")


def moe_params(cfg: Config) -> Params:
    """
    Count a model's parameters, and those that a token meets: all but the experts it does not have.

    Raises:
        ValueError: `dense_layers` is not from 0 to `layers`, or there are layers of experts and
            `k` is not from 1 to `experts`.
    """
    # check
    _check(cfg)
    # norms and embeddings
    _, gains = _attention_params(cfg.d, cfg.attention)
    embeddings = cfg.vocab * cfg.d * (1 if cfg.tied else 2)
    biases = (cfg.layers - cfg.dense_layers) * cfg.experts if cfg.router_bias else 0
    rest = embeddings + cfg.layers * (2 * cfg.d + gains) + cfg.d + biases
    return Params(_matrices(cfg, cfg.experts) + rest, _matrices(cfg, cfg.k) + rest)


def flops_per_token(cfg: Config, seqlen: int, causal: bool = True) -> int:
    """
    Count the FLOPs of a forward pass for each token of a sequence: of matrix products, two a MAC.

    Causal attention takes half of what attention to all `seqlen` tokens takes.

    Raises:
        ValueError: As `moe_params`, or `seqlen` is below 1.
    """
    # check
    _check(cfg)
    if seqlen < 1:
        raise ValueError(f"seqlen: expected 1 or more tokens, found {seqlen}")
    # attention scores
    a = cfg.attention
    latent = isinstance(a, LatentAttention)
    widths = a.nope_dim + a.rope_dim + a.v_dim if latent else 2 * a.head_dim
    scores = seqlen * cfg.layers * a.heads * widths * (1 if causal else 2)
    return 2 * (_matrices(cfg, cfg.k) + cfg.vocab * cfg.d) + scores


def compute_speedup(dense: Sequence[Point], moe: Sequence[Point], loss: float) -> float:
    """
    Divide the training FLOPs that `dense` needs for `loss` by those that `moe` needs.

    Between two points of a curve, log C is linear in log loss.

    Raises:
        ValueError: A curve has fewer than two points, or numbers that are not positive, or its C
            does not rise or its loss does not fall from point to point; or `loss` lies outside of
            one of them.
    """
    # interpolate
    return _compute_at("dense", dense, loss) / _compute_at("moe", moe, loss)


def _compute_at(name: str, curve: Sequence[Point], loss: float) -> float:
    # check
    rising = all(c < next_c for (c, _), (next_c, _) in pairwise(curve))
    falling = all(value > next_value for (_, value), (_, next_value) in pairwise(curve))
    if len(curve) < 2 or not rising or not falling or min(curve[0][0], curve[-1][1]) <= 0:
        raise ValueError(f"{name}: expected 2 points or more, C rising, loss falling, all above 0")
    if not curve[-1][1] <= loss <= curve[0][1]:
        raise ValueError(
            f"loss: expected {curve[-1][1]} to {curve[0][1]}, what {name} reaches, found {loss}"
        )
    # interpolate
    at = bisect_left(curve, -loss, key=lambda point: -point[1])
    compute, value = curve[at]
    if value == loss:
        return compute
    before, value_before = curve[at - 1]
    share = math.log(value_before / loss) / math.log(value_before / value)
    return before * (compute / before) ** share


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
    # check
    if not 0 < lo < hi:
        raise ValueError(f"lo: expected more than 0 and less than hi, found {lo} and {hi}")
    if not rtol >= 1e-12:
        raise ValueError(f"rtol: expected 1e-12 or more, found {rtol}")
    below, above = law_a(lo) - law_b(lo), law_a(hi) - law_b(hi)
    if below == 0 or above == 0:
        return lo if below == 0 else hi
    if (below < 0) == (above < 0):
        raise ValueError(f"hi: expected that the laws cross between {lo} and {hi}, found none")
    # bisect
    while hi / lo > 1 + rtol:
        middle = math.sqrt(lo) * math.sqrt(hi)
        between = law_a(middle) - law_b(middle)
        if (between < 0) == (below < 0):
            lo = middle
        else:
            hi = middle
    return math.sqrt(lo) * math.sqrt(hi)
