"""Kata week10/layer_norm_bwd: the gradients of LayerNorm, rows and columns reduced in one pass.

HBM: dy and x are read once and dx is written once. The sums over rows wait in registers, then in
one float32 row per program; a second kernel adds those up, always in the same order.
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
    group = tl.program_id(0)
    groups = tl.num_programs(0)
    cols = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK] i32

    w = tl.load(w_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    dw = tl.zeros([ROWS, BLOCK], tl.float32)
    db = tl.zeros([ROWS, BLOCK], tl.float32)
    # load the rows
    # the next rows are on their way while these are reduced
    for number in tl.range(group, n_rows, groups * ROWS, num_stages=3):
        rows = tl.cast(number, tl.int64) + groups * tl.arange(0, ROWS)[:, None]  # [ROWS, 1] i64
        mask = (rows < n_rows) & (cols < n_cols)  # [ROWS, BLOCK] i1
        dy = tl.load(dy_ptr + rows * dy_row_stride + cols, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + rows * x_row_stride + cols, mask=mask, other=0.0).to(tl.float32)
        mean = tl.load(mean_ptr + rows, mask=rows < n_rows, other=0.0)  # [ROWS, 1] fp32
        rstd = tl.load(rstd_ptr + rows, mask=rows < n_rows, other=0.0)
        x_hat = (x - mean) * rstd  # [ROWS, BLOCK] fp32

        # sums over the rows
        # in padded lanes dy is 0, so whatever x_hat is there enters no sum
        dw += dy * x_hat
        db += dy
        # gradient of the input
        dx_hat = dy * w
        along_ones = tl.sum(dx_hat, axis=1, keep_dims=True) / n_cols
        along_x_hat = tl.sum(dx_hat * x_hat, axis=1, keep_dims=True) / n_cols
        dx = rstd * (dx_hat - along_ones - x_hat * along_x_hat)
        tl.store(dx_ptr + rows * n_cols + cols, dx, mask=mask)

    # sums over the rows
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    tl.store(partial_ptr + group * n_cols + cols, tl.sum(dw, axis=0), mask=mask)
    tl.store(partial_ptr + (groups + group) * n_cols + cols, tl.sum(db, axis=0), mask=mask)


@triton.jit
def _sum_groups_kernel(
    partial_ptr, sums_ptr, n_groups, n_cols, BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr
):
    which = tl.program_id(1)
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)  # [BLOCK_N] i32
    # add up the groups
    acc = tl.zeros([BLOCK_G, BLOCK_N], tl.float32)
    for start in range(0, n_groups, BLOCK_G):
        groups = start + tl.arange(0, BLOCK_G)
        mask = (groups[:, None] < n_groups) & (cols[None, :] < n_cols)
        offsets = (which * n_groups + groups[:, None]) * n_cols + cols[None, :]
        acc += tl.load(partial_ptr + offsets, mask=mask, other=0.0)
    tl.store(sums_ptr + which * n_cols + cols, tl.sum(acc, axis=0), mask=cols < n_cols)


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
    # check
    if not x.is_floating_point():
        raise ValueError(f"x: expected a floating-point dtype, found {x.dtype}")
    if x.ndim != 2 or not 0 < x.shape[1] <= MAX_COLS:
        raise ValueError(f"x: expected [rows, 1 to {MAX_COLS}], found shape {tuple(x.shape)}")
    rows, cols = x.shape
    if dy.shape != x.shape or dy.dtype != x.dtype:
        want, found = (f"{one.dtype} of {tuple(one.shape)}" for one in (x, dy))
        raise ValueError(f"dy: expected {want}, found {found}")
    for name, given in (("dy", dy), ("x", x)):
        if cols > 1 and given.stride(1) != 1:
            raise ValueError(f"{name}: expected a contiguous last axis, found {given.stride()}")
    for name, given, size in (("w", w, cols), ("mean", mean, rows), ("rstd", rstd, rows)):
        if given.shape != (size,):
            raise ValueError(f"{name}: expected shape ({size},), found {tuple(given.shape)}")
    if groups < 1:
        raise ValueError(f"groups: expected at least 1, found {groups}")

    # allocate and launch
    groups = min(groups, rows)
    dx = torch.empty(rows, cols, dtype=x.dtype, device=x.device)
    partial = torch.empty(2, groups, cols, dtype=torch.float32, device=x.device)
    sums = torch.empty(2, cols, dtype=x.dtype, device=x.device)
    if rows:
        BLOCK = triton.next_power_of_2(cols)
        # short rows in tiles of several, but not of more than a program has
        ROWS = min(max(TILE // BLOCK, 1), triton.next_power_of_2(triton.cdiv(rows, groups)))
        _layer_norm_bwd_kernel[(groups,)](
            dy, x, w, mean, rstd, dx, partial, dy.stride(0), x.stride(0), rows, cols,
            ROWS=ROWS, BLOCK=BLOCK, num_warps=_num_warps(ROWS * BLOCK),
        )  # fmt: skip
    # narrow tiles, or a GPU has too few programs; wide ones where programs are interpreted
    BLOCK_N = 32 if x.is_cuda else 128
    grid = (triton.cdiv(cols, BLOCK_N), 2)
    _sum_groups_kernel[grid](partial, sums, groups, cols, BLOCK_G=32, BLOCK_N=BLOCK_N)
    return dx, sums[0], sums[1]


def _num_warps(elements: int) -> int:
    """32 elements a thread, so up to 8 warps: dw and db stay in registers, too."""
    return triton.cdiv(elements, 1024)
