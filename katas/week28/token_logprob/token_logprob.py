"""Kata week28/token_logprob: log-probabilities of given tokens from one pass over the logits.

A program streams a row of logits past a running maximum and a running sum. HBM: the logits once,
and two numbers a row; backward the logits once more, and their gradient.
"""

import math

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32, Int64
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LOG2E = tl.constexpr(math.log2(math.e))


@triton.jit
def _logprob_kernel(
    x_ptr, label_ptr, logp_ptr, lse_ptr, x_stride, V, factor, ignore, BLOCK: tl.constexpr
):
    # TODO(kata): running maximum and sum, log-probability of the label, store (about 20 lines)
    pass


@triton.jit
def _logprob_bwd_kernel(
    dlogp_ptr, x_ptr, label_ptr, lse_ptr, dx_ptr, x_stride, dx_stride, V, factor, ignore,
    BLOCK: tl.constexpr,
):  # fmt: skip
    # TODO(kata): gradient of a block, store (about 10 lines)
    pass


def token_logprob(
    logits: Float[Tensor, "n v"],
    labels: Int64[Tensor, " n"],
    temperature: float = 1.0,
    ignore: int = -100,
    debug: bool = False,
) -> tuple[Float32[Tensor, " n"], Float32[Tensor, " n"]]:
    """
    log softmax(logits / temperature) at each row's label, and the log of the softmax's sum.

    In float32, whatever the logits are. Rows whose label is `ignore` are not read; both numbers
    are 0. A column of -inf has probability 0; a row of nothing else has lse = -inf and logp = NaN.

    Args:
        logits: Rows may lie any stride apart.
        labels: One of the columns, or `ignore`; trusted unless `debug`.
        temperature: Above 0.
        ignore: The label of rows that do not count.
        debug: Wait for the device, and refuse labels that are not columns.

    Raises:
        ValueError: `logits` has not two axes or no columns, is not one of `DTYPES`, or bfloat16 on
            the CPU, or its last axis has gaps; `labels` is no contiguous int64 vector of as many
            rows on the same device, or with `debug` holds something else; `temperature` is not
            above 0. The message begins with the argument's name.

    Source: Milakov and Gimelshein 2018, algorithm 3.
    """
    raise NotImplementedError  # TODO(kata): check, launch (about 15 lines with helpers)


def token_logprob_bwd(
    dlogp: Float32[Tensor, " n"],
    logits: Float[Tensor, "n v"],
    labels: Int64[Tensor, " n"],
    lse: Float32[Tensor, " n"],
    temperature: float = 1.0,
    ignore: int = -100,
    inplace: bool = False,
) -> Float[Tensor, "n v"]:
    """
    The gradient of the logits, (1 at the label - softmax) * dlogp / temperature, in their dtype.

    In float32, rounded once. Rows whose label is `ignore` are not read; their gradient is 0,
    whatever `dlogp` is.

    Args:
        dlogp: Gradient of `logp`.
        logits, labels, temperature, ignore: As in the forward pass.
        lse: What that returned.
        inplace: Write the gradient over `logits`, and return it; otherwise a contiguous tensor.

    Raises:
        ValueError: As `token_logprob`; `dlogp` or `lse` is no contiguous float32 vector of as many
            rows on the same device. The message begins with the argument's name.
    """
    raise NotImplementedError  # TODO(kata): check, launch (about 15 lines with helpers)


def _check(logits: Tensor, labels: Tensor, temperature: float) -> None:
    if logits.ndim != 2 or logits.shape[1] == 0 or logits.dtype not in DTYPES:
        raise ValueError(f"logits: expected [n, v] of {DTYPES}, found {_told(logits)}")
    if logits.dtype == torch.bfloat16 and not logits.is_cuda:
        raise ValueError("logits: expected bfloat16 on a GPU only")
    if logits.shape[1] > 1 and logits.stride(1) != 1:
        raise ValueError(f"logits: expected a contiguous last axis, found {_told(logits)}")
    _check_rows("labels", labels, torch.int64, logits)
    if not temperature > 0:
        raise ValueError(f"temperature: expected more than 0, found {temperature}")


def _check_rows(name: str, one: Tensor, dtype: torch.dtype, logits: Tensor) -> None:
    if one.shape != logits.shape[:1] or one.dtype != dtype or one.device != logits.device:
        raise ValueError(f"{name}: expected {len(logits)} of {dtype}, found {_told(one)}")
    if not one.is_contiguous():
        raise ValueError(f"{name}: expected it contiguous, found {_told(one)}")


def _told(one: Tensor) -> str:
    return f"{tuple(one.shape)} {one.dtype} on {one.device}, strides {one.stride()}"
