"""Kata week10/layer_norm: mean, variance and normalisation, with the row on chip or in pieces.

HBM: a row that fits on chip is read once; a longer one is read twice, because mean and variance of
the pieces merge into those of the row.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32
from torch import Tensor


@triton.jit
def _layer_norm_row_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, rstd_ptr, x_row_stride, n_cols, eps, BLOCK: tl.constexpr
):
    # TODO(kata): centre, variance, normalise and store (about 15 lines)
    pass


@triton.jit
def _layer_norm_streaming_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, rstd_ptr, x_row_stride, n_cols, eps, BLOCK: tl.constexpr
):
    # TODO(kata): centre, merge the pieces, variance, normalise and store (about 25 lines)
    pass


def layer_norm(
    x: Float[Tensor, "rows cols"],
    w: Float[Tensor, " cols"],
    b: Float[Tensor, " cols"],
    eps: float = 1e-5,
    max_block: int = 16384,
    block: int = 4096,
) -> tuple[Float[Tensor, "rows cols"], Float32[Tensor, " rows"], Float32[Tensor, " rows"]]:
    """
    Normalise each row, scale it by `w`, shift it by `b`; also return what a backward pass needs.

    All arithmetic is float32. Rows may lie any stride apart and are read in place.

    Args:
        x: The rows.
        w: What each column is multiplied by, in the dtype of `x`, contiguous.
        b: What is added to each column, likewise.
        eps: Added to the (biased) variance.
        max_block: Longest row, rounded up to a power of two, that one program keeps on chip.
        block: Columns per piece of a longer row, a power of two.

    Returns:
        The result, in the dtype of `x`, and for each row the mean and 1 / sqrt(variance + eps).

    Raises:
        ValueError: `x` is not floating point, not 2-D, has no columns, or its last axis is not
            contiguous; `w` or `b` is not one number per column; `eps` is negative.
    """
    raise NotImplementedError  # TODO(kata): check, choose and launch (about 25 lines with helpers)


def traffic(rows: int, cols: int, itemsize: int) -> dict[str, int]:
    """
    Bytes of `x` and of the result that are moved; weights and statistics are small beside them.

    Returns:
        "single": the row stays on chip; "two_pass": statistics, then the result; "three_pass": the
        mean, the variance around it, then the result.
    """
    raise NotImplementedError  # TODO(kata): (2 lines)
