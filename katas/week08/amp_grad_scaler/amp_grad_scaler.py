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
    raise NotImplementedError  # TODO(kata): compare what is there with what is left (3 lines)


class MasterWeights:
    """
    float32 copies of parameters that are stored in fewer bits: the ones an optimizer updates.

    Attributes:
        masters: One float32 `Parameter` for each of `params`, in their order.
    """

    def __init__(self, params: Iterable[Parameter]) -> None:
        # TODO(kata): keep the parameters, and float32 copies of them as Parameters (2 lines)
        raise NotImplementedError

    def collect(self) -> None:
        """Give each master a float32 copy of its parameter's gradient, or None if it has none."""
        # TODO(kata): float32 copies of the gradients, still scaled (2 lines)
        raise NotImplementedError

    @torch.no_grad()
    def publish(self) -> None:
        """Write the masters to the parameters, each rounded to the parameter's dtype, in place."""
        raise NotImplementedError  # TODO(kata): round into the parameters, in place (2 lines)


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
        # TODO(kata): check, keep and restore (about 20 lines with helpers)
        raise NotImplementedError

    def scale(self, loss: Tensor) -> Tensor:
        """`loss` times the scale, in float32, so that its gradients are times the scale as well."""
        raise NotImplementedError  # TODO(kata): scale (2 lines)

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
        raise NotImplementedError  # TODO(kata): check, unscale and note (about 15 lines)

    def step(self, optimizer: Optimizer) -> bool:
        """
        Let `optimizer` step if all of its gradients are finite, unscaled first unless they are.

        Returns:
            Whether it stepped.

        Raises:
            RuntimeError: it has been asked to since the last update; what `unscale_` refuses.
        """
        # TODO(kata): check, unscale and note, step or skip (about 9 lines)
        raise NotImplementedError

    def update(self) -> None:
        """
        Choose the scale of the next iteration from what all optimizers met in this one.

        A scale that would leave float32 does not grow.

        Raises:
            RuntimeError: no optimizer's gradients were looked at since the last update.
        """
        raise NotImplementedError  # TODO(kata): check, adjust the scale (about 15 lines)

    def state_dict(self) -> dict[str, Any]:
        """What it takes to go on elsewhere: numbers by name, as JSON can hold them."""
        raise NotImplementedError  # TODO(kata): keep and restore (about 7 lines)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave, whatever this one was made with."""
        raise NotImplementedError  # TODO(kata): keep and restore (about 6 lines)


def clipped_step(scaler: GradScaler, optimizer: Optimizer, max_norm: float) -> Tensor:
    """
    One step with gradients clipped to a global norm of `max_norm`, and the update of the scale.

    Returns:
        The norm of the true gradients before they were clipped, a tensor without axes.
    """
    # TODO(kata): unscale and note, step or skip, adjust the scale (about 6 lines)
    raise NotImplementedError
