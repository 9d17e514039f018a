"""Kata week04/mla_absorb: keys and values written out for a prompt, never for a decode step.

A step moves W_UK into the query and W_UV behind the sum: what is left is attention of all heads
over one shared key, the latent and the rotary key side by side.
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
    # queries and latents
    positions = torch.arange(x.shape[1], device=x.device)
    q_nope, q_rope = _queries(x, weights, positions)
    cache = _latents(x, weights, positions)
    # keys and values of the prompt
    k_nope = torch.einsum("btc,hdc->bhtd", cache.c_kv, weights.w_uk)
    v = torch.einsum("btc,hvc->bhtv", cache.c_kv, weights.w_uv)
    k_rope = cache.k_rope[:, None].expand_as(q_rope)
    q, k = torch.cat((q_nope, q_rope), dim=-1), torch.cat((k_nope, k_rope), dim=-1)
    # scaled by the width of q, which is d_h + d_r
    heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return torch.einsum("bhsv,dhv->bsd", heads, weights.w_o), cache


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
    # check
    _check_step(x, cache, weights)
    # queries and latents
    position = torch.full((1,), cache.c_kv.shape[1], device=x.device)
    q_nope, q_rope = _queries(x, weights, position)
    new = _latents(x, weights, position)
    c_kv = torch.cat((cache.c_kv, new.c_kv), dim=1)
    k_rope = torch.cat((cache.k_rope, new.k_rope), dim=1)
    # absorb into the query
    # q · (W_UK c) = (W_UKᵀ q) · c
    q_latent = torch.einsum("bhsd,hdc->bhsc", q_nope, weights.w_uk)
    # attend to latents
    # all heads share the keys, so they are the rows of one product
    scores = q_latent.squeeze(2) @ c_kv.mT + q_rope.squeeze(2) @ k_rope.mT  # [b, h, t + 1]
    scale = (q_nope.shape[-1] + q_rope.shape[-1]) ** -0.5
    mixed = torch.softmax(scores * scale, dim=-1) @ c_kv  # [b, h, d_c]
    # project the sum
    # sum of p · (W_UV c) = W_UV · (sum of p · c)
    heads = torch.einsum("bhc,hvc->bhv", mixed, weights.w_uv)
    out = torch.einsum("bhv,dhv->bd", heads, weights.w_o)
    return out[:, None], LatentCache(c_kv=c_kv, k_rope=k_rope)


def _queries(x: Tensor, weights: Weights, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the plain and the turned part of each head's query: [b, h, s, d_h], [b, h, s, d_r]."""
    # queries and latents
    c_q = x @ weights.w_dq.mT
    nope = torch.einsum("bsc,hdc->bhsd", c_q, weights.w_uq)
    rope = torch.einsum("bsc,hrc->bhsr", c_q, weights.w_qr)
    return nope, rotate(rope, positions)


def _latents(x: Tensor, weights: Weights, positions: Tensor) -> LatentCache:
    return LatentCache(c_kv=x @ weights.w_dkv.mT, k_rope=rotate(x @ weights.w_kr.mT, positions))


def _check_step(x: Tensor, cache: LatentCache, weights: Weights) -> None:
    # check
    for name, found, projection in (
        ("c_kv", cache.c_kv, weights.w_dkv),
        ("k_rope", cache.k_rope, weights.w_kr),
    ):
        if found.shape[-1] != len(projection):
            expected = f"{len(projection)} channels, as these weights make"
            raise ValueError(f"cache.{name}: expected {expected}, found {found.shape[-1]}.")
    tokens, turned = cache.c_kv.shape[:2], cache.k_rope.shape[:2]
    if turned != tokens:
        raise ValueError(f"cache.k_rope: expected {list(tokens)} like c_kv, found {list(turned)}.")
    if x.shape[:2] != (len(cache.c_kv), 1):
        expected = f"[{len(cache.c_kv)}, 1, d_model], a token for each sequence of the cache"
        raise ValueError(f"x: expected {expected}, found {list(x.shape)}.")


def cache_elements(dims: Dims) -> int:
    """Return what one token leaves in the cache of one layer."""
    return dims.d_c + dims.d_r


def reduction_vs_mha(dims: Dims) -> float:
    """Return how many times more multi-head attention keeps: `d_h` and `d_v` for each head."""
    return dims.n_h * (dims.d_h + dims.d_v) / cache_elements(dims)
