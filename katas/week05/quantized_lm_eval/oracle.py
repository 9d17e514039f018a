"""What is right: a forward pass for each token, weights rounded by NumPy, a model to ruin."""

import math

import numpy as np
import torch
from torch import nn

from harness.simulators.tinylm import load_tinylm, periodic_tokens

SCALED = ("q", "k", "v", "gate", "up")  # what reads a norm
OUTLIERS, FACTOR = (5, 50), 8.0


class Counting:
    """
    Logits that depend on all tokens of the window up to each, and a count of the tokens seen.

    `widest` is the most that were seen at once.
    """

    def __init__(self, vocab, seed, dtype=torch.float32):
        generator = torch.Generator().manual_seed(seed)
        self.embedding = torch.randn(vocab, 8, generator=generator)
        self.head = torch.randn(8, vocab, generator=generator)
        self.dtype, self.tokens, self.widest = dtype, 0, 0

    def __call__(self, tokens):
        self.tokens, self.widest = self.tokens + len(tokens), max(self.widest, len(tokens))
        state = torch.cos(self.embedding[tokens].double().cumsum(0))
        return (2 * state @ self.head.double()).to(self.dtype)


def perplexity(logits_fn, tokens, window, stride):
    """Each target by itself, from the context of the first window that reaches it."""
    total = 0.0
    for target in range(1, len(tokens)):
        begin = max(0, math.ceil((target - window) / stride)) * stride
        logits = logits_fn(tokens[begin:target])[-1].double()
        total += float(logits.logsumexp(0) - logits[tokens[target]])
    return math.exp(total / (len(tokens) - 1))


def rounded(weight, fmt):
    """The weight that a format stands for, float32, worked out group by group in NumPy."""
    if fmt == "fp16":
        return weight.half().float()
    w = weight.numpy().astype(np.float64)
    width, qmax = (32 if fmt == "int4-g32" else w.shape[1]), (127 if fmt == "int8" else 7)
    out = np.zeros_like(w)
    for row in range(len(w)):
        for at in range(0, w.shape[1], width):
            group = w[row, at : at + width]
            scale = float(np.float16(np.float32(np.abs(group).max()) / np.float32(qmax)))
            if scale:
                codes = np.clip(np.rint(group / scale), -qmax, qmax)
                out[row, at : at + width] = codes * scale
    return torch.from_numpy(out).float()


def bytes_of(rows, cols, fmt):
    """Of one packed weight, by hand: codes, then scales of two bytes."""
    return {
        "fp16": rows * cols * 2,
        "int8": rows * cols + rows * 2,
        "int4": rows * math.ceil(cols / 2) + rows * 2,
        "int4-g32": rows * math.ceil(cols / 2) + rows * math.ceil(cols / 32) * 2,
    }[fmt]


def model_with_outliers():
    """The trained model, as good as ever, with two channels 8 times as large in what reads them."""
    model = load_tinylm()
    with torch.no_grad():
        for layer in model.layers:
            for norm in (layer.attention_norm, layer.mlp_norm):
                norm.weight[list(OUTLIERS)] /= FACTOR
            for name in SCALED:
                getattr(layer, name).weight[:, list(OUTLIERS)] *= FACTOR
    return model.requires_grad_(False)


def linear_weights(model):
    """The weight of each linear layer, by its parameter's name."""
    linears = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    return {f"{name}.weight": m.weight.detach().clone() for name, m in linears.items()}


def tokens_of(seed, length=65, batch=24):
    return periodic_tokens(batch, length, seed)


def divergence(model, other_logits, tokens):
    """Mean KL divergence of other logits from those of `model`, in nats a token: never below 0."""
    p = model(tokens).double().log_softmax(-1)
    q = other_logits.double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())


def held_bytes(module):
    """What a module holds, wherever: every tensor in reach of it, each storage once."""
    found, seen, queue = {}, set(), [module]
    while queue:
        one = queue.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            storage = one.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(one, np.ndarray):
            found[one.ctypes.data] = one.nbytes
        elif isinstance(one, dict):
            queue += one.values()
        elif isinstance(one, (list, tuple, set)):
            queue += one
        elif isinstance(one, nn.Module) or type(one).__module__ not in ("builtins", "torch"):
            queue += list(getattr(one, "__dict__", {}).values())
    return sum(found.values())
