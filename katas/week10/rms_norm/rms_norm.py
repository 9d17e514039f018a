"""Kata week10/rms_norm: add the residual and normalise in one pass, and the gradients of that.

HBM, forward: x and the residual are read, the new residual and the result are written. Backward:
dy and h are read and dh is written; the sums over rows cross memory as a few float32 rows.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32
from torch import Tensor

MAX_COLS = 8192


@triton.jit
def _rms_norm_kernel(
    x_ptr, residual_ptr, w_ptr, y_ptr, rstd_ptr, x_row_stride, residual_row_stride, n_cols, eps,
    ADD: tl.constexpr, GEMMA: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # TODO(kata): add the residual, normalise (about 15 lines)
    pass


@triton.jit
def _rms_norm_bwd_kernel(
    dy_ptr, h_ptr, w_ptr, rstd_ptr, dh_ptr, partial_ptr, dy_row_stride, h_row_stride,
    n_rows, n_cols, GEMMA: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    # TODO(kata): gradients of row and weights (about 20 lines)
    pass


def rms_norm(
    x: Float[Tensor, "rows cols"],
    residual: Float[Tensor, "rows cols"] | None,
    w: Float[Tensor, " cols"],
    eps: float = 1e-6,
    gemma: bool = False,
) -> tuple[Float[Tensor, "rows cols"], Float32[Tensor, " rows"]]:
    """
    Add `x` to `residual`, in place, and normalise the rows of the sum h by their root mean square.

    The sum is rounded to the dtype of `x`, and the rounded one is normalised, in float32. A row
    has the same bits in every batch. Rows of `x` and `residual` may lie any stride apart.

    Args:
        x: What the previous layer has to add.
        residual: What it is added to, in the dtype of `x`; None before the first layer, where h
            is `x` and nothing but the results is written.
        w: What each column is multiplied by, in the dtype of `x`, contiguous.
        eps: Added to the mean square.
        gemma: Multiply by w + 1 in float32 and round once. Otherwise, as LLaMA does, round the
            normalised row to the dtype of `x` first, then multiply by w and round again.

    Returns:
        The result, contiguous, in the dtype of `x`, and for each row 1 / sqrt(mean(h²) + eps).

    Raises:
        ValueError: `x` is not float16, bfloat16 or float32, not 2-D, has no columns or over 8192,
            or its last axis is not contiguous; `residual` differs from it in shape or dtype, has
            a last axis that is not contiguous, overlapping rows, or shares memory with `x`;
            `w` is not one number per column, of another dtype, or not contiguous; `eps` is
            negative or NaN. Nothing has been written then.
    """
    # TODO(kata): check, allocate and launch (about 45 lines with helpers)
    raise NotImplementedError


def rms_norm_bwd(
    dy: Float[Tensor, "rows cols"],
    h: Float[Tensor, "rows cols"],
    w: Float[Tensor, " cols"],
    rstd: Float32[Tensor, " rows"],
    gemma: bool = False,
    groups: int = 256,
) -> tuple[Float[Tensor, "rows cols"], Float[Tensor, " cols"]]:
    """
    From the gradient of y, those of h and `w`; roundings are ignored.

    All arithmetic is float32, and each gradient is rounded once. The same call gives the same
    bits, and a row of `dh` has the same bits in every batch. Rows may lie any stride apart.

    Args:
        dy: The gradient of the result, in the dtype of `h`.
        h: What was normalised.
        w: The weights of the forward pass, in the dtype of `h`, contiguous.
        rstd: Of each row, as the forward pass returned it: float32, contiguous.
        gemma: As in the forward pass.
        groups: How many programs share the rows, at most.

    Returns:
        `dh`, contiguous, and `dw`, both in the dtype of `h`.

    Raises:
        ValueError: `h` is not float16, bfloat16 or float32, not 2-D, has no columns or over 8192,
            or its last axis is not contiguous; `dy` differs from it in shape or dtype, or its last
            axis is not contiguous; `w` or `rstd` has another length or dtype than it should, or is
            not contiguous; `groups` is below 1.
    """
    # TODO(kata): check, allocate and launch, add up the groups (about 30 lines with helpers)
    raise NotImplementedError
