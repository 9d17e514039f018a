"""Kata week08/zero2_optimizer: AdamW whose states and reduced gradients are sharded.

Per step and rank: one reduce-scatter of the gradients, one all-gather of the weights.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from harness.meters.collectives import Collectives

Group = dict[str, Any]
State = dict[str, Any]


def as_groups(
    params: Iterable[Tensor] | Iterable[Mapping[str, Any]], **defaults: object
) -> list[Group]:
    """Return the parameter groups of torch.optim: dicts with "params", completed by `defaults`."""
    listed: list[Any] = list(params)
    if listed and isinstance(listed[0], Tensor):
        listed = [{"params": listed}]
    return [defaults | dict(group) | {"params": list(group["params"])} for group in listed]


def flatten(tensors: Sequence[Tensor], size: int) -> Tensor:
    """Return `size` elements in new memory: those of `tensors`, in their order, then zeros."""
    flat = torch.zeros(size, dtype=tensors[0].dtype, device=tensors[0].device)
    used = sum(tensor.numel() for tensor in tensors)
    flat[:used] = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    return flat


def write_back(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy the elements of `flat` into `tensors`, one after the other, in their dtype."""
    start = 0
    for tensor in tensors:
        tensor.detach().copy_(flat[start : start + tensor.numel()].view(tensor.shape))
        start += tensor.numel()


class ZeroAdamW:
    """
    AdamW that keeps 1 / world of the states, and of the gradients once they are reduced.

    The parameters, in their order, are one flat vector with zeros at the end; rank r of `comm`
    owns part r of it, of ceil(n / world) elements. Of its part it holds a float32 copy of the
    weights (the master) and the two moments, and nothing else that is as large between steps.

    Attributes:
        param_groups: the groups of torch.optim; what stands there when `step` is called counts.

    Source: ZeRO (arXiv 1910.02054), section 5.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[Mapping[str, Any]],
        comm: Collectives,
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        """
        Take parameters that are alike on all ranks. Sends nothing.

        Raises:
            ValueError: params: none, of several dtypes, on several devices, or one twice;
                lr, weight_decay: negative; betas: not in [0, 1).
        """
        # check
        self.param_groups = as_groups(
            params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay
        )
        self._params: list[Tensor] = [p for group in self.param_groups for p in group["params"]]
        self._check()
        # this rank's part
        self._comm = comm
        self._n = sum(param.numel() for param in self._params)
        self._size = -(-self._n // comm.world)
        self._steps = 0
        self._gradient: Tensor | None = None
        master = self._own_part(flatten(self._params, self._size * comm.world))
        self._state = {
            "master": master,
            "exp_avg": torch.zeros_like(master),
            "exp_avg_sq": torch.zeros_like(master),
        }

    @torch.no_grad()
    def step(self) -> None:
        """Update the weights by the mean over the ranks of the gradients, which are dropped."""
        # reduce the gradients
        whole = self._reduced()
        self._gradient = None
        # update the part
        self._steps += 1
        begin = 0
        for group in self.param_groups:
            # where the group and this rank's part overlap, counted from the start of the part
            end = begin + sum(param.numel() for param in group["params"])
            first = self._comm.rank * self._size
            part = slice(max(begin - first, 0), max(end - first, 0))
            begin = end
            master, exp_avg, exp_avg_sq = (flat[part] for flat in self._state.values())
            gradient, (beta1, beta2) = whole[part], group["betas"]
            master.mul_(1 - group["lr"] * group["weight_decay"])
            exp_avg.lerp_(gradient, 1 - beta1)
            exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            root = (exp_avg_sq / (1 - beta2**self._steps)).sqrt_().add_(group["eps"])
            master.addcdiv_(exp_avg, root, value=-group["lr"] / (1 - beta1**self._steps))
        # gather the parts
        mine = self._state["master"].to(self._params[0].dtype)
        write_back(self._gathered(mine), self._params)

    def zero_grad(self) -> None:
        """Drop the gradients, those that `clip_grad_norm_` has reduced too. Sends nothing."""
        self._gradient = None
        for param in self._params:
            param.grad = None

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> float:
        """
        Scale the mean gradient by min(1, max_norm / (norm + 1e-6)); return its norm before that.

        The norm is that of all parameters. Reduces the gradients, so that `step` need not.
        """
        # reduce the gradients
        gradient = self._reduced()
        # clip
        squared = gradient.double().square().sum()
        self._comm.all_reduce(squared).wait()
        norm = squared.sqrt().item()
        gradient.mul_(min(1.0, max_norm / (norm + 1e-6)))
        return norm

    def state_dict(self) -> State:
        """Return copies: "step", and this rank's part of "master", "exp_avg" and "exp_avg_sq"."""
        return {"step": self._steps} | {name: flat.clone() for name, flat in self._state.items()}

    def consolidate(self) -> State:
        """Return the state of all ranks, on each: like `state_dict`, n elements without padding."""
        # gather the parts
        whole = {name: self._gathered(flat)[: self._n] for name, flat in self._state.items()}
        return {"step": self._steps} | whole

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        """
        Go on from what `consolidate` returned, in a world of any size. Sends nothing.

        Sets the parameters too, to the masters rounded to their dtype, and drops the gradients.

        Raises:
            ValueError: state: not of as many elements as the parameters.
        """
        # check
        for name in self._state:
            if state[name].numel() != self._n:
                raise ValueError(
                    f"state: expected {self._n} elements in {name}, found {state[name].numel()}."
                )
        # this rank's part
        self.zero_grad()
        self._steps = state["step"]
        padded = self._size * self._comm.world
        self._state = {name: self._own_part(flatten([state[name]], padded)) for name in self._state}
        write_back(state["master"], self._params)

    def _check(self) -> None:
        if not self._params:
            raise ValueError("params: expected at least one parameter, found none.")
        if len({id(param) for param in self._params}) < len(self._params):
            raise ValueError("params: expected each parameter once, found one twice.")
        for kind in ("dtype", "device"):
            found = {str(getattr(param, kind)) for param in self._params}
            if len(found) > 1:
                raise ValueError(f"params: expected one {kind}, found {sorted(found)}.")
        for group in self.param_groups:
            for name in ("lr", "weight_decay"):
                if group[name] < 0:
                    raise ValueError(f"{name}: expected at least 0, found {group[name]}.")
            if not all(0 <= beta < 1 for beta in group["betas"]):
                raise ValueError(f"betas: expected two in [0, 1), found {group['betas']}.")

    def _own_part(self, flat: Tensor) -> Tensor:
        """Return a float32 copy of this rank's part of a flat vector."""
        return flat.view(self._comm.world, -1)[self._comm.rank].to(torch.float32, copy=True)

    def _reduced(self) -> Tensor:
        """Return this rank's part of the mean gradient, reduced unless that has been done."""
        if self._gradient is None:
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._params]
            flat = flatten(grads, self._size * self._comm.world)
            mine = flat.new_empty(self._size)
            self._comm.reduce_scatter(mine, flat).wait()
            self.zero_grad()
            # the sum travels in the dtype of the gradients: divided there, small ones are lost
            self._gradient = mine.float().div_(self._comm.world)
        return self._gradient

    def _gathered(self, mine: Tensor) -> Tensor:
        """Return the parts of all ranks."""
        flat = mine.new_empty(self._size * self._comm.world)
        self._comm.all_gather(flat, mine).wait()
        return flat
