"""Kata week21/fsdp2_per_param_shard: each parameter cut by rows, all of a module gathered at once.

Per module, step and rank: one all-gather before forward, one before backward, one reduce-scatter.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from harness.meters.collectives import Collectives


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
    """This rank's rows of a parameter."""


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


def shard_dim0(t: Tensor, rank: int, world: int) -> Tensor:
    """
    Copy the rows of `t` that are part `rank` of `t.chunk(world)`: none, if there is no such part.

    Raises:
        ValueError: t: it has no rows, being a scalar. rank: not in 0 … world - 1.
    """
    raise NotImplementedError  # TODO(kata): check, cut by rows (about 8 lines with helpers)


class ShardedModule(ShardHooks):
    """
    A module of whose parameters each rank keeps its rows.

    Outside of forward and backward the module's parameters are those rows, each a `Shard` in the
    place of its parameter. `.grad` of one is this rank's rows of the mean over the ranks.

    Source: torch.distributed.fsdp.fully_shard (FSDP2).
    """

    def __init__(self, module: nn.Module, comm: Collectives) -> None:
        """
        Replace the parameters of `module`, which are alike on all ranks. Sends nothing.

        Raises:
            ValueError: a parameter is a scalar, or a `Shard`; it is named.
        """
        raise NotImplementedError  # TODO(kata): check, cut by rows (about 20 lines)

    @torch.no_grad()
    def unshard(self) -> None:
        """Put the whole parameters in their places, with one all-gather, unless they are there."""
        # TODO(kata): pad and gather, copy out (about 25 lines with helpers)
        raise NotImplementedError

    def reshard(self) -> None:
        """Free the whole parameters, and put the shards in their places. Sends nothing."""
        raise NotImplementedError  # TODO(kata): free and put back (about 4 lines)

    @torch.no_grad()
    def post_backward(self) -> None:
        """Add what the whole parameters have as gradients to those of the shards, and reshard."""
        raise NotImplementedError  # TODO(kata): reduce gradients (about 20 lines)
