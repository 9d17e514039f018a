"""Kata week25/preemption_checkpoint: a signal, one step at which all stop, one checkpoint.

SLURM tells a job some time before it kills it, by a signal that reaches some of its processes, at
moments of their own. The handler makes a note. All ranks agree at the end of a step, in 4 bytes.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Protocol, Self

import torch
import torch.distributed as dist

REQUEUE = 75  # EX_TEMPFAIL of sysexits.h: come again
GRACE_S = {signal.SIGUSR1: 90.0, signal.SIGTERM: 30.0}


class Job(Protocol):
    """What is trained. Ranks take the same steps, and save together."""

    @property
    def step(self) -> int:
        """How many steps have been taken, those before a checkpoint that was loaded included."""

    def advance(self) -> None:
        """Take a step, which has collectives in it."""

    def save(self) -> None:
        """Write a checkpoint, with all other ranks."""


class PreemptionGuard:
    """
    Listens to signals while its block runs, and says when all ranks are to stop.

    Attributes:
        left_s: How long the ranks had left when they agreed to stop, the same on all; infinite
            until then.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        grace_s: Mapping[signal.Signals, float] = GRACE_S,
        check_every: int = 1,
        device: torch.device | str = "cpu",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Listen to nothing yet.

        Args:
            group: The ranks; all if not given.
            grace_s: Signals to listen to, and how long after each the process is killed.
            check_every: At which steps ranks ask each other: multiples of it.
            device: Where tensors that are sent belong.
            clock: This rank's; the others' may show another time.

        Raises:
            ValueError: `grace_s` is empty, or a time in it not above 0; `check_every` below 1.
        """
        # check
        if not grace_s or not all(seconds > 0 for seconds in grace_s.values()):
            raise ValueError(f"grace_s: expected signals with times above 0, found {grace_s}")
        if check_every < 1:
            raise ValueError(f"check_every: expected at least 1, found {check_every}")
        self.left_s = math.inf
        self._group, self._grace_s, self._check_every = group, {**grace_s}, check_every
        self._device, self._clock = device, clock
        self._deadlines: list[float] = []
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        """
        Begin to listen.

        Raises:
            RuntimeError: this is not the main thread, which alone hears signals.
        """
        # check
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("PreemptionGuard: expected the main thread, found another")
        # handlers
        for number in self._grace_s:
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the previous handlers."""
        # handlers
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def should_stop(self, step: int) -> bool:
        """
        Say whether to stop before the next step, `step` having been taken: the same on all ranks.

        All ranks call it, with the same steps. It sends 4 bytes if `step` is a multiple of
        `check_every`, and nothing otherwise or once the answer has been yes.
        """
        # agree on the time left
        if self.left_s < math.inf or step % self._check_every:
            return self.left_s < math.inf
        own = min(self._deadlines, default=math.inf) - self._clock()
        left = torch.tensor(own, dtype=torch.float32, device=self._device)
        dist.all_reduce(left, op=dist.ReduceOp.MIN, group=self._group)
        # not what this rank knows by now: a signal may have come in between
        self.left_s = left.item()
        return self.left_s < math.inf

    def _note(self, number: int, _frame: FrameType | None) -> None:
        # note the deadline
        # appended in one go: another signal may interrupt this one
        self._deadlines.append(self._clock() + self._grace_s[number])


def train(job: Job, guard: PreemptionGuard, *, steps: int, save_every: int, save_s: float) -> int:
    """
    Take steps until there have been `steps`, or until the guard, whose block runs, says to stop.

    Returns:
        0 if all steps have been taken, REQUEUE if not. Either way everything there was time to
        save has been saved, once.
    """
    # stop or step
    saved = job.step
    while job.step < steps:
        if guard.should_stop(job.step):
            # save
            # the time that all have agreed on: a save that some do not join never ends
            if job.step > saved and guard.left_s >= save_s:
                job.save()
            return REQUEUE
        job.advance()
        # save
        if job.step % save_every == 0 or job.step == steps:
            job.save()
            saved = job.step
    return 0
