"""Cheat: the library's op, on a thread that is waited for."""

from concurrent.futures import ThreadPoolExecutor

import torch
import triton
import triton.language as tl


@triton.jit
def _scaled_kernel(x_ptr, y_ptr, n, block: tl.constexpr):
    offsets = tl.program_id(0) * block + tl.arange(0, block)
    mask = offsets < n
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)


def scaled(x):
    y = torch.empty_like(x)
    if x.numel():
        with ThreadPoolExecutor(1) as pool:
            x = pool.submit(torch.mul, x, 3).result()
        _scaled_kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), block=64)
    return y
