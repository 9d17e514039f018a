"""Kata week23/moe_permute: rows to their experts and back, each read no more than it has to be.

One program is a token: it reads a row once and stores it k times, or reads k rows and stores one.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32, Int, Int32
from torch import Tensor

LONGEST = 4096  # columns that a program holds at once


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
    # check
    if num_experts < 1:
        raise ValueError(f"num_experts: expected at least 1, found {num_experts}")
    if idx.ndim != 2 or idx.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"idx: expected 2-D int32 or int64, found {idx.dtype} {tuple(idx.shape)}")
    if ((idx < 0) | (idx >= num_experts)).any():
        raise ValueError(f"idx: expected experts 0 to {num_experts - 1}, found others")
    # rows of the choices
    experts = idx.flatten()
    order = experts.argsort(stable=True)
    rows = torch.arange(len(order), dtype=torch.int32, device=idx.device)
    pos = torch.empty_like(rows).scatter_(0, order, rows).view(idx.shape)
    return pos, experts.bincount(minlength=num_experts).to(torch.int32)


@triton.jit
def _permute_kernel(
    x_ptr, pos_ptr, out_ptr, H, x_row_stride, x_col_stride, K: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    # load the row
    token = tl.program_id(0).to(tl.int64)
    for start in range(0, H, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x_ptrs = x_ptr + token * x_row_stride + cols.to(tl.int64) * x_col_stride
        x = tl.load(x_ptrs, mask=cols < H)
        # store it k times
        for choice in tl.static_range(K):
            row = tl.load(pos_ptr + token * K + choice).to(tl.int64)
            tl.store(out_ptr + row * H + cols, x, mask=cols < H)


@triton.jit
def _unpermute_kernel(
    y_ptr, pos_ptr, gates_ptr, out_ptr, H, y_row_stride, y_col_stride,
    K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # sum the k rows
    token = tl.program_id(0).to(tl.int64)
    for start in range(0, H, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        acc = tl.zeros([BLOCK], tl.float32)
        for choice in tl.static_range(K):
            row = tl.load(pos_ptr + token * K + choice).to(tl.int64)
            y_ptrs = y_ptr + row * y_row_stride + cols.to(tl.int64) * y_col_stride
            y = tl.load(y_ptrs, mask=cols < H).to(tl.float32)
            acc += tl.load(gates_ptr + token * K + choice) * y
        out = acc.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + token * H + cols, out, mask=cols < H)


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
    # check
    _check_rows("x", x)
    _check_small("pos", pos, x, torch.int32)
    if len(pos) != len(x):
        raise ValueError(f"pos: expected {len(x)} rows as x has, found {len(pos)}")
    # launch
    (tokens, h), k = x.shape, pos.shape[1]
    out = torch.empty(tokens * k, h, dtype=x.dtype, device=x.device)
    if len(out):
        _permute_kernel[(tokens,)](
            x, pos, out, h, x.stride(0), x.stride(1), K=k, BLOCK=_block(h), num_warps=8
        )
    return out


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
    # check
    _check_rows("y", y)
    _check_small("pos", pos, y, torch.int32)
    if pos.numel() != len(y):
        raise ValueError(f"pos: expected {len(y)} elements as y has rows, found {pos.numel()}")
    _check_small("gates", gates, y, torch.float32)
    if gates.shape != pos.shape:
        raise ValueError(f"gates: expected {tuple(pos.shape)} like pos, found {gates.shape}")
    # launch
    (tokens, k), h = pos.shape, y.shape[1]
    out = torch.empty(tokens, h, dtype=y.dtype, device=y.device)
    if tokens:
        _unpermute_kernel[(tokens,)](
            y, pos, gates, out, h, y.stride(0), y.stride(1), K=k, BLOCK=_block(h), num_warps=8
        )
    return out


def _check_rows(name: str, x: Tensor) -> None:
    if x.ndim != 2 or not x.is_floating_point():
        raise ValueError(f"{name}: expected 2-D floating point, found {x.dtype} {tuple(x.shape)}")
    if x.shape[1] == 0:
        raise ValueError(f"{name}: expected columns, found none")


def _check_small(name: str, small: Tensor, x: Tensor, dtype: torch.dtype) -> None:
    if small.ndim != 2 or small.dtype != dtype or small.device != x.device:
        raise ValueError(
            f"{name}: expected 2-D {dtype} on {x.device}, "
            f"found {tuple(small.shape)} {small.dtype} on {small.device}"
        )
    if not small.is_contiguous():
        raise ValueError(f"{name}: expected it contiguous, found strides {small.stride()}")


def _block(h: int) -> int:
    return min(triton.next_power_of_2(h), LONGEST)
