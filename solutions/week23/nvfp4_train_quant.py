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
    return _quantize("x", x, BLOCK if square else 1, generator)


def _quantize(
    name: str, x: Tensor, rows: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    # check
    if x.shape[1] % BLOCK or x.shape[0] % rows:
        raise ValueError(f"{name}: expected blocks of {rows} x {BLOCK}, found {tuple(x.shape)}")
    if not x.isfinite().all():
        raise ValueError(f"{name}: expected finite numbers, found {x[~x.isfinite()][0].item()}")
    # two levels of scales
    x = x.contiguous()
    tiles = x.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, rows))
    most = tiles.abs().amax(dim=(1, 3))
    largest = most.max() if most.numel() else most.new_zeros(())
    tensor_scale = (largest / (E2M1_LARGEST * E4M3_LARGEST)).clamp_min(TINY)
    scales = (most / E2M1_LARGEST / tensor_scale).clamp(E4M3_LEAST, E4M3_LARGEST)
    scales = scales.to(torch.float8_e4m3fn)
    # round to a code
    scaled = x / _spread(scales.float() * tensor_scale, rows)
    codes = _codes(scaled.abs().clamp(max=E2M1_LARGEST), generator) + 8 * scaled.signbit()
    # two in a byte
    pairs = codes.to(torch.uint8).unflatten(1, (-1, 2))
    return pairs[..., 0] | pairs[..., 1] << 4, scales, tensor_scale


def _spread(scales: Tensor, rows: int) -> Tensor:
    """The scale of each number."""
    return scales.repeat_interleave(rows, dim=0).repeat_interleave(BLOCK, dim=1)


def _codes(size: Tensor, generator: torch.Generator | None) -> Tensor:
    """Codes of sizes up to 6."""
    # round to a code
    values = torch.tensor(E2M1_VALUES, device=size.device)
    below = torch.searchsorted(values, size, right=True) - 1
    above = (below + 1).clamp(max=len(values) - 1)
    low, high = values[below], values[above]
    if generator is None:
        middle = (low + high) / 2
        up = (size > middle) | ((size == middle) & (below % 2 == 1))
    else:
        drawn = torch.rand(size.shape, generator=generator, device=size.device)
        up = drawn * (high - low) < size - low
    return torch.where(up, above, below)


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
    # check
    if x.shape[1] % BLOCK:
        raise ValueError(f"x: expected columns in multiples of {BLOCK}, found {x.shape[1]}")
    if signs.shape != (BLOCK,) or not (signs.abs() == 1).all():
        raise ValueError(f"signs: expected {BLOCK} of 1 and -1, found {signs.tolist()}")
    # transform each 16
    h = torch.ones(1, 1, device=x.device)
    two = torch.tensor([[1.0, 1.0], [1.0, -1.0]], device=x.device)
    while len(h) < BLOCK:
        h = torch.kron(h, two)
    return ((x.unflatten(1, (-1, BLOCK)) * signs) @ h / 4).flatten(1)


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
    # check
    if len(dy) != len(x):
        raise ValueError(f"dy: expected {len(x)} tokens as x has, found {len(dy)}")
    # product along tokens
    a = _quantize("dy", hadamard16(dy.T, signs), 1, generator)
    b = _quantize("x", hadamard16(x.T, signs), 1, None)
    return nvfp4_dequant(*a) @ nvfp4_dequant(*b).T
