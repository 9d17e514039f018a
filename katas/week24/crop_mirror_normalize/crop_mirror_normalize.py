"""Kata week24/crop_mirror_normalize: from a decoder's bytes to a model's input.

HBM: each cropped byte is read once, each float16 is written once.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float16, Float32, UInt8
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Output pixels of a program, and its warps."""

    pixels: int
    warps: int


CPU = Config(pixels=256, warps=4)
GPU = Config(pixels=1024, warps=4)


@triton.jit
def _crop_mirror_normalize_kernel(
    x_ptr, pos_ptr, mirror_ptr, mean_ptr, std_ptr, out_ptr,
    n_stride, y_stride, x_stride, c_stride,
    room_y, room_x, h, w, scale, shift,
    C: tl.constexpr, C_OUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # TODO(kata): pixels of the program, place in the source, normalise, store (about 20 lines)
    pass


def crop_mirror_normalize(
    x: UInt8[Tensor, "n height width c"],
    crop: tuple[int, int],
    crop_pos: Float32[Tensor, "n 2"],
    mirror: Bool[Tensor, " n"],
    mean: Float32[Tensor, " c"],
    std: Float32[Tensor, " c"],
    scale: float = 1.0,
    shift: float = 0.0,
    pad_output: bool = False,
) -> Float16[Tensor, "n c_out h w"]:
    """
    Cut out, mirror, normalise and transpose images, in one kernel.

    `x` has any strides, and is read in place. Computed in float32, rounded once; the result is
    contiguous. Positions and mirror flags are read on the device: their values are not checked,
    since that would mean waiting for them.

    Raises:
        ValueError: a shape, dtype or device does not fit, a table is not contiguous, or the crop
            is empty or larger than the images; the message begins with the argument's name.

    Source: NVIDIA DALI, fn.crop_mirror_normalize.
    """
    # TODO(kata): check, allocate and launch (about 35 lines with helpers)
    raise NotImplementedError
