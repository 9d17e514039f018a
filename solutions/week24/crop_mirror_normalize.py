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
    # pixels of the program
    blocks = tl.cdiv(h * w, BLOCK)
    image = (tl.program_id(0) // blocks).to(tl.int64)
    pixels = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)  # [BLOCK] i32
    mask = pixels < h * w

    # place in the source
    # nothing here is negative, so that a cast rounds down, and a half more rounds halves up
    top = (room_y * tl.load(pos_ptr + 2 * image) + 0.5).to(tl.int32)
    left = (room_x * tl.load(pos_ptr + 2 * image + 1) + 0.5).to(tl.int32)
    col = pixels % w
    # the source is mirrored, inside the crop: neighbours still store to neighbours
    col = tl.where(tl.load(mirror_ptr + image), w - 1 - col, col)
    source = (
        image * n_stride
        + (top + pixels // w).to(tl.int64) * y_stride
        + (left + col).to(tl.int64) * x_stride
    )  # [BLOCK] i64
    # normalise
    for c in tl.static_range(C_OUT):
        value = tl.zeros([BLOCK], tl.float32)
        if c < C:
            factor = scale / tl.load(std_ptr + c)
            offset = shift - tl.load(mean_ptr + c) * factor
            byte = tl.load(x_ptr + source + tl.cast(c, tl.int64) * c_stride, mask=mask)
            value = byte.to(tl.float32) * factor + offset
        # store
        target = (image * C_OUT + c) * h * w + pixels
        tl.store(out_ptr + target, value.to(tl.float16), mask=mask)


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
    # check
    _check(x, crop, crop_pos, mirror, mean, std)
    # allocate and launch
    (n, height, width, c), (h, w) = x.shape, crop
    c_out = triton.next_power_of_2(c) if pad_output else c
    out = torch.empty(n, c_out, h, w, dtype=torch.float16, device=x.device)
    if n:
        config = GPU if x.is_cuda else CPU
        _crop_mirror_normalize_kernel[(n * triton.cdiv(h * w, config.pixels),)](
            x, crop_pos, mirror, mean, std, out,
            *x.stride(),
            height - h, width - w, h, w, scale, shift,
            C=c, C_OUT=c_out, BLOCK=config.pixels, num_warps=config.warps,
        )  # fmt: skip
    return out


def _check(
    x: Tensor, crop: tuple[int, int], crop_pos: Tensor, mirror: Tensor, mean: Tensor, std: Tensor
) -> None:
    # check
    if x.ndim != 4 or x.dtype != torch.uint8 or x.shape[3] == 0:
        raise ValueError(f"x: expected uint8 [n, h, w, c], found {x.dtype} {tuple(x.shape)}")
    n, height, width, c = x.shape
    if not (1 <= crop[0] <= height and 1 <= crop[1] <= width):
        raise ValueError(f"crop: expected 1 to {height} rows, 1 to {width} columns, found {crop}")
    tables = {
        "crop_pos": (crop_pos, (n, 2), torch.float32),
        "mirror": (mirror, (n,), torch.bool),
        "mean": (mean, (c,), torch.float32),
        "std": (std, (c,), torch.float32),
    }
    for name, (table, shape, dtype) in tables.items():
        if table.shape != shape or table.dtype != dtype or table.device != x.device:
            raise ValueError(
                f"{name}: expected {dtype} {shape} on {x.device}, "
                f"found {table.dtype} {tuple(table.shape)} on {table.device}"
            )
        if not table.is_contiguous():
            raise ValueError(f"{name}: expected a contiguous table, found {table.stride()}")
