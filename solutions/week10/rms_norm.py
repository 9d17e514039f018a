"""Kata week10/rms_norm: add the residual and normalise in one pass, and the gradients of that.

HBM, forward: x and the residual are read, the new residual and the result are written. Backward:
dy and h are read and dh is written; the sums over rows cross memory as one float32 row per program.
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
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)  # [BLOCK] i32
    mask = cols < n_cols  # [BLOCK] i1
    dtype = y_ptr.dtype.element_ty

    # add the residual
    h = tl.load(x_ptr + row * x_row_stride + cols, mask=mask, other=0.0)
    if ADD:
        residual_ptrs = residual_ptr + row * residual_row_stride + cols
        # in the dtype of x: what is normalised is what the next layer will find in the residual
        h += tl.load(residual_ptrs, mask=mask, other=0.0)
        tl.store(residual_ptrs, h, mask=mask)

    # normalise
    h = h.to(tl.float32)  # [BLOCK] fp32
    rstd = tl.rsqrt(tl.sum(h * h) / n_cols + eps)
    x_hat = h * rstd
    w = tl.load(w_ptr + cols, mask=mask).to(tl.float32)
    y = x_hat * (w + 1.0) if GEMMA else x_hat.to(dtype) * w
    tl.store(y_ptr + row * n_cols + cols, y, mask=mask)
    tl.store(rstd_ptr + row, rstd)


@triton.jit
def _rms_norm_bwd_kernel(
    dy_ptr, h_ptr, w_ptr, rstd_ptr, dh_ptr, partial_ptr, dy_row_stride, h_row_stride,
    n_rows, n_cols, GEMMA: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(0)
    groups = tl.num_programs(0)
    cols = tl.arange(0, BLOCK)  # [BLOCK] i32
    mask = cols < n_cols  # [BLOCK] i1

    w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    if GEMMA:
        w += 1.0
    dw = tl.zeros([BLOCK], tl.float32)
    # gradients of row and weights
    # stages: the next rows are on their way while this one is reduced
    for number in tl.range(group, n_rows, groups, num_stages=STAGES):
        row = tl.cast(number, tl.int64)
        dy = tl.load(dy_ptr + row * dy_row_stride + cols, mask=mask, other=0.0).to(tl.float32)
        h = tl.load(h_ptr + row * h_row_stride + cols, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row)
        x_hat = h * rstd  # [BLOCK] fp32
        dw += dy * x_hat
        dx_hat = dy * w
        along_x_hat = tl.sum(dx_hat * x_hat) / n_cols
        dh = rstd * (dx_hat - x_hat * along_x_hat)
        tl.store(dh_ptr + row * n_cols + cols, dh, mask=mask)
    tl.store(partial_ptr + group * n_cols + cols, dw, mask=mask)


@triton.jit
def _sum_groups_kernel(
    partial_ptr, dw_ptr, n_groups, n_cols, BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr
):
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)  # [BLOCK_N] i32
    # add up the groups
    acc = tl.zeros([BLOCK_G, BLOCK_N], tl.float32)
    for start in range(0, n_groups, BLOCK_G):
        groups = start + tl.arange(0, BLOCK_G)
        mask = (groups[:, None] < n_groups) & (cols[None, :] < n_cols)
        acc += tl.load(partial_ptr + groups[:, None] * n_cols + cols[None, :], mask=mask, other=0.0)
    tl.store(dw_ptr + cols, tl.sum(acc, axis=0), mask=cols < n_cols)


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
    # check
    _check_rows("x", x)
    rows, cols = x.shape
    if residual is not None:
        _check_rows("residual", residual, like=x)
        if rows > 1 and residual.stride(0) < cols:
            raise ValueError(f"residual: expected rows apart, found strides {residual.stride()}")
        if rows and _meet(x, residual):
            raise ValueError("residual: expected memory of its own, found that x shares it")
    _check_vector("w", w, cols, x.dtype)
    if not eps >= 0:
        raise ValueError(f"eps: expected 0 or more, found {eps}")

    # allocate and launch
    y = torch.empty(rows, cols, dtype=x.dtype, device=x.device)
    rstd = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        BLOCK = triton.next_power_of_2(cols)
        # a kernel that does not add does not look at it
        h = x if residual is None else residual
        _rms_norm_kernel[(rows,)](
            x, h, w, y, rstd, x.stride(0), h.stride(0), cols, eps,
            ADD=residual is not None, GEMMA=gemma, BLOCK=BLOCK, num_warps=_num_warps(BLOCK),
        )  # fmt: skip
    return y, rstd


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
    # check
    _check_rows("h", h)
    rows, cols = h.shape
    _check_rows("dy", dy, like=h)
    _check_vector("w", w, cols, h.dtype)
    _check_vector("rstd", rstd, rows, torch.float32)
    if groups < 1:
        raise ValueError(f"groups: expected at least 1, found {groups}")

    # allocate and launch
    groups = min(groups, rows)
    dh = torch.empty(rows, cols, dtype=h.dtype, device=h.device)
    dw = torch.empty(cols, dtype=h.dtype, device=h.device)
    partial = torch.empty(groups, cols, dtype=torch.float32, device=h.device)
    if rows:
        BLOCK = triton.next_power_of_2(cols)
        _rms_norm_bwd_kernel[(groups,)](
            dy, h, w, rstd, dh, partial, dy.stride(0), h.stride(0), rows, cols,
            GEMMA=gemma, BLOCK=BLOCK, num_warps=_num_warps(BLOCK),
            # of the longest row, 64 KiB are on their way
            STAGES=3 if h.element_size() == 2 else 2,
        )  # fmt: skip
    # narrow tiles, or a GPU has too few programs; wide ones where programs are interpreted
    BLOCK_N = 32 if h.is_cuda else 128
    grid = (triton.cdiv(cols, BLOCK_N),)
    _sum_groups_kernel[grid](partial, dw, groups, cols, BLOCK_G=32, BLOCK_N=BLOCK_N)
    return dh, dw


def _check_rows(name: str, given: Tensor, like: Tensor | None = None) -> None:
    # check
    if like is not None and (given.shape != like.shape or given.dtype != like.dtype):
        want, found = (f"{one.dtype} of {tuple(one.shape)}" for one in (like, given))
        raise ValueError(f"{name}: expected {want}, found {found}")
    if given.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise ValueError(f"{name}: expected float16, bfloat16 or float32, found {given.dtype}")
    if given.ndim != 2 or not 0 < given.shape[1] <= MAX_COLS:
        raise ValueError(f"{name}: expected [rows, 1 to {MAX_COLS}], found {tuple(given.shape)}")
    if given.shape[1] > 1 and given.stride(1) != 1:
        raise ValueError(f"{name}: expected a contiguous last axis, found {given.stride()}")


def _check_vector(name: str, given: Tensor, size: int, dtype: torch.dtype) -> None:
    # check
    if given.shape != (size,) or given.dtype != dtype:
        found = f"{given.dtype} of {tuple(given.shape)}"
        raise ValueError(f"{name}: expected {dtype} of ({size},), found {found}")
    if not given.is_contiguous():
        raise ValueError(f"{name}: expected a contiguous vector, found strides {given.stride()}")


def _meet(a: Tensor, b: Tensor) -> bool:
    """Whether the memory from first to last element of one meets that of the other."""
    return _end(a) > b.data_ptr() and _end(b) > a.data_ptr()


def _end(one: Tensor) -> int:
    rows, cols = one.shape
    return one.data_ptr() + ((rows - 1) * one.stride(0) + cols) * one.element_size()


def _num_warps(block: int) -> int:
    """16 elements a thread: of few rows in flight at once, all loads are on their way."""
    return triton.cdiv(block, 512)
