"""What is right and what to feed: the same model, whole, on the data of all ranks."""

import copy
from itertools import pairwise

import torch
from torch import nn

# rows that 4 does not divide: 50, 63, 41, 22
WIDTHS = (64, 50, 63, 41, 22)
# 7, 5, 2 and 1 rows: on 4 ranks parts of 2 and 1, of 2, 1 and 0, of 1 and 0
SMALL = (6, 7, 5, 2, 1)


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
        # by operators of their own: the gradient of the bias is there before the weight is read
        return torch.tanh(x @ self.weight.t() + self.bias)


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
    """Squared distances from 2, which tanh stays below: gradients of rows do not cancel."""
    return (out - 2).square().sum()


def backward(layers, by_rank, run=lambda layers, x: layers(x)):
    """Add the gradients of the mean over the ranks of their losses."""
    dtype = next(layers.parameters()).dtype
    total = sum(loss(run(layers, x.to(dtype))) for x in by_rank)
    (total / len(by_rank)).backward()


def whole(layers, dtype):
    """Copy the model in `dtype`."""
    return copy.deepcopy(layers).to(dtype)


def part(tensor, rank, world):
    """This rank's rows, as torch.chunk cuts them; it makes fewer parts where rows are few."""
    parts = tensor.chunk(world)
    return parts[rank] if rank < len(parts) and len(tensor) else tensor[:0]


def padded_elements(layers, world):
    """Elements of each layer, each parameter padded to parts of one size."""
    return [
        sum(world * len(param.chunk(world)[0]) * param[0].numel() for param in layer.parameters())
        for layer in layers
    ]
