"""What is right, what to feed and what it costs: attention with scores and mask written out."""

import inspect
import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from harness.hardware import Cost

SCALES = (2.0, 1 / 128)  # scores grow with the square of the inputs
STRUCTURED = ("kv_num", "kv_idx", "full_num", "full_idx")
CACHE_ROOM = 7  # rows that a cache keeps free behind each head's keys
UNUSED = 7777  # what stands behind the last entry of a row

# ---- masks: whether query qi sees key ki; operators alone, so PyTorch and Triton read the same


@triton.jit
def everything(b, h, qi, ki):
    return (qi >= 0) & (ki >= 0)


@triton.jit
def nothing(b, h, qi, ki):
    return (qi < 0) & (ki < 0)


@triton.jit
def causal(b, h, qi, ki):
    return qi >= ki


@triton.jit
def later(b, h, qi, ki):
    return qi < ki


@triton.jit
def window_40(b, h, qi, ki):
    return (qi >= ki) & (qi - ki < 40)


@triton.jit
def window_1024(b, h, qi, ki):
    return (qi >= ki) & (qi - ki < 1024)


@triton.jit
def documents(b, h, qi, ki):
    """Three of 50, 14 and 64 tokens in a row, causal each."""
    return (qi >= ki) & ((qi < 50) == (ki < 50)) & ((qi < 64) == (ki < 64))


@triton.jit
def prefix(b, h, qi, ki):
    """The first 40 keys are a prompt that everybody sees."""
    return (ki < 40) | (qi >= ki)


@triton.jit
def first_keys(b, h, qi, ki):
    return ki < 40


@triton.jit
def own_key(b, h, qi, ki):
    return qi == ki


@triton.jit
def by_head(b, h, qi, ki):
    """As many keys as batch and head have it, one of them hidden."""
    return (ki < 30 * (b + 1) + 5 * h) & (ki != qi + b)


@triton.jit
def hole(b, h, qi, ki):
    """All but one pair, which lies inside a tile."""
    return (qi != 5) | (ki != 40)


@triton.jit
def speck(b, h, qi, ki):
    """One pair, which lies inside a tile."""
    return (qi == 5) & (ki == 40)


@triton.jit
def by_head_alone(b, h, qi, ki):
    return ki < 33 * (h + 1)


@triton.jit
def by_batch_alone(b, h, qi, ki):
    return ki < 33 * (b + 1)


@triton.jit
def noted_causal(b, h, qi, ki):
    """For the interpreter only, where any function of Python's can be called."""
    return _noted(qi, ki)


evaluated: list[tuple[int, ...]] = []  # shapes that `noted_causal` was asked for


def _noted(qi, ki):
    visible = qi >= ki
    evaluated.append(tuple(map(int, visible.shape)))
    return visible


MASKS = {
    mask.fn.__name__: mask
    for mask in (
        everything, nothing, causal, later, window_40, window_1024, documents, prefix, first_keys,
        own_key, hole, speck, by_head,
        by_head_alone, by_batch_alone,
    )
}  # fmt: skip

# the interpreter reads their source when they are called: from the cache, not from this file,
# which is closed to the code under test
inspect.getsource(causal.fn)

# ---- scores


@triton.jit
def _alibi(s, b, h, qi, ki):
    return s - tl.exp2(-(h + 1.0)) * (qi - ki)


@triton.jit
def _soft_cap(s, b, h, qi, ki):
    return 40.0 * tl.sigmoid(s / 10.0) - 20.0  # 20 tanh(s / 20)


@triton.jit
def _capped_alibi(s, b, h, qi, ki):
    return _alibi(_soft_cap(s, b, h, qi, ki), b, h, qi, ki)


@triton.jit
def _hide_key_3(s, b, h, qi, ki):
    return tl.where(ki == 3, -float("inf"), s)


@triton.jit
def _later_is_inf(s, b, h, qi, ki):
    return tl.where(ki > qi, float("inf"), s)


@triton.jit
def _by_batch(s, b, h, qi, ki):
    return s * (b + 1) + (qi + 2 * ki + h) % 3


class Score(NamedTuple):
    """One function twice: for a kernel, and for PyTorch."""

    kernel: Callable
    dense: Callable


def _dense_alibi(s, b, h, qi, ki):
    return s - 2.0 ** -(h + 1) * (qi - ki)


def _dense_soft_cap(s, *_):
    return 40 * torch.sigmoid(s / 10) - 20


SCORES = {
    "alibi": Score(_alibi, _dense_alibi),
    "soft_cap": Score(_soft_cap, _dense_soft_cap),
    "capped_alibi": Score(_capped_alibi, lambda s, *at: _dense_alibi(_dense_soft_cap(s), *at)),
    "hide_key_3": Score(_hide_key_3, lambda s, b, h, qi, ki: s.masked_fill(ki == 3, -math.inf)),
    "later_is_inf": Score(_later_is_inf, lambda s, b, h, qi, ki: s.masked_fill(ki > qi, math.inf)),
    "by_batch": Score(
        _by_batch, lambda s, b, h, qi, ki: s * (b + 1) + torch.remainder(qi + 2 * ki + h, 3)
    ),
}

