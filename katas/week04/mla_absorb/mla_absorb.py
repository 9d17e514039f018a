"""Kata week04/mla_absorb: multi-head latent attention, and decode steps that never rebuild a key.

Per token and layer the cache holds d_c + d_r channels, whatever the number of heads.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Dims:
    """
    Sizes of one layer: `n_h` heads; channels per head `d_h` (nope), `d_r` (rotary), `d_v` (value).

    `d_c` and `d_cq` are the widths of the latents of keys and values, and of queries.
    """

    d_model: int
    n_h: int
    d_h: int
    d_r: int
    d_v: int
    d_c: int
    d_cq: int


DEEPSEEK_V2 = Dims(d_model=5120, n_h=128, d_h=128, d_r=64, d_v=128, d_c=512, d_cq=1536)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """One layer's projections: down to a latent (d), up from it (u), of the rotary parts (r)."""

    w_dq: Float[Tensor, "d_cq d_model"]
    w_uq: Float[Tensor, "h d_h d_cq"]
    w_qr: Float[Tensor, "h d_r d_cq"]
    w_dkv: Float[Tensor, "d_c d_model"]
    w_uk: Float[Tensor, "h d_h d_c"]
    w_uv: Float[Tensor, "h d_v d_c"]
    w_kr: Float[Tensor, "d_r d_model"]
    w_o: Float[Tensor, "d_model h d_v"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentCache:
    """What is kept of t tokens: latents, and the rotated rotary keys that all heads share."""

    c_kv: Float[Tensor, "b t d_c"]
    k_rope: Float[Tensor, "b t d_r"]


def rotate(x: Float[Tensor, "... s d_r"], positions: Int64[Tensor, " s"]) -> Tensor:
    """Rotate the pairs (2 i, 2 i + 1) of the last axis by position * 10000 ** (-2 i / d_r)."""
    pair = torch.arange(0, x.shape[-1], 2, dtype=torch.float64, device=x.device)
    angles = positions[:, None] * 10_000.0 ** (-pair / x.shape[-1])
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., ::2], x[..., 1::2]
    turned = (first * cos - second * sin, first * sin + second * cos)
    return torch.stack(turned, dim=-1).flatten(-2)


def mla_prefill(
    x: Float[Tensor, "b s d_model"], weights: Weights
) -> tuple[Float[Tensor, "b s d_model"], LatentCache]:
    """
    Attend causally within a prompt at positions 0 … s - 1, and keep what decoding needs of it.

    Keys and values may be written out: with s queries that costs less than attending to latents.
    """
    # TODO(kata): queries and latents, keys and values of the prompt (about 15 lines with helpers)
    raise NotImplementedError


def mla_decode(
    x: Float[Tensor, "b 1 d_model"], cache: LatentCache, weights: Weights
) -> tuple[Float[Tensor, "b 1 d_model"], LatentCache]:
    """
    Attend from one new token, at position t, to the t tokens of `cache` and itself.

    Returns the output and a cache of t + 1 tokens; the one given stays as it is. Neither keys nor
    values of any token are rebuilt.

    Raises:
        ValueError: `c_kv` or `k_rope` of the cache is not as wide as `weights` make it, the two
            are not of the same tokens, or `x` is not one token for each sequence of the cache.
    """
    # TODO(kata): check, queries and latents, absorb into the query, attend to latents, project the
    # sum (about 25 lines with helpers)
    raise NotImplementedError


def cache_elements(dims: Dims) -> int:
    """Return what one token leaves in the cache of one layer."""
    raise NotImplementedError  # TODO(kata): (1 line)


def reduction_vs_mha(dims: Dims) -> float:
    """Return how many times more multi-head attention keeps: `d_h` and `d_v` for each head."""
    raise NotImplementedError  # TODO(kata): (1 line)
