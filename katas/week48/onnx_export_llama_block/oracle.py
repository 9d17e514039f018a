"""A small LLaMA with a cache, modules of a few operators, their programs, and ONNX Runtime."""

from functools import cache

import numpy as np
import onnxruntime
import torch
from torch import nn
from torch.export import Dim, export

D, HEADS, KV_HEADS, HEAD, FFN, VOCAB = 32, 4, 2, 8, 48, 61


class RmsNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(dim) + 0.5)

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = RmsNorm(D), RmsNorm(D)
        self.q, self.o = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
        self.k = nn.Linear(D, KV_HEADS * HEAD, bias=False)
        self.v = nn.Linear(D, KV_HEADS * HEAD, bias=False)
        self.gate, self.up = nn.Linear(D, FFN, bias=False), nn.Linear(D, FFN, bias=False)
        self.down = nn.Linear(FFN, D, bias=False)

    def forward(self, x, cos, sin, visible, keys, values):
        b, t, _ = x.shape

        def heads(y):
            return y.view(b, t, -1, HEAD).transpose(1, 2)

        def rotated(y):
            low, high = y[..., : HEAD // 2], y[..., HEAD // 2 :]
            return y * cos + torch.cat([-high, low], -1) * sin

        def shared(y):
            y = y.unsqueeze(2).expand(-1, -1, HEADS // KV_HEADS, -1, -1)
            return y.reshape(b, HEADS, -1, HEAD)

        y = self.norm_1(x)
        keys = torch.cat([keys, rotated(heads(self.k(y)))], 2)
        values = torch.cat([values, heads(self.v(y))], 2)
        scores = rotated(heads(self.q(y))) @ shared(keys).transpose(-1, -2) * HEAD**-0.5
        scores = torch.where(visible, scores, -1e30).softmax(-1)
        x = x + self.o((scores @ shared(values)).transpose(1, 2).reshape(b, t, D))
        y = self.norm_2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y)), keys, values


class Llama(nn.Module):
    """One block between an embedding and a head that is the embedding once more."""

    def __init__(self):
        super().__init__()
        self.embedding, self.block, self.norm = nn.Embedding(VOCAB, D), Block(), RmsNorm(D)
        self.head = nn.Linear(D, VOCAB, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("frequencies", 10_000.0 ** (-torch.arange(0, HEAD, 2) / HEAD))

    def forward(self, ids, positions, keys, values):
        angles = positions.unsqueeze(-1).to(self.frequencies.dtype) * self.frequencies
        angles = torch.cat([angles, angles], -1).unsqueeze(1)
        columns = torch.arange(keys.shape[2] + ids.shape[1])
        visible = (columns <= positions.unsqueeze(-1)).unsqueeze(1)
        x = self.embedding(ids)
        x, keys, values = self.block(x, angles.cos(), angles.sin(), visible, keys, values)
        return self.head(self.norm(x)), keys, values


@cache
def llama():
    with torch.random.fork_rng():
        torch.manual_seed(20)
        model = Llama().eval().requires_grad_(False)
        model.embedding.weight.mul_(0.5)
    return model


def inputs(batch, length, past, seed):
    draw = torch.Generator().manual_seed(seed)
    return {
        "ids": torch.randint(VOCAB, (batch, length), generator=draw),
        "positions": torch.arange(past, past + length).expand(batch, length).contiguous(),
        "keys": torch.randn(batch, KV_HEADS, past, HEAD, generator=draw),
        "values": torch.randn(batch, KV_HEADS, past, HEAD, generator=draw),
    }


@cache
def llama_program():
    """Captured at a batch of 2, 3 tokens and a past of 5."""
    batch, length = Dim("batch", min=1, max=64), Dim("length", min=1, max=512)
    past = Dim("past", min=0, max=512)
    tokens, kept = {0: batch, 1: length}, {0: batch, 2: past}
    shapes = {"ids": tokens, "positions": tokens, "keys": kept, "values": kept}
    return export(llama(), (), inputs(2, 3, 5, seed=0), dynamic_shapes=shapes)


class Module(nn.Module):
    """A function as a module."""

    def __init__(self, function, **parameters):
        super().__init__()
        self.function = function
        for name, value in parameters.items():
            setattr(self, name, nn.Parameter(value, requires_grad=False))

    def forward(self, *args):
        return self.function(self, *args)


def program(function, *args, most=64, **parameters):
    """Of `function(module, *args)`; the first axis of each argument is 0 to `most` rows."""
    rows = Dim("rows", min=0, max=most)
    shapes = (tuple({0: rows} for _ in args),)
    return export(Module(function, **parameters), args, dynamic_shapes=shapes)


def session(model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def run(running, args):
    """The outputs, in order, of arguments in order."""
    names = [one.name for one in running.get_inputs()]
    fed = {name: np.ascontiguousarray(arg) for name, arg in zip(names, args, strict=True)}
    return [torch.from_numpy(one) for one in running.run(None, fed)]


def work(model):
    """Nodes that compute: constants are none."""
    return sum(node.op_type != "Constant" for node in model.graph.node)
