"""
Numbers of few bits that share a scale, and the sums that tensor cores make of them.

What oracles of FP8, MXFP4 and NVFP4 katas are written with: rounding to a format, a scale for
each block, and products that are summed as the hardware sums them. All of it is arithmetic in
float64, so that it runs anywhere and a format can be made one bit poorer.

Sources: OCP 8-bit Floating Point Specification 1.0; OCP Microscaling Formats 1.0 (E2M1);
DeepSeek-V3, arXiv 2412.19437, section 3.3.2 (the short sums of Hopper's FP8 products, and their
promotion every 128); Khattak and Mikaitis, arXiv 2512.07004 (how tensor cores align and cut).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Block = tuple[int, int]  # rows and columns that share a scale
# bits behind the binary point that sums of FP8 products keep, by compute capability: there
# everything is aligned with the largest addend and cut. Elsewhere it is float32, near enough
SHORT_SUMS = {(8, 9): 13, (9, 0): 13}
DEPTH = 32  # products that one instruction adds up
MOST_PRODUCTS = 2**26  # that are held at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Floating-point numbers of few bits, without infinities: what is too large is `largest`."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    largest: float

    def round(self, x: Tensor) -> Tensor:
        """`x` on this format's grid, in float64: to nearest, ties to even, saturated."""
        x = x.double()
        lowest = 2 - 2 ** (self.exponent_bits - 1)  # the exponent of the smallest normal number
        exponent = (torch.frexp(x).exponent - 1).clamp(min=lowest)
        step = torch.ldexp(torch.ones_like(x), exponent - self.mantissa_bits)
        return ((x / step).round() * step).clamp(-self.largest, self.largest)

    def coarser(self) -> "Format":
        """The same format with one mantissa bit fewer, which a judge has to tell from this one."""
        bits = self.mantissa_bits - 1
        step = 2.0 ** (math.frexp(self.largest)[1] - 1 - bits)
        return Format(
            name=f"{self.name} less a bit",
            exponent_bits=self.exponent_bits,
            mantissa_bits=bits,
            largest=self.largest // step * step,
        )


E4M3 = Format(name="e4m3", exponent_bits=4, mantissa_bits=3, largest=448.0)
E5M2 = Format(name="e5m2", exponent_bits=5, mantissa_bits=2, largest=57344.0)
E2M1 = Format(name="e2m1", exponent_bits=2, mantissa_bits=1, largest=6.0)
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of the codes 0 to 7; 8 more are negative


def block_amax(x: Tensor, block: Block) -> Tensor:
    """
    The largest magnitude in each block of the last two axes.

    Args:
        x: [..., rows, columns]; the last blocks may be cut short.
        block: Rows and columns of a block.

    Returns:
        [..., ceil(rows / block rows), ceil(columns / block columns)], of x's dtype.
    """
    rows, cols = block
    height, width = x.shape[-2:]
    padded: Tensor = torch.nn.functional.pad(x.abs(), (0, -width % cols, 0, -height % rows))
    tiles: Tensor = padded.unflatten(-1, (-1, cols)).unflatten(-3, (-1, rows))
    return tiles.amax(dim=(-3, -1))


def spread(scales: Tensor, shape: tuple[int, int], block: Block) -> Tensor:
    """The scale of each element of `shape`, [..., rows, columns], from one for each block."""
    wide = scales.repeat_interleave(block[0], dim=-2).repeat_interleave(block[1], dim=-1)
    return wide[..., : shape[0], : shape[1]]


def quantised(
    x: Tensor, form: Format, block: Block, scale_of: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """
    `x` as numbers of a format and a scale for each block, whose product is close to it.

    Args:
        x: [..., rows, columns], finite.
        form: What the numbers are rounded to.
        block: Rows and columns that share a scale.
        scale_of: The blocks' largest magnitudes, in float64, to their scales; by default such
            that the largest becomes the largest of the format, in float32. Here go powers of two
            (MX), or scales that are numbers of a format themselves (NVFP4).

    Returns:
        Numbers on the grid, in float32, which has them all (`.to(torch.float8_e4m3fn)` is
        exact), and scales in float32. The scale of a block of zeros is 1, unless `scale_of`
        says otherwise.
    """
    most = block_amax(x.double(), block)
    if scale_of is None:
        scales = torch.where(most > 0, most / form.largest, 1.0).float()
    else:
        scales = scale_of(most).float()
    shape = (x.shape[-2], x.shape[-1])
    each = spread(scales, shape, block).double()
    return form.round(torch.where(each > 0, x.double() / each, 0.0)).float(), scales


def dequantised(numbers: Tensor, scales: Tensor, block: Block) -> Tensor:
    """What numbers of a format ([..., rows, columns], any dtype) and their scales stand for."""
    shape = (numbers.shape[-2], numbers.shape[-1])
    return numbers.double() * spread(scales.double(), shape, block)


def sum_bits(device: torch.device) -> int | None:
    """Bits that sums of FP8 products keep behind the binary point there; None: of a float32."""
    if device.type != "cuda":
        return None
    return SHORT_SUMS.get(torch.cuda.get_device_capability(device))


def block_products(a: Tensor, b: Tensor, *, every: int = 128, bits: int | None = None) -> Tensor:
    """
    a @ b in parts along k, each summed as a tensor core does, for the caller to scale and add up.

    Args:
        a: [..., m, k], numbers of a format in any dtype.
        b: [..., k, n].
        every: Of how many products a part is the sum: where a kernel promotes to float32.
        bits: What a sum keeps behind the binary point, as of `sum_bits(a.device)`; None:
            float32 by PyTorch.

    Returns:
        [ceil(k / every), ..., m, n] in float32.
    """
    pairs = zip(a.split(every, dim=-1), b.split(every, dim=-2), strict=True)
    if bits is None:
        return torch.stack([one.float() @ other.float() for one, other in pairs])
    return torch.stack([_short_sum(one.float(), other.float(), bits) for one, other in pairs])


def _short_sum(a: Tensor, b: Tensor, bits: int) -> Tensor:
    """One part, a few rows at a time: in between each product takes memory of its own."""
    columns = max(1, b.numel() // b.shape[-2])  # of all batches
    rows = max(1, MOST_PRODUCTS // (DEPTH * columns))
    return torch.cat([_short_rows(some, b, bits) for some in a.split(rows, dim=-2)], dim=-2)


def _short_rows(a: Tensor, b: Tensor, bits: int) -> Tensor:
    """
    Every addend of an instruction cut to a unit of the largest among them, and so is the sum.

    float32 has all of it exactly: products of 8 bits, and sums of 33 numbers below 2**(bits + 1).
    """
    outer = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    total = a.new_zeros(*outer, a.shape[-2], b.shape[-1])
    for one, other in zip(a.split(DEPTH, dim=-1), b.split(DEPTH, dim=-2), strict=True):
        products = one.unsqueeze(-1) * other.unsqueeze(-3)  # [..., m, DEPTH, n]
        largest = torch.maximum(products.abs().amax(dim=-2), total.abs())
        unit = _unit_of(largest, bits)
        cut = products.div_(unit.unsqueeze(-2)).trunc_().sum(dim=-2) + (total / unit).trunc()
        total = cut * unit
        unit = _unit_of(total, bits)
        total = (total / unit).trunc() * unit
    return total


def _unit_of(largest: Tensor, bits: int) -> Tensor:
    """What the last of `bits` behind the point of a number is worth."""
    return torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent - 1 - bits)
