"""Kata week09/vector_add: one program, one block of elements.

HBM: x and y are read once, the sum is written once.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Shaped
from torch import Tensor


@triton.jit
def _vector_add_kernel(x_ptr, y_ptr, out_ptr, n, x_stride, y_stride, BLOCK: tl.constexpr):
    # locate the block
    # int64: the first element of a block may lie past 2**31
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = start + tl.arange(0, BLOCK)  # [BLOCK] i64
    # mask
    mask = offsets < n  # [BLOCK] i1

    # load and add
    x = tl.load(x_ptr + offsets * x_stride, mask=mask)  # [BLOCK] dtype of x
    y = tl.load(y_ptr + offsets * y_stride, mask=mask)
    # store
    tl.store(out_ptr + offsets, x + y, mask=mask)


def vector_add(
    x: Shaped[Tensor, " n"], y: Shaped[Tensor, " n"], block: int = 1024
) -> Shaped[Tensor, " n"]:
    """
    Element-wise sum, contiguous, in the dtype of the inputs; integers wrap as in torch.

    The inputs may have any stride. A stride of 1 is compiled in as a constant, so contiguous
    operands move 16 bytes per thread and instruction.

    Args:
        x: First operand.
        y: Second operand, of the same shape, dtype and device as `x`.
        block: Elements per program, a power of two.

    Raises:
        ValueError: `x` is not 1-D, or `y` differs from it in shape, dtype or device.
    """
    # check
    if x.ndim != 1:
        raise ValueError(f"x: expected one axis, found shape {tuple(x.shape)}")
    for what in ("shape", "dtype", "device"):
        if getattr(x, what) != getattr(y, what):
            raise ValueError(
                f"y: expected the {what} of x, {getattr(x, what)}, found {getattr(y, what)}"
            )
    # launch
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if n := x.numel():
        _vector_add_kernel[(triton.cdiv(n, block),)](
            x, y, out, n, x.stride(0), y.stride(0), BLOCK=block
        )
    return out
