"""Kata week21/lars_multi_tensor: a step of LARS for all tensors of a flat buffer at once.

Blocks divide the buffer at multiples of their size, and have elements of one tensor only. Squares
are summed block by block, then tensor by tensor; the update reads its tensor's trust ratio. HBM: w
and g twice, v once, w and v written.
"""

from itertools import accumulate, pairwise

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float32, Int32, Int64
from torch import Tensor


def segment_blocks(offsets: list[int], block: int) -> tuple[Tensor, Tensor]:
    """
    Divide each tensor into blocks at multiples of `block` elements of the buffer.

    So its first and last block may be shorter. Returns the tensor of each block, int32, and the
    first block of each tensor followed by the number of all blocks, int64. A tensor without
    elements has no blocks. An optimizer does this once, on the host, and takes both to the device.
    """
    if any(first > last for first, last in pairwise(offsets)):
        raise ValueError(f"offsets: expected none to be less than the one before, found {offsets}")
    blocks = [
        -(-last // block) - first // block if first < last else 0
        for first, last in pairwise(offsets)
    ]
    segment = [i for i, count in enumerate(blocks) for _ in range(count)]
    first_block = list(accumulate(blocks, initial=0))
    return torch.tensor(segment, dtype=torch.int32), torch.tensor(first_block)


@triton.jit
def _find(offsets_ptr, segment_ptr, first_block_ptr, block, BLOCK: tl.constexpr):
    """The tensor of a block, where this begins in the buffer, and where the tensor begins, ends."""
    segment = tl.load(segment_ptr + block)
    first, last = tl.load(offsets_ptr + segment), tl.load(offsets_ptr + segment + 1)
    start = (first // BLOCK + block - tl.load(first_block_ptr + segment)) * BLOCK  # int64
    return segment, start, first, last


@triton.jit
def _squares_kernel(
    w_ptr, g_ptr, offsets_ptr, segment_ptr, first_block_ptr, partial_ptr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    # squares by block
    block = tl.program_id(0)
    _, start, first, last = _find(offsets_ptr, segment_ptr, first_block_ptr, block, BLOCK)
    at = start + tl.arange(0, BLOCK)  # [BLOCK] int64
    mask = (at >= first) & (at < last)
    w = tl.load(w_ptr + at, mask=mask, other=0.0)  # [BLOCK] fp32
    g = tl.load(g_ptr + at, mask=mask, other=0.0)
    tl.store(partial_ptr + 2 * block, tl.sum(w * w))
    tl.store(partial_ptr + 2 * block + 1, tl.sum(g * g))


@triton.jit
def _ratio_kernel(
    partial_ptr, first_block_ptr, adapt_ptr, ratio_ptr, wd, eta, BLOCK: tl.constexpr
):  # fmt: skip
    # norms by tensor
    segment = tl.program_id(0)
    first, last = tl.load(first_block_ptr + segment), tl.load(first_block_ptr + segment + 1)
    w_squares = tl.zeros([BLOCK], tl.float32)
    g_squares = tl.zeros([BLOCK], tl.float32)
    for start in range(first, last, BLOCK):
        blocks = start + tl.arange(0, BLOCK)
        mask = blocks < last
        w_squares += tl.load(partial_ptr + 2 * blocks, mask=mask, other=0.0)
        g_squares += tl.load(partial_ptr + 2 * blocks + 1, mask=mask, other=0.0)
    # trust ratio
    w_norm = tl.sqrt(tl.sum(w_squares))
    g_norm = tl.sqrt(tl.sum(g_squares))
    ratio = 1.0
    if tl.load(adapt_ptr + segment) & (w_norm > 0) & (g_norm > 0):
        ratio = eta * w_norm / (g_norm + wd * w_norm)
    tl.store(ratio_ptr + segment, ratio)


@triton.jit
def _update(w_ptr, g_ptr, v_ptr, at, mask, rate, momentum, wd):
    # update by block
    w = tl.load(w_ptr + at, mask=mask)  # fp32
    g = tl.load(g_ptr + at, mask=mask)
    v = tl.load(v_ptr + at, mask=mask)
    v = momentum * v + rate * (g + wd * w)
    tl.store(v_ptr + at, v, mask=mask)
    tl.store(w_ptr + at, w - v, mask=mask)


@triton.jit
def _update_kernel(
    w_ptr, g_ptr, v_ptr, offsets_ptr, segment_ptr, first_block_ptr, ratio_ptr, lr, momentum, wd,
    BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    # update by block
    block = tl.program_id(0)
    segment, start, first, last = _find(offsets_ptr, segment_ptr, first_block_ptr, block, BLOCK)
    rate = lr * tl.load(ratio_ptr + segment)
    # without a mask four elements at a time are loaded and stored; a mask may begin anywhere
    if (start >= first) & (start + BLOCK <= last):
        _update(w_ptr, g_ptr, v_ptr, start + tl.arange(0, BLOCK), None, rate, momentum, wd)
    else:
        for tile in range(0, BLOCK, TILE):  # of few registers, so that more programs fit an SM
            at = start + tile + tl.arange(0, TILE)
            mask = (at >= first) & (at < last)
            _update(w_ptr, g_ptr, v_ptr, at, mask, rate, momentum, wd)


def lars_multi_tensor(
    w: Float32[Tensor, " elements"],
    g: Float32[Tensor, " elements"],
    v: Float32[Tensor, " elements"],
    offsets: Int64[Tensor, " n_plus_1"],
    segment: Int32[Tensor, " blocks"],
    first_block: Int64[Tensor, " n_plus_1"],
    adapt: Bool[Tensor, " n"],
    block: int,
    lr: float,
    momentum: float = 0.9,
    wd: float = 1e-4,
    eta: float = 1e-3,
) -> tuple[Float32[Tensor, " elements"], Float32[Tensor, " elements"]]:
    """
    One step of LARS on n tensors, in place; returns `w` and `v`.

    All in float32, sums of squares too. Nothing on the host waits for the device.

    Args:
        w: Weights of all tensors; tensor i has elements offsets[i] to offsets[i + 1], not
            included. What lies before the first and after the last is left alone.
        g: Gradients.
        v: Momenta.
        offsets: Not decreasing. Its values, and those of the next two, are not checked.
        segment, first_block: What `segment_blocks` makes of the offsets and `block`.
        adapt: Which tensors have a trust ratio; the others have 1.
        block: Elements of a block, a power of two.
        lr, momentum, wd, eta: As in the paper, weight decay and trust coefficient last.

    Raises:
        ValueError: Of `w`, `g`, `v` one is not a contiguous float32 vector, or not like `w`;
            `adapt` is no bool, `offsets` or `first_block` no int64, `segment` no int32, or one of
            them no contiguous vector on the device of `w`; `offsets` or `first_block` has not one
            more than `adapt`; `block` is no power of two; `lr` or `eta` is not above 0,
            `momentum` not from 0 to below 1, `wd` below 0. The message begins with the argument's
            name.

    Source: You, Gitman and Ginsburg 2017, algorithm 1.
    """
    # check
    _check(w, g, v, offsets, segment, first_block, adapt)
    _check_numbers(block, lr, momentum, wd, eta)
    # launch
    partial = torch.empty(len(segment), 2, dtype=torch.float32, device=w.device)
    ratio = torch.empty(len(adapt), dtype=torch.float32, device=w.device)
    _squares_kernel[(len(segment),)](
        w, g, offsets, segment, first_block, partial, BLOCK=block, num_warps=8
    )
    _ratio_kernel[(len(adapt),)](
        partial, first_block, adapt, ratio, wd, eta, BLOCK=512 if w.is_cuda else 64
    )
    _update_kernel[(len(segment),)](
        w, g, v, offsets, segment, first_block, ratio, lr, momentum, wd,
        BLOCK=block, TILE=min(block, 1024 if w.is_cuda else 64), num_warps=8,
    )  # fmt: skip
    return w, v


def _check(
    w: Tensor, g: Tensor, v: Tensor,
    offsets: Tensor, segment: Tensor, first_block: Tensor, adapt: Tensor,
) -> None:  # fmt: skip
    for name, one in (("w", w), ("g", g), ("v", v)):
        if one.dtype != torch.float32 or one.shape != w.shape:
            raise ValueError(f"{name}: expected float32 of {len(w)} elements, found {_told(one)}")
    for name, one, dtype in (
        ("adapt", adapt, torch.bool), ("offsets", offsets, torch.int64),
        ("segment", segment, torch.int32), ("first_block", first_block, torch.int64),
    ):  # fmt: skip
        if one.dtype != dtype:
            raise ValueError(f"{name}: expected {dtype}, found {_told(one)}")
        if name in ("offsets", "first_block") and len(one) != len(adapt) + 1:
            raise ValueError(f"{name}: expected {len(adapt) + 1} for {len(adapt)} tensors")
    for name, one in (
        ("w", w), ("g", g), ("v", v), ("adapt", adapt),
        ("offsets", offsets), ("segment", segment), ("first_block", first_block),
    ):  # fmt: skip
        if one.ndim != 1 or not one.is_contiguous() or one.device != w.device:
            raise ValueError(f"{name}: expected a contiguous vector on {w.device}, {_told(one)}")


def _check_numbers(block: int, lr: float, momentum: float, wd: float, eta: float) -> None:
    if block < 1 or block & (block - 1):
        raise ValueError(f"block: expected a power of two, found {block}")
    for name, one in (("lr", lr), ("eta", eta)):
        if not one > 0:
            raise ValueError(f"{name}: expected more than 0, found {one}")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum: expected 0 or more and less than 1, found {momentum}")
    if not wd >= 0:
        raise ValueError(f"wd: expected 0 or more, found {wd}")


def _told(one: Tensor) -> str:
    return f"{tuple(one.shape)} {one.dtype} on {one.device}, strides {one.stride()}"
