"""Kata week25/loss_spike_guard: skip what is not finite, and rewind where the loss goes astray.

The device decides by itself whether an update happens. The host looks at the results of
the steps once in a while, so it never waits for the step it has just launched.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
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
    grads = [param.grad for param in params if _counts(param)]
    # squares of 1e20 pass the end of float32, though they are as good as any
    norms = torch._foreach_norm(grads, 2, dtype=torch.float64) if grads else [loss.new_zeros(())]
    sums = torch.stack([loss.double(), torch.stack(norms).square().sum()])
    comm.all_reduce(sums).wait()
    return Health(sums[0] / comm.world, sums[1].sqrt())


@torch.no_grad()
def guarded_step(
    params: Sequence[Tensor], state: AdamState, health: Health, *, lr: float, max_norm: float
) -> None:
    """
    Take a step of Adam with clipped gradients, unless the loss or the norm is not finite.

    In that case parameters and state keep every bit. The host never learns of it: nothing waits
    for the device.
    """
    fine = health.loss.isfinite() & health.norm.isfinite()
    state.steps.add_(fine)
    clip = max_norm / health.norm.clamp_min(max_norm)
    first_known, second_known = (1 - beta**state.steps for beta in (BETA1, BETA2))
    for param, first, second in zip(params, state.exp_avg, state.exp_avg_sq, strict=True):
        if not _counts(param):
            continue
        grad = param.grad * clip  # without axes, so it promotes nothing
        new_first = BETA1 * first + (1 - BETA1) * grad
        new_second = BETA2 * second + (1 - BETA2) * grad.square()
        moved = param - lr * (new_first / first_known) / ((new_second / second_known).sqrt() + EPS)
        # not fine * update: 0 times NaN is NaN
        for old, new in ((param, moved), (first, new_first), (second, new_second)):
            old.copy_(torch.where(fine, new, old))


def _counts(param: Tensor) -> bool:
    return param.requires_grad and param.grad is not None


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
        # check
        if window < 8:
            raise ValueError(f"window: expected at least 8, found {window}")
        if not k > 0:
            raise ValueError(f"k: expected more than 0, found {k}")
        _check("rise", rise, 0)
        _check("patience", patience, 1)
        _check("every", every, 1)
        _check("rewind", rewind, 0)
        _check("save_every", save_every, 1)
        _check("skip_batches", skip_batches, 0)
        self._k, self._rise, self._patience, self._every = k, rise, patience, every
        self._rewind, self._save_every, self._skip = rewind, save_every, skip_batches
        self._good: deque[float] = deque(maxlen=window)
        self._unread: list[Tensor] = []
        self._high = 0
        self._next: int | None = None

    def update(self, step: int, health: Health) -> Rollback | None:
        """
        Take note of a step; at every `every`-th call look at the steps since the last look.

        Raises:
            ValueError: `step` is not the one that follows; nothing has been noted.
        """
        # check
        if self._next not in (None, step):
            raise ValueError(f"step: expected {self._next}, found {step}")
        self._next = step + 1
        # read at once
        self._unread.append(torch.stack(health))
        if len(self._unread) < self._every:
            return None
        read = torch.stack(self._unread).tolist()
        self._unread.clear()
        # judge
        for at, (loss, norm) in enumerate(read, step - len(read) + 1):
            self._judge(loss, norm)
            if self._high == self._patience:
                return self._go_back(at - self._patience + 1, step)
        return None

    def forget(self) -> None:
        """Drop all losses, even those not looked at: from here on they are expected to differ."""
        self._good.clear()
        self._unread.clear()
        self._high = 0

    def _judge(self, loss: float, norm: float) -> None:
        # judge
        if math.isfinite(loss) and math.isfinite(norm) and not self._stands_out(loss):
            self._good.append(loss)
            self._high = 0
        else:
            self._high += 1

    def _stands_out(self, loss: float) -> bool:
        # judge
        if len(self._good) < self._good.maxlen:
            return False
        middle = median(self._good)
        deviation = NORMAL * median(abs(one - middle) for one in self._good)
        return loss - middle > max(self._rise, self._k * deviation)

    def _go_back(self, onset: int, step: int) -> Rollback:
        """Return to before `onset`; the batches up to that of `step` have been read."""
        # go back
        to_step = max(0, (onset - self._rewind) // self._save_every * self._save_every)
        self._high = 0
        self._next = to_step
        return Rollback(to_step, max(0, self._skip - (step + 1 - to_step)))


def _check(name: str, value: float, least: int) -> None:
    if not value >= least:
        raise ValueError(f"{name}: expected at least {least}, found {value}")
