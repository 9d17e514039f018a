"""Kata week26/fsdp2_qlora: a frozen base sharded and gathered in four bits, adapters beside it.

Per module, step and rank: one all-gather of bytes before forward, one before backward, and one
reduce-scatter of the adapters' gradients.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from harness.meters.collectives import Collectives

BLOCK = 64  # elements that share a scale
GROUP = 256  # scales that share a scale of their own
# Dettmers et al. 2023, appendix E
LEVELS = torch.tensor([
    -1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
])  # fmt: skip


class NF4(NamedTuple):
    """
    A matrix of `shape` in four bits, row by row.

    Attributes:
        packed: uint8, two elements each, the first in the high bits.
        codes: uint8, for each block of 64 elements, the last one may be shorter.
        absmax2: float32, for each group of 256 codes, the last one may be shorter.
        offset: float32, of all scales; it has no axes.
        shape: That of the matrix.
    """

    packed: Tensor
    codes: Tensor
    absmax2: Tensor
    offset: Tensor
    shape: tuple[int, int]


def dequantise_into(out: Tensor, whole: NF4) -> None:
    """Write the elements of `whole` to `out`, which is flat; a little at a time."""
    levels, step = LEVELS.to(out.device), 64 * BLOCK
    for start in range(0, len(out), step):
        part = out[start : start + step]
        codes = whole.codes[start // BLOCK : (start + step) // BLOCK]
        scales = (codes.float() - 128) / 127 * whole.absmax2[start // (BLOCK * GROUP)]
        scales = (scales + whole.offset).repeat_interleave(BLOCK)[: len(part)]
        bytes_ = whole.packed[start // 2 : (start + step) // 2]
        nibbles = torch.stack((bytes_ >> 4, bytes_ & 15), dim=1).flatten()[: len(part)]
        part.copy_(levels[nibbles.int()] * scales)


class QloraLinear(nn.Module):
    """x wᵀ + s (x aᵀ) bᵀ; `weight` must be a tensor while it runs, and is not a parameter."""

    def __init__(self, weight: NF4, a: Tensor, b: Tensor, s: float) -> None:
        super().__init__()
        self.weight = weight
        self.a, self.b, self.s = nn.Parameter(a), nn.Parameter(b), s

    def forward(self, x: Tensor) -> Tensor:
        """Return [t, out] of x [t, in]."""
        return x @ self.weight.t() + self.s * (x @ self.a.t() @ self.b.t())


def free_storage(tensor: Tensor) -> None:
    """Give back the memory of `tensor`: what shares it stays, but nobody may read it."""
    tensor.untyped_storage().resize_(0)


def allocate_storage(tensor: Tensor) -> None:
    """Give memory back to `tensor`, which is contiguous, with anything in it."""
    tensor.untyped_storage().resize_(tensor.numel() * tensor.itemsize)


def after_backward(call: Callable[[], None]) -> None:
    """Call `call` at the end of the backward pass that is running."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def named_slots(module: nn.Module) -> list[tuple[nn.Module, str, nn.Parameter]]:
    """List the places of parameters in `module`: owner, attribute, parameter (twice, if tied)."""
    return [
        (owner, name, parameter)
        for owner in module.modules()
        for name, parameter in owner._parameters.items()
        if parameter is not None
    ]


class Shard(nn.Parameter):
    """This rank's elements of a parameter, flat."""


