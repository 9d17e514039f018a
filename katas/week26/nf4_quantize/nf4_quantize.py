"""Kata week26/nf4_quantize: weights in 4 bits at the quantiles of a normal distribution.

A block of weights shares a scale, its largest magnitude, and the scales are quantised in turn, to
8 bits around their mean.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, UInt8
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# probability of the outermost quantiles, halfway between the ends of 15 and of 16 equal parts
OUTERMOST = 1 - (1 / 30 + 1 / 32) / 2


class DoubleQuantized(NamedTuple):
    """Scales in 8 bits: scale i is table[codes[i]] * absmax2[i // block] + offset."""

    codes: UInt8[Tensor, " scales"]
    absmax2: Float32[Tensor, " groups"]
    offset: Float32[Tensor, ""]
    table: Float32[Tensor, "256"]
    block: int


def nf4_codebook() -> Float32[Tensor, "16"]:
    """
    The 16 levels of NF4, ascending from -1 to 1, with an exact 0 as level 7.

    Eight positive levels and seven negative ones: quantiles of N(0, 1) at equally spaced
    probabilities from 0.5 to `OUTERMOST`, divided by the outermost. Computed in float64.

    Source: Dettmers et al. 2023 (QLoRA), section 3 and appendix E.
    """
    raise NotImplementedError  # TODO(kata): levels (about 6 lines)


def dynamic_map(signed: bool = True) -> Float32[Tensor, "256"]:
    """
    The 256 levels of the dynamic data type, ascending: finer where numbers are smaller.

    Decade i of 0 to 6, from 10^(i - 7) to 10^(i - 6), is divided into 2^i equal parts, with a
    level in the middle of each, and as many below zero; without signs into 2^(i + 1). The other
    two are 0 and 1.

    Source: Dettmers et al. 2022 (8-bit optimizers), section 2.
    """
    raise NotImplementedError  # TODO(kata): levels (about 6 lines)


def nf4_quantize(
    w: Float[Tensor, "*shape"], block: int = 64
) -> tuple[UInt8[Tensor, " bytes"], Float32[Tensor, " blocks"]]:
    """
    Two codes a byte, and the largest magnitude of each block.

    `w` is taken in row-major order whatever its strides; its last block may be shorter. The first
    of two codes is in the high four bits. After an odd number of weights the low bits of the last
    byte hold the code of 0. A weight goes to the level nearest to weight / absmax, of two equally
    near ones to the lower; a block of zeros has absmax 0 and the codes of 0.

    Raises:
        ValueError: `block` is not a power of two of at least 2; `w` is not one of `DTYPES`,
            or not finite everywhere. In this order; the message begins with the argument's name.
    """
    # TODO(kata): check, blocks and scales, nearest level, pack (about 15 lines with helpers)
    raise NotImplementedError


def double_quantize(absmax: Float32[Tensor, " scales"], block: int = 256) -> DoubleQuantized:
    """
    `absmax` in 8 bits each, one more scale for `block` of them, and their mean.

    The mean of all is subtracted first; the rest goes to the nearest of the signed dynamic map's
    levels, relative to the largest magnitude in its block. The mean of nothing is 0.

    Raises:
        ValueError: `block` is not a power of two of at least 2; the message begins with its name.
    """
    raise NotImplementedError  # TODO(kata): check, blocks and scales, nearest level (about 7 lines)


def nf4_dequantize(
    packed: UInt8[Tensor, " bytes"],
    absmax: Float32[Tensor, " blocks"] | DoubleQuantized,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    block: int = 64,
) -> Float[Tensor, "..."]:
    """
    The weights that `packed` and `absmax` stand for, in float32 and then rounded to `dtype`.

    Raises:
        ValueError: `block` is not a power of two of at least 2; `dtype` is not one of `DTYPES`;
            `packed` is not ceil(n / 2) bytes for the n weights of `shape`; `absmax`, or its
            codes, are not ceil(n / block). In this order; the message begins with the argument's
            name.
    """
    raise NotImplementedError  # TODO(kata): check, decode (about 15 lines)


def bits_per_param(n: int, block: int = 64, double: bool = False) -> float:
    """
    Bits in memory for each of `n` weights, counting all that is stored for them.

    That is `packed` and `absmax`; with `double` instead of the latter codes, absmax2 (in blocks of
    256) and offset. The table is the same for all tensors, and not counted.
    """
    raise NotImplementedError  # TODO(kata): count bytes (3 lines)
