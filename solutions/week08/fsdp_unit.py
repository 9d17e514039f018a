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
        # check
        slots = named_slots(module)
        params = list(dict.fromkeys(param for _, _, param in slots))
        trained = {param.requires_grad for param in params}
        if len(trained) != 1:
            raise ValueError(
                f"module: expected parameters that are all frozen or all not, found {len(params)}, "
                f"{sum(param.requires_grad for param in params)} of them not frozen."
            )
        # flatten and shard
        self._comm = comm
        self._reshard_after_forward = reshard_after_forward
        self._shapes = [param.shape for param in params]
        numels = [param.numel() for param in params]
        size = -(-sum(numels) // comm.world)
        padding = size * comm.world - sum(numels)
        whole = torch.cat([param.detach().flatten() for param in params])
        whole = nn.functional.pad(whole, (0, padding))
        self._splits = [*numels, padding]
        own = whole[comm.rank * size : (comm.rank + 1) * size].clone()
        self.shard = nn.Parameter(own, requires_grad=trained == {True})
        self._flat = whole.requires_grad_(trained == {True})
        free_storage(self._flat)
        order = {param: at for at, param in enumerate(params)}
        self._slots = [(owner, name, order[param]) for owner, name, param in slots]
        for owner, name, _ in self._slots:
            del owner._parameters[name]
        module.register_parameter("shard", self.shard)

        # register hooks
        self.following: FSDPUnit | None = None
        self.preceding: FSDPUnit | None = None
        self._pending: Pending | None = None
        self._whole = False
        self._awaits_backward = False
        module.register_forward_pre_hook(self._before_forward)
        module.register_forward_hook(self._after_forward)
        if self._flat.requires_grad:
            self._flat.register_post_accumulate_grad_hook(self._reduce)

    def _before_forward(self, _module: nn.Module, _args: object) -> None:
        # gather
        self._gather()
        if self.following is not None and not in_backward():
            self.following._start()
        views = self._flat.split(self._splits)
        for owner, name, at in self._slots:
            setattr(owner, name, views[at].view(self._shapes[at]))

    def _after_forward(self, _module: nn.Module, _args: object, output: object) -> None:
        # reduce and free
        for owner, name, _ in self._slots:
            delattr(owner, name)
        tensors = [one for one in tree_leaves(output) if isinstance(one, Tensor)]
        watched = [one for one in tensors if one.requires_grad]
        for one in watched:
            one.register_hook(self._before_backward)
        self._awaits_backward |= bool(watched)
        if in_backward():  # which needs the weights next
            return
        if self._reshard_after_forward or not watched:
            self._free()

    def _before_backward(self, _grad: Tensor) -> None:
        # gather
        after_backward(self._finish)
        self._gather()
        if self.preceding is not None and self.preceding._awaits_backward:
            after_backward(self.preceding._finish)
            self.preceding._start()

    @torch.no_grad()
    def _reduce(self, flat: Tensor) -> None:
        """Reduce the gradient of the whole, which is complete, into that of the part."""
        # reduce and free
        assert flat.grad is not None
        mine = torch.empty_like(self.shard)
        self._comm.reduce_scatter(mine, flat.grad).wait()
        flat.grad = None
        self._free()
        mine /= self._comm.world
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad + mine

    def _finish(self) -> None:
        """Free what no gradient of its own has freed: a frozen unit, one that was not reached."""
        # reduce and free
        self._awaits_backward = False
        self._free()

    def _start(self) -> None:
        """Start to gather, unless that has been done."""
        # gather
        if self._pending is None and not self._whole:
            allocate_storage(self._flat)
            # autograd must not see the write: .data has a version counter of its own
            self._pending = self._comm.all_gather(self._flat.data, self.shard.data)

    def _gather(self) -> None:
        """Have the whole."""
        # gather
        self._start()
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
            self._whole = True

    def _free(self) -> None:
        # reduce and free
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
        self._whole = False
        free_storage(self._flat)


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
    # check
    for name, param in model.named_parameters():
        owners = sum(any(param is own for own in unit.parameters()) for unit in units)
        if owners != 1:
            raise ValueError(
                f"{name}: expected each parameter in one of the units, found {owners}."
            )
    # link the units
    made = [FSDPUnit(unit, comm, reshard_after_forward=reshard_after_forward) for unit in units]
    for unit, following in pairwise(made):
        unit.following, following.preceding = following, unit

    def free_unused(_module: nn.Module, _args: object, _output: object) -> None:
        for unit in made:
            if unit._pending is not None:
                unit._free()

    model.register_forward_hook(free_unused)
    return made
