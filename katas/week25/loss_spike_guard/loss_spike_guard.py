"""Kata week25/loss_spike_guard: skip what is not finite, and rewind where the loss goes astray.

The device decides by itself whether an update happens. The host looks at the results of
the steps once in a while, so it never waits for the step it has just launched.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from harness.meters.collectives import Collectives

BETA1, BETA2, EPS = 0.9, 0.95, 1e-8
NORMAL = 1.4826  # times the median absolute deviation: the deviation of a normal distribution


class Health(NamedTuple):
    """The outcome of a step, alike on all ranks: two float64 tensors without axes."""

    loss: Float[Tensor, ""]
    norm: Float[Tensor, ""]


class Rollback(NamedTuple):
    """Load the checkpoint of `to_step`; read on where the data stands, `skip` batches dropped."""

    to_step: int
    skip: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamState:
    """
    What Adam knows of a rank's parameters; everything is a tensor, and changed in place.

    `steps` (int64, no axes) counts the updates made.
    """

    steps: Tensor
    exp_avg: list[Tensor]
    exp_avg_sq: list[Tensor]

    @classmethod
    def of(cls, params: Sequence[Tensor], device: torch.device) -> "AdamState":
        """Return the state before the first update."""
        return cls(
            steps=torch.zeros((), dtype=torch.int64, device=device),
            exp_avg=[torch.zeros_like(param) for param in params],
            exp_avg_sq=[torch.zeros_like(param) for param in params],
        )


@torch.no_grad()
def reduce_step(params: Sequence[Tensor], loss: Float[Tensor, ""], comm: Collectives) -> Health:
    """
    Tell all ranks of the step: the mean of their losses, and the norm of all their gradients.

    Nothing waits for the device. A value that is not finite on any rank is not finite on all.

    Args:
        params: This rank's; those that are frozen, or have no gradient, do not count.
        loss: This rank's, in float32.
        comm: The ranks, which all call this at every step.
    """
    raise NotImplementedError  # TODO(kata): health of the step (about 7 lines with helpers)


@torch.no_grad()
def guarded_step(
    params: Sequence[Tensor], state: AdamState, health: Health, *, lr: float, max_norm: float
) -> None:
    """
    Take a step of Adam with clipped gradients, unless the loss or the norm is not finite.

    In that case parameters and state keep every bit. The host never learns of it: nothing waits
    for the device.
    """
    raise NotImplementedError  # TODO(kata): step behind a mask (about 15 lines)


class SpikeGuard:
    """
    Looks at the losses every few steps, all at once, and says when to go back.

    A loss is high if it or the norm of its step is not finite, or if it is above the median of
    the last good ones by more than `rise`, and by more than `k` times their deviation. A row
    of `patience` high ones is a spike.
    """

    def __init__(
        self,
        *,
        window: int = 64,
        k: float = 6.0,
        rise: float = 0.1,
        patience: int = 5,
        every: int = 10,
        rewind: int = 100,
        save_every: int = 50,
        skip_batches: int = 200,
    ) -> None:
        """
        Begin with no losses.

        Args:
            window: How many good losses to compare with; while there are fewer, finite is good.
            k: Deviations above the median from which a loss may be high.
            rise: Nats above the median from which it may be.
            patience: High losses in a row that make a spike.
            every: Steps between two looks.
            rewind: How many steps before the first of them to go back, at least.
            save_every: Checkpoints are of the steps 0, `save_every`, twice that …
            skip_batches: How many batches not to see again, at least.

        Raises:
            ValueError: `window` is less than 8, `k` not above 0, `patience`, `every` or
                `save_every` less than 1, `rise`, `rewind` or `skip_batches` less than 0.
        """
        raise NotImplementedError  # TODO(kata): check (about 20 lines with helpers)

    def update(self, step: int, health: Health) -> Rollback | None:
        """
        Take note of a step; at every `every`-th call look at the steps since the last look.

        Raises:
            ValueError: `step` is not the one that follows; nothing has been noted.
        """
        # TODO(kata): check, read at once, judge, go back (about 30 lines with helpers)
        raise NotImplementedError

    def forget(self) -> None:
        """Drop all losses, even those not looked at: from here on they are expected to differ."""
        raise NotImplementedError  # TODO(kata): drop all losses (3 lines)
