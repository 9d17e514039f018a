"""What is right: dense weights, W + s BA or W times factors, in a copy of the model as it was."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

LORA_TARGETS = r".*\.(q|v)_proj"


class Attention(nn.Module):
    """Causal attention, its keys shared by two heads each."""

    def __init__(self, d, kv, linear, device):
        super().__init__()
        self.kv = kv
        self.q_proj = linear(d, d, device)
        self.k_proj = linear(d, kv, device)
        self.v_proj = linear(d, kv, device)
        self.o_proj = linear(d, d, device)

    def forward(self, x):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q = q.unflatten(-1, (-1, self.kv))  # heads as wide as all of kv: one head of keys
        scores = torch.einsum("bqhd,bkd->bhqk", q, k) / self.kv**0.5
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(later, -torch.inf).softmax(-1)
        return self.o_proj(torch.einsum("bhqk,bkd->bqhd", weights, v).flatten(2))


class Mlp(nn.Module):
    def __init__(self, d, ffn, linear, device):
        super().__init__()
        self.gate_proj = linear(d, ffn, device)
        self.up_proj = linear(d, ffn, device)
        self.down_proj = linear(ffn, d, device)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, d, kv, ffn, linear, device):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(d, device=device) for _ in range(2))
        self.self_attn = Attention(d, kv, linear, device)
        self.mlp = Mlp(d, ffn, linear, device)

    def forward(self, x):
        x = x + self.self_attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def with_bias(inputs, outputs, device):
    return nn.Linear(inputs, outputs, device=device)


class Projection(nn.Linear):
    """A linear layer by another name."""


def without_bias(inputs, outputs, device):
    return Projection(inputs, outputs, bias=False, device=device)


class Llama(nn.Module):
    """A toy with the names of a LLaMA; `tied`, its head is its embedding."""

    def __init__(
        self, *, layers=2, d=16, kv=8, ffn=24, vocab=11, linear=with_bias, device=None, tied=False
    ):
        super().__init__()
        self.embed = nn.Embedding(vocab, d, device=device)
        self.layers = nn.ModuleList(Block(d, kv, ffn, linear, device) for _ in range(layers))
        self.head = nn.Linear(d, vocab, bias=False, device=device)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def model(seed, device, **how):
    """Build a toy whose norms, biases and weights are all far from 0 and 1."""
    draw = torch.Generator().manual_seed(seed)
    built = Llama(**how)
    with torch.no_grad():
        for param in built.parameters():
            fan = param.shape[-1] if param.dim() > 1 else 4
            param.copy_(torch.randn(param.shape, generator=draw) * fan**-0.5)
    return built.to(device)


def ids(seed, device, b=3, s=5, vocab=11):
    draw = torch.Generator().manual_seed(seed + 1)
    return torch.randint(vocab, (b, s), generator=draw).to(device)


def fill(state, seed, size=0.3):
    """Give the adapters values as if they had been trained: factors around 1, no zeros."""
    draw = torch.Generator().manual_seed(seed + 2)
    for name, tensor in state.items():
        drawn = torch.randn(tensor.shape, generator=draw) * size
        with torch.no_grad():
            tensor.copy_(drawn.clamp(-0.75, 0.75) + 1 if ".ia3." in name else drawn)


def dense(base, state, cfgs, dtype, back=False):
    """Copy `base` in `dtype`, its weights with the adapters of `state`, or `back` without them."""
    result = copy.deepcopy(base).to(dtype)
    with torch.no_grad():
        for key, tensor in state.items():
            path, kind, name = key.rsplit(".", 2)
            layer, cfg = result.get_submodule(path), cfgs[name]
            weight = layer.weight if isinstance(layer, nn.Linear) else layer.weight.T
            if kind == "lora_A":
                b = state[f"{path}.lora_B.{name}"].to(dtype)
                s = cfg.alpha / (cfg.r**0.5 if cfg.rslora else cfg.r)
                weight += (-s if back else s) * b @ tensor.to(dtype)
                continue
            factor = 1 / tensor.to(dtype) if back else tensor.to(dtype)
            if kind == "ia3" and path.endswith("down_proj"):
                weight *= factor
            elif kind == "ia3":
                weight *= factor[:, None]
                if layer.bias is not None:
                    layer.bias *= factor
    return result
