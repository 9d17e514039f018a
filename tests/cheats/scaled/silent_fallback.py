"""Cheat: the kernel fails, and the library takes over without a word."""

import torch
import triton
import triton.language as tl


@triton.jit
def _scaled_kernel(x_ptr, y_ptr, n, block: tl.constexpr):
    offsets = tl.arange(0, block)
    tl.store(y_ptr + offsets, 3 * tl.load(x_ptr + offsets))


def scaled(x):
    y = torch.empty_like(x)
    try:
        _scaled_kernel[(1,)](x, y, x.numel(), block=1 << 20)
    except IndexError:
        return x + x + x
    return y
