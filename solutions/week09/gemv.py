"""Kata week09/gemv: a few vectors through one weight matrix, at the speed of its bytes.

HBM: each weight is read once, whatever the number of vectors. Where the rows alone would leave
multiprocessors idle, K is cut into splits, whose sums a second kernel adds in order.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_B = 8
MIN_SPLIT = 1024  # columns: fewer are not worth a program
PROGRAMS_PER_SM = 8
LANE_BYTES = 16  # the widest load of a lane
WARPS = 4
STAGES = 4
SUM_BLOCK = 256


@triton.jit
def _gemv_kernel(
    w_ptr, x_ptr, out_ptr, w_row_stride, x_strides, N, K, split_size,
    B: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)  # [BLOCK_N] i64
    split = tl.program_id(1)
    first = split * split_size
    last = min(first + split_size, K)
    w_rows = w_ptr + rows[:, None] * w_row_stride

    # multiply and add
    # a tile of sums for each vector, so that lanes meet once, after the loop
    accs = (tl.zeros([BLOCK_N, BLOCK_K], tl.float32),) * B
    for start in tl.range(first, last, BLOCK_K, num_stages=STAGES):
        cols = start + tl.arange(0, BLOCK_K)
        mask = (rows < N)[:, None] & (cols < last)[None, :]
        w = tl.load(w_rows + cols[None, :], mask=mask, other=0.0).to(tl.float32)
        sums = ()
        for b in tl.static_range(B):
            x_ptrs = x_ptr + b * x_strides[0] + cols * x_strides[1]
            x = tl.load(x_ptrs, mask=cols < last, other=0.0)  # [BLOCK_K]
            sums = sums + (accs[b] + w * x[None, :],)
        accs = sums

    # reduce the lanes
    for b in tl.static_range(B):
        y = tl.sum(accs[b], axis=1)  # [BLOCK_N] fp32, rounded by the store where there is one split
        tl.store(out_ptr + (split * B + b) * N + rows, y, mask=rows < N)


@triton.jit
def _sum_kernel(part_ptr, y_ptr, size, num_splits, BLOCK: tl.constexpr):
    # add the splits
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK] i32
    mask = offsets < size
    acc = tl.zeros([BLOCK], tl.float32)
    for _ in range(num_splits):
        acc += tl.load(part_ptr + offsets, mask=mask)
        part_ptr += size
    tl.store(y_ptr + offsets, acc, mask=mask)


def gemv(w: Float[Tensor, "n k"], x: Float[Tensor, "b k"], sms: int = 132) -> Float[Tensor, "b n"]:
    """
    x @ w.T for 1 to 8 vectors, contiguous, in the dtype of `w`; each weight is read once.

    Products and sums are float32 and rounded once, at the end. The bits of a vector's result do
    not depend on the other vectors, their number or its place among them, and are the same in
    every run.

    Args:
        w: Weights, a row for each output. Rows may lie any stride apart.
        x: The vectors, strides are free.
        sms: Multiprocessors to keep busy, at least 1: where there is work of 2¹⁵ weights for each
            of them, the first kernel has at least that many programs.

    Raises:
        ValueError: an argument is not as said above, dtypes or devices differ, or bfloat16 tensors
            are on the CPU, where the interpreter cannot compute with them.
    """
    # check
    _check(w, x, sms)
    (N, K), B = w.shape, x.shape[0]
    y = torch.empty((B, N), dtype=w.dtype, device=w.device)
    if not N or not K:
        return y.zero_()
    # count the splits
    BLOCK_N, BLOCK_K = (8, 32 * LANE_BYTES // w.itemsize) if w.is_cuda else (32, 256)
    tiles = triton.cdiv(N, BLOCK_N)
    # from N and K alone: a number that followed B would change the order of the sums
    wanted = min(triton.cdiv(PROGRAMS_PER_SM * sms, tiles), triton.cdiv(K, MIN_SPLIT))
    split_size = triton.cdiv(K, wanted * BLOCK_K) * BLOCK_K
    num_splits = triton.cdiv(K, split_size)
    # launch
    out = y if num_splits == 1 else y.new_empty((num_splits, B, N), dtype=torch.float32)
    _gemv_kernel[(tiles, num_splits)](
        w, x, out, w.stride(0), x.stride(), N, K, split_size,
        B=B, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K, STAGES=STAGES, num_warps=WARPS,
    )  # fmt: skip
    if num_splits > 1:
        _sum_kernel[(triton.cdiv(B * N, SUM_BLOCK),)](out, y, B * N, num_splits, BLOCK=SUM_BLOCK)
    return y


def _check(w: Tensor, x: Tensor, sms: int) -> None:
    if w.ndim != 2 or (w.shape[1] > 1 and w.stride(1) != 1):
        raise ValueError(
            f"w: expected [n, k] with a contiguous last axis, found {tuple(w.shape)}, "
            f"strides {w.stride()}"
        )
    if w.dtype not in DTYPES or (w.dtype == torch.bfloat16 and not w.is_cuda):
        raise ValueError(f"w: expected one of {DTYPES}, bfloat16 on a GPU only, found {w.dtype}")
    if x.ndim != 2 or not 1 <= x.shape[0] <= MAX_B or x.shape[1] != w.shape[1]:
        raise ValueError(f"x: expected [1 to {MAX_B}, {w.shape[1]}], found {tuple(x.shape)}")
    if x.dtype != w.dtype or x.device != w.device:
        raise ValueError(
            f"x: expected {w.dtype} on {w.device} as w has, found {x.dtype} on {x.device}"
        )
    if sms < 1:
        raise ValueError(f"sms: expected at least 1, found {sms}")
