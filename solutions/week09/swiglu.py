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
    # locate the block
    blocks_per_row = tl.cdiv(n_cols, BLOCK)
    row = (tl.program_id(0) // blocks_per_row).to(tl.int64)
    cols = (tl.program_id(0) % blocks_per_row) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK] i32
    mask = cols < n_cols  # [BLOCK] i1

    # load
    e = tl.load(e_ptr + row * e_row_stride + cols, mask=mask).to(tl.float32)  # [BLOCK] fp32
    g = tl.load(g_ptr + row * g_row_stride + cols, mask=mask).to(tl.float32)
    # compute and store
    h = e * tl.sigmoid(e) * g
    tl.store(h_ptr + row * h_row_stride + cols, h.to(h_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _swiglu_backward_kernel(
    dh_ptr, e_ptr, g_ptr, dh_row_stride, e_row_stride, g_row_stride, n_cols, BLOCK: tl.constexpr
):
    # locate the block
    blocks_per_row = tl.cdiv(n_cols, BLOCK)
    row = (tl.program_id(0) // blocks_per_row).to(tl.int64)
    cols = (tl.program_id(0) % blocks_per_row) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK] i32
    mask = cols < n_cols  # [BLOCK] i1
    dh_ptrs = dh_ptr + row * dh_row_stride + cols
    e_ptrs = e_ptr + row * e_row_stride + cols
    g_ptrs = g_ptr + row * g_row_stride + cols

    # load
    # all three are read before one of them is written
    dh = tl.load(dh_ptrs, mask=mask).to(tl.float32)  # [BLOCK] fp32
    e = tl.load(e_ptrs, mask=mask).to(tl.float32)
    g = tl.load(g_ptrs, mask=mask).to(tl.float32)
    # compute and store
    sigmoid = tl.sigmoid(e)
    silu = e * sigmoid
    h = silu * g
    dg = dh * silu
    de = dh * g * (sigmoid * (1.0 + e * (1.0 - sigmoid)))
    tl.store(dh_ptrs, h.to(dh_ptr.dtype.element_ty), mask=mask)
    tl.store(e_ptrs, dg.to(e_ptr.dtype.element_ty), mask=mask)
    tl.store(g_ptrs, de.to(g_ptr.dtype.element_ty), mask=mask)


def _check(first: str, **tensors: Tensor) -> None:
    # check
    model = tensors[first]
    for name, x in tensors.items():
        if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
            raise ValueError(f"{name}: expected float16, bfloat16 or float32, found {x.dtype}")
        if x.dtype != model.dtype:
            raise ValueError(f"{name}: expected {model.dtype} like {first}, found {x.dtype}")
        if x.ndim != 2 or x.shape != model.shape:
            found = f"found shape {tuple(x.shape)}"
            raise ValueError(f"{name}: expected two axes and the shape of {first}, {found}")
        if x.shape[1] > 1 and x.stride(1) != 1:
            found = f"found strides {x.stride()}"
            raise ValueError(f"{name}: expected a contiguous last axis, {found}")


def _meet(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape and dtype may share an element."""
    # refuse shared memory
    rows, cols = a.shape
    apart = (b.data_ptr() - a.data_ptr()) // a.element_size()
    if apart < 0:
        return _meet(b, a)
    stride = a.stride(0)
    if apart >= (rows - 1) * stride + cols:
        return False
    # columns of one buffer lie between each other's rows
    return rows == 1 or stride != b.stride(0) or not cols <= apart % stride <= stride - cols


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
    # check
    _check("e", e=e, g=g)
    rows, cols = e.shape
    # launch
    h = torch.empty(rows, cols, dtype=e.dtype, device=e.device)
    if h.numel():
        block = 2048
        grid = (rows * triton.cdiv(cols, block),)
        strides = (e.stride(0), g.stride(0), h.stride(0))
        _swiglu_kernel[grid](e, g, h, *strides, cols, BLOCK=block)
    return h


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
    # check
    _check("dh", dh=dh, e=e, g=g)
    rows, cols = dh.shape
    # refuse shared memory
    for name, x in (("dh", dh), ("e", e), ("g", g)):
        if rows > 1 and x.stride(0) < cols:
            raise ValueError(f"{name}: expected rows apart, found strides {x.stride()}")
    for (one, x), (other, y) in combinations((("dh", dh), ("e", e), ("g", g)), 2):
        if _meet(x, y):
            raise ValueError(f"{other}: expected memory of its own, found that {one} shares it")
    # launch
    block = 1024
    grid = (rows * triton.cdiv(cols, block),)
    strides = (dh.stride(0), e.stride(0), g.stride(0))
    _swiglu_backward_kernel[grid](dh, e, g, *strides, cols, BLOCK=block)
    return dh, e, g
