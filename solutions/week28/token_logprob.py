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

# columns a block at most, and warps
CPU = (64, 1)
GPU = (2048, 2)
GPU_BWD = (4096, 4)


@triton.jit
def _logprob_kernel(
    x_ptr, label_ptr, logp_ptr, lse_ptr, x_stride, V, factor, ignore, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_stride
    label = tl.load(label_ptr + row)
    logp, lse = 0.0, 0.0
    if label != ignore:
        # running maximum and sum
        top = -float("inf")  # one for the row: a maximum for each lane would cost a second exp2
        total, scale = tl.zeros([BLOCK], tl.float32), factor * LOG2E
        for start in tl.range(0, V, BLOCK, num_stages=3):
            cols = start + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + cols, mask=cols < V, other=-float("inf")).to(tl.float32)
            new_top = tl.maximum(top, tl.max(x))
            # until a column is above -inf, -inf - -inf would be computed
            base = tl.where(new_top == -float("inf"), 0.0, new_top)
            total *= tl.exp2((top - base) * scale)
            total += tl.exp2((x - base) * scale)
            top = new_top
        # log-probability of the label
        rest = tl.log(tl.sum(total))
        lse = top * factor + rest
        # not of lse, which has lost digits where logits are large
        logp = (tl.load(x_ptr + label).to(tl.float32) - top) * factor - rest
    # store
    tl.store(logp_ptr + row, logp)
    tl.store(lse_ptr + row, lse)


@triton.jit
def _logprob_bwd_kernel(
    dlogp_ptr, x_ptr, label_ptr, lse_ptr, dx_ptr, x_stride, dx_stride, V, factor, ignore,
    BLOCK: tl.constexpr,
):  # fmt: skip
    # gradient of a block
    blocks = tl.cdiv(V, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    cols = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    label = tl.load(label_ptr + row)
    counts = label != ignore
    mask = cols < V
    x = tl.load(x_ptr + row * x_stride + cols, mask=mask & counts, other=0.0).to(tl.float32)
    p = tl.exp2((x * factor - tl.load(lse_ptr + row)) * LOG2E)
    dx = (tl.where(cols == label, 1.0, 0.0) - p) * (tl.load(dlogp_ptr + row) * factor)
    dx = tl.where(counts, dx, 0.0).to(dx_ptr.dtype.element_ty)
    # store
    tl.store(dx_ptr + row * dx_stride + cols, dx, mask=mask)


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
    # check
    _check(logits, labels, temperature)
    n, v = logits.shape
    if debug and bool((((labels < 0) | (labels >= v)) & (labels != ignore)).any()):
        raise ValueError(f"labels: expected 0 to {v - 1}, or {ignore}")
    # launch
    logp, lse = (torch.empty(n, dtype=torch.float32, device=logits.device) for _ in range(2))
    if n:
        block, warps = GPU if logits.is_cuda else CPU
        _logprob_kernel[(n,)](
            logits, labels, logp, lse, logits.stride(0), v, 1 / temperature, ignore,
            BLOCK=min(block, triton.next_power_of_2(v)), num_warps=warps,
        )  # fmt: skip
    return logp, lse


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
    # check
    _check(logits, labels, temperature)
    _check_rows("dlogp", dlogp, torch.float32, logits)
    _check_rows("lse", lse, torch.float32, logits)
    n, v = logits.shape
    # launch
    dlogits = logits if inplace else torch.empty(n, v, dtype=logits.dtype, device=logits.device)
    if n:
        block, warps = GPU_BWD if logits.is_cuda else CPU
        block = min(block, triton.next_power_of_2(v))
        _logprob_bwd_kernel[(n * triton.cdiv(v, block),)](
            dlogp, logits, labels, lse, dlogits, logits.stride(0), dlogits.stride(0), v,
            1 / temperature, ignore, BLOCK=block, num_warps=warps,
        )  # fmt: skip
    return dlogits


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
