"""Kata week09/fused_silu: x * sigmoid(x) in one pass over memory.

HBM: x is read once, the result is written once.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from harness.hardware import Profile


@triton.jit
def _fused_silu_kernel(x_ptr, y_ptr, x_row_stride, y_row_stride, n_cols, BLOCK: tl.constexpr):
    # TODO(kata): locate the block, SiLU in float32, store (about 7 lines)
    pass


def fused_silu(x: Float[Tensor, "rows cols"]) -> Float[Tensor, "rows cols"]:
    """
    SiLU of every element, in the dtype of `x`, computed in float32.

    Rows of `x` may lie any stride apart; nothing is copied to make them contiguous. NaN and
    infinities behave as in torch.

    Raises:
        ValueError: `x` is not floating point, not 2-D, or its last axis is not contiguous.
    """
    raise NotImplementedError  # TODO(kata): check, launch (about 15 lines)


def traffic(rows: int, cols: int, itemsize: int, fused: bool) -> int:
    """
    Bytes that SiLU moves to and from device memory.

    Args:
        rows: Rows of x.
        cols: Columns of x.
        itemsize: Bytes per element.
        fused: True for one kernel; False for sigmoid followed by multiply, each its own kernel.
    """
    raise NotImplementedError  # TODO(kata): count the bytes (1 line)


def bandwidth_utilization(
    rows: int, cols: int, itemsize: int, seconds: float, profile: Profile
) -> float:
    """Share of `profile.bandwidth` (bytes/s) that the fused kernel reached in `seconds`."""
    raise NotImplementedError  # TODO(kata): (1 line)
