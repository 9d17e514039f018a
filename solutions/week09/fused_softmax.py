"""Kata week09/fused_softmax: a row per program, or a row in pieces.

HBM: a row that fits on chip is read once and written once; a longer one is read twice, not three
times, because the online form finds the maximum and the sum in the same pass.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _softmax_row_kernel(x_ptr, y_ptr, x_row_stride, y_row_stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)  # [BLOCK] i32
    mask = cols < n_cols  # [BLOCK] i1

    # load the row
    # -inf in the padded lanes: max ignores it, exp2 turns it into 0
    x = tl.load(x_ptr + row * x_row_stride + cols, mask=mask, other=-float("inf"))
    x = x.to(tl.float32)  # [BLOCK] fp32
    # maximum and sum
    p = tl.exp2((x - tl.max(x)) * LOG2E)  # [BLOCK] fp32, in [0, 1]
    y = p * (1.0 / tl.sum(p))
    # write
    tl.store(y_ptr + row * y_row_stride + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _softmax_streaming_kernel(
    x_ptr, y_ptr, x_row_stride, y_row_stride, n_cols, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_row_stride
    y_ptr += row * y_row_stride

    # maximum and sum
    # each lane keeps the maximum and the sum of its own columns; the lanes meet after the loop
    lane_max = tl.full([BLOCK], -float("inf"), tl.float32)  # [BLOCK] fp32
    lane_sum = tl.zeros([BLOCK], tl.float32)  # [BLOCK] fp32
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + cols, mask=cols < n_cols, other=-float("inf")).to(tl.float32)
        new_max = tl.maximum(lane_max, x)
        # rescale
        # a lane that has seen only -inf would compute -inf - -inf
        shift = tl.where(new_max == -float("inf"), 0.0, new_max)
        lane_sum = lane_sum * tl.exp2((lane_max - shift) * LOG2E) + tl.exp2((x - shift) * LOG2E)
        lane_max = new_max

    row_max = tl.max(lane_max)
    row_sum = tl.sum(lane_sum * tl.exp2((lane_max - row_max) * LOG2E))
    scale = 1.0 / row_sum

    # write
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + cols, mask=cols < n_cols).to(tl.float32)
        y = tl.exp2((x - row_max) * LOG2E) * scale
        tl.store(y_ptr + cols, y.to(y_ptr.dtype.element_ty), mask=cols < n_cols)


def fused_softmax(
    x: Float[Tensor, "rows cols"], max_block: int = 16384, block: int = 4096
) -> Float[Tensor, "rows cols"]:
    """
    Softmax over the last axis, in the dtype of `x`, computed in float32.

    Rows may lie any stride apart. -inf has probability 0; a row of nothing but -inf, or with a
    NaN or +inf in it, is NaN throughout, as in torch.

    Args:
        x: The logits.
        max_block: Longest row, rounded up to a power of two, that one program keeps on chip.
        block: Columns per piece of a longer row, a power of two.

    Raises:
        ValueError: `x` is not floating point, not 2-D, has no columns, or its last axis is not
            contiguous.
    """
    # check
    if not x.is_floating_point():
        raise ValueError(f"x: expected a floating-point dtype, found {x.dtype}")
    if x.ndim != 2 or x.shape[1] == 0:
        raise ValueError(f"x: expected [rows, cols] with cols > 0, found shape {tuple(x.shape)}")
    rows, cols = x.shape
    if cols > 1 and x.stride(1) != 1:
        raise ValueError(f"x: expected a contiguous last axis, found strides {x.stride()}")

    # choose a kernel
    y = torch.empty(rows, cols, dtype=x.dtype, device=x.device)
    if rows:
        row_block = triton.next_power_of_2(cols)
        fits = row_block <= max_block
        kernel = _softmax_row_kernel if fits else _softmax_streaming_kernel
        BLOCK = row_block if fits else block
        # 32 elements of the row a thread, as far as 16 warps go
        num_warps = min(max(row_block // 1024, 1), 16)
        kernel[(rows,)](x, y, x.stride(0), y.stride(0), cols, BLOCK=BLOCK, num_warps=num_warps)
    return y
