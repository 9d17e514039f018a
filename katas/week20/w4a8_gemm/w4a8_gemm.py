"""Kata week20/w4a8_gemm: INT4 weights times INT8 activations, for few rows.

Weights become int8 in registers, four to a word, by one multiplication and two additions of words.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from jaxtyping import Float16, Float32, Int8, Int32, UInt8
from torch import Tensor

LARGEST = 119  # of the first level's int8: half a step of the second may lie beyond it
# of the eight codes in a word, in order: the first four are the low halves of its bytes
SHIFTS = (0, 8, 16, 24, 4, 12, 20, 28)
TINY = torch.finfo(torch.float32).tiny  # the smallest normal number: no scale is below it


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Rows, columns and words along k of a tile, and how a program is built."""

    m: int
    n: int
    words: int = 32
    warps: int = 4
    stages: int = 4


CPU = Config(m=16, n=64)
GPU = Config(m=16, n=32, warps=2)


def quant_w4(
    w: Float32[Tensor, "n k"], group: int = 64
) -> tuple[
    Int32[Tensor, "n words"], UInt8[Tensor, "n groups"], UInt8[Tensor, "n groups"],
    Float32[Tensor, " n"],
]:  # fmt: skip
    """
    `w` in 4 bits: (packed, s, a, channel_scale), all contiguous.

    First level: int8 from -119 to 119, w8 = round(w / channel_scale), with the largest magnitude
    of a row at 119 and no scale below `TINY`. Second level, for each `group` numbers of a row:
    codes from 0 to 15, round((w8 - low) / s), where low is the least w8 of the group and
    s = max(1, ceil((its largest - low) / 15)); a is 128 + low. Ties are rounded to even.

    Word j of a row holds columns 8 j to 8 j + 7: `SHIFTS` says by how many bits, each.

    Raises:
        ValueError: `group` is no positive multiple of 8, the columns of `w` are none or do not
            fill groups, or a number is not finite; the message begins with the argument's name.

    Source: LiquidGEMM (arXiv 2509.01229), section 4.
    """
    # TODO(kata): check, two levels of scales, eight codes a word (about 15 lines)
    raise NotImplementedError


@triton.jit
def dequant4(word, s, a):
    """
    Four int8 in a word, of four codes: q · s + a - 128 in each byte.

    Args:
        word: Codes from 0 to 15 in its four bytes; uint32 like all three.
        s: Of their group, from 1 to 16.
        a: Of their group, from 9 to 247, so that q · s + a stays within a byte.
    """
    raise NotImplementedError  # TODO(kata): int8 four at a time (1 line)


@triton.jit
def _w4a8_gemm_kernel(
    x_ptr, x_scale_ptr, packed_ptr, s_ptr, a_ptr, channel_scale_ptr, y_ptr, M, N, WORDS,
    GROUP_WORDS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
):  # fmt: skip
    # TODO(kata): load words, int8 four at a time, scale and store (about 30 lines)
    pass


def w4a8_gemm(
    xq: Int8[Tensor, "m k"],
    x_scale: Float32[Tensor, " m"],
    packed: Int32[Tensor, "n words"],
    s: UInt8[Tensor, "n groups"],
    a: UInt8[Tensor, "n groups"],
    channel_scale: Float32[Tensor, " n"],
) -> Float16[Tensor, "m n"]:
    """
    x @ w.T of int8 activations and weights as of `quant_w4`, contiguous.

    Products are summed in int32, exactly, scaled in float32 and rounded once.

    Args:
        xq: Numbers of activations; all tensors are contiguous.
        x_scale: One for each row of `xq`.
        packed: Eight codes a word: words = k / 8.
        s: One for each group: as many for a row as divide k into multiples of 8.
        a: Of the same shape.
        channel_scale: One for each row of `packed`.

    Raises:
        ValueError: shapes, dtypes or devices do not fit, or a tensor is not contiguous; the
            message begins with the argument's name.
    """
    raise NotImplementedError  # TODO(kata): check (about 5 lines)


def _check(
    xq: Tensor, x_scale: Tensor, packed: Tensor, s: Tensor, a: Tensor, channel_scale: Tensor
) -> None:
    raise NotImplementedError  # TODO(kata): check (about 25 lines)


def _launch(
    xq: Tensor, x_scale: Tensor, packed: Tensor, s: Tensor, a: Tensor, channel_scale: Tensor,
    y: Tensor, config: Config | None = None,
) -> None:  # fmt: skip
    config = config or (GPU if xq.is_cuda else CPU)
    (m, n), words = y.shape, packed.shape[1]
    _w4a8_gemm_kernel[(triton.cdiv(n, config.n), triton.cdiv(m, config.m))](
        xq, x_scale, packed, s, a, channel_scale, y, m, n, words,
        GROUP_WORDS=words // s.shape[1],
        BLOCK_M=config.m, BLOCK_N=config.n, BLOCK_WORDS=config.words,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
