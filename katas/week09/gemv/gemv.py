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


@triton.jit
def _gemv_kernel(
    w_ptr, x_ptr, out_ptr, w_row_stride, x_strides, N, K, split_size,
    B: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    # TODO(kata): multiply and add, reduce the lanes (about 20 lines with helpers)
    pass


@triton.jit
def _sum_kernel(part_ptr, y_ptr, size, num_splits, BLOCK: tl.constexpr):
    # TODO(kata): add the splits (about 7 lines)
    pass


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
    # TODO(kata): check, count the splits, launch (about 20 lines with helpers)
    raise NotImplementedError


def _check(w: Tensor, x: Tensor, sms: int) -> None:
    raise NotImplementedError  # TODO(kata): check (about 15 lines)
