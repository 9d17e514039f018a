"""Wrong on purpose: three kernels read every element twice, and one thing after the other."""

import torch
import triton
import triton.language as tl


@triton.jit
def _sum_kernel(x_ptr, sums_ptr, n, x_stride, BLOCK: tl.constexpr):
    block = tl.program_id(0).to(tl.int64)
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets * x_stride, mask=offsets < n, other=0.0).to(tl.float32)
    tl.store(sums_ptr + block, tl.sum(x))


@triton.jit
def _before_kernel(sums_ptr, before_ptr, blocks):
    before = 0.0
    for block in range(blocks):
        tl.store(before_ptr + block, before)
        before += tl.load(sums_ptr + block)


@triton.jit
def _scan_kernel(x_ptr, before_ptr, y_ptr, n, x_stride, BLOCK: tl.constexpr):
    block = tl.program_id(0).to(tl.int64)
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets * x_stride, mask=offsets < n, other=0.0).to(tl.float32)
    y = tl.load(before_ptr + block) + tl.cumsum(x)
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=offsets < n)


def lookback_scan(x, block=4096):
    n = x.numel()
    y = torch.empty(n, dtype=x.dtype, device=x.device)
    if n:
        blocks = triton.cdiv(n, block)
        sums = torch.empty(2, blocks, dtype=torch.float32, device=x.device)
        _sum_kernel[(blocks,)](x, sums[0], n, x.stride(0), BLOCK=block)
        _before_kernel[(1,)](sums[0], sums[1], blocks)
        _scan_kernel[(blocks,)](x, sums[1], y, n, x.stride(0), BLOCK=block)
    return y
