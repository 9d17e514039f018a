"""What is right: a job whose weights are known at each step, and signals at chosen moments."""

import signal
import time

import torch
import torch.distributed as dist

from harness.meters.dispatch import OperatorWatch
from harness.simulators.ranks import rank_device

WARN, TERM = signal.SIGUSR2, signal.SIGTERM  # SIGUSR1 has a hung rank say where it is
GRACE_S = {WARN: 90.0, TERM: 30.0}
STEP_S = 10.0


class Clock:
    """
    A rank's own time, decades away from that of the others; a step takes ten seconds of it.

    So far from zero two minutes are lost in float32: a difference has to be taken before.

    `interrupt` is a signal that comes when it is next read, which a handler does.
    """

    def __init__(self, rank):
        self.now = 2.0**31 * rank
        self.interrupt = None

    def __call__(self):
        number, self.interrupt = self.interrupt, None
        if number is not None:
            signal.raise_signal(number)
        return self.now


def weights_at(step, world):
    """What the weights are after so many steps."""
    total = sum(range(1, world + 1)) * step * (step + 1) / 2
    return [total, -2.0 * total]


class Job:
    """
    Two weights, to which each rank adds at each step; signals come by `script`.

    `script` holds (rank, moment, step, signal): "before" a step, "within" it, between its two
    collectives, in a "save", or in the answer to a "question" of should_stop. `step` is how many
    steps have been taken then.
    """

    def __init__(self, rank, world, script=(), *, group=None, step=0, steps_sleep=0.0):
        self.step = step
        self.saves = []
        self.clock = Clock(rank)
        self._rank, self._world, self._group = rank, world, group
        self._weights = torch.tensor(weights_at(step, world), dtype=torch.float64)
        self._weights = self._weights.to(rank_device())
        self._script = {}
        for whose, moment, at, number in script:
            if whose == rank:
                self._script.setdefault((moment, at), []).append(number)
        self._sleep = steps_sleep

    def happens(self, moment):
        for number in self._script.pop((moment, self.step), []):
            signal.raise_signal(number)

    def advance(self):
        self.happens("before")
        if self._sleep:
            time.sleep(self._sleep)
        own = self._weights.new_tensor([1.0, -1.0]) * (self._rank + 1)
        dist.all_reduce(own, group=self._group)
        self.happens("within")
        factor = self._weights.new_tensor([1.0, 2.0]) * (self.step + 1) * (self._rank == 0)
        dist.all_reduce(factor, group=self._group)
        self._weights += own * factor
        self.step += 1
        self.clock.now += STEP_S

    def save(self):
        # a rank that does not join is waited for
        dist.all_reduce(torch.zeros(1, device=rank_device()), group=self._group)
        self.happens("save")
        self.saves.append((self.step, self._weights.tolist()))

    def asked(self):
        """Watch collectives within should_stop: a signal may come while they are under way."""
        return _Asked(self)


class _Asked(OperatorWatch):
    def __init__(self, job):
        super().__init__()
        self._job = job

    def run(self, func, args, kwargs):
        if func.namespace == "c10d":
            self._job.happens("question")
        return func(*args, **kwargs)


# what happens (rank, moment, step, signal), options of guard and train, and what comes of it:
# whether the job is over, after how many steps, the steps saved, and the time left when it ended
SCENARIOS = {
    "no signal": ((), {}, (True, 9, [4, 8, 9], None)),
    "one rank, within a step": (((1, "within", 2, WARN),), {}, (False, 3, [3], 80)),
    "one rank, before the first step": (((1, "before", 0, WARN),), {}, (False, 1, [1], 80)),
    "all ranks, at steps of their own": (
        ((0, "within", 5, WARN), (1, "before", 2, WARN), (1, "within", 2, WARN),
         (0, "save", 4, TERM)), {}, (False, 3, [3], 80),
    ),
    "in a save": (((0, "save", 4, WARN),), {}, (False, 4, [4], 90)),
    "in a save, looked at later": (((0, "save", 4, WARN),), {"check_every": 3},
                                   (False, 6, [4, 6], 70)),
    "SIGTERM in the save that ends it": (((1, "within", 2, WARN), (0, "save", 3, TERM)), {},
                                         (False, 3, [3], 80)),
    "in the last step": (((1, "within", 8, WARN),), {}, (True, 9, [4, 8, 9], None)),
    "in the last save": (((1, "save", 9, TERM),), {}, (True, 9, [4, 8, 9], None)),
    "while ranks ask each other": (((1, "question", 2, WARN),), {}, (False, 3, [3], 80)),
    "asked every fifth step": (((1, "within", 1, WARN),), {"check_every": 5},
                               (False, 5, [4, 5], 50)),
    "asked too late": (((0, "within", 5, WARN),), {"check_every": 5}, (True, 9, [4, 8, 9], None)),
    "just enough time": (((1, "within", 1, WARN),), {"check_every": 3, "save_s": 70.0},
                         (False, 3, [3], 70)),
    "not quite enough time": (((1, "within", 1, WARN),), {"check_every": 3, "save_s": 70.5},
                              (False, 3, [], 70)),
    "no time any more": (((1, "before", 0, TERM),), {"check_every": 6, "save_s": 0.0},
                         (False, 6, [4], -30)),
    "exactly no time any more": (((1, "before", 0, TERM),), {"check_every": 3, "save_s": 0.0},
                                 (False, 3, [3], 0)),
    "SIGTERM after a warning": (((1, "before", 0, WARN), (1, "within", 4, TERM)),
                                {"check_every": 5}, (False, 5, [4, 5], 20)),
    "SIGTERM to another": (((1, "before", 0, WARN), (0, "within", 4, TERM)), {"check_every": 5},
                           (False, 5, [4, 5], 20)),
    "a warning after SIGTERM": (((1, "before", 1, TERM), (1, "within", 2, WARN)),
                                {"check_every": 3}, (False, 3, [3], 10)),
    "the same signal twice": (((1, "before", 0, WARN), (1, "within", 4, WARN)),
                              {"check_every": 5}, (False, 5, [4, 5], 40)),
    "it goes on": (((1, "within", 6, WARN),), {"step": 5}, (False, 7, [7], 80)),
    "it goes on, asked every third step": (((1, "within", 5, WARN),),
                                           {"step": 5, "check_every": 3}, (False, 6, [6], 80)),
    "before it goes on": ((), {"step": 5, "at_once": WARN}, (False, 5, [], 90)),
    "before it begins": ((), {"at_once": WARN}, (False, 0, [], 90)),
    "a last step that is saved anyway": ((), {"steps": 8}, (True, 8, [4, 8], None)),
    "in the last step but one": (((1, "within", 7, TERM),), {}, (False, 8, [4, 8], 20)),
    "SIGTERM while a warning is noted": ((), {"at_once": WARN, "interrupt": TERM},
                                         (False, 0, [], 30)),
    "nothing left to do": ((), {"step": 9, "at_once": WARN}, (True, 9, [], None)),
}  # fmt: skip
