"""Kata week23/nvfp4_train_quant: what a layer trained in NVFP4 rounds, and how.

E2M1 codes, an e4m3 scale for each 16 of a row or each 16 x 16, and a float32 scale for all.
"""

import torch
from jaxtyping import Float, Float32, UInt8
from torch import Tensor

BLOCK = 16
# what the codes 0 to 7 stand for; 8 more are negative
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_LARGEST, E4M3_LARGEST = 6.0, 448.0
E4M3_LEAST = 2.0**-9  # above zero
TINY = torch.finfo(torch.float32).tiny  # the smallest normal number: no tensor's scale is below it


def nvfp4_dequant(
    packed: UInt8[Tensor, "m half_k"],
    scales: Float[Tensor, "row_blocks blocks"],
    tensor_scale: Float32[Tensor, ""],
) -> Float32[Tensor, "m k"]:
    """What codes and scales of either shape stand for."""
    codes = torch.stack([packed & 15, packed >> 4], dim=2).flatten(1)
    values = torch.tensor([*E2M1_VALUES, *(-value for value in E2M1_VALUES)], device=packed.device)
    rows = 1 if len(scales) == len(packed) else BLOCK
    return values[codes.int()] * _spread(scales.float() * tensor_scale, rows)


def nvfp4_train_quant(
    x: Float32[Tensor, "m k"],
    square: bool = False,
    generator: torch.Generator | None = None,
) -> tuple[UInt8[Tensor, "m half_k"], Float[Tensor, "row_blocks blocks"], Float32[Tensor, ""]]:
    """
    `x` as packed E2M1 codes, e4m3 scales, and a float32 scale of the tensor; all contiguous.

    The scale of the tensor puts the largest magnitude at 6 · 448, and is at least `TINY`; a block's
    puts the block's largest at 6, rounded to the nearest e4m3, and is at least `E4M3_LEAST`. Codes
    are those of x over both scales, as they are after rounding; beyond 6 it is 6. Byte j of a row
    has the code of column 2 j in its low half, and that of 2 j + 1 above.

    Args:
        x: In any layout.
        square: Blocks of 16 x 16, so that the transpose has the transposed codes; else of 1 x 16.
        generator: Round up or down at random, to be right on average, by its numbers; without one
            to the nearest value, ties to the code without the last bit.

    Raises:
        ValueError: columns, or rows of `square` blocks, are no multiple of 16, or a number is not
            finite; the message begins with `x: `.

    Source: NVIDIA, Pretraining Large Language Models with NVFP4 (arXiv 2509.25149), appendix B.
    """
    # TODO(kata): check, two levels of scales, round to a code, two in a byte (about 30 lines with
    # helpers)
    raise NotImplementedError


def _spread(scales: Tensor, rows: int) -> Tensor:
    """The scale of each number."""
    return scales.repeat_interleave(rows, dim=0).repeat_interleave(BLOCK, dim=1)


def hadamard16(
    x: Float32[Tensor, "m k"], signs: Float32[Tensor, " sixteen"]
) -> Float32[Tensor, "m k"]:
    """
    Each 16 numbers of a row times `signs`, then transformed by Hadamard's matrix, orthonormal.

    Element i of a block becomes the sum over j of (-1)^(ones that i and j have in common) times
    signs[j] x[j], over 4.

    Args:
        x: In any layout.
        signs: 16 of them, 1 or -1.

    Raises:
        ValueError: the columns of `x` are no multiple of 16, or there are not 16 `signs` of 1 and
            -1; the message begins with the argument's name.
    """
    raise NotImplementedError  # TODO(kata): check, transform each 16 (about 9 lines)


def wgrad_nvfp4(
    x: Float32[Tensor, "tokens k"],
    dy: Float32[Tensor, "tokens n"],
    signs: Float32[Tensor, " sixteen"],
    generator: torch.Generator,
) -> Float32[Tensor, "n k"]:
    """
    dy.T @ x with both operands in NVFP4, in blocks of 16 tokens.

    Both are transformed by `hadamard16` along tokens, which leaves their product what it is. x is
    rounded to nearest, dy at random.

    Raises:
        ValueError: tokens are no multiple of 16 or `x` is not finite (`x: `), `dy` has other tokens
            or is not finite (`dy: `), or `signs` are not right.

    Source: NVIDIA, Pretraining Large Language Models with NVFP4 (arXiv 2509.25149), section 4.
    """
    raise NotImplementedError  # TODO(kata): check, product along tokens (about 5 lines)
