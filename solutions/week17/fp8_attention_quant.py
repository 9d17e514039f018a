"""Kata week17/fp8_attention_quant: attention in FP8, with scales for blocks and spread outliers.

Queries, keys, values and softmax weights are e4m3; scores, softmax and sums are float32.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32
from torch import Tensor

E4M3_LARGEST = 448.0
TINY = torch.finfo(torch.float32).tiny  # the smallest normal number: no scale is below it
P_FACTOR = 256.0  # softmax weights reach 1: this far up, e4m3 still has those of 2⁻¹⁴ in full


def to_e4m3(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`x` as torch.float8_e4m3fn, whose numbers end at ±448; a cast alone may make NaN of more."""
    return x.clamp(-E4M3_LARGEST, E4M3_LARGEST).to(torch.float8_e4m3fn)


def fp8_attention(
    q: Float32[Tensor, "sq d"],
    k: Float32[Tensor, "sk d"],
    v: Float32[Tensor, "sk d"],
    block: int = 64,
    seed: int = 0,
) -> Float32[Tensor, "sq d"]:
    """
    softmax(q kᵀ / √d) v, with operands of both products in e4m3.

    Queries and keys are made incoherent with `seed`, then all three are quantized in blocks of
    `block` rows. Of the softmax weights exp(score - largest score of the row) is multiplied by a
    power of two and cast; what they are divided by, and all sums, are float32.

    Raises:
        ValueError: as `incoherent` and `block_quant`; `k` has no rows, `v` is not shaped like `k`.
            The message begins with the argument's name.

    Source: Shah et al. 2024 (FlashAttention-3), section 3.3.
    """
    # check
    if not len(k):
        raise ValueError("k: expected at least one key, found none")
    if v.shape != k.shape:
        raise ValueError(f"v: expected the shape of k, {tuple(k.shape)}, found {tuple(v.shape)}")
    for name, x in (("q", q), ("k", k), ("v", v)):
        _check_finite(name, x)
    # rotate queries and keys
    q, k = incoherent(q, k, seed)
    # quantize by blocks
    (q8, q_scale), (k8, k_scale), (v8, v_scale) = (block_quant(x, block) for x in (q, k, v))
    # scores and weights
    scores = q8.float() @ k8.float().T
    scores *= _by_row(q_scale, block, len(q)) * _by_row(k_scale, block, len(k)).T
    scores /= math.sqrt(q.shape[1])
    p = torch.exp(scores - scores.amax(dim=1, keepdim=True))
    # weigh the values
    # each block of values has a scale of its own, which no factor behind the sum could give it
    weighed = to_e4m3(P_FACTOR * p).float() @ (v8.float() * _by_row(v_scale, block, len(v)))
    return weighed / (P_FACTOR * p.sum(dim=1, keepdim=True))


def fwht(x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows d"]:
    """
    Walsh-Hadamard transform of the last axis, orthonormal, in Sylvester's order.

    d·log₂d additions for each row, in the dtype of `x`. It is its own inverse.

    Raises:
        ValueError: d is not a power of two; the message begins with `x: `.
    """
    d = x.shape[-1]
    # check
    _check_power_of_two("x", d)
    # butterfly rounds
    half = 1
    while half < d:
        one, other = x.unflatten(-1, (-1, 2, half)).unbind(-2)
        x = torch.stack([one + other, one - other], dim=-2).flatten(-3)
        half *= 2
    return x * d**-0.5


def incoherent(
    q: Float[Tensor, "sq d"], k: Float[Tensor, "sk d"], seed: int
) -> tuple[Float[Tensor, "sq d"], Float[Tensor, "sk d"]]:
    """
    `q` and `k`, each channel times a random sign, the same for both, then transformed by `fwht`.

    Scores stay what they were, and an outlier in one channel is spread over all. The signs depend
    on `seed` and d alone; PyTorch's global generators are left as they are.

    Raises:
        ValueError: d is not a power of two (`q: …`), or `k` has another one (`k: …`).
    """
    d = q.shape[1]
    # check
    _check_power_of_two("q", d)
    if k.shape[1] != d:
        raise ValueError(f"k: expected {d} channels as q has, found {k.shape[1]}")
    # rotate queries and keys
    generator = torch.Generator().manual_seed(seed)
    signs = (2 * torch.randint(2, (d,), generator=generator) - 1).to(q)
    return fwht(q * signs), fwht(k * signs)


def block_quant(
    x: Float32[Tensor, "s d"], block: int
) -> tuple[Float[Tensor, "s d"], Float32[Tensor, " blocks"]]:
    """
    `x` as numbers in e4m3 and a float32 scale for each block of `block` rows.

    The scale puts the block's largest magnitude at 448, and is never below the smallest normal
    number of float32. The last block may have fewer rows.

    Raises:
        ValueError: `x` is not finite everywhere, or `block` is below 1; the message begins with
            the argument's name.
    """
    # check
    _check_finite("x", x)
    if block < 1:
        raise ValueError(f"block: expected at least 1, found {block}")
    # quantize by blocks
    block = max(1, min(block, len(x)))  # nothing is padded to a block that is never full
    of_rows = F.pad(x.abs().amax(dim=1), (0, -len(x) % block))
    largest = of_rows.view(-1, block).amax(dim=1)
    scale = (largest / E4M3_LARGEST).clamp_min(TINY)
    return to_e4m3(x / _by_row(scale, block, len(x))), scale


def _by_row(scale: Tensor, block: int, rows: int) -> Tensor:
    """[rows, 1], the scale of each row."""
    return scale[torch.arange(rows, device=scale.device) // block, None]


def _check_power_of_two(name: str, d: int) -> None:
    if d < 1 or d & (d - 1):
        raise ValueError(f"{name}: expected a power of two channels, found {d}")


def _check_finite(name: str, x: Tensor) -> None:
    if not x.isfinite().all():
        raise ValueError(f"{name}: expected finite numbers, found {x[~x.isfinite()][0].item()}")
