"""What is right and what to feed: the same model, whole, on the data of all ranks."""

import copy
from itertools import pairwise

import torch
from torch import nn

# parameters of the layers: 3120, 3136, 2600 and 984, which 4 divides and 3 does not
WIDTHS = (64, 48, 64, 40, 24)
# 28, 21, 8 and 3: neither 2, 3 nor 4 divides all
SMALL = (6, 4, 3, 2, 1)


class Layer(nn.Module):
    """An affine map and a tanh; `watch` is called with its weight while it runs."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.watch = None

    def forward(self, x):
        if self.watch is not None:
            self.watch(self.weight, x)
        return torch.tanh(nn.functional.linear(x, self.weight, self.bias))


def model(*, seed, widths=SMALL):
    """Build layers one after the other, with weights N(0, 1 / inputs)."""
    generator = torch.Generator().manual_seed(seed)
    layers = nn.Sequential(*(Layer(*sizes) for sizes in pairwise(widths)))
    with torch.no_grad():
        for layer in layers:
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator))
            layer.weight /= layer.weight.shape[1] ** 0.5
            layer.bias.copy_(torch.randn(layer.bias.shape, generator=generator) / 4)
    return layers


def batches(*, world, steps, seed, width=SMALL[0]):
    """Draw the rows of each step and rank; from the second step on the last rank has none."""
    generator = torch.Generator().manual_seed(seed + 1)
    drawn = [
        [torch.randn(3, width, generator=generator) for _ in range(world)] for _ in range(steps)
    ]
    for by_rank in drawn[1:]:
        if world > 1:
            by_rank[-1] = by_rank[-1][:0]
    return drawn


def loss(out):
    """Sum of squares, so that no rows are a loss of 0."""
    return out.square().sum()


def whole(layers, dtype):
    """Copy the model in `dtype`."""
    return copy.deepcopy(layers).to(dtype)


def backward(layers, by_rank, run=lambda layers, x: layers(x)):
    """Add the gradients of the mean over the ranks of their losses."""
    dtype = next(layers.parameters()).dtype
    total = sum(loss(run(layers, x.to(dtype))) for x in by_rank)
    (total / len(by_rank)).backward()


def flat(layers, kind="data"):
    """One flat vector a layer, of its parameters or of their gradients."""
    return [
        torch.cat([getattr(param, kind).detach().flatten() for param in layer.parameters()])
        for layer in layers
    ]


def sizes(layers):
    """Elements of each layer."""
    return [sum(param.numel() for param in layer.parameters()) for layer in layers]


def part_size(*, n, world):
    return (n + world - 1) // world


def phase_bytes(*, sizes, world, itemsize=4):
    """What a rank sends when each of the units is gathered, or scattered, once."""
    return sum((world - 1) * part_size(n=n, world=world) * itemsize for n in sizes)