# ---- tiles, counted one by one


@cache
def tables(mask, b, h, sq, sk, block):
    """kv_num, kv_idx, full_num and full_idx of a mask, as tensors on the CPU."""
    dense = mask.fn
    rows, cols = math.ceil(sq / block), math.ceil(sk / block)
    num = torch.zeros(2, b, h, rows, dtype=torch.int32)
    idx = torch.full((2, b, h, rows, cols), UNUSED, dtype=torch.int32)
    keys = torch.arange(sk)[None, :]
    for i in range(b):
        for j in range(h):
            for row in range(rows):
                queries = torch.arange(row * block, min(sq, row * block + block))[:, None]
                visible = dense(i, j, queries, keys).expand(len(queries), sk)
                for col, tile in enumerate(visible.split(block, dim=1)):
                    seen = int(tile.sum())
                    if seen:
                        which = int(seen == block**2)
                        idx[which, i, j, row, num[which, i, j, row]] = col
                        num[which, i, j, row] += 1
    return num[0], idx[0], num[1], idx[1]


def make_inputs(
    *, b, h, sq, sk, d, dtype, device, seed,
    mask="causal", score=None, block=32, table="own", scale=None, layout="bhsd",
):  # fmt: skip
    """
    Queries, keys and values N(0, 1), and the tables of a mask.

    A "shared" table serves all batches and heads. `layout` is how q, k and v lie in memory: "bhsd"
    contiguous, "bshd" as a projection leaves them, "cache" the first rows of something longer.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(length):
        room = CACHE_ROOM if layout == "cache" else 0
        shape = (b, length, h, d) if layout == "bshd" else (b, h, length + room, d)
        x = torch.randn(shape, generator=generator).to(dtype).to(device)
        return x.transpose(1, 2) if layout == "bshd" else x[:, :, :length]

    q, k, v = draw(sq), draw(sk), draw(sk)
    listed = tables(MASKS[mask], *((1, 1) if table == "shared" else (b, h)), sq, sk, block)
    return {
        "q": q,
        "k": k,
        "v": v,
        **{name: table.clone().to(device) for name, table in zip(STRUCTURED, listed, strict=True)},
        "block": block,
        "mask_mod": MASKS[mask],
        "score_mod": None if score is None else SCORES[score].kernel,
        "scale": scale,
    }


def reference(*, q, k, v, mask_mod, score_mod=None, scale=None, **_):
    return _head_by_head(q.double(), k.double(), v.double(), mask_mod, score_mod, scale)


def same_precision(*, q, k, v, mask_mod, score_mod=None, scale=None, **_):
    """Eager attention whose products are rounded to the dtype of the inputs."""
    return _head_by_head(q, k, v, mask_mod, score_mod, scale)


def _head_by_head(q, k, v, mask_mod, score_mod, scale):
    """One score matrix at a time, since all of them may not fit."""
    b, h, sq, d = q.shape
    scale = d**-0.5 if scale is None else scale
    modify = {score.kernel: score.dense for score in SCORES.values()}.get(score_mod)
    queries = torch.arange(sq, device=q.device)[:, None]
    keys = torch.arange(k.shape[2], device=q.device)[None, :]
    o = q.new_zeros(q.shape)
    for i in range(b):
        for j in range(h):
            s = q[i, j] @ k[i, j].T
            s = (s if s.dtype == torch.float64 else s.float()) * scale
            if modify is not None:
                s = modify(s, i, j, queries, keys)
            visible = mask_mod.fn(i, j, queries, keys).expand(s.shape)
            s = s.masked_fill(~visible, -math.inf)
            p = torch.softmax(s, dim=-1).masked_fill(s == -math.inf, 0.0)  # not NaN, if all are
            o[i, j] = p.to(v.dtype) @ v[i, j]
    return o


def cost(*, q, k, v, kv_num, full_num, block, **_):
    """Two products and one exponential for each score of the tiles that are listed."""
    b, h, _, d = q.shape
    tables_for = b * h // kv_num[..., 0].numel() if kv_num.numel() else 0
    scores = int(kv_num.sum() + full_num.sum()) * tables_for * block**2
    tensors = 2 * q.numel() + k.numel() + v.numel()  # o is as large as q
    return Cost(flops=4 * d * scores, bytes=tensors * q.element_size(), special=scores)


@cache
def _dense_mask(mask, sq, sk, device):
    queries, keys = torch.arange(sq, device=device), torch.arange(sk, device=device)
    return mask.fn(0, 0, queries[:, None], keys[None, :])


def dense_mask(*, q, k, v, mask_mod, scale=None, **_):
    """PyTorch's attention with the mask as a matrix of bools, made beforehand."""
    visible = _dense_mask(mask_mod, q.shape[2], k.shape[2], q.device)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scale)
