"""What is right: the paper's figures, a ledger of allocations, and steps that really train."""

from itertools import pairwise

import torch
import torch.nn.functional as F

# Rajbhandari et al., figure 1: GB a GPU for 7.5e9 parameters on 64 GPUs, by stage
FIGURE_1 = {0: 120.0, 1: 31.4, 2: 16.6, 3: 1.9}

BYTES = {"fp32": (4, 4, 8), "mixed-bf16": (2, 2, 12), "mixed-bf16-fp32-grads": (2, 4, 12)}


def largest_rank(n_params, world, stage, precision):
    """Deal the parameters out in runs of equal length, and see what the first rank is left with."""
    length = (n_params + world - 1) // world
    own = sum(1 for at in range(n_params) if at < length)
    sharded_from = {"optimizer": 1, "grads": 2, "params": 3}
    return {
        part: size * (own if stage >= sharded_from[part] else n_params)
        for part, size in zip(("params", "grads", "optimizer"), BYTES[precision], strict=True)
    }


def ledger_peak(units, mode, world):
    """Write every allocation and every release of a step into a ledger; its highest balance."""
    parameter, gradient, states = BYTES["fp32" if mode == "ddp-fp32" else "mixed-bf16"]
    ranks = world if mode == "fsdp-bf16" else 1
    balance = peak = 0

    def book(amount):
        nonlocal balance, peak
        balance += amount
        peak = max(peak, balance)

    shards = [(unit.params + ranks - 1) // ranks for unit in units]
    for shard in shards:
        book(shard * (parameter + states))
    for unit in units:
        gathered = parameter * unit.params if mode == "fsdp-bf16" else 0
        book(gathered)
        book(parameter * unit.kept)
        book(-gathered)
    for unit, shard in zip(reversed(units), reversed(shards), strict=True):
        gathered = parameter * unit.params if mode == "fsdp-bf16" else 0
        book(gathered)
        book(parameter * unit.work)
        book(gradient * unit.params)
        book(-parameter * (unit.kept + unit.work))
        book(-gathered)
        book(gradient * (shard - unit.params))  # reduce-scattered, and the rest of it dropped
    return peak


def traffic(n_params, world, stage, bytes_per_param):
    """Pass the shards of a padded model around the ring, and count what one rank sends."""
    collectives = ["reduce gradients", "gather parameters"]
    if stage == 3:
        collectives.append("gather parameters for backward")
    shard = (n_params + world - 1) // world
    return sum(shard * bytes_per_param for _ in collectives for _hop in range(world - 1))


# ---- real steps ----------------------------------------------------------------------------

# tokens, and the widths between the units: what is kept rules, the states rule, and in between:
# wide activations first and large weights last, so that the peak lies within the backward pass
REAL = {
    "activations": (384, (32,) * 17),
    "states": (4, (48,) * 13),
    "between": (160, (8, 96) * 6 + (96,) * 12),
}
PIECE = 512


def units_of(Unit, name):
    """
    The units of a real model: y = gelu(x @ w).

    Backward needs x and x @ w, and holds the gradients of y and of x @ w for a moment.
    """
    tokens, widths = REAL[name]
    return [
        Unit(params=n_in * n_out, kept=tokens * (n_in + n_out), work=tokens * 2 * n_out)
        for n_in, n_out in pairwise(widths)
    ]


class Gathered(torch.autograd.Function):
    """The whole weight out of one rank's shard, as if the others had sent theirs; and back."""

    @staticmethod
    def forward(ctx, shard, shape, world):
        ctx.world = world
        return gather(shard, shape, world)

    @staticmethod
    def backward(ctx, grad):
        return grad.flatten().chunk(ctx.world)[0].clone(), None, None


def gather(shard, shape, world):
    n_in, n_out = shape
    return shard.repeat(world)[: n_in * n_out].view(shape)


class Step:
    """A model of which this rank holds its shards and Adam's states, and one step of training."""

    def __init__(self, name, mode, world, seed):
        self.tokens, widths = REAL[name]
        self.shapes = list(pairwise(widths))
        self.world = world if mode == "fsdp-bf16" else 1
        self.dtype = torch.float32 if mode == "ddp-fp32" else torch.bfloat16
        generator = torch.Generator().manual_seed(seed)
        sizes = [-(-n_in * n_out // self.world) for n_in, n_out in self.shapes]
        weights = [torch.randn(size, generator=generator) / 8 for size in sizes]
        self.shards = [weight.to(self.dtype).requires_grad_() for weight in weights]
        self.masters = [] if mode == "ddp-fp32" else weights
        self.moments = [(torch.zeros(size), torch.zeros(size)) for size in sizes]
        self.x = torch.randn(self.tokens, widths[0], generator=generator).to(self.dtype)

    def held(self):
        """What is there before the step begins; the batch belongs to what the first unit keeps."""
        return [*self.shards, *self.masters, *sum(self.moments, ()), self.x]

    def run(self):
        self.forward().backward()
        for at, shard in enumerate(self.shards):
            self.adam(at, shard)

    def forward(self):
        y = self.x
        for shard, shape in zip(self.shards, self.shapes, strict=True):
            y = self.unit(y, shard, shape)
        return y.sum()

    def unit(self, x, shard, shape):
        if self.world == 1:
            return F.gelu(x @ shard.view(shape))
        w = Gathered.apply(shard, shape, self.world)
        whole = w.untyped_storage().data_ptr()

        def pack(tensor):
            return None if tensor.untyped_storage().data_ptr() == whole else tensor

        def unpack(kept):  # the weight was freed after forward: gather it again
            if kept is not None:
                return kept
            return gather(shard.detach(), shape, self.world)

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            product = x @ w
        return F.gelu(product)

    @torch.no_grad()
    def adam(self, at, shard):
        """Adam's first step in pieces, which leave little lying around."""
        for start in range(0, len(shard), PIECE):
            piece = slice(start, start + PIECE)
            grad, (m, v) = shard.grad[piece].float(), self.moments[at]
            m[piece].mul_(0.9).add_(grad, alpha=0.1)
            v[piece].mul_(0.999).addcmul_(grad, grad, value=0.001)
            master = self.masters[at] if self.masters else shard
            master[piece].sub_(0.01 * (m[piece] / 0.1) / ((v[piece] / 0.001).sqrt() + 1e-8))
            if self.masters:
                shard[piece] = master[piece]
