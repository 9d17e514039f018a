"""Kata week09/lookback_scan: a prefix sum in one pass, its blocks passing their sums on.

HBM: each element is read once and written once; besides that a word of 8 bytes for each block is
written twice and looked at by the blocks after it.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_BLOCK = 16384

# what a block's word says of its value; a word of zeros says nothing
NOTHING = tl.constexpr(0)
AGGREGATE = tl.constexpr(1)  # the sum of the block
PREFIX = tl.constexpr(2)  # the sum of the block and all before it


@triton.jit
def _pack(value, state):
    """One word of 64 bits: the state above the bits of a float32 value."""
    bits = value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return bits | (tl.cast(state, tl.int64) << 32)


@triton.jit
def _unpack(words):
    """Values and states of packed words."""
    return words.to(tl.int32).to(tl.float32, bitcast=True), (words >> 32).to(tl.int32)


@triton.jit
def _lookback_kernel(
    x_ptr, y_ptr, words_ptr, ticket_ptr, n, x_stride, BLOCK: tl.constexpr, WINDOW: tl.constexpr
):
    # ticket
    # blocks are numbered as they start, so that whoever is waited for has started
    block = tl.atomic_add(ticket_ptr, 1, sem="relaxed")  # i64
    # aggregate
    offsets = block * BLOCK + tl.arange(0, BLOCK)  # [BLOCK] i64
    mask = offsets < n
    x = tl.load(x_ptr + offsets * x_stride, mask=mask, other=0.0).to(tl.float32)  # [BLOCK] fp32
    total = tl.sum(x)
    tl.atomic_xchg(words_ptr + block, _pack(total, AGGREGATE), sem="relaxed")

    # look back
    # a word for each thread: of warps that load the same word one may see it earlier than another,
    # and leave the loop alone
    lanes = tl.arange(0, WINDOW)
    before = 0.0
    last = block - 1  # the last block that is not in `before`
    while last >= 0:
        behind = last - lanes  # [WINDOW] i64, the nearest first
        # in front of block 0 lies a prefix of 0
        words = tl.load(words_ptr + behind, mask=behind >= 0, other=PREFIX << 32, volatile=True)
        values, states = _unpack(words)
        nearest = tl.min(tl.where(states == PREFIX, lanes, WINDOW))
        counts = lanes <= nearest
        if tl.min(tl.where(counts, states, PREFIX)) != NOTHING:
            before += tl.sum(tl.where(counts, values, 0.0))
            last = tl.where(nearest < WINDOW, -1, last - WINDOW)
    # prefix and result
    tl.atomic_xchg(words_ptr + block, _pack(before + total, PREFIX), sem="relaxed")

    y = before + tl.cumsum(x)
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)


def lookback_scan(x: Float[Tensor, " n"], block: int = 4096) -> Float[Tensor, " n"]:
    """
    The inclusive prefix sum of `x`, contiguous, in its dtype, by one launch.

    Sums are float32 and rounded once, at the end. The last bits of a sum may change from run to
    run: in which pieces a block adds what lies before it depends on which were faster.

    Args:
        x: The numbers, any stride apart.
        block: Elements for each program, a power of two from 1 to `MAX_BLOCK`.

    Raises:
        ValueError: an argument is not as said above, the dtype is not one of `DTYPES`, or it is
            bfloat16 on the CPU, where the interpreter cannot compute with it.

    Source: Merrill and Garland 2016, Single-pass parallel prefix scan with decoupled look-back.
    """
    # check
    _check(x, block)
    # launch
    n = x.numel()
    y = torch.empty(n, dtype=x.dtype, device=x.device)
    if n:
        blocks = triton.cdiv(n, block)
        scratch = torch.zeros(blocks + 1, dtype=torch.int64, device=x.device)
        num_warps = min(max(block // 1024, 1), 8)
        _lookback_kernel[(blocks,)](
            x, y, scratch, scratch[blocks:], n, x.stride(0),
            BLOCK=block, WINDOW=32 * num_warps, num_warps=num_warps,
        )  # fmt: skip
    return y


def _check(x: Tensor, block: int) -> None:
    if x.ndim != 1:
        raise ValueError(f"x: expected 1-D, found shape {tuple(x.shape)}")
    if x.dtype not in DTYPES or (x.dtype == torch.bfloat16 and not x.is_cuda):
        raise ValueError(f"x: expected one of {DTYPES}, bfloat16 on a GPU only, found {x.dtype}")
    if block not in {2**i for i in range(MAX_BLOCK.bit_length())}:
        raise ValueError(f"block: expected a power of two, 1 to {MAX_BLOCK}, found {block}")
