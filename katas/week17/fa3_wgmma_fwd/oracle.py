"""What is right, what to feed and what it costs: attention with its scores written out."""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness.hardware import Cost
from harness.judge import Yardstick

HEAD_SIZE = 128
SCALES = (2.0, 1 / 128)  # scores grow with the square of the inputs


def make_inputs(*, b, h, s, dtype, device, seed, keys=None, causal=False, layout="bhsd"):
    """
    N(0, 1) queries, keys and values.

    `layout` is how they lie in memory: "bhsd" contiguous, "bshd" as a projection leaves them,
    "cache" the first rows of something longer, in which the rest is NaN.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(length):
        x = torch.randn(b, h, length, HEAD_SIZE, generator=generator).to(dtype).to(device)
        if layout == "bshd":
            return x.transpose(1, 2).contiguous().transpose(1, 2)
        if layout == "cache":
            room = x.new_full((b, h, length + 5, HEAD_SIZE), float("nan"))
            return room[:, :, :length].copy_(x)
        return x

    keys = s if keys is None else keys
    return {"q": draw(s), "k": draw(keys), "v": draw(keys), "causal": causal}


def reference(*, q, k, v, causal=False):
    return _head_by_head(q.double(), k.double(), v.double(), causal)


def same_precision(*, q, k, v, causal=False):
    """
    Eager attention in the dtype of the inputs, and lse in float32.

    One score's lse may be as near to zero as it likes: its error counts in what it adds up.
    """
    o, _ = _head_by_head(q, k, v, causal)
    _, lse = _head_by_head(q.float(), k.float(), v.float(), causal)
    _, size = _head_by_head(q.double().abs(), k.double().abs(), v.double(), causal)
    return o, Yardstick(lse, size.clamp(min=0.0))


def _head_by_head(q, k, v, causal):
    """(o, lse) of every head; one score matrix at a time, since all of them may not fit."""
    (b, h, sq, d), sk = q.shape, k.shape[2]
    hidden = torch.ones(sq, sk, dtype=torch.bool, device=q.device).triu(1) & causal
    o, lse = q.new_zeros(q.shape), q.new_zeros(b, h, sq)
    for i in range(b):
        for j in range(h):
            scores = (q[i, j] @ k[i, j].T * d**-0.5).masked_fill(hidden, -torch.inf)
            o[i, j] = torch.softmax(scores, dim=-1) @ v[i, j]
            lse[i, j] = torch.logsumexp(scores, dim=-1)
    return o, lse


def cost(*, q, k, v, causal=False):
    """Two products and one exponential for each score that is visible."""
    (b, h, sq, d), sk = q.shape, k.shape[2]
    scores = b * h * (sq * (sq + 1) // 2 if causal else sq * sk)
    tensors = 2 * q.numel() + k.numel() + v.numel()  # o is as large as q
    return Cost(
        flops=4 * d * scores,
        bytes=tensors * q.element_size() + 4 * b * h * sq,
        special=scores,
    )


def flash2(*, q, k, v, causal=False):
    """PyTorch's FlashAttention-2, built on the instructions of Ampere."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def library(*, q, k, v, causal=False):
    """PyTorch's fastest: cuDNN's kernel for Hopper, FlashAttention-2 where that is not there."""
    backends = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]
    with sdpa_kernel(backends, set_priority=True):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
