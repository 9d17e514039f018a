"""What is right and what to feed: the same model in one process, its weights unpacked once."""

import math

import torch
from torch import nn

D, FF, R = 161, 321, 3  # an odd number of elements, 807.5 blocks, 3.15 units: parts of 2 and 1.15 …
LEVELS = torch.tensor([
    -1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
])  # fmt: skip


def quantised(kata, weight):
    """NF4 of a matrix, its scales in 8 bits around their mean."""
    flat = weight.flatten().float()
    n, blocks = len(flat), -(-len(flat) // 64)
    scales = torch.stack([one.abs().max() for one in flat.split(64)])
    offset = scales.mean()
    rest = scales - offset
    absmax2 = torch.stack([one.abs().max() for one in rest.split(256)])
    by = absmax2.repeat_interleave(256)[:blocks]
    codes = (rest / by.clamp_min(1e-30) * 127 + 128).round().to(torch.uint8)
    own = ((codes.float() - 128) / 127 * by + offset).repeat_interleave(64)[:n]
    nibbles = torch.bucketize(flat / own, (LEVELS[1:] + LEVELS[:-1]) / 2).to(torch.uint8)
    nibbles = torch.cat((nibbles, nibbles.new_full((n % 2,), 7))).view(-1, 2)
    return kata.NF4(nibbles[:, 0] * 16 + nibbles[:, 1], codes, absmax2, offset, (*weight.shape,))


def whole(nf4):
    """The matrix in float32, element by element in the order of the definition."""
    n = math.prod(nf4.shape)
    at = torch.arange(n)
    nibbles = nf4.packed[at // 2].int() >> (4 * (1 - at % 2)) & 15
    scales = (nf4.codes.float() - 128) / 127 * nf4.absmax2[torch.arange(len(nf4.codes)) // 256]
    return (LEVELS[nibbles] * (scales + nf4.offset)[at // 64]).view(nf4.shape)


class Linear(nn.Module):
    """What one process has: the whole weight, the same adapter."""

    def __init__(self, layer, dtype):
        super().__init__()
        self.weight, self.s = whole(layer.weight).to(dtype), layer.s
        self.a = nn.Parameter(layer.a.detach().to(dtype, copy=True))
        self.b = nn.Parameter(layer.b.detach().to(dtype, copy=True))

    def forward(self, x):
        return x @ (self.weight + self.s * self.b @ self.a).t()


class Block(nn.Module):
    """A frozen norm of sorts, a trained number, two matrices; `watch` is called while it runs."""

    def __init__(self, norm, gain, up, down):
        super().__init__()
        self.norm = nn.Parameter(norm, requires_grad=False)
        self.gain = nn.Parameter(gain)  # one element, which only the first rank has
        self.up, self.down, self.watch = up, down, None

    def forward(self, x):
        if self.watch is not None:
            self.watch(self, x)
        return x + self.gain * self.down(torch.tanh(self.up(x * self.norm)))


def model(kata, *, seed, blocks=2, d=D, f=FF, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=draw, dtype=torch.float64) * shape[-1] ** -0.5

    def linear(out, into):
        weight = quantised(kata, normal(out, into))
        return kata.QloraLinear(weight, normal(R, into).to(dtype), normal(out, R).to(dtype), 0.5)

    return nn.Sequential(
        *(
            Block(
                (1 + normal(d)).to(dtype), (1 + normal(1) / 4).to(dtype), linear(f, d), linear(d, f)
            )
            for _ in range(blocks)
        )
    )


def plain(layers, dtype=torch.float64):
    """The model of one process."""
    return nn.Sequential(
        *(
            Block(
                *(part.detach().to(dtype, copy=True) for part in (one.norm, one.gain)),
                Linear(one.up, dtype),
                Linear(one.down, dtype),
            )
            for one in layers
        )
    )


def batches(*, world, steps, seed, d=D, dtype=torch.float64):
    """Draw the rows of each step and rank; from the second step on the last rank has none."""
    draw = torch.Generator().manual_seed(seed + 1)
    drawn = [
        [torch.randn(3, d, generator=draw, dtype=torch.float64).to(dtype) for _ in range(world)]
        for _ in range(steps)
    ]
    for by_rank in drawn[1:]:
        if world > 1:
            by_rank[-1] = by_rank[-1][:0]
    return drawn


def loss(out):
    return (out - 2).square().sum()


def parts(numel, unit, world):
    """Deal out units one rank after the other."""
    units = list(range(0, numel, unit))
    each = math.ceil(len(units) / world)
    dealt = [units[rank * each : (rank + 1) * each] for rank in range(world)]
    return [(own[0], min(own[-1] + unit, numel)) if own else (numel, numel) for own in dealt]


def sent(shape, world):
    """Bytes of a matrix that a rank sends to each other one: its units, padded."""
    units = math.ceil(math.ceil(math.prod(shape) / 16384) / world)
    return units * (8192 + 256 + 4)
