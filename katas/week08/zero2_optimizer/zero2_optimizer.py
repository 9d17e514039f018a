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
        # TODO(kata): check, this rank's part (about 35 lines with helpers)
        raise NotImplementedError

    @torch.no_grad()
    def step(self) -> None:
        """Update the weights by the mean over the ranks of the gradients, which are dropped."""
        # TODO(kata): reduce the gradients, update the part, gather the parts (about 30 lines with
        # helpers)
        raise NotImplementedError

    def zero_grad(self) -> None:
        """Drop the gradients, those that `clip_grad_norm_` has reduced too. Sends nothing."""
        raise NotImplementedError  # TODO(kata): the reduced ones too (3 lines)

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> float:
        """
        Scale the mean gradient by min(1, max_norm / (norm + 1e-6)); return its norm before that.

        The norm is that of all parameters. Reduces the gradients, so that `step` need not.
        """
        raise NotImplementedError  # TODO(kata): reduce the gradients, clip (about 6 lines)

    def state_dict(self) -> State:
        """Return copies: "step", and this rank's part of "master", "exp_avg" and "exp_avg_sq"."""
        raise NotImplementedError  # TODO(kata): copies (1 line)

    def consolidate(self) -> State:
        """Return the state of all ranks, on each: like `state_dict`, n elements without padding."""
        raise NotImplementedError  # TODO(kata): gather the parts (2 lines)

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        """
        Go on from what `consolidate` returned, in a world of any size. Sends nothing.

        Sets the parameters too, to the masters rounded to their dtype, and drops the gradients.

        Raises:
            ValueError: state: not of as many elements as the parameters.
        """
        raise NotImplementedError  # TODO(kata): check, this rank's part (about 10 lines)
