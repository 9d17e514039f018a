"""What is right and what to feed: PyTorch's own FLOP counter, addresses one by one, a big layer."""

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

# LLaMA-70B
HIDDEN, HEADS, KV_HEADS, HEAD, FFN = 8192, 64, 8, 128, 28672


def touched_bytes(tensor):
    """Enumerate the address of every element and count the different ones."""
    elements = np.arange(tensor.untyped_storage().nbytes() // tensor.itemsize, dtype=np.int64)
    strides = [8 * stride for stride in tensor.stride()]
    first = elements[tensor.storage_offset() :]
    addresses = np.lib.stride_tricks.as_strided(first, tuple(tensor.shape), strides)
    return np.unique(addresses).size * tensor.itemsize


def library_flops(fn):
    """FLOPs of products and convolutions in `fn()`, by op, as PyTorch counts them."""
    with FlopCounterMode(display=False) as counter:
        fn()
    return {str(op): flops for op, flops in counter.get_flop_counts()["Global"].items()}


def llama_layer(batch, length):
    """One layer of LLaMA-70B in float16 on the meta device: its input and its weights."""
    widths = {
        "q": (HIDDEN, HEADS * HEAD),
        "k": (HIDDEN, KV_HEADS * HEAD),
        "v": (HIDDEN, KV_HEADS * HEAD),
        "o": (HEADS * HEAD, HIDDEN),
        "gate": (HIDDEN, FFN),
        "up": (HIDDEN, FFN),
        "down": (FFN, HIDDEN),
        "norm": (HIDDEN,),
        "rotation": (2, length, HEAD),
        "mask": (length, length),
    }
    like = {"dtype": torch.float16, "device": "meta"}
    weights = {name: torch.empty(shape, **like) for name, shape in widths.items()}
    return torch.empty(batch, length, HIDDEN, **like), weights


def llama_forward(x, weights):
    """Attention and feed-forward as a chain of plain ops."""
    batch, length, _ = x.shape
    normed = _rms_norm(x, weights["norm"])
    heads = [(normed @ weights[name]).view(batch, length, -1, HEAD) for name in "qkv"]
    q, k, v = (one.transpose(1, 2) for one in heads)
    q, k = (_rotate(one, weights["rotation"]) for one in (q, k))
    group = HEADS // KV_HEADS
    k, v = (
        one[:, :, None].expand(-1, -1, group, -1, -1).reshape(batch, HEADS, length, HEAD)
        for one in (k, v)
    )
    scores = (q @ k.transpose(-1, -2)) * HEAD**-0.5 + weights["mask"]
    mixed = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(batch, length, -1)
    x = x + mixed @ weights["o"]
    normed = _rms_norm(x, weights["norm"])
    inner = torch.nn.functional.silu(normed @ weights["gate"]) * (normed @ weights["up"])
    return x + inner @ weights["down"]


def _rms_norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-5) * weight


def _rotate(x, rotation):
    left, right = x.chunk(2, dim=-1)
    return x * rotation[0] + torch.cat((-right, left), dim=-1) * rotation[1]
