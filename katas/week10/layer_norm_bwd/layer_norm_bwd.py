"""Kata week10/layer_norm_bwd: the gradients of LayerNorm, rows and columns reduced in one pass.

HBM: dy and x are read once and dx is written once; the sums over rows cross memory a second time
as a few float32 rows.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

MAX_COLS = 8192
TILE = 4096  # elements: enough bytes in flight from 256 programs


@triton.jit
def _layer_norm_bwd_kernel(
    dy_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, dx_ptr, partial_ptr,
    dy_row_stride, x_row_stride, n_rows, n_cols, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # TODO(kata): load the rows, sums over the rows, gradient of the input (about 25 lines)
    pass


def layer_norm_bwd(
    dy: Float[Tensor, "rows cols"],
    x: Float[Tensor, "rows cols"],
    w: Float[Tensor, " cols"],
    mean: Float[Tensor, " rows"],
    rstd: Float[Tensor, " rows"],
    groups: int = 256,
) -> tuple[Float[Tensor, "rows cols"], Float[Tensor, " cols"], Float[Tensor, " cols"]]:
    """
    From the gradient of y = (x - mean) * rstd * w + b, those of `x`, `w` and `b`.

    All arithmetic is float32, and each gradient is rounded once, to the dtype of `x`. The same
    call gives the same bits. Rows may lie any stride apart and are read in place.

    Args:
        dy: The gradient of the result, in the dtype of `x`.
        x: What was normalised.
        w: What each column was multiplied by, in the dtype of `x`, contiguous.
        mean: Of each row, as the forward pass returned it: float32, contiguous.
        rstd: 1 / sqrt(variance + eps) of each row, likewise.
        groups: How many programs share the rows, at most.

    Returns:
        `dx`, `dw` and `db`.

    Raises:
        ValueError: `x` is not floating point, not 2-D, has no columns or over 8192, or its last
            axis is not contiguous; `dy` differs from it in shape or dtype, or its last axis is not
            contiguous; `w` is not one number per column, `mean` or `rstd` not one per row;
            `groups` is below 1.
    """
    # TODO(kata): check, allocate and launch, add up the groups (about 45 lines with helpers)
    raise NotImplementedError