class InputsDone(torch.autograd.Function):
    """The identity. Its backward runs when the gradients of all its inputs are there."""

    @staticmethod
    def forward(ctx, hooks: "ShardHooks", *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return `inputs`."""
        ctx.hooks = hooks
        return inputs

    @staticmethod
    def backward(ctx, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return `grads`; the module is done."""
        ctx.hooks.end_backward()
        return None, *grads


class ShardHooks(nn.Module):
    """
    Runs `module`, and calls `unshard`, `reshard` and `post_backward` of a subclass in time.

    `unshard` comes before forward and, once the gradient of an output is known, before backward;
    `reshard` after forward; `post_backward` when the gradients of the inputs are known, or at the
    end of the backward pass, if no input asks for one.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.in_backward = False

    def forward(self, *args: object) -> object:
        """Run `module`, whose output may be nested lists, tuples and dicts."""
        self.unshard()
        wanted = [arg for arg in args if isinstance(arg, Tensor) and arg.requires_grad]
        if wanted and torch.is_grad_enabled():
            passed = iter(InputsDone.apply(self, *wanted))
            args = [
                next(passed) if isinstance(arg, Tensor) and arg.requires_grad else arg
                for arg in args
            ]
        output = self.module(*args)
        self.reshard()
        for one in tree_leaves(output):
            if isinstance(one, Tensor) and one.requires_grad:
                one.register_hook(self.begin_backward)
        return output

    def begin_backward(self, _grad: Tensor) -> None:
        """Have the parameters whole; it is called for every output."""
        if not self.in_backward:
            self.in_backward = True
            after_backward(self.end_backward)
        self.unshard()

    def end_backward(self) -> None:
        """Finish, unless that has been done."""
        if self.in_backward:
            self.in_backward = False
            self.post_backward()


def shard_aligned(numel: int, unit: int, world: int) -> list[tuple[int, int]]:
    """
    Start and stop of each rank's elements: as many whole units each, the last ones fewer or none.

    Raises:
        ValueError: unit, world: below 1. The message begins with the name; the first one counts.
    """
    raise NotImplementedError  # TODO(kata): check, cut at whole groups (about 8 lines with helpers)


class Nf4Shard:
    """This rank's units of a matrix in four bits; a unit is 256 blocks of 64."""

    def __init__(self, whole: NF4, rank: int, world: int) -> None:
        """
        Copy what belongs to `rank`.

        Raises:
            ValueError: whole: packed, codes or absmax2 do not have the length that the shape
                asks for. rank: not in 0 … world - 1. The first one counts.
        """
        # TODO(kata): check, cut at whole groups (about 15 lines with helpers)
        raise NotImplementedError

    def fsdp_pre_all_gather(self) -> tuple[tuple[Tensor, ...], object]:
        """Return what this rank sends, as long on all ranks, and what all ranks know."""
        raise NotImplementedError  # TODO(kata): gather as bytes (about 5 lines)

    def fsdp_post_all_gather(
        self,
        outputs: tuple[Tensor, ...],
        metadata: object,
        dtype: torch.dtype,
        out: Tensor | None = None,
    ) -> Tensor:
        """Make the whole weight from what the ranks sent, in their order; in `out`, if given."""
        raise NotImplementedError  # TODO(kata): unpack (about 5 lines)


class ShardedQlora(ShardHooks):
    """
    A module whose four-bit weights and parameters are sharded: each rank keeps its part.

    Outside of forward and backward `weight` of each `QloraLinear` is an `Nf4Shard`, and each
    parameter a `Shard`. `.grad` of one is this rank's part of the mean over the ranks.

    Source: torch.distributed.fsdp.fully_shard and its extensions; Answer.AI's FSDP with QLoRA.
    """

    def __init__(self, module: nn.Module, comm: Collectives) -> None:
        """
        Replace weights and parameters of `module`, the same on all ranks, by shards. Sends nothing.

        Raises:
            ValueError: module: a `QloraLinear` in it is sharded already.
        """
        # TODO(kata): check, cut at whole groups (about 25 lines with helpers)
        raise NotImplementedError

    @torch.no_grad()
    def unshard(self) -> None:
        """Put all that is whole in its place, with one all-gather, unless it is there."""
        # TODO(kata): gather as bytes, unpack, free and replace (about 30 lines with helpers)
        raise NotImplementedError

    def reshard(self) -> None:
        """Free what is whole, and put the shards in their places. Sends nothing."""
        raise NotImplementedError  # TODO(kata): free and replace (about 4 lines)

    @torch.no_grad()
    def post_backward(self) -> None:
        """Add the mean gradients of the whole parameters to those of the shards, and reshard."""
        raise NotImplementedError  # TODO(kata): reduce the gradients (about 20 lines)
