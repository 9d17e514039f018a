"""Kata week09/swiglu: silu(e) * g, and a backward pass that needs no memory of its own.

HBM, forward: e and g are read, h is written. Backward: dh, e and g are read, and h, dg and de are
written over them.
"""

from itertools import combinations

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor


@triton.jit
def _swiglu_kernel(
    e_ptr, g_ptr, h_ptr, e_row_stride, g_row_stride, h_row_stride, n_cols, BLOCK: tl.constexpr
):
    # TODO(kata): locate the block, load, compute and store (about 8 lines)
    pass


@triton.jit
def _swiglu_backward_kernel(
    dh_ptr, e_ptr, g_ptr, dh_row_stride, e_row_stride, g_row_stride, n_cols, BLOCK: tl.constexpr
):
    # TODO(kata): locate the block, load, compute and store (about 20 lines)
    pass


def swiglu(
    e: Float[Tensor, "rows cols"], g: Float[Tensor, "rows cols"]
) -> Float[Tensor, "rows cols"]:
    """
    silu(e) * g in the dtype of `e`, computed in float32 and rounded once.

    Rows may lie any stride apart and are read in place. The result is contiguous. NaN and
    infinities behave as in torch.

    Args:
        e: The gate.
        g: What the gate multiplies ("up").

    Raises:
        ValueError: `e` or `g` is not float16, bfloat16 or float32, not 2-D, or its last axis is
            not contiguous; `g` differs from `e` in shape or dtype.
    """
    raise NotImplementedError  # TODO(kata): check, launch (about 20 lines with helpers)


def swiglu_backward_(
    dh: Float[Tensor, "rows cols"], e: Float[Tensor, "rows cols"], g: Float[Tensor, "rows cols"]
) -> tuple[Float[Tensor, "rows cols"], Float[Tensor, "rows cols"], Float[Tensor, "rows cols"]]:
    """
    Return (h, dg, de), written over `dh`, `e` and `g` in this order: nothing is allocated.

    h is bit for bit what `swiglu(e, g)` gave; the gradients are computed in float32 and rounded
    once. Rows may lie any stride apart, if they do not overlap.

    Raises:
        ValueError: as for `swiglu`, of `dh`, `e`, `g`, each like `dh`; the rows of one overlap;
            or two of them share memory, unless they are columns of one buffer: the same row
            stride, and no column in common. Nothing has been written then.
    """
    # TODO(kata): check, refuse shared memory, launch (about 20 lines with helpers)
    raise NotImplementedError
