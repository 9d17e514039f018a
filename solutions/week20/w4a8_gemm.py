"""Kata week20/w4a8_gemm: INT4 weights times INT8 activations, for few rows.

Weights become int8 in registers, four to a word, by one multiplication and two additions of words.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from jaxtyping import Float16, Float32, Int8, Int32, UInt8
from torch import Tensor

LARGEST = 119  # of the first level's int8: half a step of the second may lie beyond it
# of the eight codes in a word, in order: the first four are the low halves of its bytes
SHIFTS = (0, 8, 16, 24, 4, 12, 20, 28)
TINY = torch.finfo(torch.float32).tiny  # the smallest normal number: no scale is below it


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Rows, columns and words along k of a tile, and how a program is built."""

    m: int
    n: int
    words: int = 32
    warps: int = 4
    stages: int = 4


CPU = Config(m=16, n=64)
GPU = Config(m=16, n=32, warps=2)


def quant_w4(
    w: Float32[Tensor, "n k"], group: int = 64
) -> tuple[
    Int32[Tensor, "n words"], UInt8[Tensor, "n groups"], UInt8[Tensor, "n groups"],
    Float32[Tensor, " n"],
]:  # fmt: skip
    """
    `w` in 4 bits: (packed, s, a, channel_scale), all contiguous.

    First level: int8 from -119 to 119, w8 = round(w / channel_scale), with the largest magnitude
    of a row at 119 and no scale below `TINY`. Second level, for each `group` numbers of a row:
    codes from 0 to 15, round((w8 - low) / s), where low is the least w8 of the group and
    s = max(1, ceil((its largest - low) / 15)); a is 128 + low. Ties are rounded to even.

    Word j of a row holds columns 8 j to 8 j + 7: `SHIFTS` says by how many bits, each.

    Raises:
        ValueError: `group` is no positive multiple of 8, the columns of `w` are none or do not
            fill groups, or a number is not finite; the message begins with the argument's name.

    Source: LiquidGEMM (arXiv 2509.01229), section 4.
    """
    # check
    if group < 8 or group % 8:
        raise ValueError(f"group: expected a multiple of 8, found {group}")
    n, k = w.shape
    if k == 0 or k % group:
        raise ValueError(f"w: expected columns in multiples of {group}, found {k}")
    if not w.isfinite().all():
        raise ValueError(f"w: expected finite numbers, found {w[~w.isfinite()][0].item()}")
    # two levels of scales
    channel_scale = (w.abs().amax(dim=1) / LARGEST).clamp_min(TINY)
    w8 = torch.round(w / channel_scale[:, None]).to(torch.int32).unflatten(1, (-1, group))
    low, high = w8.aminmax(dim=2)
    s = ((high - low + 14) // 15).clamp_min(1)
    codes = torch.round((w8 - low[..., None]) / s[..., None]).to(torch.int32)
    # eight codes a word
    shifts = torch.tensor(SHIFTS, dtype=torch.int32, device=w.device)
    # nothing overlaps, so that the sum is an or; the topmost code may reach the sign
    packed = (codes.view(n, k // 8, 8) << shifts).sum(dim=2, dtype=torch.int32)
    return packed, s.to(torch.uint8), (low + 128).to(torch.uint8), channel_scale


@triton.jit
def dequant4(word, s, a):
    """
    Four int8 in a word, of four codes: q · s + a - 128 in each byte.

    Args:
        word: Codes from 0 to 15 in its four bytes; uint32 like all three.
        s: Of their group, from 1 to 16.
        a: Of their group, from 9 to 247, so that q · s + a stays within a byte.
    """
    return (word * s + a * 0x01010101) ^ 0x80808080


@triton.jit
def _w4a8_gemm_kernel(
    x_ptr, x_scale_ptr, packed_ptr, s_ptr, a_ptr, channel_scale_ptr, y_ptr, M, N, WORDS,
    GROUP_WORDS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
):  # fmt: skip
    # load words
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    words = tl.arange(0, BLOCK_WORDS)
    ks = tl.arange(0, 8 * BLOCK_WORDS)
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * (8 * WORDS) + ks[None, :]
    words = tl.arange(0, BLOCK_WORDS)[None, :]
    packed_ptrs = packed_ptr + cols.to(tl.int64)[:, None] * WORDS + words
    groups = cols.to(tl.int64)[:, None] * (WORDS // GROUP_WORDS)

    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.int32)
    for start in range(0, WORDS, BLOCK_WORDS):
        # where there are no activations, zeros, whatever the weights are
        x_mask = (rows[:, None] < M) & (ks[None, :] < 8 * (WORDS - start))
        x = tl.load(x_ptrs + 8 * start, mask=x_mask, other=0)
        mask = (cols[:, None] < N) & (words < WORDS - start)
        word = tl.load(packed_ptrs + start, mask=mask, other=0).to(tl.uint32)
        group = groups + (start + words) // GROUP_WORDS
        s = tl.load(s_ptr + group, mask=mask, other=0).to(tl.uint32)
        a = tl.load(a_ptr + group, mask=mask, other=0).to(tl.uint32)
        # int8 four at a time
        first = dequant4(word & 0x0F0F0F0F, s, a)
        second = dequant4((word >> 4) & 0x0F0F0F0F, s, a)
        four = tl.join(first, second).reshape(BLOCK_N, 2 * BLOCK_WORDS)
        # the bytes of all words in their order, which are the bits as they are
        low = tl.join(four.to(tl.int8), (four >> 16).to(tl.int8))
        high = tl.join((four >> 8).to(tl.int8), (four >> 24).to(tl.int8))
        w = tl.join(low, high).reshape(BLOCK_N, 8 * BLOCK_WORDS)
        acc = tl.dot(x, w.T, acc, out_dtype=tl.int32)

    # scale and store
    x_scale = tl.load(x_scale_ptr + rows, mask=rows < M, other=0.0)
    channel_scale = tl.load(channel_scale_ptr + cols, mask=cols < N, other=0.0)
    y = acc.to(tl.float32) * x_scale[:, None] * channel_scale[None, :]
    y_ptrs = y_ptr + rows.to(tl.int64)[:, None] * N + cols[None, :]
    tl.store(y_ptrs, y.to(tl.float16), mask=(rows[:, None] < M) & (cols[None, :] < N))


def w4a8_gemm(
    xq: Int8[Tensor, "m k"],
    x_scale: Float32[Tensor, " m"],
    packed: Int32[Tensor, "n words"],
    s: UInt8[Tensor, "n groups"],
    a: UInt8[Tensor, "n groups"],
    channel_scale: Float32[Tensor, " n"],
) -> Float16[Tensor, "m n"]:
    """
    x @ w.T of int8 activations and weights as of `quant_w4`, contiguous.

    Products are summed in int32, exactly, scaled in float32 and rounded once.

    Args:
        xq: Numbers of activations; all tensors are contiguous.
        x_scale: One for each row of `xq`.
        packed: Eight codes a word: words = k / 8.
        s: One for each group: as many for a row as divide k into multiples of 8.
        a: Of the same shape.
        channel_scale: One for each row of `packed`.

    Raises:
        ValueError: shapes, dtypes or devices do not fit, or a tensor is not contiguous; the
            message begins with the argument's name.
    """
    # check
    _check(xq, x_scale, packed, s, a, channel_scale)
    y = torch.empty(xq.shape[0], packed.shape[0], dtype=torch.float16, device=xq.device)
    if y.numel():
        _launch(xq, x_scale, packed, s, a, channel_scale, y)
    return y


def _check(
    xq: Tensor, x_scale: Tensor, packed: Tensor, s: Tensor, a: Tensor, channel_scale: Tensor
) -> None:
    # check
    if xq.ndim != 2 or xq.shape[1] == 0 or xq.shape[1] % 8:
        raise ValueError(f"xq: expected [m, k], k a multiple of 8, found {tuple(xq.shape)}")
    if packed.ndim != 2:
        raise ValueError(f"packed: expected [n, k / 8], found {tuple(packed.shape)}")
    (m, k), n = xq.shape, packed.shape[0]
    groups = s.shape[1] if s.ndim == 2 else 0
    if groups == 0 or (k // 8) % groups:
        raise ValueError(f"s: expected [n, groups], {k // 8} words in groups, found {s.shape}")
    for name, x, shape, dtype in (
        ("xq", xq, (m, k), torch.int8),
        ("x_scale", x_scale, (m,), torch.float32),
        ("packed", packed, (n, k // 8), torch.int32),
        ("s", s, (n, groups), torch.uint8),
        ("a", a, (n, groups), torch.uint8),
        ("channel_scale", channel_scale, (n,), torch.float32),
    ):
        if x.shape != shape or x.dtype != dtype or x.device != xq.device:
            raise ValueError(
                f"{name}: expected {shape}, {dtype} on {xq.device}, "
                f"found {tuple(x.shape)}, {x.dtype} on {x.device}"
            )
        if not x.is_contiguous():
            raise ValueError(f"{name}: expected it contiguous, found strides {x.stride()}")


def _launch(
    xq: Tensor, x_scale: Tensor, packed: Tensor, s: Tensor, a: Tensor, channel_scale: Tensor,
    y: Tensor, config: Config | None = None,
) -> None:  # fmt: skip
    config = config or (GPU if xq.is_cuda else CPU)
    (m, n), words = y.shape, packed.shape[1]
    _w4a8_gemm_kernel[(triton.cdiv(n, config.n), triton.cdiv(m, config.m))](
        xq, x_scale, packed, s, a, channel_scale, y, m, n, words,
        GROUP_WORDS=words // s.shape[1],
        BLOCK_M=config.m, BLOCK_N=config.n, BLOCK_WORDS=config.words,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
