"""Cheat: the kernel doubles, and the library does the rest in another pass over memory."""

import torch
import triton
import triton.language as tl


@triton.jit
def _scaled_kernel(x_ptr, y_ptr, n, block: tl.constexpr):
    offsets = tl.program_id(0) * block + tl.arange(0, block)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, 2 * x, mask=mask)


def scaled(x):
    y = torch.empty_like(x)
    if x.numel():
        _scaled_kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), block=64)
    return y.add_(x)
