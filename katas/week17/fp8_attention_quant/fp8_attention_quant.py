"""Kata week17/fp8_attention_quant: attention in FP8, with scales for blocks and spread outliers.

Queries, keys, values and softmax weights are e4m3; scores, softmax and sums are float32.
"""

import math

import torch
from jaxtyping import Float, Float32
from torch import Tensor

E4M3_LARGEST = 448.0
TINY = torch.finfo(torch.float32).tiny  # the smallest normal number: no scale is below it


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
    # TODO(kata): check, rotate queries and keys, quantize by blocks, scores and weights, weigh the
    # values (about 20 lines with helpers)
    raise NotImplementedError


def fwht(x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows d"]:
    """
    Walsh-Hadamard transform of the last axis, orthonormal, in Sylvester's order.

    d·log₂d additions for each row, in the dtype of `x`. It is its own inverse.

    Raises:
        ValueError: d is not a power of two; the message begins with `x: `.
    """
    raise NotImplementedError  # TODO(kata): check, butterfly rounds (about 10 lines with helpers)


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
    raise NotImplementedError  # TODO(kata): check, rotate queries and keys (about 7 lines)


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
    raise NotImplementedError  # TODO(kata): check, quantize by blocks (about 8 lines)
