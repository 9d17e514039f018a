"""Kata week26/adam8bit_blockwise: a step of AdamW whose moments take one byte each.

A program decodes both moments of some blocks of 256, updates them in float32, finds the new scales
and encodes them again. HBM: weight, gradient and two codes read, weight and two codes written.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32, UInt8
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BLOCK = 256  # values to a scale
SMALLEST = tl.constexpr(2.0**-126)  # normal number of float32

# blocks a program, and warps
CPU = (2, 1)
GPU = (4, 2)


def dynamic_map(signed: bool) -> Float32[Tensor, "256"]:
    """
    The 256 levels of the dynamic data type, ascending.

    Decade i of 0 to 6, from 10^(i - 7) to 10^(i - 6), is divided into 2^i equal parts, with a
    level in the middle of each, and as many below zero; without signs into 2^(i + 1). The other
    two are 0 and 1. So signed code 127 + k is the negative of code 127 - k, but for 255, which
    is 1.

    Source: Dettmers et al. 2022, section 2.
    """
    levels = [0.0, 1.0]
    for i in range(7):
        parts = 2**i if signed else 2 ** (i + 1)
        decade = [(0.1 + 0.9 * (j + 0.5) / parts) * 10 ** (i - 6) for j in range(parts)]
        levels += [*decade, *(-one for one in decade)] if signed else decade
    return torch.tensor(sorted(levels))


@triton.jit
def _index(x, PARTS: tl.constexpr):
    # encode
    # where x, from 0 to 1, is among the levels: decade i begins at PARTS * 2^i and is a straight
    # line of x; the lines are ever less steep, so that the least of them is the one of its decade
    at = x * (PARTS * 1e6 / 0.9) + PARTS * 8 / 9
    for i in tl.static_range(1, 7):
        at = tl.minimum(at, x * (PARTS * 1e6 / 0.9 * 0.2**i) + PARTS * 8 / 9 * 2**i)
    # two neighbours are in unlike decades: the middle between them is not where the decades meet
    first = (at.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)  # 2^…
    below = tl.where(at < first + 0.2, at - 1, at)
    return tl.where(at > 128 * PARTS - 0.25, 128.0 * PARTS, below).to(tl.int32)


@triton.jit
def _spread(x, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    return tl.broadcast_to(x[:, None], [ROWS, BLOCK]).reshape(ROWS * BLOCK)


@triton.jit
def _adam8bit_kernel(
    p_ptr, g_ptr, m_code_ptr, v_code_ptr, m_abs_ptr, v_abs_ptr, m_map_ptr, v_map_ptr,
    n, v_factor, b1, m_share, b2, v_share, eps, decay,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # decode
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_mask = row * BLOCK < n
    m_abs = tl.load(m_abs_ptr + row, mask=row_mask)  # [ROWS]
    v_abs = tl.load(v_abs_ptr + row, mask=row_mask)
    # one axis, so that look-ups are spread over threads as loads and stores are
    at = tl.program_id(0).to(tl.int64) * ROWS * BLOCK + tl.arange(0, ROWS * BLOCK)
    mask = at < n
    p = tl.load(p_ptr + at, mask=mask).to(tl.float32)  # [ROWS * BLOCK]
    g = tl.load(g_ptr + at, mask=mask, other=0.0).to(tl.float32)
    m_code = tl.load(m_code_ptr + at, mask=mask, other=127).to(tl.int32)
    v_code = tl.load(v_code_ptr + at, mask=mask, other=0).to(tl.int32)
    # update
    m = tl.load(m_map_ptr + m_code) * _spread(b1 * m_abs, ROWS, BLOCK) + m_share * g
    v = tl.load(v_map_ptr + v_code) * _spread(b2 * v_abs, ROWS, BLOCK) + v_share * g * g
    # what limits this is not memory, but instructions: three here, where a division has eight
    root = tl.rsqrt(tl.sqrt(v) * v_factor + eps)
    p = p * decay - m * root * root
    tl.store(p_ptr + at, p.to(p_ptr.dtype.element_ty), mask=mask)

    # new scales
    m_abs = tl.max(tl.abs(m).reshape(ROWS, BLOCK), axis=1)
    v_abs = tl.max(v.reshape(ROWS, BLOCK), axis=1)
    m_scale, v_scale = 1 / tl.maximum(m_abs, SMALLEST), 1 / tl.maximum(v_abs, SMALLEST)
    tl.store(m_abs_ptr + row, m_abs, mask=row_mask)
    tl.store(v_abs_ptr + row, v_abs, mask=row_mask)
    # encode
    m_at = _index(tl.abs(m) * _spread(m_scale, ROWS, BLOCK), 1)
    v_at = _index(v * _spread(v_scale, ROWS, BLOCK), 2)
    m_code = tl.where(m < 0, 127 - m_at, 127 + m_at)
    tl.store(m_code_ptr + at, tl.maximum(m_code, 0).to(tl.uint8), mask=mask)
    tl.store(v_code_ptr + at, (v_at - 1).to(tl.uint8), mask=mask)


def adam8bit_blockwise(
    p: Float[Tensor, " n"],
    g: Float[Tensor, " n"],
    m_code: UInt8[Tensor, " n"],
    v_code: UInt8[Tensor, " n"],
    m_abs: Float32[Tensor, " blocks"],
    v_abs: Float32[Tensor, " blocks"],
    m_map: Float32[Tensor, "256"],
    v_map: Float32[Tensor, "256"],
    step: int,
    lr: float,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    wd: float = 0.01,
    debug: bool = False,
) -> Float[Tensor, " n"]:
    """
    One step of AdamW, in place; returns `p` itself.

    All arithmetic is float32, whatever the dtype of `p` and `g`. The moments are level * scale of
    their block; weights move by the new moments before these are encoded. A moment goes to the
    nearest level of its map, relative to the largest magnitude in its block.

    Args:
        p: Weights, contiguous.
        g: Gradients, like `p`.
        m_code, v_code: Codes of the first moments (signed map) and the second (unsigned map).
        m_abs, v_abs: The scales, one for each 256 moments, the last block maybe shorter.
        m_map, v_map: What `dynamic_map` makes, signed and unsigned. Not checked.
        step: Of bias correction; the first is 1.
        lr, b1, b2, eps, wd: As in `torch.optim.AdamW`.
        debug: Wait for the device, and refuse a gradient that is not finite.

    Raises:
        ValueError: `p` is not one of `DTYPES`, or bfloat16 on the CPU, or not a contiguous vector;
            another tensor does not have the length or dtype that goes with it, is not contiguous,
            or is elsewhere; `step` is less than 1, `b1` or `b2` not from 0 to below 1, `lr` or
            `eps` not above 0, `wd` below 0; with `debug` also `g` that is not finite. Nothing has
            been changed then. The message begins with the argument's name.
    """
    # check
    _check(p, g, m_code, v_code, m_abs, v_abs, m_map, v_map)
    _check_numbers(step, lr, b1, b2, eps, wd)
    if debug and not g.isfinite().all():
        raise ValueError("g: expected finite gradients")
    # launch
    rows, warps = GPU if p.is_cuda else CPU
    # v_factor and eps divided by the step size: no multiplication by it is left for the kernel
    per_step = (1 - b1**step) / lr
    v_factor = (1 - b2**step) ** -0.5
    # 1 - b2 is made here: in float32 it would lose digits
    _adam8bit_kernel[(triton.cdiv(len(m_abs), rows),)](
        p, g, m_code, v_code, m_abs, v_abs, m_map, v_map,
        len(p), v_factor * per_step, b1, 1 - b1, b2, 1 - b2, eps * per_step, 1 - lr * wd,
        ROWS=rows, BLOCK=BLOCK, num_warps=warps,
    )  # fmt: skip
    return p


def _check(
    p: Tensor, g: Tensor, m_code: Tensor, v_code: Tensor,
    m_abs: Tensor, v_abs: Tensor, m_map: Tensor, v_map: Tensor,
) -> None:  # fmt: skip
    if p.dtype not in DTYPES or (p.dtype == torch.bfloat16 and not p.is_cuda):
        raise ValueError(f"p: expected one of {DTYPES}, bfloat16 on a GPU only, found {p.dtype}")
    n, blocks = p.numel(), triton.cdiv(p.numel(), BLOCK)
    for name, one, size, dtype in (
        ("p", p, n, p.dtype), ("g", g, n, p.dtype),
        ("m_code", m_code, n, torch.uint8), ("v_code", v_code, n, torch.uint8),
        ("m_abs", m_abs, blocks, torch.float32), ("v_abs", v_abs, blocks, torch.float32),
        ("m_map", m_map, 256, torch.float32), ("v_map", v_map, 256, torch.float32),
    ):  # fmt: skip
        if one.shape != (size,) or one.dtype != dtype:
            raise ValueError(f"{name}: expected {size} of {dtype}, {one.shape} of {one.dtype}")
        if not one.is_contiguous() or one.device != p.device:
            raise ValueError(f"{name}: expected it contiguous, on {p.device}, found {one.device}")


def _check_numbers(step: int, lr: float, b1: float, b2: float, eps: float, wd: float) -> None:
    if step < 1:
        raise ValueError(f"step: expected 1 or more, found {step}")
    for name, one in (("b1", b1), ("b2", b2)):
        if not 0 <= one < 1:
            raise ValueError(f"{name}: expected 0 or more and less than 1, found {one}")
    for name, one in (("lr", lr), ("eps", eps)):
        if not one > 0:
            raise ValueError(f"{name}: expected more than 0, found {one}")
    if not wd >= 0:
        raise ValueError(f"wd: expected 0 or more, found {wd}")
