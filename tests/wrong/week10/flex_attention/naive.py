"""Wrong on purpose: all scores are computed and stored, and a mask of bools hides most of them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int32
from torch import Tensor


class BlockMask(NamedTuple):
    kv_num: Int32[Tensor, "mb mh rows"]
    kv_idx: Int32[Tensor, "mb mh rows cols"]
    full_num: Int32[Tensor, "mb mh rows"]
    full_idx: Int32[Tensor, "mb mh rows cols"]


@triton.jit
def _scores_kernel(
    s_ptr, H, Sq, Sk, MASK_MOD: tl.constexpr, SCORE_MOD: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    qi, head = row % Sq, row // Sq
    b, h = head // H, head % H
    for start in range(0, Sk, BLOCK):
        cols = start + tl.arange(0, BLOCK)[None, :]
        ptrs = s_ptr + row.to(tl.int64) * Sk + cols
        s = tl.load(ptrs, mask=cols < Sk, other=0.0)
        rows = qi + tl.zeros([1, 1], tl.int32)
        if SCORE_MOD is not None:
            s = SCORE_MOD(s, b, h, rows, cols)
        s = tl.where(MASK_MOD(b, h, rows, cols), s, -float("inf"))
        tl.store(ptrs, s, mask=cols < Sk)


def flex_attention(
    q: Float[Tensor, "b h sq d"],
    k: Float[Tensor, "b h sk d"],
    v: Float[Tensor, "b h sk d"],
    kv_num: Int32[Tensor, "mb mh rows"],
    kv_idx: Int32[Tensor, "mb mh rows cols"],
    full_num: Int32[Tensor, "mb mh rows"],
    full_idx: Int32[Tensor, "mb mh rows cols"],
    block: int,
    mask_mod: Callable,
    score_mod: Callable | None = None,
    scale: float | None = None,
) -> Float[Tensor, "b h sq d"]:
    s = q.float() @ k.float().mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    b, h, sq, sk = s.shape
    if s.numel():
        _scores_kernel[(b * h * sq,)](s, h, sq, sk, mask_mod, score_mod, 128)
    return (torch.softmax(s, dim=-1).nan_to_num(0.0) @ v.float()).to(q.dtype)


def create_block_mask(
    mask_fn: Callable,
    b: int,
    h: int,
    sq: int,
    sk: int,
    block: int,
    device: torch.device | str = "cpu",
) -> BlockMask:
    at = torch.meshgrid(*(torch.arange(n, device=device) for n in (b, h, sq, sk)), indexing="ij")
    visible = mask_fn(*at).expand(b, h, sq, sk)
    padded = torch.nn.functional.pad(visible, (0, -sk % block, 0, -sq % block))
    seen = padded.unfold(2, block, block).unfold(3, block, block).sum(dim=(4, 5))
    full = seen == block**2
    partial = (seen > 0) & ~full
    lists = []
    for chosen in (partial, full):
        order = torch.argsort(chosen.int(), dim=-1, descending=True, stable=True)
        lists += [chosen.sum(dim=-1, dtype=torch.int32), order.int()]
    return BlockMask(*lists)
