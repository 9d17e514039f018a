"""Kata week08/amp_grad_scaler: keep float16 gradients in range, and let small updates arrive."""

from collections.abc import Iterable
from ctypes import c_float
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

LARGEST_FLOAT32 = torch.finfo(torch.float32).max


def gradients(optimizer: Optimizer) -> list[Tensor]:
    """The gradients that `optimizer` would use, in the order of its parameters."""
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    return [one.grad for one in parameters if one.grad is not None]


def underflow_fraction(grad: Tensor, dtype: torch.dtype, scale: float) -> float:
    """
    Share of the elements of `grad` other than 0 that are 0 once scaled and rounded to `dtype`.

    0.0 where there is no such element. The product is formed in the dtype of `grad`.
    """
    there = grad != 0
    lost = there & ((grad * scale).to(dtype) == 0)
    return lost.sum().item() / max(1, there.sum().item())


class MasterWeights:
    """
    float32 copies of parameters that are stored in fewer bits: the ones an optimizer updates.

    Attributes:
        masters: One float32 `Parameter` for each of `params`, in their order.
    """

    def __init__(self, params: Iterable[Parameter]) -> None:
        self.params = list(params)
        self.masters = [Parameter(one.detach().float().clone()) for one in self.params]

    def collect(self) -> None:
        """Give each master a float32 copy of its parameter's gradient, or None if it has none."""
        for master, one in zip(self.masters, self.params, strict=True):
            master.grad = None if one.grad is None else one.grad.detach().float().clone()

    @torch.no_grad()
    def publish(self) -> None:
        """Write the masters to the parameters, each rounded to the parameter's dtype, in place."""
        for master, one in zip(self.masters, self.params, strict=True):
            one.copy_(master)


class GradScaler:
    """
    Dynamic loss scaling: grow while gradients are finite, back off and skip when one is not.

    Args:
        init: The scale to begin with.
        growth: What the scale is multiplied by after `interval` good updates in a row.
        backoff: What it is multiplied by after an update with a gradient that is not finite.
        interval: Good updates in a row until it grows.

    Attributes:
        current_scale: What the next loss is multiplied by, a Python float.

    Raises:
        ValueError: `init` is not above 0, `growth` not above 1, `backoff` not between 0 and 1, or
            `interval` below 1; the message names it.

    Source: Micikevicius et al. 2018 (arXiv 1710.03740), section 3.2.
    """

    def __init__(
        self,
        init: float = 65536.0,
        growth: float = 2.0,
        backoff: float = 0.5,
        interval: int = 2000,
    ) -> None:
        # check
        if not init > 0:
            raise ValueError(f"init: expected above 0, found {init}")
        if not growth > 1:
            raise ValueError(f"growth: expected above 1, found {growth}")
        if not 0 < backoff < 1:
            raise ValueError(f"backoff: expected between 0 and 1, found {backoff}")
        if interval < 1:
            raise ValueError(f"interval: expected 1 or more, found {interval}")
        # keep and restore
        self.current_scale = c_float(init).value
        self.growth = growth
        self.backoff = backoff
        self.interval = interval
        self._good_updates = 0
        self._begin_iteration()

    def _begin_iteration(self) -> None:
        self._scaled = False
        # since the last update: whether an optimizer met inf or NaN, and who was asked to step
        self._not_finite: dict[Optimizer, Tensor] = {}
        self._overflowed: dict[Optimizer, bool] = {}

    def scale(self, loss: Tensor) -> Tensor:
        """`loss` times the scale, in float32, so that its gradients are times the scale as well."""
        self._scaled = True
        return loss.float() * self.current_scale

    @torch.no_grad()
    def unscale_(self, optimizer: Optimizer) -> None:
        """
        Divide the gradients of `optimizer` by the scale, in place, and note if all are finite.

        Nothing waits for the device.

        Raises:
            RuntimeError: no loss was scaled since the last update, or these gradients have been
                unscaled or stepped with since then.
            ValueError: a gradient is float16, where what scaling has saved would be lost again.
        """
        # check
        if not self._scaled:
            raise RuntimeError("unscale_: expected scale(loss) since the last update, found none")
        if optimizer in self._not_finite:
            raise RuntimeError("unscale_: expected one call between updates, found a second")
        found = gradients(optimizer)
        if any(one.dtype == torch.float16 for one in found):
            raise ValueError("optimizer: expected gradients wider than float16, found float16")
        # unscale and note
        device = found[0].device if found else None
        noted = torch.zeros(1, device=device)
        # by a tensor: the inverse of a scale that has sunk to 0 is inf, and no error
        inverse = torch.full((1,), self.current_scale, device=device).reciprocal_()
        for dtype in {one.dtype for one in found}:
            some = [one for one in found if one.dtype == dtype]
            torch._amp_foreach_non_finite_check_and_unscale_(some, noted, inverse)
        self._not_finite[optimizer] = noted

    def step(self, optimizer: Optimizer) -> bool:
        """
        Let `optimizer` step if all of its gradients are finite, unscaled first unless they are.

        Returns:
            Whether it stepped.

        Raises:
            RuntimeError: it has been asked to since the last update; what `unscale_` refuses.
        """
        # check
        if optimizer in self._overflowed:
            raise RuntimeError("step: expected one call between updates, found a second")
        # unscale and note
        if optimizer not in self._not_finite:
            self.unscale_(optimizer)
        # step or skip
        overflowed = bool(self._not_finite[optimizer].item())
        self._overflowed[optimizer] = overflowed
        if not overflowed:
            optimizer.step()
        return not overflowed

    def update(self) -> None:
        """
        Choose the scale of the next iteration from what all optimizers met in this one.

        A scale that would leave float32 does not grow.

        Raises:
            RuntimeError: no optimizer's gradients were looked at since the last update.
        """
        # check
        if not self._not_finite:
            raise RuntimeError("update: expected an optimizer that stepped before, found none")
        # adjust the scale
        known = [self._overflowed.get(key) for key in self._not_finite]
        waiting = [noted for key, noted in self._not_finite.items() if key not in self._overflowed]
        if any(known) or any(bool(noted.item()) for noted in waiting):
            self.current_scale = c_float(self.current_scale * self.backoff).value
            self._good_updates = 0
        else:
            self._good_updates += 1
            if self._good_updates == self.interval:
                grown = c_float(self.current_scale * self.growth).value
                self.current_scale = grown if grown <= LARGEST_FLOAT32 else self.current_scale
                self._good_updates = 0
        self._begin_iteration()

    def state_dict(self) -> dict[str, Any]:
        """What it takes to go on elsewhere: numbers by name, as JSON can hold them."""
        # keep and restore
        return {
            "scale": self.current_scale,
            "growth": self.growth,
            "backoff": self.backoff,
            "interval": self.interval,
            "good_updates": self._good_updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave, whatever this one was made with."""
        # keep and restore
        self.current_scale = state["scale"]
        self.growth = state["growth"]
        self.backoff = state["backoff"]
        self.interval = state["interval"]
        self._good_updates = state["good_updates"]
        self._begin_iteration()


def clipped_step(scaler: GradScaler, optimizer: Optimizer, max_norm: float) -> Tensor:
    """
    One step with gradients clipped to a global norm of `max_norm`, and the update of the scale.

    Returns:
        The norm of the true gradients before they were clipped, a tensor without axes.
    """
    # unscale and note
    scaler.unscale_(optimizer)
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    # step or skip
    scaler.step(optimizer)
    # adjust the scale
    scaler.update()
    return norm
