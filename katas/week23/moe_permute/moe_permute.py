"""Kata week23/moe_permute: rows to their experts and back, each read no more than it has to be.

One program is a token: it reads a row once and stores it k times, or reads k rows and stores one.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32, Int, Int32
from torch import Tensor


def permute_map(
    idx: Int[Tensor, "tokens k"], num_experts: int
) -> tuple[Int32[Tensor, "tokens k"], Int32[Tensor, " experts"]]:
    """
    Where each choice of a token goes when rows are grouped by expert.

    Rows of expert 0 come first, then those of 1; an expert's are in the order of tokens, and of a
    token's choices in the order of `idx`. A fixed number of operators, whatever the sizes are.

    Args:
        idx: Experts of each token, int32 or int64, in any layout.
        num_experts: How many experts there are.

    Returns:
        The row of each choice, and how many rows each expert has; both contiguous.

    Raises:
        ValueError: `num_experts` is below 1, `idx` is not a 2-D int32 or int64 tensor, or holds
            something else than 0 to num_experts - 1. The message begins with the argument's name.
    """
    raise NotImplementedError  # TODO(kata): check, rows of the choices (about 10 lines)


@triton.jit
def _permute_kernel(
    x_ptr, pos_ptr, out_ptr, H, x_row_stride, x_col_stride, K: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    # TODO(kata): load the row, store it k times (about 8 lines)
    pass


@triton.jit
def _unpermute_kernel(
    y_ptr, pos_ptr, gates_ptr, out_ptr, H, y_row_stride, y_col_stride,
    K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # TODO(kata): sum the k rows (about 10 lines)
    pass


def moe_permute(
    x: Float[Tensor, "tokens h"], pos: Int32[Tensor, "tokens k"]
) -> Float[Tensor, "rows h"]:
    """
    Row pos[t, j] of the result is row t of `x`, bit for bit, for each choice j of each token t.

    Args:
        x: In any layout; float16, bfloat16 or float32. Read once.
        pos: As of `permute_map`: each row of the result once. Contiguous.

    Raises:
        ValueError: `x` is not 2-D and floating point or has no columns; shape, dtype or device of
            `pos` do not fit, or it is not contiguous. The message begins with the argument's name.

    Source: Gale et al. 2022 (MegaBlocks, arXiv 2211.15841), section 5.
    """
    raise NotImplementedError  # TODO(kata): check, launch (about 25 lines with helpers)


def moe_unpermute(
    y: Float[Tensor, "rows h"],
    pos: Int32[Tensor, "tokens k"],
    gates: Float32[Tensor, "tokens k"],
) -> Float[Tensor, "tokens h"]:
    """
    Row t of the result is the sum of gates[t, j] times row pos[t, j] of `y`.

    Products and their sum are float32, in the order of j, and rounded once, to the dtype of `y`:
    the same bits every time.

    Args:
        y: In any layout; float16, bfloat16 or float32. Read once.
        pos: As of `permute_map`. Contiguous.
        gates: Contiguous.

    Raises:
        ValueError: `y` is not 2-D and floating point, has no columns, or not a row for each
            element of `pos`; shape, dtype or device of another argument do not fit, or it is not
            contiguous. The message begins with the argument's name.
    """
    raise NotImplementedError  # TODO(kata): check, launch (about 15 lines)
