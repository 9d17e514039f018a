"""Kata week08/fsdp_unit: weights that are whole only while they are used.

Per unit, step and rank: an all-gather before forward, another before backward, one reduce-scatter.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from harness.meters.collectives import Collectives, Pending


def free_storage(tensor: Tensor) -> None:
    """Give back the memory of `tensor`: what shares it stays, but nobody may read or view it."""
    tensor.untyped_storage().resize_(0)


def allocate_storage(tensor: Tensor) -> None:
    """Give memory back to `tensor`, and to all that share it, with anything in it."""
    tensor.untyped_storage().resize_(tensor.numel() * tensor.itemsize)


def after_backward(call: Callable[[], None]) -> None:
    """Call `call` at the end of the backward pass that is running."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def in_backward() -> bool:
    """Whether a backward pass is running, so that a forward of now is a recomputation."""
    return torch._C._current_graph_task_id() != -1


def named_slots(module: nn.Module) -> list[tuple[nn.Module, str, nn.Parameter]]:
    """List the places of parameters in `module`: owner, attribute, parameter (twice, if tied)."""
    return [
        (owner, name, parameter)
        for owner in module.modules()
        for name, parameter in owner._parameters.items()
        if parameter is not None
    ]


class FSDPUnit:
    """
    The parameters of one module, of which each rank keeps 1 / world.

    They are one flat vector with zeros at the end; rank r owns part r. The module's parameters
    are replaced by one, `shard`. The flat vector has memory only while the module runs, and from
    the gradient of its output to its own.

    Attributes:
        shard: this rank's part, a leaf; its gradient is the mean over the ranks, its part of it.

    Source: Zhao et al., PyTorch FSDP (arXiv 2304.11277), sections 3 and 4.
    """

    def __init__(
        self, module: nn.Module, comm: Collectives, *, reshard_after_forward: bool = True
    ) -> None:
        """
        Replace the parameters of `module`, which are alike on all ranks. Sends nothing.

        Raises:
            ValueError: module: no parameters, or some frozen and some not.
        """
        # TODO(kata): check, flatten and shard, register hooks, gather, reduce and free (about 85
        # lines with helpers)
        raise NotImplementedError


def fully_shard_(
    model: nn.Module,
    units: Sequence[nn.Module],
    comm: Collectives,
    *,
    reshard_after_forward: bool = True,
) -> list[FSDPUnit]:
    """
    Make a unit of each module of `units`, which are in the order in which `model` runs them.

    While one computes, the weights of the next are gathered: of that before it in backward.

    Raises:
        ValueError: a parameter of `model` is in two of the units or in none; it is named.
    """
    raise NotImplementedError  # TODO(kata): check, link the units (about 15 lines)
