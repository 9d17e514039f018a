"""Kata week11/vit_patch_embed: a matrix product whose left operand is a view of the image.

Each program makes one [BLOCK_M, BLOCK_N] tile of the tokens of all images, gathers the pixels it
needs and normalises them on the way. There is no im2col.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float16, Float32, Shaped
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Tile shape, and how a program is built."""

    m: int
    n: int
    k: int
    warps: int = 4
    stages: int = 2


CPU = Config(m=16, n=16, k=32)
GPU = Config(m=128, n=128, k=32, warps=8, stages=3)


@triton.jit
def _patch_embed_kernel(
    img_ptr, w_ptr, pos_ptr, cls_ptr, mean_ptr, std_ptr, out_ptr,
    n_tokens, seq, grid_w, D,
    b_stride, c_stride, y_stride, x_stride,
    P: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # TODO(kata): corner of each patch, gather and normalise, multiply, class token and positions
    # (about 40 lines)
    pass


def vit_patch_embed(
    img: Shaped[Tensor, "b 3 h w"],
    w: Float16[Tensor, "d 3 p p"],
    pos: Float16[Tensor, "t d"],
    cls: Float16[Tensor, " d"],
    mean: Float32[Tensor, " 3"],
    std: Float32[Tensor, " 3"],
) -> Float[Tensor, "b t d"]:
    """
    Embed the patches of each image after its class token, in one kernel.

    `img` is uint8 (divided by 255) or float16, with any strides; it is read in place. Pixels are
    normalised in float32, multiplied as float16, summed in float32; what `pos` adds is rounded
    with the sum, once. The result is contiguous float16.

    Raises:
        ValueError: a shape, dtype or device does not fit, or what is not `img` is not
            contiguous; the message begins with the argument's name.

    Source: Dosovitskiy et al. 2021 (ViT), section 3.1.
    """
    # TODO(kata): check, allocate and launch (about 35 lines with helpers)
    raise NotImplementedError


def _launch(
    img: Tensor, w: Tensor, pos: Tensor, cls: Tensor, mean: Tensor, std: Tensor, out: Tensor,
    grid_w: int,
) -> None:  # fmt: skip
    images, seq, d = out.shape
    config = GPU if img.is_cuda else CPU
    tiles = triton.cdiv(images * seq, config.m) * triton.cdiv(d, config.n)
    _patch_embed_kernel[(tiles,)](
        img, w, pos, cls, mean, std, out,
        images * seq, seq, grid_w, d,
        *img.stride(),
        P=w.shape[-1], BLOCK_M=config.m, BLOCK_N=config.n, BLOCK_K=config.k,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
