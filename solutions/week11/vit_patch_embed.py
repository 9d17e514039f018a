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
    K: tl.constexpr = 3 * P * P
    num_n = tl.cdiv(D, BLOCK_N)
    rows = tl.program_id(0) // num_n * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(0) % num_n * BLOCK_N + tl.arange(0, BLOCK_N)
    token = rows % seq
    is_patch = (rows < n_tokens) & (token > 0)
    # corner of each patch
    # where each patch begins; strides are free, and images may lie 2**31 elements apart
    patch = token - 1
    corners = (
        (rows // seq).to(tl.int64) * b_stride
        + (patch // grid_w * P).to(tl.int64) * y_stride
        + (patch % grid_w * P).to(tl.int64) * x_stride
    )  # [BLOCK_M]

    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    # gather and normalise
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        c = tl.minimum(k // (P * P), 2)  # past the last channel nothing is multiplied
        offsets = (
            c.to(tl.int64) * c_stride
            + (k // P % P).to(tl.int64) * y_stride
            + (k % P).to(tl.int64) * x_stride
        )  # [BLOCK_K]
        pixels = tl.load(
            img_ptr + corners[:, None] + offsets[None, :],
            mask=is_patch[:, None] & (k < K)[None, :],
            other=0,
        ).to(tl.float32)
        if img_ptr.dtype.element_ty == tl.uint8:
            pixels = pixels / 255.0
        pixels = (pixels - tl.load(mean_ptr + c)[None, :]) / tl.load(std_ptr + c)[None, :]
        # multiply
        w_ptrs = w_ptr + cols.to(tl.int64)[None, :] * K + k[:, None]
        w = tl.load(w_ptrs, mask=(k < K)[:, None] & (cols < D)[None, :], other=0.0)
        acc = tl.dot(pixels.to(w.dtype), w, acc)

    # class token and positions
    # a class token has no pixels, whatever was multiplied in its place
    cls = tl.load(cls_ptr + cols, mask=cols < D).to(tl.float32)
    acc = tl.where((token == 0)[:, None], cls[None, :], acc)
    mask = (rows < n_tokens)[:, None] & (cols < D)[None, :]
    acc += tl.load(pos_ptr + token.to(tl.int64)[:, None] * D + cols[None, :], mask=mask)
    out_ptrs = out_ptr + rows.to(tl.int64)[:, None] * D + cols[None, :]
    tl.store(out_ptrs, acc.to(tl.float16), mask=mask)


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
    # check
    grid_h, grid_w = _check(img, w, pos, cls, mean, std)
    # allocate and launch
    tokens = grid_h * grid_w + 1
    out = torch.empty(img.shape[0], tokens, w.shape[0], dtype=torch.float16, device=img.device)
    _launch(img, w, pos, cls, mean, std, out, grid_w)
    return out


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


def _check(
    img: Tensor, w: Tensor, pos: Tensor, cls: Tensor, mean: Tensor, std: Tensor
) -> tuple[int, int]:
    """Rows and columns of patches."""
    # check
    if w.ndim != 4 or w.shape[2] != w.shape[3] or w.shape[3] == 0:
        raise ValueError(f"w: expected [d, 3, p, p] with a p of 1 or more, found {tuple(w.shape)}")
    d, _, p, _ = w.shape
    if img.ndim != 4 or img.shape[1] != 3:
        raise ValueError(f"img: expected [b, 3, h, w], found {tuple(img.shape)}")
    height, width = img.shape[2:]
    if height % p or width % p or not height or not width:
        raise ValueError(f"img: expected sides that are multiples of {p}, found {height} x {width}")
    if img.dtype not in (torch.uint8, torch.float16):
        raise ValueError(f"img: expected uint8 or float16, found {img.dtype}")
    shapes = {
        "w": (w, (d, 3, p, p), torch.float16),
        "pos": (pos, (height // p * (width // p) + 1, d), torch.float16),
        "cls": (cls, (d,), torch.float16),
        "mean": (mean, (3,), torch.float32),
        "std": (std, (3,), torch.float32),
    }
    for name, (x, shape, dtype) in shapes.items():
        if x.shape != shape or x.dtype != dtype or x.device != img.device:
            raise ValueError(
                f"{name}: expected {dtype} {shape} on {img.device}, "
                f"found {x.dtype} {tuple(x.shape)} on {x.device}"
            )
        if not x.is_contiguous():
            raise ValueError(f"{name}: expected a contiguous tensor, found strides {x.stride()}")
    return height // p, width // p
