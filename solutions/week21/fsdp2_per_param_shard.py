"""Kata week21/fsdp2_per_param_shard: each parameter cut by rows, all of a module gathered at once.

Per module, step and rank: one all-gather before forward, one before backward, one reduce-scatter.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
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
    # check
    if t.dim() == 0:
        raise ValueError("t: expected a tensor with rows, found a scalar.")
    if not 0 <= rank < world:
        raise ValueError(f"rank: expected 0 … {world - 1}, found {rank}.")
    # cut by rows
    rows = _rows(t, world)
    return t.detach()[rank * rows : (rank + 1) * rows].clone(memory_format=torch.contiguous_format)


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
        # check
        for name, param in module.named_parameters():
            if param.dim() == 0 or isinstance(param, Shard):
                found = "a scalar" if param.dim() == 0 else "a shard"
                raise ValueError(f"{name}: expected a parameter with rows, whole, found {found}.")
        # cut by rows
        super().__init__(module)
        slots = named_slots(module)
        params = list(dict.fromkeys(param for _, _, param in slots))
        order = {param: at for at, param in enumerate(params)}
        self._comm = comm
        self._slots = [(owner, name, order[param]) for owner, name, param in slots]
        self._shards = [
            Shard(shard_dim0(param, comm.rank, comm.world), param.requires_grad) for param in params
        ]
        self._fulls = [
            nn.Parameter(param.new_empty(param.shape), requires_grad=False) for param in params
        ]
        # elements of the largest part of each, which is what every rank sends
        self._sizes = [_rows(param, comm.world) * param[:1].numel() for param in params]
        self.reshard()

    @torch.no_grad()
    def unshard(self) -> None:
        """Put the whole parameters in their places, with one all-gather, unless they are there."""
        # pad and gather
        if self._whole:
            return
        gathered = self._gather().view(self._comm.world, -1)
        # copy out
        for full, parts in zip(self._fulls, gathered.split(self._sizes, dim=1), strict=True):
            allocate_storage(full)
            # autograd must not see the write: .data has a version counter of its own
            for rows, part in zip(full.data.chunk(self._comm.world), parts, strict=False):
                rows.copy_(part[: rows.numel()].view_as(rows))
        for full, shard in zip(self._fulls, self._shards, strict=True):
            full.requires_grad_(shard.requires_grad)
        self._place(self._fulls)
        self._whole = True

    def reshard(self) -> None:
        """Free the whole parameters, and put the shards in their places. Sends nothing."""
        # free and put back
        for full in self._fulls:
            free_storage(full)
        self._place(self._shards)
        self._whole = False

    @torch.no_grad()
    def post_backward(self) -> None:
        """Add what the whole parameters have as gradients to those of the shards, and reshard."""
        # reduce gradients
        world = self._comm.world
        found = [at for at, full in enumerate(self._fulls) if full.grad is not None]
        if found:
            sizes = [self._sizes[at] for at in found]
            grads = [
                pad(self._fulls[at].grad.flatten(), (0, world * size - self._fulls[at].numel()))
                for at, size in zip(found, sizes, strict=True)
            ]
            parts = torch.cat([grad.view(world, -1) for grad in grads], dim=1)
            mine = parts.new_empty(sum(sizes))
            self._comm.reduce_scatter(mine, parts.flatten()).wait()
            mine /= world
            for at, part in zip(found, mine.split(sizes), strict=True):
                shard = self._shards[at]
                own = part[: shard.numel()].view_as(shard)
                shard.grad = own.clone() if shard.grad is None else shard.grad + own
                self._fulls[at].grad = None
        self.reshard()

    def _gather(self) -> Tensor:
        # pad and gather
        mine = torch.cat(
            [
                pad(shard.flatten(), (0, size - shard.numel()))
                for shard, size in zip(self._shards, self._sizes, strict=True)
            ]
        )
        gathered = mine.new_empty(self._comm.world * len(mine))
        self._comm.all_gather(gathered, mine).wait()
        return gathered

    def _place(self, params: list[nn.Parameter]) -> None:
        for owner, name, at in self._slots:
            setattr(owner, name, params[at])


def _rows(t: Tensor, world: int) -> int:
    """Rows of the largest part."""
    return -(-len(t) // world)
