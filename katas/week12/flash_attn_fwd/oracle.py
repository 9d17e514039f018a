"""What is right, what to feed and what it costs: attention with its scores written out."""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness.hardware import Cost

SCALES = (2.0, 1 / 128)  # scores grow with the square of the inputs
CACHE_ROOM = 7  # rows that a cache keeps free behind each head's keys


def make_inputs(
    *, b, hq, sq, sk, d, dtype, device, seed,
    hkv=None, causal=False, sm_scale=None, spread=1.0, layout="bhsd",
):  # fmt: skip
    """
    Queries N(0, spread²), keys and values N(0, 1).

    `layout` is how they lie in memory: "bhsd" contiguous, "bshd" as a projection leaves them,
    "cache" the first rows of something longer.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(heads, length, scale=1.0):
        room = CACHE_ROOM if layout == "cache" else 0
        shape = (b, length, heads, d) if layout == "bshd" else (b, heads, length + room, d)
        x = (torch.randn(shape, generator=generator) * scale).to(dtype).to(device)
        return x.transpose(1, 2) if layout == "bshd" else x[:, :, :length]

    hkv = hkv or hq
    q, k, v = draw(hq, sq, spread), draw(hkv, sk), draw(hkv, sk)
    return {"q": q, "k": k, "v": v, "causal": causal, "sm_scale": sm_scale}


def reference(*, q, k, v, causal=False, sm_scale=None):
    return _head_by_head(q.double(), k.double(), v.double(), causal, sm_scale)


def same_precision(*, q, k, v, causal=False, sm_scale=None):
    """Eager attention in the dtype of the inputs."""
    o, lse = _head_by_head(q, k, v, causal, sm_scale)
    return o, lse.float()


def _head_by_head(q, k, v, causal, sm_scale):
    """(o, lse) of every head; one score matrix at a time, since all of them may not fit."""
    b, hq, sq, d = q.shape
    sk, group = k.shape[2], hq // k.shape[1]
    scale = d**-0.5 if sm_scale is None else sm_scale
    visible = torch.ones(sq, sk, dtype=torch.bool, device=q.device)
    if causal:
        visible = visible.tril(sk - sq)
    o, lse = q.new_zeros(q.shape), q.new_zeros(b, hq, sq)
    for i in range(b):
        for h in range(hq):
            keys, values = k[i, h // group], v[i, h // group]
            o[i, h], lse[i, h] = _attend(q[i, h], keys, values, visible, scale)
    return o, lse


def _attend(q, k, v, visible, scale):
    scores = (q @ k.T * scale).masked_fill(~visible, -torch.inf)
    p = torch.softmax(scores, dim=-1).masked_fill(~visible, 0.0)  # not NaN where nothing is seen
    return p @ v, torch.logsumexp(scores, dim=-1)


def cost(*, q, k, v, causal=False, sm_scale=None):
    """Two products and one exponential for each score that is visible."""
    b, hq, sq, d = q.shape
    scores = b * hq * _visible_pairs(sq, k.shape[2], causal)
    tensors = 2 * q.numel() + k.numel() + v.numel()  # o is as large as q
    return Cost(
        flops=4 * d * scores,
        bytes=tensors * q.element_size() + 4 * b * hq * sq,
        special=scores,
    )


def _visible_pairs(sq, sk, causal):
    """Pairs of a query and a key that it sees; the last query sees all."""
    if not causal:
        return sq * sk
    rows = min(sq, sk)  # that see anything: sk - rows + 1 keys, then one more each
    return rows * (2 * sk - rows + 1) // 2


def eager(*, q, k, v, causal=False, sm_scale=None):
    """Attention that stores its scores; no mask, as many heads of keys as of queries."""
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1) @ v


def library(*, q, k, v, causal=False, sm_scale=None):
    """PyTorch's fastest: cuDNN from Hopper on, FlashAttention-2 before; causal only if square."""
    backends = [SDPBackend.FLASH_ATTENTION]
    if torch.cuda.get_device_capability(q.device) >= (9, 0):
        backends.insert(0, SDPBackend.CUDNN_ATTENTION)
    with sdpa_kernel(backends, set_priority=True):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
